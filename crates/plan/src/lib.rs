//! Every decision strata takes, as pure functions of data: no client, no clock, no environment.
//! A live round, a golden test and a saved snapshot are the same input.

use std::time::Duration;

use api::condition::Reason;

pub mod performers;

/// What one round intends.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a plan does nothing until it is executed"]
pub struct Plan<A> {
    /// In order; each needs all before it, so a failure ends the round's actions.
    pub actions: Vec<A>,
    /// Why the object is not where it should be and no action here helps.
    pub blocked: Vec<Blocked>,
    /// When to plan again even if nothing is heard; `None` leaves it to events and the resync.
    pub next_look: Option<Duration>,
}

impl<A> Default for Plan<A> {
    fn default() -> Self {
        Self { actions: Vec::new(), blocked: Vec::new(), next_look: None }
    }
}

impl<A> Plan<A> {
    /// Asks for a look after `wait` at the latest.
    fn look_within(&mut self, wait: Duration) {
        self.next_look = Some(self.next_look.map_or(wait, |earlier| earlier.min(wait)));
    }

    fn block(&mut self, reason: Reason, message: impl Into<String>) {
        self.blocked.push(Blocked { reason, message: message.into() });
    }
}

/// Why something is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    pub reason: Reason,
    /// For people: what is in the way and what to do.
    pub message: String,
}
