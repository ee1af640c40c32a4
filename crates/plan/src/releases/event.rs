//! Events for the user, once, when something changes.

use api::condition::{ConditionStatus, ConditionType, Reason};
use api::workspace::HelmReleaseStatus;

use super::{Action, FailureClass, report::Round};
use crate::event::{Event, EventKind};

/// Events of one round: `before` and `after` are the stored and the new status.
pub fn events(before: Option<&HelmReleaseStatus>, after: &HelmReleaseStatus, round: &Round<'_>) -> Vec<Event> {
    let mut events: Vec<Event> = round.done().filter_map(|action| of_action(action, round)).collect();
    events.extend(round.observed.ended().as_ref().and_then(of_end));
    for kind in [ConditionType::Ready, ConditionType::Drifted] {
        events.extend(of_change(kind, before, after));
    }
    events
}

fn normal(reason: Reason, action: &'static str, note: String) -> Event {
    Event { kind: EventKind::Normal, reason: reason.as_str(), action, note }
}

fn of_action(action: &Action, round: &Round<'_>) -> Option<Event> {
    match action {
        Action::Unlock { revision, .. } => Some(normal(
            Reason::Locked,
            "Unlock",
            format!("Revision {revision} was left unfinished; the operator took it over"),
        )),
        Action::RefuseRollback { message } => Some(Event {
            kind: EventKind::Warning,
            reason: Reason::RollbackFailed.as_str(),
            action: "Rollback",
            note: message.clone(),
        }),
        Action::ReleaseFinalizer { .. } if !has_acted(round) => {
            let note =
                "Removed the finalizer; this object never changed the Helm release, which stays as it is".to_owned();
            Some(normal(Reason::NotNeeded, "ReleaseFinalizer", note))
        }
        Action::CorrectDrift(found) => {
            let note = format!("Corrected {}", found.iter().map(|d| d.object.as_str()).collect::<Vec<_>>().join(", "));
            Some(normal(Reason::DriftCorrected, "CorrectDrift", note))
        }
        Action::Scale(scaled) => {
            let names: Vec<_> = scaled.iter().map(|w| format!("{} {} to {}", w.kind, w.name, w.replicas)).collect();
            let is_start = scaled.iter().any(|workload| workload.replicas > 0);
            let reason = if is_start { Reason::Starting } else { Reason::Stopped };
            Some(normal(reason, "Scale", format!("Scaled {}", names.join(", "))))
        }
        _ => None,
    }
}

/// Whether there is a release that was installed by this object.
fn has_acted(round: &Round<'_>) -> bool {
    let status = round.object.status.as_ref();
    let is_there = round.observed.newest().is_some();
    !is_there || status.is_some_and(|status| status.last_attempted_digest.is_some() || status.operation.is_some())
}

fn of_end(ended: &super::Ended) -> Option<Event> {
    use api::workspace::OperationKind as Kind;
    let (good, bad, action) = match ended.operation.kind {
        Kind::Install => (Reason::InstallSucceeded, Reason::InstallFailed, "Install"),
        Kind::Upgrade | Kind::Fetch => (Reason::UpgradeSucceeded, Reason::UpgradeFailed, "Upgrade"),
        Kind::Rollback => (Reason::RollbackSucceeded, Reason::RollbackFailed, "Rollback"),
        Kind::Uninstall => (Reason::UninstallSucceeded, Reason::UninstallFailed, "Uninstall"),
        Kind::Test => (Reason::TestSucceeded, Reason::TestFailed, "Test"),
    };
    match &ended.result {
        Ok(()) => {
            let version = ended.operation.chart_version.as_deref().unwrap_or_default();
            let what = if version.is_empty() { String::new() } else { format!(" of chart version {version}") };
            Some(normal(good, action, format!("{action}{what} succeeded")))
        }
        Err(failure) if failure.class == FailureClass::NotBegun => None,
        Err(failure) => {
            let reason = if failure.class == FailureClass::Timeout { Reason::TimedOut } else { bad };
            Some(Event { kind: EventKind::Warning, reason: reason.as_str(), action, note: failure.message.clone() })
        }
    }
}

/// A new problem that is not the end of an operation, which was recorded already.
fn of_change(kind: ConditionType, before: Option<&HelmReleaseStatus>, after: &HelmReleaseStatus) -> Option<Event> {
    let condition = after.condition(kind)?;
    let bad = if kind == ConditionType::Drifted { ConditionStatus::True } else { ConditionStatus::False };
    let former = before.and_then(|before| before.condition(kind));
    let is_recorded = after.last_failure == Some(condition.reason) || condition.reason == Reason::TestFailed;
    let is_new = former.is_none_or(|former| former.reason != condition.reason || former.status != condition.status);
    (condition.status == bad && is_new && !is_recorded).then(|| Event {
        kind: EventKind::Warning,
        reason: condition.reason.as_str(),
        action: "Observe",
        note: condition.message.clone(),
    })
}
