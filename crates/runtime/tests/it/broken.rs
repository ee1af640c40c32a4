//! A server that answers wrongly for one kind alone.

use std::sync::Arc;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Config, api::PostParams, config::KubeConfigOptions};
use process::{Clock, Health};
use runtime::{Key, Kind, Metadata, Operator};
use serde_json::json;
use testbed::{
    ControlPlane,
    fault::{Calls, Fault, FaultProxy, Verb},
};
use tokio_util::sync::CancellationToken;

use crate::world::{World, run, settings, until};

/// What lists and watches of the kind are answered with, and a part of what readiness says of it then.
const ANSWERS: [(&str, Fault, &str); 9] = [
    ("busy", Fault::TooManyRequests { retry_after_seconds: 1 }, "Too many requests"),
    ("error", Fault::Status(500), "injected fault (500)"),
    ("expired", Fault::Status(410), "injected fault (410)"),
    ("undefined", Fault::Text(404, "404 page not found\n"), "404 page not found"),
    ("login", Fault::Text(200, "<html>Please sign in</html>"), "not of the expected form"),
    ("empty", Fault::Text(200, ""), "not of the expected form"),
    ("no-list", Fault::Text(200, "{}"), "no resource version"),
    ("half", Fault::CutInBody, "list: "),
    ("endless", Fault::Endless, "longer than 33554432 bytes"),
];

struct Scene {
    world: World,
    proxy: FaultProxy,
    health: Health,
    maps: Arc<Kind<Metadata<ConfigMap>, String>>,
    secrets: Arc<Kind<Metadata<Secret>, String>>,
}

impl Scene {
    async fn start() -> Result<Self> {
        let world = World::new("broken").await?;
        let upstream = kube::config::Kubeconfig::read_from(ControlPlane::shared().await?.kubeconfig())?;
        let proxy = FaultProxy::start(upstream, 3).await?;
        let config = Config::from_custom_kubeconfig(proxy.kubeconfig(), &KubeConfigOptions::default()).await?;
        let client = runtime::connect(config)?;
        let mut operator = Operator::new(client, settings(), Clock::default(), CancellationToken::new());
        let maps = Kind::new("configmaps", operator.writer("test"), |map: Metadata<ConfigMap>| map.metadata.name);
        let secrets = Kind::new("secrets", operator.writer("test"), |secret: Metadata<Secret>| secret.metadata.name);
        operator.watch(&maps, |_| {});
        operator.watch(&secrets, |_| {});
        let (health, _) = run(operator).await?;
        Ok(Self { world, proxy, health, maps, secrets })
    }

    fn key(&self, name: &str) -> Key {
        Key::new(self.world.namespace.clone(), name)
    }

    async fn create_map(&self, name: &str) -> Result<()> {
        let api = Api::<ConfigMap>::namespaced(self.world.client.clone(), &self.world.namespace);
        api.create(&PostParams::default(), &serde_json::from_value(json!({ "metadata": { "name": name } }))?).await?;
        Ok(())
    }

    async fn create_secret(&self, name: &str) -> Result<()> {
        let api = Api::<Secret>::namespaced(self.world.client.clone(), &self.world.namespace);
        api.create(&PostParams::default(), &serde_json::from_value(json!({ "metadata": { "name": name } }))?).await?;
        Ok(())
    }

    async fn live_through(&self, name: &str, answer: Fault, words: &str) -> Result<()> {
        let broken = self.proxy.inject(Calls::of_any([Verb::List, Verb::Watch], "configmaps"), answer);
        // The last watch may still be opening, and then there is none to cut.
        until("the watch is interrupted", || {
            self.proxy.cut_watches("configmaps");
            broken.hits() > 0
        })
        .await?;
        let note = || self.health.notes().get("cache configmaps").cloned().unwrap_or_default();
        until("it is named", || note().contains(words)).await.with_context(note)?;
        self.create_map(name).await?;
        self.create_secret(name).await?;
        until("the other kind is followed", || self.secrets.get(&self.key(name)).is_some()).await?;
        assert!(self.maps.get(&self.key("before")).is_some(), "what is not known is not gone");
        assert!(self.health.readiness().values().all(Result::is_ok), "{:?}", self.health.readiness());
        broken.end();
        until("it is followed again", || self.maps.get(&self.key(name)).is_some() && note().is_empty()).await
    }
}

#[tokio::test]
async fn a_kind_that_is_answered_wrongly_is_named_keeps_what_it_has_and_delays_no_other() -> Result<()> {
    let scene = Scene::start().await?;
    scene.create_map("before").await?;
    until("it is seen", || scene.maps.get(&scene.key("before")).is_some()).await?;
    for (name, answer, words) in ANSWERS {
        scene.live_through(name, answer, words).await.with_context(|| name)?;
    }
    Ok(())
}
