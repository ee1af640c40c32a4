//! From a Workspace and what there is to the next actions.

use std::{cell::LazyCell, collections::BTreeSet};

use api::condition::Reason;
use api::workspace::{
    DELETE_DATA_ANNOTATION, FINALIZER, HelmReleaseStatus, UserPhase, UserStatus, Workspace, WorkspaceSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::source::want;
use super::{Note, SourceAsk, Surroundings, derive};
use crate::Why;
use crate::round::{Inputs, Step, StepId};
use crate::workspaces::derived::{
    Action, Body, Derived, Found, ObjectId, ObjectKind, Objects, Wish, add_finalizer, block, block_object, converge,
    delete, release_finalizer, surplus,
};
use crate::workspaces::secret::Digested;

type Plan = crate::round::Plan<Action, SourceAsk>;
pub type InputsOf = Inputs<Note, SourceAsk, Option<Digested>>;

/// What is known about one Workspace's surroundings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// The Workspace that has this namespace, if it is another one; see [`rival`].
    pub rival: Option<String>,
    pub is_namespace_terminating: bool,
    pub surroundings: Surroundings,
    /// Everything that the Workspace owns, and whatever has a name of something derived.
    pub objects: Objects,
    /// Configs of the Workspace that are not derived any more, and that no HelmReleases, Users or StatefulSets of others
    /// in the namespace refer to, of those that were looked for. What else refers to one by a name with a hash in it did
    /// not get that name from us.
    pub unreferred: BTreeSet<String>,
}

/// The Workspace that has the namespace, if it is another one: the older of two, by name if they are of one second.
pub fn rival<'a>(own: &ObjectMeta, others: impl Iterator<Item = &'a ObjectMeta>) -> Option<String> {
    let age = |metadata: &ObjectMeta| (metadata.creation_timestamp.as_ref().map(|at| at.0), metadata.name.clone());
    let oldest = others.filter(|other| other.uid != own.uid).min_by_key(|other| age(other))?;
    (age(oldest) < age(own)).then(|| oldest.name.clone().unwrap_or_default())
}

/// The next actions for one Workspace, and all that is in the way.
pub fn plan(workspace: &Workspace, observed: &Observed, inputs: &InputsOf) -> Plan {
    let mut plan = Plan::default();
    let uid = workspace.metadata.uid.as_deref().unwrap_or_default();
    if workspace.metadata.deletion_timestamp.is_some() {
        clean_up(&mut plan, workspace, uid, observed);
    } else if observed.is_namespace_terminating {
        // Nothing is made where everything goes.
    } else if let Some(rival) = &observed.rival {
        let message =
            format!("Workspace {rival} already uses this namespace; move one of the two to a namespace of its own");
        plan.block(Reason::NamespaceTaken, message);
    } else {
        let namespace = workspace.metadata.namespace.as_deref().unwrap_or_default();
        want(&mut plan, namespace, &observed.surroundings, inputs);
        let surroundings = observed.surroundings.with(namespace, &inputs.facts);
        match derive(workspace, &surroundings) {
            Ok(derived) => go_on(&mut plan, workspace, uid, &derived, observed, surroundings.is_complete()),
            Err(why) => plan.blocked.push(why),
        }
    }
    plan
}

/// `is_complete`: whether it is known what every config is.
fn go_on(
    plan: &mut Plan,
    workspace: &Workspace,
    uid: &str,
    derived: &[Derived],
    observed: &Observed,
    is_complete: bool,
) {
    let objects = &observed.objects;
    let first = add_finalizer(&workspace.metadata, FINALIZER).map(|action| plan.push(action));
    converge(plan, uid, derived, objects, first);
    stop_held(plan, workspace.spec.as_ref(), uid, derived, objects, first);
    block(plan, uid, derived, objects);
    let are_users_at_rest =
        || objects.iter().filter(|(id, _)| id.kind == ObjectKind::User).all(|(_, user)| is_at_rest(user));
    let may_collect = is_complete && are_users_at_rest();
    let own: LazyCell<Vec<String>, _> = LazyCell::new(|| {
        let own = objects.iter().filter(|(id, _)| !id.kind.is_config());
        own.map(|(_, found)| found.content.0.to_string()).collect()
    });
    // Names with a hash in them are not found by accident, so the text alone decides.
    let is_unreferred =
        |name: &str| observed.unreferred.contains(name) && !own.iter().any(|content| content.contains(name));
    for (id, surplus) in surplus(uid, derived, objects) {
        let action = match id.kind {
            ObjectKind::HelmRelease => remove_release(plan, workspace.spec.as_ref(), id, surplus),
            // Not from under a code-server that is being changed: its old pod may start again.
            ObjectKind::ConfigMap | ObjectKind::Secret => {
                (may_collect && is_unreferred(&id.name)).then(|| delete(id, surplus))
            }
            _ => Some(delete(id, surplus)),
        };
        if let Some(action) = action {
            plan.push_step(Step::new(action).needs(first));
        }
    }
}

/// What cannot be derived now stays as it is, but stops and starts with the Workspace.
fn stop_held(
    plan: &mut Plan,
    spec: Option<&WorkspaceSpec>,
    uid: &str,
    derived: &[Derived],
    objects: &Objects,
    first: Option<StepId>,
) {
    let is_stoppable = |id: &ObjectId| matches!(id.kind, ObjectKind::HelmRelease | ObjectKind::User);
    let held = derived.iter().filter(|derived| matches!(derived.wish, Wish::Hold(_))).map(|derived| &derived.id);
    for id in held.filter(|id| is_stoppable(id)) {
        let found = objects.get(id).filter(|found| found.is_of(uid) && !found.is_going);
        if let Some(action) = found.and_then(|found| stop(spec, id, found)) {
            plan.push_step(Step::new(action).needs(first));
        }
    }
}

/// Passes on whether the Workspace is stopped, where the object says otherwise.
fn stop(spec: Option<&WorkspaceSpec>, id: &ObjectId, found: &Found) -> Option<Action> {
    let is_stopped = spec.is_some_and(|spec| spec.stopped == Some(true));
    let is_other = is_stopped != (found.content.0["spec"]["stopped"] == true);
    is_other.then(|| patch(id, found, json!({ "spec": { "stopped": is_stopped } })))
}

fn patch(id: &ObjectId, found: &Found, patch: Value) -> Action {
    let (id, uid, resource_version) = (id.clone(), found.uid.clone(), found.resource_version.clone());
    Action::Patch { id, uid, resource_version, patch: Body(patch) }
}

/// A release with data goes only where `deleteData` says so; what is not known of a deployed one counts as data.
fn remove_release(plan: &mut Plan, spec: Option<&WorkspaceSpec>, id: &ObjectId, release: &Found) -> Option<Action> {
    let is_allowed = release.annotation(DELETE_DATA_ANNOTATION) == Some("true");
    // It leaves the Helm release as it is.
    let is_suspended = release.content.0["spec"]["suspend"] == true;
    let service = spec.and_then(|spec| spec.services.get(&id.name));
    if !is_allowed && service.is_some_and(|service| service.delete_data == Some(true)) {
        return Some(patch(id, release, json!({ "metadata": { "annotations": { DELETE_DATA_ANNOTATION: "true" } } })));
    }
    if is_allowed || is_suspended || !may_hold_data(release) {
        return Some(delete(id, release));
    }
    let name = &id.name;
    let message = format!(
        "service {name} is not removed: its release holds PersistentVolumeClaims. To remove them with it, have \
         deleteData: true in spec.services.{name}; to leave the Helm release and them behind, set spec.suspend: \
         true in HelmRelease {name} (strata release suspend {name})"
    );
    block_object(plan, id, Why { reason: Reason::DataProtected, message });
    stop(spec, id, release)
}

fn may_hold_data(release: &Found) -> bool {
    let status = release.read_status::<HelmReleaseStatus>();
    // What cannot be read may say anything.
    status.is_none_or(|status| status.holds_data.unwrap_or(status.last_applied_revision.is_some()))
}

/// Whether the last change of a user's code-server is through.
fn is_at_rest(user: &Found) -> bool {
    let is_through = |status: UserStatus| {
        status.observed_generation == user.generation && status.phase != Some(UserPhase::Progressing)
    };
    user.read_status().is_some_and(is_through)
}

/// Users and releases go first, and the Workspace when they are gone; the rest goes with it. As long as data would be
/// lost nothing goes at all. In a namespace that is deleted there is nothing left to hold.
fn clean_up(plan: &mut Plan, workspace: &Workspace, uid: &str, observed: &Observed) {
    if !observed.is_namespace_terminating {
        let is_waited_for = |kind| matches!(kind, ObjectKind::User | ObjectKind::HelmRelease);
        let ours = || observed.objects.iter().filter(|(id, object)| object.is_of(uid) && is_waited_for(id.kind));
        let mut actions = Vec::new();
        for (id, object) in ours().filter(|(_, object)| !object.is_going) {
            actions.extend(match id.kind {
                ObjectKind::HelmRelease => remove_release(plan, workspace.spec.as_ref(), id, object),
                _ => Some(delete(id, object)),
            });
        }
        if !plan.blocked_objects.is_empty() {
            actions.retain(|action| matches!(action, Action::Patch { .. }));
        }
        for action in actions {
            plan.push(action);
        }
        if ours().next().is_some() {
            return;
        }
    }
    if let Some(release) = release_finalizer(&workspace.metadata, FINALIZER) {
        plan.push(release);
    }
}
