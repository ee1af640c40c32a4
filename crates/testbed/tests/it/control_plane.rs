//! A control plane tells users apart, serves stock programs, and records every request.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Pod, ServiceAccount},
    rbac::v1::RoleBinding,
};
use kube::{
    Api,
    api::{ListParams, PostParams},
    runtime::{conditions::is_pod_running, wait::await_condition},
};
use serde_json::json;
use testbed::{
    ControlPlane, Options, User,
    audit::{Entry, Mark},
    tools, until_allowed,
};

#[tokio::test]
async fn a_stranger_is_refused_and_audited_under_his_name() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let mark = control_plane.audit().mark()?;
    let stranger = control_plane.client_as(&User::named("mallory")).await?;
    let error = Api::<Pod>::default_namespaced(stranger).list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 403), "{error:?}");
    let entry = control_plane.audit().wait_for(mark, |entry| entry.user == "mallory").await?.context("no entry")?;
    assert_eq!((entry.verb.as_str(), entry.resource.as_str(), entry.code), ("list", "pods", 403));
    assert!(!entry.is_write());
    Ok(())
}

#[tokio::test]
async fn a_group_is_what_its_binding_grants() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let namespace = control_plane.namespace("group").await?;
    let subject = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "readers" });
    let alice = User::in_group("alice", "readers");
    bind(control_plane, &namespace, "view", subject, &alice).await?;
    let pods = Api::<Pod>::namespaced(control_plane.client_as(&alice).await?, &namespace);
    pods.list(&ListParams::default()).await?;
    Ok(())
}

#[tokio::test]
async fn a_service_account_acts_under_its_own_name() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let namespace = control_plane.namespace("account").await?;
    let account: ServiceAccount = serde_json::from_value(json!({ "metadata": { "name": "robot" } }))?;
    let accounts = Api::namespaced(control_plane.client().await?, &namespace);
    accounts.create(&PostParams::default(), &account).await?;
    let robot = User::service_account(&namespace, "robot");
    bind(control_plane, &namespace, "edit", json!({ "kind": "ServiceAccount", "name": "robot" }), &robot).await?;

    let robot = control_plane.client_as(&robot).await?;
    let map: ConfigMap = serde_json::from_value(json!({ "metadata": { "name": "made-by-robot" } }))?;
    let maps = Api::namespaced(robot, &namespace);
    maps.create(&PostParams::default(), &map).await?;

    let made = |entry: &Entry| entry.name == "made-by-robot" && entry.is_write();
    let entry = control_plane.audit().wait_for(Mark::default(), made).await?.context("no entry")?;
    assert_eq!(entry.user, format!("system:serviceaccount:{namespace}:robot"));
    assert_eq!((entry.verb.as_str(), entry.resource.as_str(), entry.code), ("create", "configmaps", 201));
    assert_eq!(entry.namespace, namespace);
    Ok(())
}

/// Blocking deletion of an owner one may not change is refused: admission goes beyond the defaults.
#[tokio::test]
async fn owner_references_need_the_right_to_their_owner() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let namespace = control_plane.namespace("owner").await?;
    let bob = User::named("bob");
    bind(control_plane, &namespace, "edit", json!({ "kind": "User", "name": "bob" }), &bob).await?;
    let node =
        json!({ "apiVersion": "v1", "kind": "Node", "name": "simulated-0", "uid": "1", "blockOwnerDeletion": true });
    let map: ConfigMap = serde_json::from_value(json!({ "metadata": { "name": "owned", "ownerReferences": [node] } }))?;
    let bob = control_plane.client_as(&bob).await?;
    let error = Api::namespaced(bob, &namespace).create(&PostParams::default(), &map).await.unwrap_err();
    assert!(error.to_string().contains("cannot set blockOwnerDeletion"), "{error}");
    Ok(())
}

#[tokio::test]
async fn stock_kubectl_works_with_the_kubeconfig_as_it_is() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let output = tokio::process::Command::new(tools::path("kubectl").await?)
        .args(["get", "nodes", "-o", "name", "--kubeconfig"])
        .arg(control_plane.kubeconfig())
        .output()
        .await?;
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("node/simulated-0"), "{text}{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[tokio::test]
async fn programs_are_listed_with_pid_and_log() -> Result<()> {
    let programs = ControlPlane::shared().await?.programs();
    let names: Vec<_> = programs.iter().map(|program| program.name.as_str()).collect();
    assert_eq!(names, ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"]);
    assert!(programs.iter().all(|program| program.pid > 1 && program.log.is_file()), "{programs:?}");
    Ok(())
}

#[tokio::test]
async fn a_scheduler_that_ends_is_started_again() -> Result<()> {
    let control_plane = ControlPlane::start(Options { fsync: false, ..Options::default() }).await?;
    let scheduler = || control_plane.children().find(|child| child.program().name == "kube-scheduler");
    scheduler().context("no scheduler")?.kill().await?;
    let namespace = control_plane.namespace("later").await?;
    let pod =
        json!({ "metadata": { "name": "later" }, "spec": { "containers": [{ "name": "main", "image": "some:1" }] } });
    let pods: Api<Pod> = Api::namespaced(control_plane.client().await?, &namespace);
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    let running = await_condition(pods, "later", is_pod_running());
    tokio::time::timeout(Duration::from_mins(2), running).await.context("no node was chosen")??;
    Ok(())
}

#[tokio::test]
async fn a_lent_control_plane_is_left_to_the_next_as_it_is() -> Result<()> {
    let first = ControlPlane::lent("these").await?;
    let (server, namespace) = (first.server().to_owned(), first.namespace("left").await?);
    drop(first);
    let next = ControlPlane::lent("these").await?;
    assert_eq!(next.server(), server);
    Api::<Namespace>::all(next.client().await?).get(&namespace).await?;
    Ok(())
}

/// Binds a role that is there from the beginning, and waits until the user whom it is for has it.
async fn bind(
    control_plane: &ControlPlane,
    namespace: &str,
    role: &str,
    subject: serde_json::Value,
    user: &User,
) -> Result<()> {
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": { "name": role },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [subject],
    }))?;
    let client = control_plane.client().await?;
    Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &binding).await?;
    // The role `edit` is filled bit by bit, by a controller.
    let verb = if role == "edit" { "create" } else { "list" };
    Ok(until_allowed(&client, user, verb, "", "configmaps", namespace).await?)
}
