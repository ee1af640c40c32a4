//! The whole status of a HelmRelease, computed from what is observed and done.

use api::condition::{Condition, ConditionStatus, ConditionType, Reason};
use api::workspace::{
    DriftDetection, HelmRelease, HelmReleaseStatus, OperationKind, RECONCILE_ANNOTATION, ReleaseOperation, Remedy,
    ResolvedChart, TestResult,
};
use jiff::Timestamp;

use super::{
    Action, Answer, Ask, Chart, Desired, Drift, Job, Memory, Note, Observed, Operation, Policy, State, StoredStatus,
    Surroundings, Values,
    ask::assess,
    config_digest,
    event::events,
    memory::{REMOVAL, noted},
    reference_digest, replicas, state, unreadable, validate,
};
use crate::Why;
use crate::message::steady;
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
    fn is_fetching(&self) -> bool {
        let is_going = self.object.metadata.deletion_timestamp.is_some();
        self.observed.chart == Chart::Fetching && self.plan.blocked.is_empty() && !is_going
    }

    fn rejection(&self) -> Option<Why> {
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
            }
            let digest = operation.digest.clone();
            status.remedy = Some(Remedy { kind: operation.kind, digest, requested, succeeded: false });
            // A change of settings before it is no reason to leave what it goes back to.
            status.last_attempted_settings.clone_from(&memory.settings);
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

/// What the conditions are made of.
struct Facts<'a> {
    round: &'a Round<'a>,
    status: &'a HelmReleaseStatus,
    desired: Option<&'a Desired>,
    /// What is at work, or about to be.
    busy: Option<OperationKind>,
    /// Whether the newest revision is the wanted one.
    is_released: bool,
    blocked: Option<Why>,
}

impl<'a> Facts<'a> {
    fn new(round: &'a Round<'a>, memory: &Memory, status: &'a HelmReleaseStatus, desired: Option<&'a Desired>) -> Self {
        let started = round.done().find_map(|action| match action {
            Action::Start(operation) => Some(operation.kind),
            _ => None,
        });
        let at_work = match &round.observed.job {
            Job::Waiting(kind) | Job::Running(kind) | Job::Ending(kind) => Some(*kind),
            Job::Idle if round.is_fetching() => Some(OperationKind::Fetch),
            Job::Idle | Job::Finished(_) => None,
        };
        let is_released = desired.is_some_and(|desired| is_released(desired, round.observed, memory));
        let blocked = round.rejection().or_else(|| round.plan.blocked.first().cloned());
        Self { round, status, desired, busy: started.or(at_work), is_released, blocked }
    }

    /// Whether something is still to be done.
    fn is_open(&self) -> bool {
        self.busy.is_some() || !self.is_released
    }

    fn conditions(&self, object: &HelmRelease, now: Timestamp) -> Vec<Condition> {
        let facts = [
            (ConditionType::Ready, self.ready()),
            (ConditionType::Released, self.released()),
            (ConditionType::TestSuccess, self.tested()),
            (ConditionType::Remediated, self.remediated()),
            (ConditionType::Drifted, self.drifted()),
        ];
        let former = object.status.as_ref();
        facts
            .into_iter()
            .map(|(kind, (status, reason, message))| {
                let before = former.and_then(|former| former.condition(kind));
                let before = before.filter(|before| before.status == status);
                // Other numbers are no news in the server's words, but they are in ours.
                let refusal = before.filter(|b| reason == Reason::ObjectRejected && b.reason == reason);
                Condition {
                    kind,
                    status,
                    observed_generation: object.metadata.generation,
                    last_transition_time: before.map_or(now, |before| before.last_transition_time),
                    reason,
                    message: steady(refusal.map(|before| before.message.as_str()), message),
                }
            })
            .collect()
    }

    fn ready(&self) -> Fact {
        if self.round.object.metadata.deletion_timestamp.is_some() {
            return self.leaving();
        }
        if let Some(problem) = self.chart_problem() {
            return problem;
        }
        if let Some(kind) = self.busy {
            return (ConditionStatus::Unknown, doing(kind), self.progress(kind));
        }
        if let Some(Why { reason, message }) = &self.blocked {
            let is_true = *reason == Reason::Suspended && self.is_released;
            let status = if is_true { ConditionStatus::True } else { ConditionStatus::False };
            return (status, *reason, message.clone());
        }
        if !self.is_released {
            let failed = self.status.last_failure.filter(|_| self.status.failures + self.status.interruptions > 0);
            return match failed {
                Some(reason) => (ConditionStatus::False, reason, self.output()),
                None => (ConditionStatus::Unknown, Reason::Queued, "waiting to be installed or upgraded".to_owned()),
            };
        }
        let (tested, reason, message) = self.tested();
        let tolerates = self.desired.is_none_or(|desired| desired.ignore_test_failures || !desired.test);
        if tested == ConditionStatus::False && !tolerates {
            return (ConditionStatus::False, reason, message);
        }
        if self.desired.is_some_and(|desired| desired.stopped) {
            return self.stopped();
        }
        // Former replicas are forgotten once they are back.
        if !self.status.stopped.is_empty() {
            let message = "deployed; its workloads are being scaled back up".to_owned();
            return (ConditionStatus::Unknown, Reason::Starting, message);
        }
        self.released()
    }

    /// A chart that could not be fetched is looked for again and again; what was said holds until there is an answer.
    fn chart_problem(&self) -> Option<Fact> {
        let object = self.round.object;
        let former = object.status.as_ref()?.condition(ConditionType::Ready)?;
        let is_problem = matches!(former.reason, Reason::ChartNotFound | Reason::ChartUnavailable);
        let is_current = former.observed_generation == object.metadata.generation;
        (self.busy == Some(OperationKind::Fetch) && is_problem && is_current)
            .then(|| (former.status, former.reason, former.message.clone()))
    }

    fn stopped(&self) -> Fact {
        let former = self.round.object.status.as_ref().and_then(|status| status.condition(ConditionType::Ready));
        let is_at_zero = match &self.round.observed.workloads {
            super::Replicas::Live(live) => live.iter().all(|workload| workload.replicas == 0),
            // What was said holds until the next look.
            super::Replicas::NotLooked | super::Replicas::Unknown(_) => former.is_some_and(|former| {
                former.reason == Reason::Stopped
                    && former.status == ConditionStatus::True
                    && former.observed_generation == self.round.object.metadata.generation
            }),
        };
        if is_at_zero {
            (ConditionStatus::True, Reason::Stopped, "deployed; its workloads are scaled to zero".to_owned())
        } else {
            (ConditionStatus::Unknown, Reason::Stopped, "deployed; its workloads are being scaled to zero".to_owned())
        }
    }

    fn leaving(&self) -> Fact {
        let (status, reason, message) = match (&self.busy, &self.blocked) {
            (None, Some(Why { reason, message })) => (ConditionStatus::False, *reason, message.clone()),
            _ => (ConditionStatus::Unknown, Reason::Uninstalling, "the release is being uninstalled".to_owned()),
        };
        (status, reason, message)
    }

    /// That it waits or is at work is one text: a write for the difference would be of no use.
    fn progress(&self, kind: OperationKind) -> String {
        match (kind, &self.status.last_attempted_revision) {
            (OperationKind::Fetch, _) => "the chart is being looked up and fetched".to_owned(),
            (OperationKind::Install | OperationKind::Upgrade, Some(version)) => {
                format!("{} of chart version {version} is under way", kind.as_str())
            }
            _ => format!("{} is under way", kind.as_str()),
        }
    }

    /// Whether everything before this revision failed, so that it was an install.
    fn is_install(&self, revision: u32) -> bool {
        let mut before = self.status.history.iter().skip(1);
        u32::try_from(before.len() + 1) == Ok(revision)
            && before.all(|shown| shown.status == StoredStatus::Failed.as_str())
    }

    fn output(&self) -> String {
        self.status.last_output.clone().unwrap_or_else(|| "helm failed".to_owned())
    }

    fn released(&self) -> Fact {
        let newest = self.status.history.first();
        if self.is_released
            && let Some(newest) = newest
        {
            let reason = match &self.status.remedy {
                Some(remedy) if remedy.succeeded && remedy.kind == OperationKind::Rollback => Reason::RollbackSucceeded,
                _ if self.is_install(newest.revision) => Reason::InstallSucceeded,
                _ => Reason::UpgradeSucceeded,
            };
            let version = newest.chart_version.as_deref().unwrap_or("unknown");
            let message = format!("revision {} with chart version {version} is deployed", newest.revision);
            return (ConditionStatus::True, reason, message);
        }
        match self.status.last_failure.filter(|_| self.status.failures > 0) {
            Some(reason) => (ConditionStatus::False, reason, self.output()),
            None => (ConditionStatus::Unknown, Reason::Queued, "not deployed yet".to_owned()),
        }
    }

    fn tested(&self) -> Fact {
        let result = self.status.history.first().and_then(|newest| newest.test);
        match result {
            Some(TestResult::Succeeded) => {
                (ConditionStatus::True, Reason::TestSucceeded, "the chart's tests passed".to_owned())
            }
            Some(TestResult::Failed) => (ConditionStatus::False, Reason::TestFailed, self.output()),
            None => (ConditionStatus::Unknown, Reason::NotTested, "no test has run".to_owned()),
        }
    }

    fn remediated(&self) -> Fact {
        let Some(remedy) = &self.status.remedy else {
            return (ConditionStatus::False, Reason::NotNeeded, "no remediation was needed".to_owned());
        };
        let (good, bad) = match remedy.kind {
            OperationKind::Rollback => (Reason::RollbackSucceeded, Reason::RollbackFailed),
            _ => (Reason::UninstallSucceeded, Reason::UninstallFailed),
        };
        let why = if remedy.requested { "as requested" } else { "because the last attempt failed" };
        if remedy.succeeded {
            (ConditionStatus::True, good, format!("{} done, {why}", remedy.kind.as_str()))
        } else if self.busy.is_some() {
            (ConditionStatus::Unknown, doing(remedy.kind), format!("{} under way, {why}", remedy.kind.as_str()))
        } else {
            (ConditionStatus::False, bad, self.output())
        }
    }

    fn drifted(&self) -> Fact {
        let is_watched = self.desired.is_some_and(|desired| desired.drift != DriftDetection::Disabled);
        if !is_watched {
            return (ConditionStatus::Unknown, Reason::DriftNotWatched, "spec.driftDetection is disabled".to_owned());
        }
        let newest = self.round.observed.newest().filter(|_| self.busy.is_none());
        if newest.is_some_and(|newest| newest.status == StoredStatus::Failed) {
            let message = "not checked: the newest revision has failed".to_owned();
            return (ConditionStatus::Unknown, Reason::StateUnknown, message);
        }
        let is_corrected = self.round.done().any(|action| matches!(action, Action::CorrectDrift(_)));
        match &self.round.observed.drift {
            Drift::Found(found) if is_corrected => {
                (ConditionStatus::False, Reason::DriftCorrected, format!("corrected: {}", listed(found)))
            }
            Drift::Found(found) => (ConditionStatus::True, Reason::DriftDetected, listed(found)),
            Drift::Unknown(why) => (ConditionStatus::Unknown, Reason::StateUnknown, why.clone()),
            // What was said last holds until the next look.
            Drift::NotLooked | Drift::None => {
                let former = self.round.object.status.as_ref().and_then(|s| s.condition(ConditionType::Drifted));
                match former
                    .filter(|c| c.status == ConditionStatus::False || self.round.observed.drift == Drift::NotLooked)
                {
                    Some(former) if former.reason != Reason::DriftNotWatched => {
                        (former.status, former.reason, former.message.clone())
                    }
                    _ if self.round.observed.drift == Drift::None => {
                        (ConditionStatus::False, Reason::NoDrift, "all objects match the release".to_owned())
                    }
                    _ => (ConditionStatus::Unknown, Reason::StateUnknown, "not checked yet".to_owned()),
                }
            }
        }
    }
}

/// Status, reason and message of a condition.
type Fact = (ConditionStatus, Reason, String);

fn listed(found: &[super::Difference]) -> String {
    // A release may have hundreds of objects; a message is read by people.
    const SHOWN: usize = 10;
    let mut text: Vec<_> = found.iter().take(SHOWN).map(|d| format!("{}: {}", d.object, d.what)).collect();
    if found.len() > SHOWN {
        text.push(format!("and {} more", found.len() - SHOWN));
    }
    text.join("; ")
}

fn doing(kind: OperationKind) -> Reason {
    match kind {
        OperationKind::Fetch => Reason::Fetching,
        OperationKind::Install => Reason::Installing,
        OperationKind::Upgrade => Reason::Upgrading,
        OperationKind::Rollback => Reason::RollingBack,
        OperationKind::Uninstall => Reason::Uninstalling,
        OperationKind::Test => Reason::Testing,
    }
}

/// Whether the newest revision is the wanted one and deployed.
fn is_released(desired: &Desired, observed: &Surroundings, memory: &Memory) -> bool {
    let (Some(stored), Values::Read { digest: values, .. }, Chart::Resolved { version, .. }) =
        (observed.stored(), &observed.values, &observed.chart)
    else {
        return false;
    };
    let digest = config_digest(&desired.chart, version, values);
    matches!(state(desired, observed, stored, memory, &digest), State::InSync | State::Drifted | State::Untested)
}
