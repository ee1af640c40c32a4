//! What the layer's accounts may do is what they do, by the audit log of the API server: the operator, Cluster API's
//! managers, and the account by which those reach the workload cluster.

mod life;

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use api::machine::{self, GROUP};
use k8s_openapi::api::rbac::v1::PolicyRule;
use runtime::rights::{self, Right};
use serde_json::{Value, json};
use testbed::{
    ControlPlane, Options,
    audit::Entry,
    capi::{self, ClusterApi},
};

use self::life::Life;
use crate::space::until;

/// Of Cluster API's controllers.
const MANAGER: &str = "system:serviceaccount:capi-system:capi-manager";
/// By which they reach the workload cluster.
const WORKLOAD: &str = "nstance-capi-workload";

/// ` pods/eviction create`, `cluster.x-k8s.io machines get`, `/ get`, …
fn granted(rules: impl IntoIterator<Item = PolicyRule>) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for rule in rules {
        for verb in &rule.verbs {
            for group in rule.api_groups.iter().flatten() {
                let resources = rule.resources.iter().flatten();
                all.extend(resources.map(|resource| format!("{group} {resource} {verb}")));
            }
            all.extend(rule.non_resource_urls.iter().flatten().map(|url| format!("{url} {verb}")));
        }
    }
    all
}

/// In the same words.
fn used<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> BTreeSet<String> {
    let text = |entry: &Entry| {
        if entry.resource.is_empty() {
            let path = entry.uri.split('?').next().unwrap_or_default();
            return format!("{path} {}", entry.verb);
        }
        let slash = if entry.subresource.is_empty() { "" } else { "/" };
        format!("{} {}{slash}{} {}", entry.group, entry.resource, entry.subresource, entry.verb)
    };
    entries.into_iter().map(text).collect()
}

/// Every user may ask what the server serves.
fn is_discovery(text: &str) -> bool {
    ["/api", "/version", "/openapi", "/healthz", "/livez", "/readyz"].iter().any(|path| text.starts_with(path))
}

/// Compares what an account may do with what it did; of the rights that no request used only the named ones may be there.
async fn check(
    log: &ControlPlane,
    is_it: impl Fn(&Entry) -> bool,
    rules: Vec<PolicyRule>,
    unused: &[&str],
) -> Result<()> {
    let granted = granted(rules);
    let expected: BTreeSet<String> = unused.iter().map(|&text| text.to_owned()).collect();
    let (mut asked, mut left) = (Vec::new(), BTreeSet::new());
    // The server logs a watch when it has noticed its end.
    let is_used = until("what is granted is used", async || {
        asked = log.audit().entries()?.into_iter().filter(|entry| is_it(entry)).collect();
        left = granted.difference(&used(&asked)).cloned().collect();
        Ok(left.is_subset(&expected))
    });
    is_used.await.with_context(|| format!("granted and not used: {left:#?}"))?;
    let beyond: Vec<_> = used(&asked).difference(&granted).filter(|text| !is_discovery(text)).cloned().collect();
    assert!(beyond.is_empty(), "used and not granted: {beyond:#?}");
    let forbidden: Vec<_> = asked.iter().filter(|entry| entry.code == 403).collect();
    assert!(forbidden.is_empty(), "{forbidden:#?}");
    Ok(())
}

/// The rules of one of the layer's roles.
fn role(name: &str) -> Result<Vec<PolicyRule>> {
    let role = (machines::LAYER.roles)().into_iter().find(|role| role.metadata.name.as_deref() == Some(name));
    role.and_then(|role| role.rules).with_context(|| format!("the role {name}"))
}

/// No request asks for it: admission does, where a cluster enforces owners' rights.
const BY_ADMISSION: &[&str] = &["infrastructure.cluster.x-k8s.io nstancemachinepools/finalizers update"];
/// Cluster API fills its caches by watches where the API server streams lists, as this one does; others need the list.
const WITHOUT_STREAMING: &[&str] = &[" namespaces list", " nodes list"];
/// And what it reads past its caches differs from run to run.
const MANAGERS_UNSEEN: &[&str] = &[
    "infrastructure.cluster.x-k8s.io nstanceclusters get",
    "infrastructure.cluster.x-k8s.io nstanceclusters list",
    "infrastructure.cluster.x-k8s.io nstancecontrolplanes get",
    "infrastructure.cluster.x-k8s.io nstancecontrolplanes list",
    "infrastructure.cluster.x-k8s.io nstancemachinepools get",
    "infrastructure.cluster.x-k8s.io nstancemachinepools list",
    // An apply that creates is logged as a patch; the server asks for both rights.
    "infrastructure.cluster.x-k8s.io nstancemachines create",
    "infrastructure.cluster.x-k8s.io nstancemachines get",
    "infrastructure.cluster.x-k8s.io nstancemachines list",
    "infrastructure.cluster.x-k8s.io nstancemachinetemplates get",
    "infrastructure.cluster.x-k8s.io nstancemachinetemplates list",
];

#[tokio::test]
async fn a94_what_is_granted_is_what_is_used_by_operator_managers_and_workload_account() -> Result<()> {
    let control_plane = ControlPlane::start(Options { fsync: false, ..Options::default() }).await?;
    let crds: Vec<Value> = machine::crds().iter().map(|crd| json!(crd)).collect();
    control_plane.install(&crds).await?;
    let cluster_api = ClusterApi::start(&control_plane, &capi::Options::default()).await?;
    let mut life = Life::new(&control_plane, "rights").await?;
    life.lead().await?;
    // Ends its watches.
    cluster_api.stop().await?;

    let operator = life.user();
    let rights = machines::rights::CLUSTER.iter().chain(machines::rights::OWN_NAMESPACE).chain(rights::CLUSTER);
    let is_operator = |entry: &Entry| entry.user == operator;
    check(&control_plane, is_operator, rights.map(Right::rule).collect(), BY_ADMISSION).await?;
    let secrets = control_plane.audit().entries()?.into_iter().filter(|entry| entry.resource == "secrets");
    for entry in secrets.filter(is_operator) {
        assert_eq!(entry.namespace, life.namespace(), "Secrets of another namespace: {entry:?}");
    }

    let workload = format!(":{WORKLOAD}");
    let is_workload = |entry: &Entry| entry.user.ends_with(&workload);
    check(&control_plane, is_workload, role("strata-capi-workload")?, WITHOUT_STREAMING).await?;
    let is_manager = |entry: &Entry| entry.user == MANAGER && entry.group == GROUP;
    check(&control_plane, is_manager, role("strata-capi-manager")?, MANAGERS_UNSEEN).await
}
