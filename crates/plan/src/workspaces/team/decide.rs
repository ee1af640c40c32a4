//! From a Workspace and what there is to the next actions.

use api::condition::Reason;
use api::workspace::{
    DELETE_DATA_ANNOTATION, FINALIZER, HelmReleaseStatus, UserPhase, UserStatus, Workspace, WorkspaceSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::workspaces::derived::{
    Action, Body, Derived, Found, ObjectId, ObjectKind, Objects, Trouble, add_finalizer, converge, delete,
    release_finalizer, surplus, troubles,
};
use crate::{Plan, Why};

/// What is known about one Workspace's surroundings.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// The Workspace that has this namespace, if it is another one; see [`rival`].
    pub rival: Option<String>,
    pub is_namespace_terminating: bool,
    /// What [`super::derive`] gave.
    pub derived: Result<Vec<Derived>, Why>,
    /// Everything that the Workspace owns, and whatever has a name of something derived.
    pub objects: Objects,
    /// HelmReleases, Users and StatefulSets of the namespace that may refer to a config and are not the Workspace's
    /// own. What else refers to one by a name with a hash in it did not get that name from us.
    pub referrers: Vec<Body>,
}

/// The Workspace that has the namespace, if it is another one: the older of two, by name if they are of one second.
pub fn rival<'a>(own: &ObjectMeta, others: impl Iterator<Item = &'a ObjectMeta>) -> Option<String> {
    let age = |metadata: &ObjectMeta| (metadata.creation_timestamp.as_ref().map(|at| at.0), metadata.name.clone());
    let oldest = others.filter(|other| other.uid != own.uid).min_by_key(|other| age(other))?;
    (age(oldest) < age(own)).then(|| oldest.name.clone().unwrap_or_default())
}

/// The next actions for one Workspace.
pub fn plan(workspace: &Workspace, observed: &Observed) -> Plan<Action> {
    assess(workspace, observed).0
}

/// The next actions, and all that is in the way.
pub(super) fn assess(workspace: &Workspace, observed: &Observed) -> (Plan<Action>, Vec<Trouble>) {
    let mut plan = Plan::default();
    let uid = workspace.metadata.uid.as_deref().unwrap_or_default();
    let mut found = Vec::new();
    if workspace.metadata.deletion_timestamp.is_some() {
        clean_up(&mut plan, &mut found, workspace, uid, observed);
    } else if observed.is_namespace_terminating {
        // Nothing is made where everything goes.
    } else if let Some(rival) = &observed.rival {
        let message = format!("Workspace {rival} has this namespace; move one of the two to a namespace of its own");
        found.push(Trouble::whole(Why { reason: Reason::NamespaceTaken, message }));
    } else {
        match &observed.derived {
            Ok(derived) => go_on(&mut plan, &mut found, workspace, uid, derived, observed),
            Err(why) => found.push(Trouble::whole(why.clone())),
        }
    }
    found.sort_by_key(|trouble| trouble.why.reason);
    plan.blocked = found.first().map(|trouble| trouble.why.clone());
    (plan, found)
}

fn go_on(
    plan: &mut Plan<Action>,
    found: &mut Vec<Trouble>,
    workspace: &Workspace,
    uid: &str,
    derived: &[Derived],
    observed: &Observed,
) {
    let objects = &observed.objects;
    plan.actions.extend(add_finalizer(&workspace.metadata, FINALIZER));
    converge(plan, uid, derived, objects);
    found.extend(troubles(uid, derived, objects));
    let may_collect = objects.iter().filter(|(id, _)| id.kind == ObjectKind::User).all(|(_, user)| is_at_rest(user));
    for (id, surplus) in surplus(uid, derived, objects) {
        match id.kind {
            ObjectKind::HelmRelease => remove_release(plan, found, workspace.spec.as_ref(), id, surplus),
            // Not from under a code-server that is being changed: its old pod may start again.
            ObjectKind::ConfigMap | ObjectKind::Secret => {
                if may_collect && !is_referred_to(&id.name, observed) {
                    plan.actions.push(delete(id, surplus));
                }
            }
            _ => plan.actions.push(delete(id, surplus)),
        }
    }
}

/// A release with data goes only where `deleteData` says so; what is not known of a deployed one counts as data.
fn remove_release(
    plan: &mut Plan<Action>,
    found: &mut Vec<Trouble>,
    spec: Option<&WorkspaceSpec>,
    id: &ObjectId,
    release: &Found,
) {
    let is_allowed = release.annotation(DELETE_DATA_ANNOTATION) == Some("true");
    // It leaves the Helm release as it is.
    let is_suspended = release.content.0["spec"]["suspend"] == true;
    let service = spec.and_then(|spec| spec.services.get(&id.name));
    let patch = |patch: Value| {
        let (id, uid, resource_version) = (id.clone(), release.uid.clone(), release.resource_version.clone());
        Action::Patch { id, uid, resource_version, patch: Body(patch) }
    };
    if !is_allowed && service.is_some_and(|service| service.delete_data == Some(true)) {
        plan.actions.push(patch(json!({ "metadata": { "annotations": { DELETE_DATA_ANNOTATION: "true" } } })));
    } else if !is_allowed && !is_suspended && may_hold_data(release) {
        let is_stopped = spec.is_some_and(|spec| spec.stopped == Some(true));
        if is_stopped != (release.content.0["spec"]["stopped"] == true) {
            plan.actions.push(patch(json!({ "spec": { "stopped": is_stopped.then_some(true) } })));
        }
        let name = &id.name;
        let message = format!(
            "service {name} is not removed: its release holds PersistentVolumeClaims. To remove them with it, have \
             deleteData: true in spec.services.{name}; to leave the Helm release and them behind, set spec.suspend: \
             true in HelmRelease {name} (strata release suspend {name})"
        );
        found.push(Trouble::of(id, Reason::DataProtected, message));
    } else {
        plan.actions.push(delete(id, release));
    }
}

fn may_hold_data(release: &Found) -> bool {
    let status: HelmReleaseStatus = serde_json::from_value(release.status.clone()).unwrap_or_default();
    status.holds_data.unwrap_or(status.last_applied_revision.is_some())
}

/// Whether the last change of a user's code-server is through.
fn is_at_rest(user: &Found) -> bool {
    let status: UserStatus = serde_json::from_value(user.status.clone()).unwrap_or_default();
    status.observed_generation == user.generation && status.phase != Some(UserPhase::Progressing)
}

/// Names with a hash in them are not found by accident, so the text alone tells.
fn is_referred_to(name: &str, observed: &Observed) -> bool {
    let own = observed.objects.iter().filter(|(id, _)| !id.kind.is_config()).map(|(_, found)| &found.content);
    own.chain(&observed.referrers).any(|content| content.0.to_string().contains(name))
}

/// Users and releases go first, and the Workspace when they are gone; the rest goes with it. As long as data would be
/// lost nothing goes at all. In a namespace that is deleted there is nothing left to hold.
fn clean_up(plan: &mut Plan<Action>, found: &mut Vec<Trouble>, workspace: &Workspace, uid: &str, observed: &Observed) {
    if !observed.is_namespace_terminating {
        let is_waited_for = |kind| matches!(kind, ObjectKind::User | ObjectKind::HelmRelease);
        let ours = || observed.objects.iter().filter(|(id, object)| object.is_of(uid) && is_waited_for(id.kind));
        for (id, object) in ours().filter(|(_, object)| !object.is_going) {
            match id.kind {
                ObjectKind::HelmRelease => remove_release(plan, found, workspace.spec.as_ref(), id, object),
                _ => plan.actions.push(delete(id, object)),
            }
        }
        if !found.is_empty() {
            plan.actions.retain(|action| matches!(action, Action::Patch { .. }));
        }
        if ours().next().is_some() {
            return;
        }
    }
    plan.actions.extend(release_finalizer(&workspace.metadata, FINALIZER));
}
