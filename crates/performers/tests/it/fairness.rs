//! A namespace whose requests all hang, beside one that has work.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use performers::Config;
use plan::performers::Policy;
use serde_json::json;
use testbed::kwok::Behaviour;
use tokio::net::TcpListener;

use crate::{
    harness::{PATIENCE, Space, World, spec, spec_with},
    observe,
    scene::eventually,
    webhook::probe,
};

/// A webhook for the pods of one namespace at an address where nothing ever answers. It lasts as long as the listener.
async fn silent_webhook(space: &Space) -> Result<TcpListener> {
    // Connections are made by the kernel and, but for the first, never accepted: the API server waits for the TLS
    // handshake.
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let webhook: ValidatingWebhookConfiguration = serde_json::from_value(json!({
        "metadata": { "name": space.namespace },
        "webhooks": [{
            "name": "silent.strata.test",
            "clientConfig": { "url": format!("https://{}/validate", listener.local_addr()?) },
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"] }],
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": space.namespace } },
            "failurePolicy": "Fail",
            "timeoutSeconds": 10,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }],
    }))?;
    Api::all(space.client.clone()).create(&PostParams::default(), &webhook).await?;
    // The API server learns of it by a watch, so a moment later: until then pods are created.
    observe::eventually("the webhook is asked", || async {
        tokio::select! {
            asked = listener.accept() => Ok(asked.is_ok()),
            probed = probe(space) => Ok(probed.is_err()),
        }
    })
    .await?;
    Ok(listener)
}

/// Three times as long as a round hangs: the round that sees the pod's end comes before its replacement is due, and what
/// brings that is a look alone. The resync is too far away.
const FAILURE_DELAY: Duration = Duration::from_secs(30);

#[tokio::test]
async fn p39_an_ended_pod_is_replaced_while_every_create_of_another_namespace_hangs_on_a_webhook() -> Result<()> {
    let policy = Policy { failure_delay: FAILURE_DELAY, ..Policy::default() };
    let world = World::start(Config { policy, resync: PATIENCE * 20, ..Config::default() }).await?;
    let (hanging, other) = (world.space("hanging").await, world.space("other").await);
    let _silent = silent_webhook(&hanging).await?;
    for number in 0..150 {
        hanging.create(&format!("p{number}"), spec()).await?;
    }
    let running = || world.operator.metric(r#"controller_runtime_active_workers{controller="performer"}"#);
    eventually("eight of ten rounds hang", || running() >= 8.0).await?;
    other.create("a", spec_with(json!({ "image": Behaviour::Failed.image() }))).await?;
    let ended = other.until_pod("a", "there", |_| true).await?;
    other.until_condition("a", "Degraded", "True", "PodFailed").await?;
    other.until_replaced("a", &ended).await?;
    assert_eq!(hanging.pods.list(&ListParams::default()).await?.items.len(), 0, "all creates still hang");
    Ok(())
}
