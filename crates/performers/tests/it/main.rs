//! The performers layer on a real API server, under the chart's ServiceAccount and rights.

mod admin;
mod condition;
mod crd;
mod deletion;
mod event;
mod executor;
mod failure;
mod fault;
mod foreign;
mod harness;
mod lifecycle;
mod log;
mod observe;
mod pod;
mod published;
mod real_node;
mod scene;
mod service;
mod settled;
mod status;
mod upgrade;
mod view;
