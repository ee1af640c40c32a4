//! From a User and what there is to the next actions.

use api::workspace::{CodeServer, FINALIZER, LABEL_USER_UID, Retention, User, UserSpec, Workspace};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::PodFacts;
use super::build::{claim_name, derive, object_name, owner};
use crate::round::{Plan, Step, StepId};
use crate::workspaces::derived::{
    Action, Body, Derived, Found, ObjectId, ObjectKind, Objects, Wish, add_finalizer, block, converge, delete,
    release_finalizer, surplus,
};

/// What is known about one User's surroundings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    pub is_namespace_terminating: bool,
    /// What [`is_listed`] gave.
    pub is_listed: bool,
    /// Everything that the User owns, whatever has a name of something derived, and of the slug's names the
    /// StatefulSet and the claim of the home directory.
    pub objects: Objects,
    pub pod: Option<PodFacts>,
}

/// Whether a Workspace stands behind the User and stays: if the User goes, it is made again. `workspace` is the one
/// of its owner's name. One whose spec cannot be read may list any user.
pub fn is_listed(user: &User, workspace: Option<&Workspace>) -> bool {
    let (Some(workspace), Some(spec)) = (workspace, &user.spec) else { return false };
    let mut owners = user.metadata.owner_references.iter().flatten().filter(|owner| owner.controller == Some(true));
    let is_owner = owners.any(|owner| Some(&owner.uid) == workspace.metadata.uid.as_ref());
    let lists = workspace.spec.as_ref().is_none_or(|owner| owner.users.iter().any(|listed| listed.slug == spec.slug));
    is_owner && lists && workspace.metadata.deletion_timestamp.is_none()
}

/// The next actions for one User, and all that is in the way.
pub fn plan(user: &User, observed: &Observed) -> Plan<Action> {
    let mut plan = Plan::default();
    let uid = user.metadata.uid.as_deref().unwrap_or_default();
    if user.metadata.deletion_timestamp.is_some() {
        clean_up(&mut plan, user, uid, observed);
    } else if observed.is_namespace_terminating {
        // Nothing is made where everything goes.
    } else {
        match derive(user, &observed.objects) {
            Ok(derived) => {
                let finalizer =
                    add_finalizer(&user.metadata, FINALIZER).filter(|_| is_volume_to_go(user.spec.as_ref()));
                let first = finalizer.map(|action| plan.push(action));
                converge(&mut plan, uid, &derived, &observed.objects, first);
                repair_labels(&mut plan, user, &derived, &observed.objects, first);
                block(&mut plan, uid, &derived, &observed.objects);
                prune(&mut plan, uid, &derived, &observed.objects, first);
            }
            Err(why) => plan.blocked.push(why),
        }
    }
    plan
}

/// A password is made once and never written again, so its Secret is not applied; what it is found by is repaired.
fn repair_labels(plan: &mut Plan<Action>, user: &User, derived: &[Derived], objects: &Objects, first: Option<StepId>) {
    let patch = json!({ "metadata": { "labels": owner(user).labels() } });
    for Derived { id, .. } in derived.iter().filter(|derived| derived.wish == Wish::Keep) {
        if let Some(found) = objects.get(id).filter(|found| !found.is_going && found.is_to_apply(id, &patch)) {
            let (id, uid, resource_version) = (id.clone(), found.uid.clone(), found.resource_version.clone());
            let action = Action::Patch { id, uid, resource_version, patch: Body(patch.clone()) };
            plan.push_step(Step::new(action).needs(first));
        }
    }
}

fn prune(plan: &mut Plan<Action>, uid: &str, derived: &[Derived], objects: &Objects, first: Option<StepId>) {
    let mut sets = objects.iter().filter(|(id, found)| id.kind == ObjectKind::StatefulSet && found.is_of(uid));
    let is_at_rest = sets.all(|(_, set)| is_through(set));
    for (id, found) in surplus(uid, derived, objects) {
        // Not from under a pod that is being changed: it may start again.
        if is_at_rest || id.kind != ObjectKind::Secret {
            plan.push_step(Step::new(delete(id, found)).needs(first));
        }
    }
}

/// Whether all pods of a StatefulSet are of its newest form and ready.
pub(super) fn is_through(set: &Found) -> bool {
    let number = |name: &str| set.status[name].as_i64().unwrap_or(0);
    let wanted = set.content.0["spec"]["replicas"].as_i64().unwrap_or(1);
    let is_seen = set.generation.is_some_and(|generation| number("observedGeneration") >= generation);
    // At zero nothing is updated; what counts is that nothing is left.
    is_seen
        && number("replicas") == wanted
        && number("readyReplicas") == wanted
        && (wanted == 0 || number("updatedReplicas") == wanted)
}

fn is_volume_to_go(spec: Option<&UserSpec>) -> bool {
    let settings = spec.and_then(|spec| spec.code_server.as_ref());
    let storage = settings.and_then(|settings: &CodeServer| settings.storage.as_ref());
    storage.is_some_and(|storage| storage.retention == Some(Retention::Delete))
}

/// Everything goes with the User by itself, but for the volume, which goes only where the spec says so: after the
/// StatefulSet, which would make another one. Another User's StatefulSet of that name may use the volume: it stays. So
/// does that of a person whom the Workspace still lists: the user who deleted the User by hand did not remove them.
fn clean_up(plan: &mut Plan<Action>, user: &User, uid: &str, observed: &Observed) {
    let is_final = !observed.is_namespace_terminating && !observed.is_listed;
    let mut volume = None;
    if let Some(spec) = user.spec.as_ref().filter(|spec| is_volume_to_go(Some(spec)) && is_final) {
        let id = ObjectId::new(ObjectKind::StatefulSet, object_name(&spec.slug));
        let set = observed.objects.get(&id);
        if let Some(found) = set.filter(|found| found.is_of(uid)) {
            if !found.is_going {
                plan.push(delete(&id, found));
            }
            return;
        }
        let claim = ObjectId::new(ObjectKind::PersistentVolumeClaim, claim_name(&spec.slug));
        let is_due = |found: &&Found| set.is_none() && !found.is_going && is_claim_of(found, uid);
        let due = observed.objects.get(&claim).filter(is_due);
        volume = due.map(|found| plan.push(delete(&claim, found)));
    }
    if let Some(release) = release_finalizer(&user.metadata, FINALIZER) {
        plan.push_step(Step::new(release).needs(volume));
    }
}

/// Claims have no owner, lest they go with it; the StatefulSet's template says whom they were made for. One of an
/// earlier User of the same slug is that one's, whose spec may have said that it stays.
fn is_claim_of(found: &Found, uid: &str) -> bool {
    found.content.0["metadata"]["labels"][LABEL_USER_UID] == uid
}
