//! What the chart's ServiceAccount may do is what the operator does, no more and no less.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use runtime::rights::{self, Right};
use rustix::process::Signal;
use serde_json::json;
use testbed::{
    audit::Entry,
    fault::{Calls, Fault, Verb},
    may, until_allowed,
};

use crate::{
    harness::{OPERATOR_ACCOUNT, OPERATOR_NAMESPACE, OPERATOR_USER, Space, apply, observe, operator_user, spec},
    process::operator,
    scene::{Scene, eventually},
};

/// `pods create`, `performers.hourglass.eigenlayer.io/status patch`, …
pub fn texts<'a>(rights: impl IntoIterator<Item = &'a Right>) -> BTreeSet<String> {
    let text = |right: &Right| {
        right.verbs.iter().map(|verb| format!("{} {} {verb}", right.group, right.resource)).collect::<Vec<_>>()
    };
    rights.into_iter().flat_map(text).collect()
}

/// Waits until the operator has what it was granted in the whole cluster and in its own namespace, whichever its layers.
pub async fn until_granted(client: &Client) -> Result<()> {
    for Right { group, resource, verbs, .. } in [rights::CLUSTER[0], rights::OWN_NAMESPACE[0]] {
        until_allowed(client, &operator_user(), verbs[0], group, resource, OPERATOR_NAMESPACE).await?;
    }
    Ok(())
}

pub fn used(entries: &[Entry]) -> BTreeSet<String> {
    let of_resources = entries.iter().filter(|entry| !entry.resource.is_empty());
    of_resources
        .flat_map(|entry| {
            let slash = if entry.subresource.is_empty() { "" } else { "/" };
            // An apply that made the object needs the right to create it too.
            let made = (entry.verb == "patch" && entry.code == 201).then_some("create");
            let verbs = std::iter::once(entry.verb.as_str()).chain(made);
            verbs
                .map(|verb| format!("{} {}{slash}{} {verb}", entry.group, entry.resource, entry.subresource))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// A conflict on each kind of write makes the operator look at what is really there.
fn conflicts(scene: &Scene) {
    let once = [
        Calls::of(Verb::Create, "pods"),
        Calls::of(Verb::Create, "services"),
        Calls::of(Verb::Patch, "performers/status"),
        Calls::of(Verb::Update, "leases"),
    ];
    for calls in once {
        scene.proxy.inject(calls.at_most(1), Fault::Status(409));
    }
}

async fn lead_a_life(space: &Space) -> Result<()> {
    space.create_ready("a", spec()).await?;
    let former = space.pod("a").await?;
    space.patch("a", json!({ "spec": { "image": "registry.test/performer:v2" } })).await?;
    space.until_replaced("a", &former).await?;
    space.until_ready("a").await?;
    let edit = json!({ "spec": { "ports": [{ "name": "grpc", "port": 1, "targetPort": 1, "protocol": "TCP" }] } });
    space.services.patch("performer-a", &PatchParams::default(), &Patch::Merge(edit)).await?;
    crate::harness::until(&space.services, "performer-a", "repaired", |service| {
        let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
        matches!(ports, [port] if port.port == 9090)
    })
    .await?;
    space.delete_and_wait("a").await
}

#[tokio::test]
async fn p44_what_is_granted_is_what_is_used() -> Result<()> {
    let scene = Scene::lent().await?;
    let space = scene.space("rights").await?;
    until_granted(&space.client).await?;
    let mark = scene.control_plane.audit().mark()?;
    conflicts(&scene);
    // Each process leads in turn; the one fills its caches by streaming lists, the other page by page.
    for lists in ["--streaming-lists=on", "--streaming-lists=off"] {
        let operator = operator(&scene, &scene.proxy, &["--lease-duration=10s", lists])?;
        lead_a_life(&space).await?;
        let renewed = || {
            scene.proxy.requests().iter().any(|seen| seen.request.is_for("leases") && seen.request.verb == Verb::Get)
        };
        eventually("the lease was read after a conflict", renewed).await?;
        operator.signal(Signal::TERM)?;
        assert_eq!(operator.exited().await, 0, "{}", operator.log_tail());
    }
    let mut entries = scene.control_plane.audit().entries_after(mark)?;
    entries.retain(|entry| entry.user == OPERATOR_USER);
    let forbidden: Vec<_> = entries.iter().filter(|entry| entry.code == 403).collect();
    assert!(forbidden.is_empty(), "{forbidden:?}");
    let granted = performers::rights::CLUSTER.iter().chain(rights::CLUSTER).chain(rights::OWN_NAMESPACE);
    let (granted, used) = (texts(granted), used(&entries));
    let unused: Vec<_> = granted.difference(&used).map(String::as_str).collect();
    // Admission checks it, no request asks for it: see the next test.
    assert_eq!(unused, ["hourglass.eigenlayer.io performers/finalizers update"]);
    let beyond: Vec<_> = used.difference(&granted).collect();
    assert!(beyond.is_empty(), "{beyond:?}");
    Ok(())
}

#[tokio::test]
async fn p44_without_the_right_to_finalizers_no_pod_can_be_owned() -> Result<()> {
    let scene = Scene::lent().await?;
    let space = scene.space("owner").await?;
    let roles: Api<ClusterRole> = Api::all(space.client.clone());
    let whole = roles.get(OPERATOR_ACCOUNT).await?.rules.context("the role has rules")?;
    let mut lacking = whole.clone();
    lacking.retain(|rule| rule.resources.as_deref() != Some(&["performers/finalizers".to_owned()]));
    assert_eq!(lacking.len() + 1, whole.len());
    set_rules(&roles, &lacking).await?;
    let what = json!({
        "verb": "update", "group": "hourglass.eigenlayer.io", "resource": "performers", "subresource": "finalizers",
    });
    let is_gone = || async { Ok(!may(&space.client, &operator_user(), &what).await?) };
    observe::eventually("the right is gone", is_gone).await?;
    let _operator = operator(&scene, &scene.proxy, &["--leader-elect=false", "--resync=1s"])?;
    space.create("a", spec()).await?;
    space.until_condition("a", "Degraded", "True", "PodRejected").await?;
    assert!(space.pods.get_opt("performer-a").await?.is_none());
    set_rules(&roles, &whole).await?;
    space.until_ready("a").await?;
    Ok(())
}

async fn set_rules(roles: &Api<ClusterRole>, allowed: &[PolicyRule]) -> Result<()> {
    let mut role = ClusterRole { rules: Some(allowed.to_vec()), ..ClusterRole::default() };
    role.metadata.name = Some(OPERATOR_ACCOUNT.to_owned());
    apply(roles, OPERATOR_ACCOUNT, &role).await
}
