//! Conditions with stable times and messages.

use api::condition::{Condition, ConditionStatus, ConditionType, Reason};
use jiff::{Timestamp, TimestampRound, Unit};

use crate::event::{Event, EventKind};
use crate::message::steady;

/// Makes the conditions of one object from those that it had.
pub(super) struct Conditions<'a, R> {
    former: &'a [Condition<R>],
    generation: Option<i64>,
    now: Timestamp,
}

impl<'a, R: PartialEq + From<Reason>> Conditions<'a, R> {
    pub(super) fn new(former: &'a [Condition<R>], generation: Option<i64>, now: Timestamp) -> Self {
        Self { former, generation, now: whole_seconds(now) }
    }

    pub(super) fn former(&self, kind: ConditionType) -> Option<&'a Condition<R>> {
        self.former.iter().find(|condition| condition.kind == kind)
    }

    pub(super) fn make(
        &self,
        kind: ConditionType,
        status: ConditionStatus,
        reason: impl Into<R>,
        message: impl Into<String>,
    ) -> Condition<R> {
        let reason = reason.into();
        let former = self.former(kind);
        let same = former.filter(|condition| condition.reason == reason).map(|condition| condition.message.as_str());
        Condition {
            kind,
            status,
            observed_generation: self.generation,
            last_transition_time: former
                .filter(|condition| condition.status == status)
                .map_or(self.now, |condition| condition.last_transition_time),
            message: steady(same, message.into()),
            reason,
        }
    }

    /// Whether the object, or its Cluster, is paused.
    pub(super) fn paused(&self, is_paused: bool) -> Condition<R> {
        let (status, reason, message) = if is_paused {
            (
                ConditionStatus::True,
                Reason::Paused,
                "the object, its owner or its Cluster is paused; nothing is changed",
            )
        } else {
            (ConditionStatus::False, Reason::NotPaused, "neither the object nor its owner nor its Cluster is paused")
        };
        self.make(ConditionType::Paused, status, reason, message)
    }

    /// Those of a paused object: nothing is changed but the word about it.
    pub(super) fn held(&self) -> Vec<Condition<R>>
    where
        R: Clone,
    {
        let others = self.former.iter().filter(|condition| condition.kind != ConditionType::Paused);
        others.cloned().chain([self.paused(true)]).collect()
    }
}

/// Kubernetes times have whole seconds; a finer one would differ from itself once read back.
pub(super) fn whole_seconds(time: Timestamp) -> Timestamp {
    time.round(TimestampRound::new().smallest(Unit::Second).mode(jiff::RoundMode::Trunc)).unwrap_or(time)
}

/// The event of a condition that turned: a reason it did not have before.
pub(super) fn turned(
    former: Option<&Condition>,
    condition: &Condition,
    kind: EventKind,
    action: &'static str,
) -> Option<Event> {
    let is_same = former.is_some_and(|former| former.reason == condition.reason && former.status == condition.status);
    (!is_same).then(|| Event { kind, reason: condition.reason.as_str(), action, note: condition.message.clone() })
}
