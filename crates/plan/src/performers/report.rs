//! The whole status of a Performer, computed from what is observed.

use api::condition::{Condition, ConditionStatus, ConditionType, Reason};
use api::performer::{DEFAULT_GRPC_PORT, FINALIZER, Performer, PerformerStatus, Phase, grpc_endpoint};
use jiff::Timestamp;

use super::decide::{is_announced, is_other_release};
use super::event::{of_actions, of_change};
use super::problem::{of_deletion, problem};
use super::{Action, Created, Desired, Identity, Invalid, Note, Observed, PodFacts, PodPhase, Policy, Slot, validate};
use crate::Why;
use crate::message::steady;
use crate::round::{Plan, Progress, Refusal, Report};

/// What the installed CRD allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Capabilities {
    /// Whether `status.phase` may be `Unknown`; the published schema refuses it.
    phase_unknown: bool,
}

/// A round as the controller sees it.
pub type RoundOf<'a> = crate::round::Round<'a, Performer, Observed, Action, Created, Note>;

/// The whole report of a round.
pub fn report(round: &RoundOf<'_>, now: Timestamp, policy: &Policy) -> Report<PerformerStatus, Note> {
    let after = round.observed.after(round.plan, round.progress, now);
    let round = Round { performer: round.object, observed: &after, plan: round.plan, progress: round.progress, policy };
    let status = status(&round, now, Capabilities { phase_unknown: true });
    let is_unknown = status.phase == Some(Phase::Unknown);
    let fallback = is_unknown.then(|| self::status(&round, now, Capabilities { phase_unknown: false }));
    Report {
        done: of_actions(&round),
        transitions: of_change(round.performer.status.as_ref(), &status).into_iter().collect(),
        discriminator: after.pod.ours().map(|pod| pod.uid.to_string()).unwrap_or_default(),
        phase: status.phase.map_or("", Phase::as_str).to_owned(),
        note: Note { replacements: after.replacements, ages: after.ages.after(round.progress) },
        is_provisional: is_provisional(&round, &status),
        status,
        fallback,
    }
}

/// Whether it is the first status and says only that the pod is awaited, after a round in which nothing failed.
fn is_provisional(round: &Round<'_>, status: &PerformerStatus) -> bool {
    let is_degraded = status.condition(ConditionType::Degraded).is_none_or(|c| c.status != ConditionStatus::False);
    let is_first = round.performer.status.is_none() && status.phase == Some(Phase::Pending);
    is_first && !is_degraded && !round.left(|_| true)
}

/// One round after its steps: everything the status is computed from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round<'a> {
    pub performer: &'a Performer,
    /// As the steps left it, see [`Observed::after`].
    pub observed: &'a Observed,
    pub plan: &'a Plan<Action>,
    pub progress: &'a [Progress<Created>],
    pub policy: &'a Policy,
}

impl Round<'_> {
    fn is_deletion(&self) -> bool {
        self.performer.metadata.deletion_timestamp.is_some()
    }

    fn did(&self, is_meant: impl Fn(&Action) -> bool) -> bool {
        self.plan.actions().zip(self.progress).any(|(action, progress)| progress.is_done() && is_meant(action))
    }

    /// Whether such an action was planned and is not done: tried in vain, or not even reached.
    pub(super) fn left(&self, is_meant: impl Fn(&Action) -> bool) -> bool {
        self.plan.actions().zip(self.progress).any(|(action, progress)| !progress.is_done() && is_meant(action))
    }

    /// Whether there is nothing to report, or no object to report it on.
    fn is_mute(&self) -> bool {
        let is_unread = self.observed.pod == Slot::Unknown
            || self.observed.service == Slot::Unknown
            || self.observed.is_outdated(self.performer);
        let finalizers = self.performer.metadata.finalizers.as_deref().unwrap_or_default();
        let is_released =
            !finalizers.iter().any(|f| f == FINALIZER) || self.did(|a| matches!(a, Action::ReleaseFinalizer { .. }));
        let is_ending = |progress: &Progress<_>| matches!(progress, Progress::Refused(Refusal::NamespaceTerminating));
        is_unread || self.progress.iter().any(is_ending) || (self.is_deletion() && is_released)
    }
}

/// The status to store; equal to the stored one when there is nothing to say.
fn status(round: &Round<'_>, now: Timestamp, capabilities: Capabilities) -> PerformerStatus {
    let former = round.performer.status.clone().unwrap_or_default();
    if round.is_mute() {
        return former;
    }
    // Kubernetes times have whole seconds; a finer one would differ from itself once read back.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    View::new(round, now).report(former, capabilities)
}

/// The round seen from the status: who is there and what is under way.
struct View<'a> {
    round: &'a Round<'a>,
    now: Timestamp,
    identity: Identity,
    checked: Result<Desired, Invalid>,
    /// Our pod, unless it is going.
    pod: Option<&'a PodFacts>,
    /// The pod makes way for another, or did and that one is not ready yet.
    is_replacing: bool,
    /// An image or version change is under way.
    is_upgrading: bool,
    /// … and this round found it first: the pod that it replaces.
    outgoing: Option<&'a PodFacts>,
    is_ready: bool,
}

impl<'a> View<'a> {
    fn new(round: &'a Round<'a>, now: Timestamp) -> Self {
        let checked = validate(round.performer);
        let former = round.performer.status.as_ref();
        let present = round.observed.pod.ours();
        let pod = present.filter(|p| p.deletion.is_none());
        let is_up = pod.is_some_and(PodFacts::is_up);
        let outdated = present.filter(|p| checked.as_ref().is_ok_and(|desired| is_other_release(p, desired)));
        // Remembered, both: between the two pods nothing observable shows a replacement or upgrade.
        let begun = former.and_then(|s| s.condition(ConditionType::Progressing)).filter(|c| {
            c.status == ConditionStatus::True && c.observed_generation == round.performer.metadata.generation
        });
        let is_replacing = match begun.map(|c| c.reason) {
            Some(Reason::PodReplaced) => true,
            // A pod replaced before it was ever ready is no news: until then one reason is kept.
            Some(Reason::Scheduled) => false,
            _ => present.is_some_and(|p| p.deletion.is_some()),
        };
        let is_unfinished = former.is_some_and(|s| s.phase == Some(Phase::Upgrading)) && !is_up;
        let is_upgrading = !round.is_deletion() && checked.is_ok() && (outdated.is_some() || is_unfinished);
        Self {
            round,
            now,
            identity: Identity::of(round.performer),
            checked,
            pod,
            is_replacing,
            is_upgrading,
            outgoing: outdated.filter(|p| is_upgrading && !is_announced(former, p)),
            // The old pod's readiness must not pass for the new one's.
            is_ready: is_up && !is_upgrading && !round.is_deletion(),
        }
    }

    fn report(&self, former: PerformerStatus, capabilities: Capabilities) -> PerformerStatus {
        let ready_time = self.ready_time(former.ready_time);
        PerformerStatus {
            phase: Some(self.phase(capabilities)),
            ready: self.is_ready,
            pod_name: self.round.observed.pod.ours().map(|_| self.identity.owned_name()),
            service_name: self.is_nameable().then(|| self.identity.owned_name()),
            grpc_endpoint: self.endpoint(former.grpc_endpoint),
            last_upgrade: match self.outgoing {
                // Never before the pod it replaces, whatever the clocks say: see `is_announced`.
                Some(pod) => Some(self.now).max(pod.created_at),
                None => former.last_upgrade,
            },
            ready_time,
            conditions: self.conditions(&former.conditions, ready_time),
        }
    }

    fn phase(&self, capabilities: Capabilities) -> Phase {
        if self.round.is_deletion() {
            return Phase::Terminating;
        }
        if self.is_upgrading {
            return Phase::Upgrading;
        }
        match self.pod.map(|pod| pod.phase) {
            Some(PodPhase::Running) if self.is_ready => Phase::Running,
            None | Some(PodPhase::Pending | PodPhase::Running) => Phase::Pending,
            Some(PodPhase::Succeeded | PodPhase::Unknown) if capabilities.phase_unknown => Phase::Unknown,
            Some(PodPhase::Failed | PodPhase::Succeeded | PodPhase::Unknown) => Phase::Failed,
        }
    }

    /// When the present pod first was ready. A time from before it was created is its predecessor's.
    fn ready_time(&self, former: Option<Timestamp>) -> Option<Timestamp> {
        let pod = self.pod.filter(|_| !self.is_upgrading && !self.round.is_deletion())?;
        let is_new = self.round.did(|a| matches!(a, Action::CreatePod(_)));
        let kept = former.filter(|at| !is_new && Some(*at) >= pod.created_at);
        kept.or_else(|| {
            // Not before the pod's creation even if the node's clock is behind, or it would not be kept.
            self.is_ready.then(|| pod.ready_changed_at.unwrap_or(self.now).max(pod.created_at.unwrap_or(self.now)))
        })
    }

    fn is_nameable(&self) -> bool {
        !matches!(&self.checked, Err(invalid) if invalid.reason == Reason::InvalidName)
    }

    fn endpoint(&self, former: Option<String>) -> Option<String> {
        let at = |port| grpc_endpoint(&self.identity.name, &self.identity.namespace, port);
        match &self.checked {
            Ok(desired) => Some(at(desired.grpc_port)),
            Err(_) if !self.is_nameable() => None,
            Err(_) => former.or_else(|| Some(at(DEFAULT_GRPC_PORT))),
        }
    }

    /// In this order, because the executor shows the message of the last one.
    fn conditions(&self, former: &[Condition], ready_time: Option<Timestamp>) -> Vec<Condition> {
        let course = self.course(ready_time);
        let problem = self.problem();
        let (is_progressing, progress) = match &problem {
            // These wait for a person.
            Some(t) if matches!(t.reason, Reason::NameTaken | Reason::InvalidName | Reason::InvalidSpec) => {
                (false, t.clone())
            }
            _ => (!matches!(course.reason, Reason::PodReady | Reason::PodNotReady), course.clone()),
        };
        let is_available = self.is_ready && problem.is_none();
        let blocking = problem.clone().unwrap_or_else(|| course.clone());
        let degraded = problem.clone().unwrap_or(course);
        vec![
            self.condition(ConditionType::Progressing, is_progressing, progress, former),
            self.condition(ConditionType::Degraded, problem.is_some(), degraded, former),
            self.condition(ConditionType::Available, is_available, blocking, former),
        ]
    }

    fn problem(&self) -> Option<Why> {
        if self.round.is_deletion() {
            return of_deletion(self.round);
        }
        let wanted = self.pod.filter(|p| self.checked.as_ref().is_ok_and(|desired| !is_other_release(p, desired)));
        problem(self.round, self.checked.as_ref().ok(), &self.identity, wanted)
    }

    /// What is going on, apart from problems. The words stay the same from the pod's creation, or its
    /// predecessor's deletion, to just before it is ready, so that a normal start or replacement is
    /// reported twice and no more.
    fn course(&self, ready_time: Option<Timestamp>) -> Why {
        const ORDER: &str = "the operator creates the new one once the old one is gone";
        let name = self.identity.owned_name();
        let (reason, message) = if self.round.is_deletion() {
            (Reason::Terminating, format!("Pod and Service {name} are being removed"))
        } else if self.is_upgrading {
            let by = " by one of the new image or version";
            (Reason::UpgradeInProgress, format!("Pod {name} is being replaced{by}: {ORDER}"))
        } else if self.is_ready {
            (Reason::PodReady, "Performer pod is ready and running".to_owned())
        } else if ready_time.is_some() {
            (Reason::PodNotReady, format!("Pod {name} was ready and is no longer ready"))
        } else if self.is_replacing {
            (Reason::PodReplaced, format!("Pod {name} is being replaced: {ORDER}"))
        } else {
            (Reason::Scheduled, format!("Waiting for pod {name} to become ready"))
        };
        Why { reason, message }
    }

    fn condition(&self, kind: ConditionType, holds: bool, why: Why, former: &[Condition]) -> Condition {
        let status = if holds { ConditionStatus::True } else { ConditionStatus::False };
        let observed_generation = self.round.performer.metadata.generation;
        let before = former.iter().find(|c| c.kind == kind);
        let same_status = before.filter(|c| c.status == status);
        let same_reason =
            same_status.filter(|c| c.reason == why.reason && c.observed_generation == observed_generation);
        Condition {
            kind,
            status,
            observed_generation,
            last_transition_time: same_status.map_or(self.now, |c| c.last_transition_time),
            reason: why.reason,
            message: steady(same_reason.map(|c| c.message.as_str()), why.message),
        }
    }
}
