//! What the workspaces layer may do is what it does, but for what it holds to pass on.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context, Result};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
    config::Kubeconfig,
};
use runtime::rights;
use rustix::process::Signal;
use serde_json::{Value, json};
use testbed::{
    ControlPlane, Options,
    charts::{Access, ChartRepository, samples},
    fault::{Calls, Fault, FaultProxy, Verb},
    process::{Child, Program},
    tools,
};

use crate::{
    chart_rights::{texts, until_granted, used},
    harness::{OPERATOR_ACCOUNT, OPERATOR_NAMESPACE, OPERATOR_USER, namespace, observe::eventually, operator_user},
};

/// Held only to be passed on: nobody may grant a Role what they do not hold.
const PASSED_ON: [&str; 2] = [" pods get", " pods/log get"];

/// Kinds that the layer writes: a conflict on each makes it look at what is really there.
const WRITTEN: [&str; 15] = [
    "workspaces/status",
    "users",
    "users/status",
    "helmreleases",
    "helmreleases/status",
    "secrets",
    "configmaps",
    "networkpolicies",
    "ingresses",
    "statefulsets",
    "services",
    "serviceaccounts",
    "roles",
    "rolebindings",
    "leases",
];

fn objects(client: &Client, namespace: &str, kind: &str) -> Api<DynamicObject> {
    let kind = match kind {
        "RoleBinding" => GroupVersionKind::gvk("rbac.authorization.k8s.io", "v1", kind),
        "Workspace" | "HelmRelease" | "User" => GroupVersionKind::gvk("workspaces.strata.dev", "v1alpha1", kind),
        "Ingress" => {
            let resource =
                ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("networking.k8s.io", "v1", kind), "ingresses");
            return Api::namespaced_with(client.clone(), namespace, &resource);
        }
        "NetworkPolicy" => GroupVersionKind::gvk("networking.k8s.io", "v1", kind),
        _ => GroupVersionKind::gvk("", "v1", kind),
    };
    Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk(&kind))
}

async fn create(client: &Client, namespace: &str, object: Value) -> Result<()> {
    let kind = object["kind"].as_str().context("an object names its kind")?.to_owned();
    objects(client, namespace, &kind).create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

async fn patch(api: &Api<DynamicObject>, name: &str, patch: Value) -> Result<()> {
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// The `Ready` condition of an object is of this status and reason.
async fn until_ready(api: &Api<DynamicObject>, name: &str, status: &str, reason: &str) -> Result<()> {
    eventually(&format!("{name} is {status}, {reason}"), || async {
        let Some(object) = api.get_opt(name).await? else { return Ok(false) };
        let conditions = object.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        Ok(conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == status && c["reason"] == reason))
    })
    .await
}

async fn until_gone(api: &Api<DynamicObject>, name: &str) -> Result<()> {
    eventually(&format!("{name} is gone"), || async { Ok(api.get_opt(name).await?.is_none()) }).await
}

async fn operator(kubeconfig: &Path, directory: &Path, name: &str, flags: &[&str]) -> Result<Child> {
    let program = Program::new("strata operator", env!("CARGO_BIN_EXE_strata"), directory.join(format!("{name}.log")))
        .args(["operator", "--layers=workspaces", "--metrics-bind-address=0", "--health-probe-bind-address=0"])
        .args(["--lease-duration=10s", "--resync=2s"])
        .args(flags)
        .args(["--helm".into(), tools::path("helm").await?])
        .args(["--helm-directory".into(), directory.join("helm")])
        .args(["--kubeconfig".as_ref(), kubeconfig.as_os_str()])
        .env("POD_NAMESPACE", OPERATOR_NAMESPACE);
    Ok(Child::start(program)?)
}

/// A workspace's whole life, without Helm: its releases name no ServiceAccount.
async fn lead_a_team(client: &Client, place: &str, charts: &str) -> Result<()> {
    let chart = json!({ "repo": charts, "name": "four", "version": "1.0.0" });
    let workspace = json!({
        "apiVersion": "workspaces.strata.dev/v1alpha1", "kind": "Workspace", "metadata": { "name": "team" },
        "spec": {
            "domain": "example.com",
            "services": { "web": { "chart": chart, "expose": { "service": "web", "port": 80 } } },
            "configs": {
                "open": { "data": { "a": "1" } },
                "hidden": { "kind": "Secret", "fromSecret": { "name": "source" } },
            },
            "userDefaults": { "storage": { "size": "1Gi", "retention": "delete" } },
            "users": [
                { "slug": "ana", "email": "ana@example.com", "permissions": ["code-server"] },
                { "slug": "bob", "email": "bob@example.com", "permissions": ["code-server"] },
            ],
        },
    });
    let source =
        json!({ "kind": "Secret", "apiVersion": "v1", "metadata": { "name": "source" }, "stringData": { "b": "2" } });
    create(client, place, source).await?;
    create(client, place, workspace).await?;
    let (workspaces, users) = (objects(client, place, "Workspace"), objects(client, place, "User"));
    until_ready(&users, "ana", "True", "Succeeded").await?;
    until_ready(&objects(client, place, "HelmRelease"), "web", "False", "ServiceAccountRequired").await?;
    // New content, closed to nobody, nobody but Ana, no service: everything derived is changed or removed once.
    let open = json!({ "a": "2" });
    let change = json!({ "spec": {
        "configs": { "open": { "data": open }, "hidden": null }, "network": { "isolation": false }, "services": null,
        "users": [{ "slug": "ana", "email": "ana@example.com", "permissions": ["code-server"],
                    "codeServer": { "restartedAt": "now" } }],
    } });
    patch(&workspaces, "team", change).await?;
    until_gone(&users, "bob").await?;
    until_gone(&objects(client, place, "HelmRelease"), "web").await?;
    until_ready(&workspaces, "team", "True", "Succeeded").await?;
    // Withdrawn and given back: compute goes and comes.
    let withdraw = |disabled| {
        json!({ "spec": { "users": [{ "slug": "ana", "email": "ana@example.com",
        "permissions": ["code-server"], "codeServer": { "disabled": disabled } }] } })
    };
    patch(&workspaces, "team", withdraw(true)).await?;
    until_gone(&objects(client, place, "Service"), "code-server-ana").await?;
    patch(&workspaces, "team", withdraw(false)).await?;
    until_ready(&users, "ana", "True", "Succeeded").await?;
    workspaces.delete("team", &DeleteParams::default()).await?;
    until_gone(&workspaces, "team").await
}

/// A release's whole life in the name of a ServiceAccount, with a revision that a dead process left unfinished.
async fn lead_a_release(client: &Client, place: &str, charts: &str) -> Result<()> {
    for object in [
        json!({ "kind": "ServiceAccount", "apiVersion": "v1", "metadata": { "name": "deployer" } }),
        json!({ "kind": "RoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": { "name": "deployer" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin" },
            "subjects": [{ "kind": "ServiceAccount", "name": "deployer", "namespace": place }] }),
        json!({ "kind": "ConfigMap", "apiVersion": "v1", "metadata": { "name": "values" }, "data": { "values.yaml": "note: a" } }),
        json!({ "kind": "Secret", "apiVersion": "v1", "metadata": { "name": "values" }, "stringData": { "values.yaml": "{}" } }),
        json!({ "kind": "HelmRelease", "apiVersion": "workspaces.strata.dev/v1alpha1", "metadata": { "name": "web" },
            "spec": { "chart": { "repo": charts, "name": "four", "version": "1.0.0" }, "serviceAccountName": "deployer",
                "valuesFrom": [{ "kind": "ConfigMap", "name": "values" }, { "kind": "Secret", "name": "values" }] } }),
    ] {
        create(client, place, object).await?;
    }
    let releases = objects(client, place, "HelmRelease");
    until_ready(&releases, "web", "True", "InstallSucceeded").await?;
    let (stored, record) = (objects(client, place, "Secret"), "sh.helm.release.v1.web.v1");
    let before = stored.get(record).await?.metadata.uid;
    let unfinished = json!({ "metadata": { "labels": { "status": "pending-upgrade" } } });
    patch(&stored, record, unfinished).await?;
    // By its records the release was never deployed: what follows is an install again.
    eventually("web is installed anew", || async {
        let Some(found) = stored.get_opt(record).await? else { return Ok(false) };
        let status = found.metadata.labels.as_ref().and_then(|labels| labels.get("status"));
        Ok(found.metadata.uid != before && status.is_some_and(|status| status == "deployed"))
    })
    .await?;
    until_ready(&releases, "web", "True", "InstallSucceeded").await?;
    releases.delete("web", &DeleteParams::default()).await?;
    until_gone(&releases, "web").await
}

#[tokio::test]
async fn w38_what_is_granted_is_what_is_used_but_for_what_is_passed_on() -> Result<()> {
    let control_plane = ControlPlane::start(Options { fsync: false, ..Options::default() }).await?;
    let rbac = rights::rbac(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT, workspaces::rights::CLUSTER);
    let crds = api::workspace::crds().into_iter().map(|crd| json!(crd));
    let all = std::iter::once(json!(namespace(OPERATOR_NAMESPACE))).chain(crds).chain(rbac.objects());
    control_plane.install(&all.collect::<Vec<_>>()).await?;
    let charts = ChartRepository::start(Access::Anyone).await?;
    samples().await?.iter().try_for_each(|archive| charts.publish(archive))?;
    let (client, directory) = (control_plane.client().await?, control_plane.directory());
    until_granted(&client).await?;
    let kubeconfig = control_plane.kubeconfig_as(&operator_user()).await?;
    // Behind the proxy everybody is the operator, so it is for the part without Helm.
    let proxy = FaultProxy::start(Kubeconfig::read_from(&kubeconfig)?, 7).await?;
    for resource in WRITTEN {
        proxy.inject(Calls::writes(resource).at_most(2), Fault::Status(409));
    }
    for resource in ["workspaces", "persistentvolumeclaims"] {
        proxy.inject(Calls::writes(resource).at_most(1), Fault::Status(409));
    }
    for (lists, number) in [("--streaming-lists=on", 1), ("--streaming-lists=off", 2)] {
        let place = control_plane.namespace("team").await?;
        let operator = operator(&proxy.kubeconfig_path(), directory, &format!("team-{number}"), &[lists]).await?;
        lead_a_team(&client, &place, &charts.url()).await.with_context(|| operator.log_tail())?;
        operator.signal(Signal::TERM)?;
        assert_eq!(operator.exited().await, 0, "{}", operator.log_tail());
    }
    assert!(proxy.requests().iter().any(|seen| seen.request.is_for("leases") && seen.request.verb == Verb::Get));
    let place = control_plane.namespace("release").await?;
    let operator = operator(&kubeconfig, directory, "release", &["--helm-lock-patience=1s"]).await?;
    lead_a_release(&client, &place, &charts.url()).await.with_context(|| operator.log_tail())?;

    let mut entries = control_plane.audit().entries()?;
    entries.retain(|entry| entry.user == OPERATOR_USER);
    let forbidden: Vec<_> = entries.iter().filter(|entry| entry.code == 403).collect();
    assert!(forbidden.is_empty(), "{forbidden:#?}");
    let granted = texts(workspaces::rights::CLUSTER.iter().chain(rights::CLUSTER).chain(rights::OWN_NAMESPACE));
    let used = used(&entries);
    let unused: BTreeSet<_> = granted.difference(&used).map(String::as_str).collect();
    assert_eq!(unused, BTreeSet::from(PASSED_ON));
    let beyond: Vec<_> = used.difference(&granted).collect();
    assert!(beyond.is_empty(), "{beyond:?}");
    Ok(())
}
