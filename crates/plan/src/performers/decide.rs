//! From a Performer and its surroundings to the next actions.

use std::time::Duration;

use api::condition::Reason;
use api::performer::{FINALIZER, GRPC_PORT_NAME, LABEL_PERFORMER, Performer, PerformerStatus, Phase};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::age::State;
use super::{
    Action, Ages, Cause, Deletion, Desired, Identity, ImageWriter, Observed, PodFacts, PodPhase, Policy, PortFacts,
    Scheduled, ServiceFacts, ServiceType, Slot, TargetPort, build, validate,
};
use crate::round::{Plan, Step, StepId};

/// The next actions for one Performer.
pub fn plan(performer: &Performer, observed: &Observed, policy: &Policy) -> Plan<Action> {
    let mut plan = Plan::default();
    if observed.pod == Slot::Unknown || observed.service == Slot::Unknown {
        return plan;
    }
    if performer.metadata.deletion_timestamp.is_some() {
        clean_up(&mut plan, performer, observed, policy);
        return plan;
    }
    if observed.is_outdated(performer) {
        // Before anything is done by an old Performer, it is to be read.
        plan.look_within(Duration::ZERO);
        return plan;
    }
    let identity = Identity::of(performer);
    if let Some(message) = name_taken(observed, &identity) {
        // Without both names the performer cannot be reached, so none is filled.
        plan.block(Reason::NameTaken, message);
        return plan;
    }
    match validate(performer) {
        Ok(desired) => {
            converge(&mut plan, performer, &desired, &identity, observed, policy);
            announce_loss(&mut plan, performer, observed);
        }
        Err(invalid) => plan.block(invalid.reason, invalid.message),
    }
    plan
}

fn converge(
    plan: &mut Plan<Action>,
    performer: &Performer,
    desired: &Desired,
    identity: &Identity,
    observed: &Observed,
    policy: &Policy,
) {
    let mut finalizers = performer.metadata.finalizers.clone().unwrap_or_default();
    let is_held = finalizers.iter().any(|f| f == FINALIZER);
    finalizers.push(FINALIZER.to_owned());
    let finalizer = (!is_held).then(|| plan.push(Action::AddFinalizer { finalizers }));
    match &observed.pod {
        Slot::Absent => {
            plan.push_step(create_pod(desired, identity, observed.replacements).needs(finalizer));
        }
        Slot::Ours(pod) => match pod.deletion {
            None => keep_or_replace(plan, pod, desired, identity, finalizer, &observed.ages, policy),
            Some(going) if is_overdue(plan, going, observed.ages.age(State::PodGoing(going.at)), policy) => {
                plan.block(Reason::PodStuck, stuck_pod(pod, identity));
            }
            Some(_) => {}
        },
        Slot::Unknown | Slot::Foreign { .. } => {}
    }
    match &observed.service {
        Slot::Absent => {
            let service = Action::CreateService(Box::new(build::service(desired, identity)));
            plan.push_step(Step::new(service).needs(finalizer));
        }
        Slot::Ours(service) => match service.deletion {
            None => {
                if let Some(repair) = repair_service(service, desired, identity) {
                    plan.push_step(Step::new(repair).needs(finalizer));
                }
            }
            Some(going) if is_overdue(plan, going, observed.ages.age(State::ServiceGoing(going.at)), policy) => {
                plan.block(Reason::ServiceStuck, held("Service", identity));
            }
            Some(_) => {}
        },
        Slot::Unknown | Slot::Foreign { .. } => {}
    }
}

/// Clients connect to what the status calls ready. Where it still says so of a pod that is not, the status comes before
/// the first step: a step takes as long as the API server does, and a webhook that hangs makes that many seconds.
fn announce_loss(plan: &mut Plan<Action>, performer: &Performer, observed: &Observed) {
    let is_called_ready = performer.status.as_ref().is_some_and(|status| status.ready);
    let is_up = observed.pod.ours().is_some_and(PodFacts::is_up);
    if let Some(first) = plan.steps.first_mut().filter(|_| is_called_ready && !is_up) {
        first.announced = true;
    }
}

fn keep_or_replace(
    plan: &mut Plan<Action>,
    pod: &PodFacts,
    desired: &Desired,
    identity: &Identity,
    finalizer: Option<StepId>,
    ages: &Ages,
    policy: &Policy,
) {
    let Some(replacement) = replacement(pod, desired, ages, policy) else {
        return;
    };
    if !replacement.wait.is_zero() {
        plan.look_within(replacement.wait);
        return;
    }
    let mut deletion = Step::new(Action::DeletePod {
        uid: pod.uid.clone(),
        resource_version: pod.resource_version.clone(),
        cause: replacement.cause,
        replacements: replacement.count,
    });
    // Should the process end between the deletion and the report, nothing left in the cluster would show that this was
    // an upgrade.
    deletion.announced = replacement.cause == Cause::Upgrade;
    let deleted = plan.push_step(deletion.needs(finalizer));
    if goes_at_once(pod) {
        plan.push_step(create_pod(desired, identity, replacement.count).needs([deleted]));
    }
}

/// Why a pod has to go, when, and the count its successor carries.
struct Replacement {
    cause: Cause,
    wait: Duration,
    count: u32,
}

fn replacement(pod: &PodFacts, desired: &Desired, ages: &Ages, policy: &Policy) -> Option<Replacement> {
    let now = |cause| Some(Replacement { cause, wait: Duration::ZERO, count: 0 });
    let after = |cause, delay: Duration, state, count: u32| {
        let wait = delay.saturating_sub(ages.age(state));
        Some(Replacement { cause, wait, count: count.saturating_add(1) })
    };
    if is_other_release(pod, desired) {
        return now(Cause::Upgrade);
    }
    if pod.input_hash.as_deref().is_some_and(|hash| hash != desired.hash()) {
        return now(Cause::SpecChanged);
    }
    if !pod.is_selected {
        // From its creation on: a hand edit of a pod that is no longer young is repaired at once, and
        // a webhook that takes the label from every pod does not make us replace without end.
        return after(Cause::Edited, policy.failure_delay_after(pod.replacements), State::Existing, pod.replacements);
    }
    if pod.phase.has_ended() {
        let count = if has_lived_long(ages, policy) { 0 } else { pod.replacements };
        return after(Cause::Ended, policy.failure_delay_after(count), State::Ended, count);
    }
    if pod.phase == PodPhase::Pending && matches!(pod.scheduled, Scheduled::Yes(_)) {
        // From the moment it had a node: the time it waited for capacity is not its fault.
        let limit = policy.pending_limit_after(pod.replacements);
        return after(Cause::PendingTooLong, limit, State::Starting, pod.replacements);
    }
    if has_edited_image(pod) {
        return after(Cause::Edited, policy.failure_delay_after(pod.replacements), State::Existing, pod.replacements);
    }
    None
}

/// Whether what ended the pod is hardly what ended the ones before it.
fn has_lived_long(ages: &Ages, policy: &Policy) -> bool {
    ages.age(State::Existing).saturating_sub(ages.age(State::Ended)) > policy.failure_delay_cap
}

/// Whether the pod was made for another image or version. A pod of the original operator carries
/// no inputs and is compared by its image alone.
pub(super) fn is_other_release(pod: &PodFacts, desired: &Desired) -> bool {
    if pod.input_hash.is_none() {
        // An image that is not known is not another one.
        return !pod.image.is_empty() && *pod.image != *desired.image;
    }
    let asked = pod.asked_image.as_deref().unwrap_or(&pod.image);
    asked != desired.image || pod.version.as_deref().unwrap_or_default() != desired.version
}

/// Whether someone changed the image of the running pod. One that admission rewrote when we created the pod (a registry
/// mirror) is not what we asked for either, but replacing that pod would never end.
pub(super) fn has_edited_image(pod: &PodFacts) -> bool {
    pod.asked_image.is_some() && pod.image_writer == ImageWriter::SomeoneElse
}

/// Whether the stored status already reports the upgrade that replaces this very pod.
pub(super) fn is_announced(status: Option<&PerformerStatus>, pod: &PodFacts) -> bool {
    status.is_some_and(|s| s.phase == Some(Phase::Upgrading) && s.last_upgrade >= pod.created_at)
}

/// Whether the API server drops the pod the moment it is deleted, which it does for ended pods.
pub(super) fn goes_at_once(pod: &PodFacts) -> bool {
    pod.phase.has_ended() && !pod.has_finalizers
}

/// When the pod ended. An evicted pod may have no container that says so; its Ready condition then
/// turned when it ended.
pub(super) fn ended_at(pod: &PodFacts) -> Option<Timestamp> {
    pod.exit.as_ref().and_then(|exit| exit.finished_at).max(pod.ready_changed_at)
}

fn create_pod(desired: &Desired, identity: &Identity, replacements: u32) -> Step<Action> {
    Step::new(Action::CreatePod(Box::new(build::pod(desired, identity, replacements))))
}

/// A patch for exactly the fields we own, if one of them is off.
fn repair_service(service: &ServiceFacts, desired: &Desired, identity: &Identity) -> Option<Action> {
    let port = i32::from(desired.grpc_port);
    let wanted =
        PortFacts { name: GRPC_PORT_NAME.into(), port, target: TargetPort::Name(GRPC_PORT_NAME.into()), is_tcp: true };
    let selects_us =
        matches!(&*service.selector, [(label, name)] if **label == *LABEL_PERFORMER && **name == *identity.name);
    if service.service_type == ServiceType::ClusterIp && selects_us && *service.ports == [wanted] {
        return None;
    }
    let labels = service.selector.iter().map(|(label, _)| label.to_string());
    let mut selector: Map<String, Value> = labels.map(|label| (label, Value::Null)).collect();
    selector.insert(LABEL_PERFORMER.to_owned(), json!(identity.name));
    Some(Action::RepairService {
        patch: json!({
            "metadata": { "uid": service.uid, "resourceVersion": service.resource_version },
            "spec": {
                "type": "ClusterIP",
                // What an ExternalName leaves behind.
                "externalName": null,
                "selector": selector,
                "ports": [{ "name": GRPC_PORT_NAME, "port": port, "targetPort": GRPC_PORT_NAME, "protocol": "TCP" }],
            },
        }),
    })
}

/// Removes what is ours, waits until it is gone, lets the Performer go.
fn clean_up(plan: &mut Plan<Action>, performer: &Performer, observed: &Observed, policy: &Policy) {
    let mut finalizers = performer.metadata.finalizers.clone().unwrap_or_default();
    let before = finalizers.len();
    finalizers.retain(|f| f != FINALIZER);
    if finalizers.len() == before {
        // Nothing was ever made, or someone cleared the finalizer: garbage collection does the rest.
        return;
    }
    let mut is_clean = true;
    if let Slot::Ours(pod) = &observed.pod {
        if pod.deletion.is_none() {
            plan.push(Action::DeletePod {
                uid: pod.uid.clone(),
                resource_version: pod.resource_version.clone(),
                cause: Cause::Deletion,
                replacements: 0,
            });
        }
        is_clean &= pod
            .deletion
            .is_some_and(|going| is_overdue(plan, going, observed.ages.age(State::PodGoing(going.at)), policy));
    }
    if let Slot::Ours(service) = &observed.service {
        if service.deletion.is_none() {
            plan.push(Action::DeleteService {
                uid: service.uid.clone(),
                resource_version: service.resource_version.clone(),
            });
        }
        is_clean &= service
            .deletion
            .is_some_and(|going| is_overdue(plan, going, observed.ages.age(State::ServiceGoing(going.at)), policy));
    }
    if is_clean {
        plan.push(Action::ReleaseFinalizer { finalizers });
    }
}

/// Whether something being deleted for so long has had its time and more, so that we stop waiting for it.
fn is_overdue(plan: &mut Plan<Action>, deletion: Deletion, age: Duration, policy: &Policy) -> bool {
    let wait = deletion.grace.saturating_add(policy.deletion_margin).saturating_sub(age);
    if !wait.is_zero() {
        plan.look_within(wait);
    }
    wait.is_zero()
}

/// What to say of a pod that should be gone and is in the way of its successor.
fn stuck_pod(pod: &PodFacts, identity: &Identity) -> String {
    if pod.has_finalizers {
        return held("pod", identity);
    }
    let (namespace, name) = (&identity.namespace, identity.owned_name());
    format!(
        "the old pod {name} was deleted and should be gone, but its node does not report its end; if the node is \
         lost for good: kubectl delete pod -n {namespace} {name} --force"
    )
}

fn held(kind: &str, identity: &Identity) -> String {
    let (namespace, name) = (&identity.namespace, identity.owned_name());
    format!(
        "the old {kind} {name} was deleted and should be gone, but finalizers hold it; ask the controller that set them, or \
         remove them: kubectl edit {} -n {namespace} {name}",
        kind.to_lowercase()
    )
}

/// What to say when a pod or Service under our name belongs to someone else.
fn name_taken(observed: &Observed, identity: &Identity) -> Option<String> {
    let (kind, owner_uid) = match (&observed.pod, &observed.service) {
        (Slot::Foreign { owner_uid }, _) => ("pod", owner_uid),
        (_, Slot::Foreign { owner_uid }) => ("Service", owner_uid),
        _ => return None,
    };
    let owner = owner_uid.as_ref().map_or("no controller".to_owned(), |uid| format!("the controller with uid {uid}"));
    Some(format!(
        "a {kind} named {} exists and belongs to {owner}; the operator leaves it alone: remove it, or recreate the \
         Performer under another name",
        identity.owned_name()
    ))
}
