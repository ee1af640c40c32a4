//! The conditions of a HelmRelease: one line for people and one word for programs each.

use api::condition::{Condition, ConditionStatus, ConditionType, Reason};
use api::workspace::{DriftDetection, HelmRelease, HelmReleaseStatus, OperationKind, TestResult};
use jiff::Timestamp;

use super::{
    Action, Chart, Desired, Drift, Job, Memory, Round, State, StoredStatus, Surroundings, Values, config_digest, state,
};
use crate::Why;
use crate::message::steady;

/// What the conditions are made of.
pub(super) struct Facts<'a> {
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
    pub(super) fn new(
        round: &'a Round<'a>,
        memory: &Memory,
        status: &'a HelmReleaseStatus,
        desired: Option<&'a Desired>,
    ) -> Self {
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
    pub(super) fn is_open(&self) -> bool {
        self.busy.is_some() || !self.is_released
    }

    pub(super) fn conditions(&self, object: &HelmRelease, now: Timestamp) -> Vec<Condition> {
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
