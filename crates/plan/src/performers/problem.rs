//! What is wrong, as the one reason the user sees first.

use api::condition::{Condition, ConditionStatus, ConditionType, Reason};
use api::performer::LABEL_PERFORMER;

use super::age::State;
use super::{Action, Desired, Foreign, Identity, PodFacts, PodPhase, Round, Scheduled, Slot, Waiting};
use crate::Why;
use crate::fact::Class;
use crate::round::{Progress, Refusal};

/// The first thing that is wrong, in the order of the specification. `pod` is the present pod if it
/// is the one that is wanted and stays.
pub fn problem(
    round: &Round<'_>,
    desired: Option<&Desired>,
    identity: &Identity,
    pod: Option<&PodFacts>,
) -> Option<Why> {
    let of_pod = || of_pod(pod?, desired?, identity, round);
    round.plan.blocked.first().cloned().or_else(|| refused(round)).or_else(of_pod).or_else(|| lasting(round, pod))
}

/// The same while the Performer goes: only what keeps it from going.
pub fn of_deletion(round: &Round<'_>) -> Option<Why> {
    let is_of_it = |why: &Why| matches!(why.reason, Reason::PodStuck | Reason::ServiceStuck | Reason::ObjectRejected);
    refused(round).or_else(|| lasting(round, None).filter(is_of_it))
}

/// What the API server would not do in this round, or could not for a while.
fn refused(round: &Round<'_>) -> Option<Why> {
    let is_lasting = round.observed.ages.age(State::Unable) >= round.policy.problem_delay;
    round.plan.actions().zip(round.progress).find_map(|(action, progress)| {
        let (verb, message) = match progress {
            Progress::Refused(Refusal::Rejected(message)) => ("refuses", message),
            Progress::Failed { class: Class::Transient, message, .. } if is_lasting => ("cannot take", message),
            _ => return None,
        };
        let (reason, what) = match action {
            Action::CreatePod(_) => (Reason::PodRejected, "pod"),
            Action::CreateService(_) | Action::RepairService { .. } => (Reason::ServiceRejected, "Service"),
            Action::DeletePod { .. } => (Reason::PodStuck, "deletion of the pod"),
            Action::DeleteService { .. } => (Reason::ServiceStuck, "deletion of the Service"),
            Action::AddFinalizer { .. } | Action::ReleaseFinalizer { .. } => {
                (Reason::ObjectRejected, "change of the Performer's finalizers")
            }
        };
        Some(Why { reason, message: format!("the API server {verb} the {what}: {message}") })
    })
}

fn of_pod(pod: &PodFacts, desired: &Desired, identity: &Identity, round: &Round<'_>) -> Option<Why> {
    let found = |reason, message| Some(Why { reason, message });
    if !pod.is_selected {
        let message = format!(
            "the pod lost its label {LABEL_PERFORMER}, by which its Service finds it, and the operator replaces it after a delay; \
             if this comes back, an admission webhook removes the label: exempt these pods from it"
        );
        return found(Reason::LabelMissing, message);
    }
    let waiting = pod.waiting.as_deref();
    let says = |what: &str| waiting.map_or(what.to_owned(), |w| format!("{what}: {}: {}", w.reason, w.message));
    match waiting.and_then(Waiting::problem) {
        Some(Reason::ImagePullFailed) => {
            let message = said_before(round, waiting)
                .unwrap_or_else(|| says(&format!("image {} cannot be pulled", desired.image)));
            return found(Reason::ImagePullFailed, message);
        }
        Some(Reason::ContainerConfigError) => {
            return found(Reason::ContainerConfigError, says("the container cannot be created"));
        }
        _ => {}
    }
    if is_crash_loop(pod, round) {
        return found(Reason::CrashLoop, crash_message(pod, identity));
    }
    match pod.phase {
        PodPhase::Failed => {
            let why = pod.ended.as_deref().unwrap_or("its container exited with an error");
            return found(
                Reason::PodFailed,
                format!("the pod failed and the operator replaces it after a delay: {why}"),
            );
        }
        PodPhase::Succeeded => {
            let message = "the pod completed and the operator replaces it after a delay; a performer must not exit";
            return found(Reason::PodSucceeded, message.to_owned());
        }
        PodPhase::Pending | PodPhase::Running | PodPhase::Unknown => {}
    }
    if let Some(why) = pod.foreign.as_deref().filter(|_| !pod.is_ready).and_then(|foreign| of_foreign(round, foreign)) {
        return Some(why);
    }
    let Scheduled::Unschedulable(why) = &pod.scheduled else {
        return None;
    };
    if desired.needs_hardware {
        return found(Reason::HardwareUnavailable, format!("no node has the requested GPU or TEE: {why}"));
    }
    found(Reason::SchedulingFailed, format!("no node can run the pod: {why}"))
}

/// A container that admission added keeps the pod from getting ready, and the Performer's spec cannot repair it.
fn of_foreign(round: &Round<'_>, Foreign { name, waiting }: &Foreign) -> Option<Why> {
    let reason = waiting.problem()?;
    let said = said_before(round, Some(waiting)).filter(|_| reason == Reason::ImagePullFailed);
    let message = said.unwrap_or_else(|| {
        format!(
            "the container {name}, which admission added to the pod, does not start: {}: {}; correct what injects it, or exempt these pods from it",
            waiting.reason, waiting.message
        )
    });
    Some(Why { reason, message })
}

/// What was said of the image before, while kubelet only waits for its next try: that says nothing new about the cause,
/// and the two take turns.
fn said_before(round: &Round<'_>, waiting: Option<&Waiting>) -> Option<String> {
    waiting.filter(|waiting| &*waiting.reason == "ImagePullBackOff")?;
    former_problem(round).filter(|former| former.reason == Reason::ImagePullFailed).map(|former| former.message.clone())
}

/// Kubelet says so, or the container ended twice, lately, and is not ready: between two ends of a
/// loop it runs for a moment, and the report should not flicker with it.
fn is_crash_loop(pod: &PodFacts, round: &Round<'_>) -> bool {
    if pod.waiting.as_ref().is_some_and(|w| &*w.reason == "CrashLoopBackOff") {
        return true;
    }
    let is_recent = || round.observed.ages.age(State::Crashed(pod.restarts)) < round.policy.crash_window;
    pod.restarts > 1 && !pod.is_ready && pod.exit.is_some() && is_recent()
}

fn crash_message(pod: &PodFacts, identity: &Identity) -> String {
    let end = pod.exit.as_ref().map_or("it exited".to_owned(), |exit| match &*exit.reason {
        "" => format!("it exited with code {}", exit.code),
        reason => format!("it exited with code {} ({reason})", exit.code),
    });
    format!(
        "the container restarts again and again; last, {end}: see kubectl logs -n {} {} --previous",
        identity.namespace,
        identity.owned_name()
    )
}

/// A problem reported before that nothing in this round speaks for or against: the next try is not
/// far enough to know. Keeping it makes a failing retry cost no status write.
fn lasting(round: &Round<'_>, pod: Option<&PodFacts>) -> Option<Why> {
    let former = former_problem(round)?;
    let is_open = match former.reason {
        Reason::PodRejected => round.observed.pod == Slot::Absent,
        Reason::PodStuck => round.left(|a| matches!(a, Action::DeletePod { .. })),
        Reason::ServiceStuck => round.left(|a| matches!(a, Action::DeleteService { .. })),
        Reason::ObjectRejected => {
            round.left(|a| matches!(a, Action::AddFinalizer { .. } | Action::ReleaseFinalizer { .. }))
        }
        Reason::ServiceRejected => round.left(|a| matches!(a, Action::CreateService(_) | Action::RepairService { .. })),
        Reason::LabelMissing
        | Reason::ImagePullFailed
        | Reason::ContainerConfigError
        | Reason::CrashLoop
        | Reason::PodFailed
        | Reason::PodSucceeded => pod.is_none_or(|pod| pod.phase == PodPhase::Pending),
        _ => false,
    };
    is_open.then(|| Why { reason: former.reason, message: former.message.clone() })
}

/// The problem that the stored status reports for the present spec.
fn former_problem<'a>(round: &Round<'a>) -> Option<&'a Condition> {
    let former = round.performer.status.as_ref()?.condition(ConditionType::Degraded)?;
    let is_same_spec = former.observed_generation == round.performer.metadata.generation;
    Some(former).filter(|former| former.status == ConditionStatus::True && is_same_spec)
}
