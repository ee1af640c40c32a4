//! What a server is at the moment, for those that ask from outside.

use std::{
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwapOption;

use super::{run::Bound, term::Term};
use crate::store::Lead;

/// Clones speak of the same server.
#[derive(Clone, Default)]
pub struct Standing(Arc<Inner>);

#[derive(Default)]
struct Inner {
    loaded: AtomicBool,
    election: OnceLock<SocketAddr>,
    bound: ArcSwapOption<Bound>,
    shard: ArcSwapOption<Lead>,
    cluster: ArcSwapOption<Lead>,
    term: ArcSwapOption<Term>,
    groups_damaged: AtomicBool,
}

impl Standing {
    /// Whether a configuration was read: without one the server can never lead.
    pub fn is_loaded(&self) -> bool {
        self.0.loaded.load(Ordering::Relaxed)
    }

    pub fn leads_shard(&self) -> bool {
        self.0.shard.load().as_deref().is_some_and(Lead::is_valid)
    }

    /// Only a shard's leader leads the cluster.
    pub fn leads_cluster(&self) -> bool {
        self.leads_shard() && self.0.cluster.load().as_deref().is_some_and(Lead::is_valid)
    }

    /// Where the election port is, once it is open.
    pub fn election(&self) -> Option<SocketAddr> {
        self.0.election.get().copied()
    }

    /// Where it serves clients, while it leads.
    pub fn bound(&self) -> Option<Bound> {
        self.0.bound.load().as_deref().copied().filter(|_| self.leads_shard())
    }

    /// How many records in storage cannot be read, while it leads.
    pub fn damaged(&self) -> usize {
        self.0.term.load().as_deref().map_or(0, Term::damaged)
    }

    /// Of how many groups it is not known what they should be, while it leads.
    pub fn unknown_groups(&self) -> usize {
        self.0.term.load().as_deref().map_or(0, Term::unknown_groups)
    }

    /// Whether the file of groups is missing or cannot be read: of a leader, and of a server that could not lead for it.
    pub fn groups_damaged(&self) -> bool {
        let found = || self.0.groups_damaged.load(Ordering::Relaxed);
        self.0.term.load().as_deref().map_or_else(found, Term::groups_damaged)
    }

    /// What a server found that was about to lead.
    pub(super) fn set_groups_damaged(&self, damaged: bool) {
        self.0.groups_damaged.store(damaged, Ordering::Relaxed);
    }

    pub(super) fn set_term(&self, term: Option<Arc<Term>>) {
        self.0.term.store(term);
    }

    pub(super) fn set_loaded(&self) {
        self.0.loaded.store(true, Ordering::Relaxed);
    }

    pub(super) fn set_election(&self, address: SocketAddr) {
        // One server opens it once.
        let _ = self.0.election.set(address);
    }

    pub(super) fn set_bound(&self, bound: Option<Bound>) {
        self.0.bound.store(bound.map(Arc::new));
    }

    pub(super) fn set_shard(&self, lead: Option<&Lead>) {
        self.0.shard.store(lead.cloned().map(Arc::new));
    }

    pub(super) fn set_cluster(&self, lead: Option<Lead>) {
        self.0.cluster.store(lead.map(Arc::new));
    }
}
