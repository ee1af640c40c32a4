//! The performers layer on a real API server, under the chart's ServiceAccount and rights.

#![allow(clippy::needless_pass_by_value, reason = "tests hand over JSON literals")]

mod admin;
mod admission;
mod clock;
mod cluster;
mod condition;
mod crd;
mod defaults;
mod deletion;
mod event;
mod executor;
mod failure;
mod fairness;
mod fault;
mod foreign;
mod garbage;
mod harness;
mod lifecycle;
mod log;
mod pod;
mod published;
mod real_node;
mod restart;
mod scale;
mod service;
mod settled;
mod status;
mod turn;
mod upgrade;
mod view;
mod webhook;

use harness::{observe, scene};
