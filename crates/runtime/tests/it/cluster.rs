//! Another cluster: added, silent, exchanged and removed while the operator runs.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::PostParams, config::Kubeconfig};
use runtime::{Cluster, Key, Kind, KubeconfigError, Metadata, Selection};
use serde_json::json;
use testbed::{
    ControlPlane, Options,
    fault::{FaultProxy, Verb},
};

use crate::world::{World, run, until};

type Maps = Arc<Kind<Metadata<ConfigMap>, ()>>;

struct Other {
    control_plane: ControlPlane,
    namespace: String,
}

impl Other {
    async fn start() -> Result<Self> {
        let control_plane = ControlPlane::start(Options { fsync: false, ..Options::bare() }).await?;
        let namespace = control_plane.namespace("other").await?;
        Ok(Self { control_plane, namespace })
    }

    fn kubeconfig(&self) -> Result<Vec<u8>> {
        Ok(std::fs::read(self.control_plane.kubeconfig())?)
    }

    async fn create(&self, name: &str) -> Result<Key> {
        let api = Api::<ConfigMap>::namespaced(self.control_plane.client().await?, &self.namespace);
        let body = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        api.create(&PostParams::default(), &body).await?;
        Ok(self.key(name))
    }

    fn key(&self, name: &str) -> Key {
        Key::new(self.namespace.clone(), name)
    }
}

fn watched(cluster: &Cluster) -> Maps {
    let maps = Kind::new("configmaps", cluster.writer("test"), |_: Metadata<ConfigMap>| Some(()));
    cluster.watch(&maps, Selection::default(), |_| {});
    maps
}

#[tokio::test]
async fn another_cluster_is_followed_while_it_speaks_and_unknown_while_it_is_silent() -> Result<()> {
    let (world, other) = (World::new("clusters").await?, Other::start().await?);
    let mut operator = world.operator();
    let own = Kind::new("configmaps", operator.writer("test"), |_: Metadata<ConfigMap>| Some(()));
    operator.watch(&own, |_| {});
    let (clusters, metrics) = (operator.clusters(), operator.metrics.clone());
    let (health, running) = run(operator).await?;
    let is_ready = || health.readiness().values().all(Result::is_ok) && !running.is_finished();

    // Added while the operator runs; written to under the same lead.
    let cluster = clusters.set("east", &other.kubeconfig()?).await?;
    let maps = watched(&cluster);
    let key = other.create("a").await?;
    until("it is seen there", || maps.get(&key).is_some()).await?;
    assert!(maps.freshness().is_known() && cluster.freshness().is_known());
    assert!(own.get(&key).is_none(), "and not here");
    let written = other.key("written");
    let version = maps.create(&written, &json!({"metadata": {"name": "written"}})).await?;
    assert_eq!(maps.get(&written).unwrap().version, version);
    assert!(own.get(&written).is_none());

    // Silent: unknown, with what was known and its age; neither readiness nor the own cluster is concerned.
    other.control_plane.apiserver().kill().await?;
    until("the silence is noticed", || !maps.freshness().is_known()).await?;
    let silent = maps.freshness();
    until("it grows old", || maps.freshness().age > silent.age.map(|age| age + Duration::from_secs(1))).await?;
    assert!(maps.get(&key).is_some() && is_ready());
    let mentioned = health.notes();
    assert!(mentioned["clusters"].starts_with("east: "), "{mentioned:?}");
    let text = metrics.encode()?;
    assert!(text.contains(r#"strata_cluster_silence_seconds{cluster="east"}"#), "{text}");
    assert!(!text.contains(r#"strata_watch_errors_total{resource="configmaps"}"#), "the own API server has no fault");

    // Back, and reached in another way from now on.
    other.control_plane.apiserver().restart().await?;
    other.control_plane.ready().await?;
    until("it speaks again", || maps.freshness().is_known()).await?;
    assert!(health.notes().is_empty());
    let proxy = FaultProxy::start(Kubeconfig::read_from(other.control_plane.kubeconfig())?, 1).await?;
    let unchanged = clusters.set("east", &other.kubeconfig()?).await?;
    assert_eq!(unchanged.name(), "east");
    clusters.set("east", &std::fs::read(proxy.kubeconfig_path())?).await?;
    assert!(!maps.freshness().is_known(), "until it is listed by the new way");
    let key = other.create("b").await?;
    until("it is seen by the new way", || maps.get(&key).is_some()).await?;
    let watches = || proxy.requests().iter().filter(|seen| seen.request.verb == Verb::Watch).count();
    assert!(watches() >= 1);
    maps.create(&other.key("c"), &json!({"metadata": {"name": "c"}})).await?;
    assert!(proxy.requests().iter().any(|seen| seen.request.verb == Verb::Create));

    // What is refused changes nothing.
    let refused = json!({"users": [{"name": "u", "user": {"tokenFile": "/var/run/secrets/token"}}]}).to_string();
    let error = clusters.set("east", refused.as_bytes()).await.map(drop).unwrap_err();
    assert!(matches!(error, KubeconfigError::Refused { field, .. } if field == "users[0].user.tokenFile"));
    assert!(clusters.get("east").is_some() && maps.freshness().is_known());

    // Removed: no watch is left, and nothing is known.
    clusters.remove("east");
    assert!(clusters.get("east").is_none());
    assert!(maps.get(&key).is_none() && !maps.freshness().is_known(), "what was known is dropped");
    until("no watch is left", || !health.readiness().keys().any(|task| task.contains("east"))).await?;
    assert!(is_ready());
    other.control_plane.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_cluster_that_never_answers_holds_up_nothing() -> Result<()> {
    let world = World::new("mute").await?;
    let mut operator = world.operator();
    let own = Kind::new("configmaps", operator.writer("test"), |_: Metadata<ConfigMap>| Some(()));
    operator.watch(&own, |_| {});
    let clusters = operator.clusters();
    // Nothing listens on port 1.
    let kubeconfig = json!({
        "current-context": "c", "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    let cluster = clusters.set("mute", kubeconfig.to_string().as_bytes()).await?;
    let maps = watched(&cluster);
    let (health, running) = run(operator).await?;
    until("its silence is noticed", || maps.freshness().interruption.is_some()).await?;
    assert_eq!(maps.freshness().age, None);
    assert!(health.notes()["clusters"].contains("never connected"));
    assert!(health.readiness().values().all(Result::is_ok) && !running.is_finished());
    Ok(())
}
