//! The performers layer on a real API server, under the chart's ServiceAccount and rights.

mod fault;
mod harness;
mod lifecycle;
mod scene;
mod view;
