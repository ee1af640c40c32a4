//! Every decision strata takes, as pure functions of data: no client, no clock, no environment.
//! A live round, a golden test and a saved snapshot are the same input.

use std::time::Duration;

use api::condition::Reason;
pub use round::Blocked as Why;

pub mod event;
pub mod fact;
pub mod object;
pub mod performers;
pub mod releases;
pub mod round;
pub mod workspaces;

/// What one round intends.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a plan does nothing until it is executed"]
pub struct Plan<A> {
    /// In order. A failure ends the round's actions, unless the layer knows that the others do not need that one.
    pub actions: Vec<A>,
    /// Why the object is not where it should be when neither an action here nor waiting helps. The
    /// status reports it.
    pub blocked: Option<Why>,
    /// When to plan again even if no watch event arrives; `None` leaves it to events and the resync.
    pub next_look: Option<Duration>,
}

impl<A> Default for Plan<A> {
    fn default() -> Self {
        Self { actions: Vec::new(), blocked: None, next_look: None }
    }
}

impl<A> Plan<A> {
    /// Asks for a look after `wait` at the latest.
    fn look_within(&mut self, wait: Duration) {
        self.next_look = Some(self.next_look.map_or(wait, |earlier| earlier.min(wait)));
    }

    /// Says what is in the way, unless something before it is.
    fn block(&mut self, reason: Reason, message: impl Into<String>) {
        self.blocked.get_or_insert_with(|| Why { reason, message: message.into() });
    }
}
