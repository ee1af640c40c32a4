//! The performers layer on a real API server, under the chart's ServiceAccount and rights.

mod condition;
mod crd;
mod harness;
mod lifecycle;
mod log;
mod observe;
mod pod;
mod service;
mod status;
