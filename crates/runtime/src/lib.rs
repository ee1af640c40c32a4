//! How any controller of strata runs: watch → cache → queue → gather → plan → execute → status.
//!
//! A layer implements [`Controller`] and hands it to an [`Operator`] together with the kinds it watches; everything else,
//! from leadership to metrics, is the same for all layers.

mod alone;
pub mod child;
mod client;
mod cluster;
mod clusters;
mod controller;
mod driver;
mod dynamic;
mod error;
mod event;
mod facts;
mod fence;
mod followers;
mod hub;
mod index;
mod interruption;
pub mod jobs;
mod kept;
mod key;
mod kind;
mod kubeconfig;
mod layer;
mod lease;
mod lines;
mod metrics;
mod operator;
mod queue;
mod raw;
pub mod rights;
#[cfg(test)]
mod scripted;
mod selection;
mod server_clock;
mod slots;
mod slow;
pub mod source;
mod store;
mod subject;
mod view;
mod watch;
mod writer;

pub use alone::{Alone, alone};
pub use client::{connect, connect_command};
pub use cluster::{Cluster, Following, Freshness};
pub use clusters::Clusters;
pub use controller::{Controller, InputsOf, RoundOf, Turn};
pub use dynamic::{DynamicWatches, Trace};
pub use error::{Class, Error};
pub use event::{Occurrence, Recorder};
pub use fence::Fence;
pub use index::Index;
pub use kept::{Kept, Packed};
pub use key::Key;
pub use kind::{Change, Deleted, Kind, enqueue_on_watch};
pub use kubeconfig::{KubeconfigError, client as client_of_kubeconfig, cluster_of, config as config_of_kubeconfig};
pub use layer::LayerSpec;
pub use lease::{Leadership, LeaseConfig};
pub use metrics::Metrics;
pub use operator::{Addresses, Fatal, Operator, Settings};
pub use queue::{Depth, Queue};
pub use selection::Selection;
pub use server_clock::ServerClock;
pub use slots::Slots;
pub use store::{Changed, Store, Versioned};
pub use subject::Subject;
pub use view::{Json, Live, Metadata, Parts, View, lean_metadata, readable};
pub use watch::ListMode;
pub use writer::Writer;
