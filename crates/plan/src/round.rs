//! What one round intends, what became of it, and what is reported: the same data for every controller.
//!
//! ```text
//! plan(&object, &Observed, &Inputs, now) → Plan { wants, steps, blocked, next_look }
//!   … runtime fetches wants and executes steps; each step ends with a Progress …
//! report(&Round, now)                    → Report { status, events, note }
//! ```

use std::borrow::Cow;
use std::time::Duration;

use api::condition::Reason;
use serde::{Deserialize, Serialize};

use crate::event::Event;
use crate::fact::{Class, Fact, Facts, Never, Want};

/// What one round intends.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a plan does nothing until it is executed"]
pub struct Plan<A, Q = Never> {
    /// Facts without which the plan cannot be finished. Runtime gets them outside the round and plans again.
    pub wants: Vec<Want<Q>>,
    /// In order.
    pub steps: Vec<Step<A, Q>>,
    /// Why the object is not where it should be when neither a step nor waiting helps, the most important first.
    pub blocked: Vec<Why>,
    /// Objects that are blocked by themselves while the rest goes on, the most important first.
    pub blocked_objects: Vec<BlockedObject>,
    /// When to plan again even if no event arrives; `None` leaves it to events and the resync.
    pub next_look: Option<Duration>,
}

impl<A, Q> Default for Plan<A, Q> {
    fn default() -> Self {
        let (wants, steps) = (Vec::new(), Vec::new());
        Self { wants, steps, blocked: Vec::new(), blocked_objects: Vec::new(), next_look: None }
    }
}

impl<A, Q> Plan<A, Q> {
    /// Adds a step that talks to the API server and needs no other.
    pub fn push(&mut self, action: A) -> StepId {
        self.push_step(Step::new(action))
    }

    /// Adds a step that needs every step that is there.
    pub fn push_after_all(&mut self, step: Step<A, Q>) {
        let before = (0..self.steps.len()).map(StepId);
        self.steps.push(step.needs(before));
    }

    pub fn push_step(&mut self, step: Step<A, Q>) -> StepId {
        self.steps.push(step);
        StepId(self.steps.len() - 1)
    }

    pub fn actions(&self) -> impl Iterator<Item = &A> {
        self.steps.iter().map(|step| &step.action)
    }

    /// Asks for a look after `wait` at the latest.
    pub fn look_within(&mut self, wait: Duration) {
        self.next_look = Some(self.next_look.map_or(wait, |earlier| earlier.min(wait)));
    }

    /// Adds a reason behind those that are there.
    pub fn block(&mut self, reason: Reason, message: impl Into<String>) {
        self.blocked.push(Why { reason, message: message.into() });
    }
}

impl<A, Q: Clone + PartialEq> Plan<A, Q> {
    /// The fact, or `None` and a want for it.
    pub fn want<'a, F>(&mut self, facts: &'a Facts<Q, F>, ask: Q, max_age: Duration) -> Option<&'a Fact<F>> {
        let found = facts.get(&ask);
        // Also a fact that is there is named: the plan rests on it for as long as it needs it.
        if !self.wants.iter().any(|want| want.ask == ask) {
            self.wants.push(Want { ask, max_age });
        }
        found
    }
}

/// The place of a step in its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepId(pub(crate) usize);

impl StepId {
    pub fn index(self) -> usize {
        self.0
    }
}

/// One idempotent effect and its conditions.
#[derive(Clone, Debug, PartialEq)]
pub struct Step<A, Q = Never> {
    pub action: A,
    /// Steps that must be done before; if one is not, this one is skipped.
    pub needs: Vec<StepId>,
    /// Facts, with their greatest age, that are checked again just before the step begins.
    pub rests_on: Vec<Want<Q>>,
    /// Facts that are no longer true once the step begins.
    pub spoils: Vec<Q>,
    pub peer: Peer,
    /// The status that says so is stored before the step begins; if it cannot be stored, the step does not begin.
    pub announced: bool,
    /// Runs beside the rounds: the round only hands it over. Its action says what it takes and how long it may.
    pub is_job: bool,
}

impl<A, Q> Step<A, Q> {
    pub fn new(action: A) -> Self {
        let (needs, rests_on, spoils) = (Vec::new(), Vec::new(), Vec::new());
        Self { action, needs, rests_on, spoils, peer: Peer::API_SERVER, announced: false, is_job: false }
    }

    #[must_use]
    pub fn needs(mut self, steps: impl IntoIterator<Item = StepId>) -> Self {
        self.needs.extend(steps);
        self
    }

    #[must_use]
    pub fn rests_on(mut self, ask: Q, max_age: Duration) -> Self {
        self.rests_on.push(Want { ask, max_age });
        self
    }

    #[must_use]
    pub fn spoils(mut self, asks: impl IntoIterator<Item = Q>) -> Self {
        self.spoils.extend(asks);
        self
    }

    #[must_use]
    pub fn to(mut self, peer: Peer) -> Self {
        self.peer = peer;
        self
    }

    #[must_use]
    pub fn announced(mut self) -> Self {
        self.announced = true;
        self
    }

    #[must_use]
    pub fn as_job(mut self) -> Self {
        self.is_job = true;
        self
    }
}

/// Whom a step talks to. A peer that does not answer gets no further requests in the same round.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Peer(pub Cow<'static, str>);

impl Peer {
    pub const API_SERVER: Self = Self(Cow::Borrowed("kube-apiserver"));
}

/// Why something is as it is: a word for programs and a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Why {
    pub reason: Reason,
    pub message: String,
}

/// One of several objects that a plan is about, and why it is as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedObject {
    /// In the words of the controller, for example kind and name.
    pub object: String,
    pub why: Why,
}

/// What became of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress<D = ()> {
    /// The round has not reached it.
    NotBegun,
    /// It is about to begin: the status that says so is being stored.
    Begun,
    /// Done, found done already, or handed over to run beside the rounds.
    Done(D),
    /// The peer does not want it as it is; trying at once would not help.
    Refused(Refusal),
    /// Anything that may pass: conflict, time-out, server error.
    Failed { class: Class, retry: Option<Duration>, message: String },
    /// A step it needs is not done, its peer does not answer, a fact it rests on changed, or its status was not stored.
    Skipped,
}

impl<D> Progress<D> {
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }
}

/// Why a peer does not want something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Quota, admission, validation, a missing right: in the server's words.
    Rejected(String),
    /// The namespace is being deleted; nothing can be created there.
    NamespaceTerminating,
    /// The executor knows better than the server's words.
    Because(Why),
}

/// What a round knows beside what it observed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inputs<N = (), Q = Never, F = Never> {
    pub facts: Facts<Q, F>,
    /// What the last report asked to remember; lost with the process.
    pub note: N,
}

impl<N: Default, Q, F> Default for Inputs<N, Q, F> {
    fn default() -> Self {
        Self { facts: Facts::default(), note: N::default() }
    }
}

/// One round after its steps: everything that a report is computed from.
#[derive(Clone, Copy, Debug)]
pub struct Round<'a, K, O, A, D = (), N = (), Q = Never, F = Never> {
    /// With the status that is stored now.
    pub object: &'a K,
    pub observed: &'a O,
    pub inputs: &'a Inputs<N, Q, F>,
    pub plan: &'a Plan<A, Q>,
    /// One for each step.
    pub progress: &'a [Progress<D>],
}

impl<'a, K, O, A, D, N, Q, F> Round<'a, K, O, A, D, N, Q, F> {
    /// Every action with what became of it.
    pub fn attempts(&self) -> impl Iterator<Item = (&'a A, &'a Progress<D>)> + use<'a, K, O, A, D, N, Q, F> {
        self.plan.steps.iter().map(|step| &step.action).zip(self.progress)
    }

    /// The actions that are done.
    pub fn done(&self) -> impl Iterator<Item = (&'a A, &'a D)> + use<'a, K, O, A, D, N, Q, F> {
        self.attempts().filter_map(|(action, progress)| match progress {
            Progress::Done(done) => Some((action, done)),
            _ => None,
        })
    }

    pub fn is_namespace_terminating(&self) -> bool {
        self.progress.iter().any(|progress| matches!(progress, Progress::Refused(Refusal::NamespaceTerminating)))
    }
}

/// What to say about a round, and what to remember of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Report<S, N = ()> {
    /// Written only if it differs from the stored one.
    pub status: S,
    /// To be stored where an older definition refuses `status`.
    pub fallback: Option<S>,
    /// Says no more than that all goes well so far. While a backlog of other objects waits it is stored a moment later:
    /// what it waits for may have happened by then, which saves a write.
    pub is_provisional: bool,
    /// What was done: recorded in any case.
    pub done: Vec<Event>,
    /// What changed: recorded once the status that shows it is stored.
    pub transitions: Vec<Event>,
    /// Distinguishes these events from others with the same words, for example a pod's uid.
    pub discriminator: String,
    /// For the closing line of the log.
    pub phase: String,
    /// Kept by runtime for the next round of the object.
    pub note: N,
}
