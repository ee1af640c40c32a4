//! The performers layer on a real API server, under the chart's ServiceAccount and rights.

mod harness;
mod lifecycle;
