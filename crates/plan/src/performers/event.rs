//! Events for the user, once, when something changes.

use api::condition::{Condition, ConditionStatus, ConditionType, Reason};
use api::performer::PerformerStatus;

use super::{Action, Cause, Round};
use crate::event::{Event, EventKind};

/// Events of what a round did. A Performer's start has two events, pod created and ready: its Service is named only
/// when it is made for a pod that status knows already, which is a repair.
pub(super) fn of_actions(round: &Round<'_>) -> Vec<Event> {
    let is_start = round.performer.status.as_ref().is_none_or(|status| status.pod_name.is_none())
        || round.plan.actions().any(|action| matches!(action, Action::CreatePod(_)));
    let done = round.plan.actions().zip(round.progress).filter(|(_, progress)| progress.is_done());
    let shown = done.filter(|(action, _)| !(is_start && matches!(action, Action::CreateService(_))));
    shown.filter_map(|(action, _)| of_action(action)).collect()
}

fn of_action(action: &Action) -> Option<Event> {
    let normal = |reason, action, note| Some(Event { kind: EventKind::Normal, reason, action, note });
    match action {
        Action::AddFinalizer { .. } => None,
        Action::CreatePod(pod) => {
            let image = pod.spec.as_ref().and_then(|s| s.containers.first()?.image.as_deref()).unwrap_or_default();
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            normal("PodCreated", "CreatePod", format!("Created pod {name} with image {image}"))
        }
        Action::DeletePod { cause, .. } => Some(of_deletion(*cause)),
        Action::CreateService(service) => {
            let name = service.metadata.name.as_deref().unwrap_or_default();
            normal("ServiceCreated", "CreateService", format!("Created Service {name}"))
        }
        Action::RepairService { .. } => {
            let note = "Restored the type, selector and port of the Service".to_owned();
            normal("ServiceRepaired", "RepairService", note)
        }
        Action::DeleteService { .. } => {
            normal("ServiceDeleted", "DeleteService", "Deleted the Service: the Performer is being deleted".to_owned())
        }
        Action::ReleaseFinalizer { .. } => {
            normal("Deleted", "ReleaseFinalizer", "Pod and Service are gone; removed the finalizer".to_owned())
        }
    }
}

fn of_deletion(cause: Cause) -> Event {
    let (kind, reason, note) = match cause {
        Cause::Upgrade => (
            EventKind::Normal,
            Reason::UpgradeInProgress.as_str(),
            "Deleted the pod: the spec asks for another image or version",
        ),
        Cause::SpecChanged => {
            (EventKind::Normal, Reason::PodReplaced.as_str(), "Deleted the pod to replace it: the spec changed")
        }
        Cause::Ended => {
            (EventKind::Warning, Reason::PodReplaced.as_str(), "Deleted the pod to replace it: it had exited")
        }
        Cause::PendingTooLong => (
            EventKind::Warning,
            Reason::PodReplaced.as_str(),
            "Deleted the pod to replace it: it did not start in time",
        ),
        Cause::Edited => {
            let note = "Deleted the pod to replace it: its image or its performer label was edited";
            (EventKind::Warning, Reason::PodReplaced.as_str(), note)
        }
        Cause::Deletion => (EventKind::Normal, "PodDeleted", "Deleted the pod: the Performer is being deleted"),
    };
    Event { kind, reason, action: "DeletePod", note: note.to_owned() }
}

/// What the change of status shows: a new problem, readiness gained, readiness lost.
pub(super) fn of_change(before: Option<&PerformerStatus>, after: &PerformerStatus) -> Option<Event> {
    let degraded = |status: &PerformerStatus| problem(status).map(|c| c.reason);
    let former = before.and_then(degraded);
    if let Some(condition) = problem(after).filter(|c| Some(c.reason) != former) {
        return Some(warning(condition));
    }
    let was_ready = before.is_some_and(|s| s.ready);
    if after.ready && !was_ready {
        let (kind, reason) = (EventKind::Normal, Reason::PodReady.as_str());
        let endpoint = after.grpc_endpoint.as_deref().unwrap_or_default();
        return Some(Event { kind, reason, action: "Observe", note: format!("Ready at {endpoint}") });
    }
    let available = after.condition(ConditionType::Available)?;
    (was_ready && available.reason == Reason::PodNotReady).then(|| warning(available))
}

fn problem(status: &PerformerStatus) -> Option<&Condition> {
    status.condition(ConditionType::Degraded).filter(|c| c.status == ConditionStatus::True)
}

fn warning(condition: &Condition) -> Event {
    Event {
        kind: EventKind::Warning,
        reason: condition.reason.as_str(),
        action: "Observe",
        note: condition.message.clone(),
    }
}
