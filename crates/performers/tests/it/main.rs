//! The performers layer on a real API server, under the chart's ServiceAccount and rights.

mod condition;
mod crd;
mod fault;
mod harness;
mod lifecycle;
mod log;
mod observe;
mod pod;
mod scene;
mod service;
mod status;
mod view;
