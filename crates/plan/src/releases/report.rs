//! The whole status of a HelmRelease, computed from what is observed and done.

use api::condition::{ConditionType, Reason};
use api::workspace::{
    HelmRelease, HelmReleaseStatus, OperationKind, RECONCILE_ANNOTATION, ReleaseOperation, Remedy, ResolvedChart,
};
use jiff::Timestamp;

use super::{
    Action, Answer, Ask, Chart, Desired, Job, Memory, Note, Observed, Operation, Policy, Surroundings, Values,
    ask::assess,
    conditions::Facts,
    event::events,
    memory::{REMOVAL, noted},
    reference_digest, replicas, unreadable, validate,
};
use crate::Why;
use crate::round::{Plan, Progress, Refusal, Report};

/// A round as the controller sees it.
pub type RoundOf<'a> = crate::round::Round<'a, HelmRelease, Observed, Action, (), Note, Ask, Answer>;

/// The whole report of a round.
pub fn report(round: &RoundOf<'_>, now: Timestamp, policy: &Policy) -> Report<HelmReleaseStatus, Note> {
    let mut assessed = assess(round.object, round.observed, round.inputs, policy);
    let former = round.object.status.as_ref();
    if let Some(unreadable) = former.filter(|status| status.is_unreadable) {
        return unreadable::report(unreadable, assessed.note);
    }
    let announced = announced(round);
    if let Some(operation) = announced {
        assessed.surroundings.job = Job::Waiting(operation.kind);
    }
    let inner = Round {
        object: round.object,
        observed: &assessed.surroundings,
        plan: round.plan,
        progress: round.progress,
        announced,
        policy,
    };
    let is_mute = !assessed.is_complete || inner.is_released();
    let status = if is_mute { former.cloned().unwrap_or_default() } else { status(&inner, now) };
    let ready = status.condition(ConditionType::Ready);
    Report {
        fallback: None,
        is_provisional: former.is_none() && inner.is_fetching() && inner.rejection().is_none(),
        done: Vec::new(),
        transitions: if assessed.is_complete { events(former, &status, &inner) } else { Vec::new() },
        discriminator: String::new(),
        phase: ready.map_or("", |condition| condition.reason.as_str()).to_owned(),
        note: Note { ages: assessed.note.ages.after(&status), ..assessed.note },
        status,
    }
}

/// One round after its steps: everything the status is computed from.
#[derive(Clone, Copy, Debug)]
pub struct Round<'a> {
    pub object: &'a HelmRelease,
    pub observed: &'a Surroundings,
    pub plan: &'a Plan<Action, Ask>,
    pub progress: &'a [Progress],
    /// The operation that this round stored as begun, and began.
    pub announced: Option<&'a ReleaseOperation>,
    pub policy: &'a Policy,
}

fn announced<'a>(round: &RoundOf<'a>) -> Option<&'a ReleaseOperation> {
    let stored = round.object.status.as_ref()?.operation.as_ref()?;
    let is_it = |action: &Action| match action {
        Action::Start(operation) => operation.label() == Operation::from(stored).label(),
        _ => false,
    };
    round.done().any(|(action, ())| is_it(action)).then_some(stored)
}

impl Round<'_> {
    /// Actions that were carried out.
    pub(super) fn done(&self) -> impl Iterator<Item = &Action> {
        let attempts = self.plan.actions().zip(self.progress);
        attempts.filter(|(_, progress)| matches!(progress, Progress::Done(()) | Progress::Begun)).map(|(a, _)| a)
    }

    /// Whether the object may go: there is nothing more to report.
    fn is_released(&self) -> bool {
        self.done().any(|action| matches!(action, Action::ReleaseFinalizer { .. }))
    }

    /// Nothing is fetched for what is blocked before, nor for what goes.
    pub(super) fn is_fetching(&self) -> bool {
        let is_going = self.object.metadata.deletion_timestamp.is_some();
        self.observed.chart == Chart::Fetching && self.plan.blocked.is_empty() && !is_going
    }

    pub(super) fn rejection(&self) -> Option<Why> {
        self.plan.actions().zip(self.progress).find_map(|(action, progress)| match progress {
            Progress::Refused(Refusal::Because(why)) => Some(why.clone()),
            Progress::Refused(Refusal::Rejected(message)) if action.needs_identity() => {
                Some(Why { reason: Reason::ObjectRejected, message: message.clone() })
            }
            _ => None,
        })
    }
}

/// The status to store; equal to the stored one when there is nothing to say.
pub fn status(round: &Round<'_>, now: Timestamp) -> HelmReleaseStatus {
    // Kubernetes times have whole seconds; a finer one would differ from itself once read back.
    let now = whole_seconds(now);
    let memory = Memory::recall(round.object, round.observed);
    let desired = validate(round.object, round.policy).ok();
    let mut status = memory.status.clone();
    // What failed before settings were noted counts as tried with the present ones, so that their next change tries again.
    if status.failures > 0 && status.last_attempted_settings.is_none() {
        status.last_attempted_settings.clone_from(&memory.settings);
    }
    if round.observed.ended().is_some_and(|ended| !ended.is_not_begun()) {
        status.last_attempted_at = Some(round.observed.ages.server_time().map_or(now, whole_seconds));
    }
    remember_sources(&mut status, round, desired.as_ref());
    let is_stopped = desired.as_ref().is_some_and(|desired| desired.stopped);
    replicas::remember(is_stopped, round.observed.newest(), &mut status.stopped, &round.observed.workloads);
    status.holds_data = round.observed.holds_data.or(status.holds_data);
    for action in round.done() {
        record_action(&mut status, action, round, &memory, now);
    }
    let facts = Facts::new(round, &memory, &status, desired.as_ref());
    let (conditions, is_open) = (facts.conditions(round.object, now), facts.is_open());
    if !round.plan.blocked.is_empty() || !is_open {
        status.observed_generation = round.object.metadata.generation;
    }
    HelmReleaseStatus { conditions, ..status }
}

fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// What was read on the way, so that the next start need not read it again.
fn remember_sources(status: &mut HelmReleaseStatus, round: &Round<'_>, desired: Option<&Desired>) {
    if let Values::Read { sources, .. } = &round.observed.values {
        status.values_from.clone_from(sources);
    }
    if let (Chart::Resolved { version, digest, .. }, Some(desired)) = (&round.observed.chart, desired) {
        let reference = reference_digest(&desired.chart);
        status.resolved = Some(ResolvedChart { reference, version: version.clone(), digest: digest.clone() });
    }
    let annotations = round.object.metadata.annotations.as_ref();
    let is_looked = match round.observed.chart {
        Chart::Resolved { is_checked, .. } => is_checked,
        Chart::Fetching => false,
        Chart::Failed(_) => true,
    };
    if is_looked
        && round.plan.steps.is_empty()
        && let Some(value) = annotations.and_then(|all| all.get(RECONCILE_ANNOTATION))
    {
        status.last_handled_reconcile = Some(noted(value));
    }
}

fn record_action(status: &mut HelmReleaseStatus, action: &Action, round: &Round<'_>, memory: &Memory, now: Timestamp) {
    match action {
        // It is part of the stored status already.
        Action::Start(_) if round.announced.is_some() => {}
        Action::Start(operation) => begin(status, operation, round, memory, now),
        Action::Unlock { .. } => status.operation = None,
        Action::RefuseRollback { .. } => status.last_handled_rollback = memory.rollback.as_deref().map(noted),
        Action::AddFinalizer { .. }
        | Action::Cancel
        | Action::CorrectDrift(_)
        | Action::Scale(_)
        | Action::ReleaseFinalizer { .. } => {}
    }
}

fn begin(status: &mut HelmReleaseStatus, operation: &Operation, round: &Round<'_>, memory: &Memory, now: Timestamp) {
    status.operation = Some(ReleaseOperation {
        kind: operation.kind,
        digest: operation.digest.clone(),
        chart_version: operation.chart_version.clone(),
        revision: operation.revision,
        to_revision: operation.to_revision,
        to_digest: operation.to_digest.clone(),
        started_at: Some(now),
    });
    match operation.kind {
        OperationKind::Install | OperationKind::Upgrade => {
            let is_same = status.last_attempted_digest.as_ref() == Some(&operation.digest);
            if !is_same || !memory.has_same_settings() || memory.force.is_some() {
                (status.failures, status.interruptions) = (0, 0);
                status.remedy = None;
            }
            status.last_attempted_digest = Some(operation.digest.clone());
            status.last_attempted_settings.clone_from(&memory.settings);
            status.last_attempted_revision.clone_from(&operation.chart_version);
            if let Values::Read { digest, .. } = &round.observed.values {
                status.last_attempted_values_digest = Some(digest.clone());
            }
            status.last_handled_force = memory.force.as_deref().map(noted).or(status.last_handled_force.take());
        }
        OperationKind::Rollback | OperationKind::Uninstall if operation.digest != REMOVAL => {
            let requested = operation.kind == OperationKind::Rollback && memory.rollback.is_some();
            if requested {
                status.last_handled_rollback = memory.rollback.as_deref().map(noted);
                // A change of settings before it is no reason to leave what it goes back to.
                status.last_attempted_settings.clone_from(&memory.settings);
            }
            let digest = operation.digest.clone();
            status.remedy = Some(Remedy { kind: operation.kind, digest, requested, succeeded: false });
        }
        // The removal of the release: failures of what was tried before say nothing about it.
        OperationKind::Uninstall => {
            if !memory.is_removing() {
                (status.failures, status.interruptions, status.last_failure) = (0, 0, None);
            }
            status.last_attempted_digest = Some(REMOVAL.to_owned());
        }
        OperationKind::Rollback | OperationKind::Test | OperationKind::Fetch => {}
    }
}
