//! Pods that end, do not start or are refused.

use std::time::Duration;

use anyhow::{Context, Result};
use api::performer::REPLACEMENTS_ANNOTATION;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    core::v1::{LimitRange, Pod, ResourceQuota, ServiceAccount},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use performers::Config;
use plan::performers::Policy;
use serde_json::{Value, json};
use testbed::{audit::Mark, kwok::Behaviour};

use crate::{
    harness::{Space, World, condition, hasty, spec, spec_with},
    observe::{create, eventually, history, line, rounds, uid, writes},
    webhook::is_refused,
};

pub fn replacements(pod: &Pod) -> u32 {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(REPLACEMENTS_ANNOTATION)?.parse().ok()).unwrap_or(0)
}

fn ended_at(pod: &Pod) -> Option<Timestamp> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    Some(statuses.first()?.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0)
}

/// Creates a Performer whose pods end, and follows them: the pause before each of the next pods, in whole seconds.
async fn pauses(space: &Space, behaviour: Behaviour, count: u32) -> Result<Vec<i64>> {
    // All versions since before the first pod, so that none is missed that is soon replaced.
    let mut before = Pod::default();
    before.metadata.resource_version = space.pods.list(&ListParams::default()).await?.metadata.resource_version;
    space.create("a", spec_with(json!({ "image": behaviour.image() }))).await?;
    let has_ended = |pod: &Pod, number: u32| replacements(pod) == number && ended_at(pod).is_some();
    let pods = history(&space.pods, "performer-a", &before, |pod| has_ended(pod, count)).await?;
    let mut pauses = Vec::new();
    let mut former: Option<Timestamp> = None;
    for number in 0..=count {
        let pod = pods.iter().find(|pod| has_ended(pod, number)).with_context(|| format!("no pod {number} ended"))?;
        let created = pod.metadata.creation_timestamp.as_ref().context("creation time")?.0;
        pauses.extend(former.map(|former| created.duration_since(former).as_secs()));
        former = ended_at(pod);
    }
    Ok(pauses)
}

/// Half a second, doubled, at most four: those are the intervals of the hasty world.
fn check_pauses(pauses: &[i64]) {
    for (number, least) in [0, 1, 2, 4, 4].into_iter().enumerate() {
        assert!(pauses[number] >= least, "{pauses:?}");
    }
}

#[tokio::test]
async fn p27_failed_pods_are_replaced_with_growing_delay() -> Result<()> {
    let space = World::hasty().await.space("failed").await;
    check_pauses(&pauses(&space, Behaviour::Failed, 5).await?);
    let degraded = space.until_condition("a", "Degraded", "True", "PodFailed").await?;
    assert_eq!(condition(&degraded, "Available")["status"], "False");
    // A new spec is a new beginning.
    space.patch("a", json!({ "spec": { "image": "registry.test/performer:v2" } })).await?;
    space.until_settled("a").await?;
    assert_eq!(replacements(&space.pod("a").await?), 0);
    Ok(())
}

#[tokio::test]
async fn p27_succeeded_pods_are_replaced_with_growing_delay() -> Result<()> {
    let space = World::hasty().await.space("succeeded").await;
    check_pauses(&pauses(&space, Behaviour::Succeeded, 5).await?);
    space.until_condition("a", "Degraded", "True", "PodSucceeded").await?;
    Ok(())
}

#[tokio::test]
async fn p28_pods_pending_for_their_image_are_replaced_and_those_without_a_node_are_not() -> Result<()> {
    // In a world of its own: in the others no pod is replaced for a slow start.
    let policy = Policy { pending_limit: Duration::from_secs(3), ..hasty().policy };
    let world = World::start(Config { policy, ..hasty() }).await?;
    let space = world.space("pending").await;
    space.create("waiting", spec_with(json!({ "scheduling": { "nodeSelector": { "no": "node" } } }))).await?;
    space.until_condition("waiting", "Degraded", "True", "SchedulingFailed").await?;
    let waiting = space.pod("waiting").await?;
    // All versions since before the first pod, so that none is missed that is soon replaced.
    let mut before = Pod::default();
    before.metadata.resource_version = space.pods.list(&ListParams::default()).await?.metadata.resource_version;
    space.create("a", spec_with(json!({ "image": Behaviour::ImagePullFailed.image() }))).await?;
    let pods = history(&space.pods, "performer-a", &before, |pod| replacements(pod) == 2).await?;
    let mut created = Vec::new();
    for number in 0..=2 {
        let pod = pods.iter().find(|pod| replacements(pod) == number).with_context(|| format!("no pod {number}"))?;
        created.push(pod.metadata.creation_timestamp.as_ref().context("creation time")?.0);
    }
    let lived: Vec<_> = created.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_secs()).collect();
    assert!(lived[0] >= 3 && lived[1] >= 6, "three seconds, then twice that: {lived:?}");
    space.until_condition("a", "Degraded", "True", "ImagePullFailed").await?;
    assert_eq!(uid(&space.pod("waiting").await?), uid(&waiting), "it has waited longer than the limit by now");
    Ok(())
}

async fn check_name(name: &str) -> Result<()> {
    let world = World::calm().await;
    let space = world.space("bad-name").await;
    let mark = world.control_plane.audit().mark()?;
    space.create(name, spec()).await?;
    let degraded = space.until_condition(name, "Degraded", "True", "InvalidName").await?;
    assert_eq!(condition(&degraded, "Available")["reason"], "InvalidName");
    assert_eq!(condition(&degraded, "Progressing")["status"], "False");
    // Meanwhile others get their work done, and nobody spends a round on this one.
    let other = world.space("good-name").await;
    for name in ["a", "b", "c"] {
        other.create_ready(name, spec()).await?;
    }
    assert!(rounds(&world.operator, &space) <= 4.0, "no hot loop");
    let lines: Vec<_> = writes(&world.control_plane, &space, mark)?.iter().map(line).collect();
    assert_eq!(lines, ["patch performers/status"], "nothing is tried");
    space.delete_and_wait(name).await
}

#[tokio::test]
async fn p36_a_name_of_54_characters_is_told() -> Result<()> {
    check_name(&"a".repeat(54)).await
}

#[tokio::test]
async fn p36_a_name_with_a_dot_is_told() -> Result<()> {
    check_name("a.b").await
}

#[tokio::test]
async fn p36_a_name_of_53_characters_works() -> Result<()> {
    let space = World::calm().await.space("long-name").await;
    space.create_ready(&"a".repeat(53), spec()).await?;
    Ok(())
}

/// Puts a quota into force that allows no pods: admission learns of it a moment after it is made.
pub async fn no_more_pods(space: &Space) -> Result<Api<ResourceQuota>> {
    let quotas = Api::namespaced(space.client.clone(), &space.namespace);
    create(&quotas, json!({ "metadata": { "name": "none" }, "spec": { "hard": { "pods": "0" } } })).await?;
    eventually("the quota is in force", || async { Ok(is_refused(space).await) }).await?;
    Ok(quotas)
}

/// Waits for six tries to create the pod, after pauses that grow, and counts the statuses that were written.
pub async fn backed_off(world: &World, space: &Space, mark: Mark) -> Result<usize> {
    let attempts = || -> Result<Vec<Timestamp>> {
        let writes = writes(&world.control_plane, space, mark)?;
        Ok(writes.iter().filter(|entry| line(entry) == "create pods").map(|entry| entry.received_at).collect())
    };
    eventually("it was tried six times", || async { Ok(attempts()?.len() >= 6) }).await?;
    let pauses: Vec<_> = attempts()?.windows(2).map(|pair| pair[1].duration_since(pair[0])).collect();
    // Doubled from 100 ms, less a tenth of jitter. Any may be longer, on a busy machine; none is shorter but the first,
    // which may be cut short by the events of what the first round wrote.
    for (pause, least) in pauses.iter().skip(1).zip([180, 360, 720, 1440]) {
        assert!(*pause >= SignedDuration::from_millis(least), "the pauses grow: {pauses:?}");
    }
    let written = writes(&world.control_plane, space, mark)?;
    Ok(written.iter().filter(|entry| line(entry) == "patch performers/status").count())
}

#[tokio::test]
async fn p37_quota_is_told_backed_off_and_recovered_from() -> Result<()> {
    let world = World::calm().await;
    let space = world.space("quota").await;
    let quotas = no_more_pods(&space).await?;
    let mark = world.control_plane.audit().mark()?;
    space.create("a", spec()).await?;
    let degraded = space.until_condition("a", "Degraded", "True", "PodRejected").await?;
    let message = condition(&degraded, "Available")["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains("quota"), "the server's own words: {message}");
    assert_eq!(backed_off(world, &space, mark).await?, 1, "a failing retry alone writes no status");
    quotas.delete("none", &DeleteParams::default()).await?;
    let ready = space.until_ready("a").await?;
    assert_eq!(condition(&ready, "Degraded")["status"], "False");
    Ok(())
}

/// Something makes the API server refuse the pod until `allow` was called.
async fn check_refusal<F: Future<Output = Result<()>>>(
    space: Space,
    fields: Value,
    allow: impl FnOnce(Space) -> F,
) -> Result<()> {
    space.create("a", spec_with(fields)).await?;
    space.until_condition("a", "Degraded", "True", "PodRejected").await?;
    allow(space.clone()).await?;
    space.until_ready("a").await?;
    Ok(())
}

#[tokio::test]
async fn p37_missing_service_account_is_told_and_recovered_from() -> Result<()> {
    let space = World::hasty().await.space("account").await;
    check_refusal(space, json!({ "config": { "serviceAccountName": "runner" } }), |space| async move {
        let accounts = Api::namespaced(space.client.clone(), &space.namespace);
        create::<ServiceAccount>(&accounts, json!({ "metadata": { "name": "runner" } })).await.map(drop)
    })
    .await
}

#[tokio::test]
async fn p37_limit_range_is_told_and_recovered_from() -> Result<()> {
    let space = World::hasty().await.space("range").await;
    let ranges: Api<LimitRange> = Api::namespaced(space.client.clone(), &space.namespace);
    let limits = json!([{ "type": "Container", "max": { "memory": "1Mi" } }]);
    create(&ranges, json!({ "metadata": { "name": "small" }, "spec": { "limits": limits } })).await?;
    let fields = json!({ "resources": { "requests": { "memory": "1Gi" }, "limits": { "memory": "1Gi" } } });
    check_refusal(space, fields, |_| async move {
        ranges.delete("small", &DeleteParams::default()).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn p37_admission_policy_is_told_and_recovered_from() -> Result<()> {
    let space = World::hasty().await.space("policy").await;
    let name = space.namespace.clone();
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(space.client.clone());
    let rules = json!([{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"] }]);
    let only_here = json!({ "matchLabels": { "kubernetes.io/metadata.name": name } });
    let policy = json!({
        "metadata": { "name": name },
        "spec": {
            "matchConstraints": { "namespaceSelector": only_here, "resourceRules": rules },
            "validations": [{ "expression": "false", "message": "no pods on Sundays" }],
        },
    });
    create(&policies, policy).await?;
    let binding =
        json!({ "metadata": { "name": name }, "spec": { "policyName": name, "validationActions": ["Deny"] } });
    create::<ValidatingAdmissionPolicyBinding>(&Api::all(space.client.clone()), binding).await?;
    eventually("the policy is in force", || async { Ok(is_refused(&space).await) }).await?;
    check_refusal(space, json!({}), |space| async move {
        let found = space.performers.get("a").await?;
        let message = condition(&found, "Available")["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.contains("no pods on Sundays"), "{message}");
        policies.delete(&space.namespace, &DeleteParams::default()).await?;
        Ok(())
    })
    .await
}
