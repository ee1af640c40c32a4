//! The control plane goes away, stands still, forgets its history; and the clock jumps.

use std::time::Duration;

use anyhow::{Context, Result};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Config as ClientConfig,
    api::{DeleteParams, ObjectMeta, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use performers::Config;
use plan::performers::Policy;
use runtime::Settings;
use serde_json::json;
use testbed::{
    ControlPlane, Options,
    fault::{Calls, Fault, Injected, Seen, Verb},
    process::Child,
};

use crate::{
    harness::{Running, Space, alone, hasty, spec},
    scene::{Scene, eventually},
};

struct Stage {
    scene: Scene,
    space: Space,
    operator: Running,
}

impl Stage {
    async fn set() -> Result<Self> {
        let scene = Scene::start(Options::default()).await?;
        let space = scene.space("restart").await?;
        let settings = Settings { request_timeout: Duration::from_secs(2), ..alone() };
        // The server is away for longer than the short delays.
        let config = Config { policy: Policy::default(), ..hasty() };
        let operator = scene.operator(settings, config).await?;
        Ok(Self { scene, space, operator })
    }

    fn failures(&self) -> f64 {
        self.operator.metric(r#"controller_runtime_reconcile_errors_total{controller="performer"}"#)
    }

    /// Someone removes a pod; it comes back.
    async fn repairs(&self, name: &str) -> Result<()> {
        let former = self.space.pod(name).await?;
        self.space.pods.delete(&format!("performer-{name}"), &DeleteParams::default()).await?;
        self.space.until_replaced(name, &former).await?;
        self.space.until_ready(name).await?;
        Ok(())
    }

    async fn server_killed(&self) -> Result<()> {
        let before = self.operator.metric(r#"strata_watch_errors_total{resource="pods"}"#);
        self.scene.control_plane.apiserver().kill().await?;
        let noticed = || self.operator.metric(r#"strata_watch_errors_total{resource="pods"}"#) > before;
        eventually("the operator notices", noticed).await?;
        self.scene.control_plane.apiserver().restart().await?;
        self.scene.control_plane.ready().await?;
        self.repairs("settled").await
    }

    /// The program stands still just as a pod is to be created, for longer than a request may take.
    async fn paused(&self, name: &str, program: impl Fn(&ControlPlane) -> &Child) -> Result<()> {
        let create = Calls::of(Verb::Create, "pods").named(&format!("performer-{name}")).at_most(1);
        let held = self.scene.proxy.inject(create, Fault::HoldBeforeCommit);
        self.space.create(name, spec()).await?;
        held.reached().await?;
        let before = self.failures();
        program(&self.scene.control_plane).pause()?;
        held.release();
        let gave_up = eventually("the request is given up", || self.failures() > before).await;
        program(&self.scene.control_plane).resume()?;
        gave_up?;
        self.scene.control_plane.ready().await?;
        self.space.until_ready(name).await?;
        // The server may have made it though its answer came too late. It was made a second time only if it went before.
        let owned = format!("performer-{name}");
        let is_deletion = |seen: &Seen| seen.request.verb == Verb::Delete && seen.request.is_for("pods");
        let requests = self.scene.proxy.requests();
        let deletions = requests.iter().filter(|seen| is_deletion(seen) && seen.request.name.as_ref() == Some(&owned));
        assert_eq!(deletions.count(), 0);
        self.repairs(name).await
    }

    /// While the operator cannot watch, things change, and the server forgets that they did.
    async fn history_forgotten(&self) -> Result<()> {
        self.space.create_ready("forgotten", spec()).await?;
        let deaf = ["performers", "pods", "services"].map(|resource| {
            let deaf = self.scene.proxy.inject(Calls::of(Verb::Watch, resource), Fault::Status(503));
            self.scene.proxy.cut_watches(resource);
            deaf
        });
        for deaf in &deaf {
            deaf.reached().await?;
        }
        let uid = self.space.performers.get("forgotten").await?.metadata.uid.context("a uid")?;
        self.space.patch("forgotten", json!({ "metadata": { "finalizers": null } })).await?;
        self.space.delete("forgotten").await?;
        self.space.until_gone(&self.space.performers, "forgotten", &uid).await?;
        let former = self.space.pod("settled").await?;
        self.space.pods.delete("performer-settled", &DeleteParams::default()).await?;
        compact(&self.scene.control_plane, &self.space).await?;
        // A restarted server has no memory of its own of what etcd forgot.
        self.scene.control_plane.apiserver().restart().await?;
        self.scene.control_plane.ready().await?;
        let before = self.scene.proxy.requests().len();
        deaf.iter().for_each(Injected::end);
        self.space.until_replaced("settled", &former).await?;
        self.space.until_ready("settled").await?;
        let running = format!(r#"strata_performers{{namespace="{}",phase="Running"}}"#, self.space.namespace);
        // One that went on from where it was and was answered with 410, and one that begins anew.
        let watches = |resource: &str| {
            let requests = self.scene.proxy.requests();
            let of_resource = |seen: &&Seen| seen.request.verb == Verb::Watch && seen.request.is_for(resource);
            requests[before..].iter().filter(of_resource).filter(|seen| seen.code == Some(200)).count()
        };
        eventually("all begins anew", || watches("pods") >= 2 && watches("services") >= 2).await?;
        eventually("no ghost is counted", || (3.0..4.0).contains(&self.operator.metric(&running))).await?;
        self.space.create_ready("remembered", spec()).await?;
        Ok(())
    }

    /// The wall clock jumps; what is settled stays untouched, and everything else works as before.
    async fn clock_steps(&self) -> Result<()> {
        let of_settled = |seen: &Seen| matches!(seen.request.name.as_deref(), Some("settled" | "performer-settled"));
        let writes = || self.scene.writes(&self.space.namespace).iter().filter(|seen| of_settled(seen)).count();
        let rounds =
            || self.operator.metric(r#"controller_runtime_reconcile_total{controller="performer",result="success"}"#);
        let before = writes();
        for (index, hours) in [1, -3, 26, -24 * 400].into_iter().enumerate() {
            self.operator.clock.step(SignedDuration::from_hours(hours));
            let seen = rounds();
            eventually("several resyncs", || rounds() > seen + 20.0).await?;
            let name = format!("step{index}");
            self.space.create_ready(&name, spec()).await?;
            let former = self.space.pod(&name).await?;
            self.space.patch(&name, json!({ "spec": { "image": "registry.test/performer:v2" } })).await?;
            self.space.until_replaced(&name, &former).await?;
            let upgraded = self.space.until_ready(&name).await?;
            assert!(upgraded.status.context("a status")?.last_upgrade.is_some());
            self.space.delete_and_wait(&name).await?;
        }
        assert_eq!(writes(), before);
        Ok(())
    }
}

/// Moves on by some revisions and has etcd forget all before, through its HTTP gateway.
async fn compact(control_plane: &ControlPlane, space: &Space) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(space.client.clone(), &space.namespace);
    let metadata = ObjectMeta { generate_name: Some("later-".to_owned()), ..ObjectMeta::default() };
    let map = ConfigMap { metadata, ..ConfigMap::default() };
    let revision = maps.create(&PostParams::default(), &map).await?.metadata.resource_version.context("a version")?;
    let mut kubeconfig = Kubeconfig::read_from(control_plane.kubeconfig())?;
    let mut flags = control_plane.etcd().program().args.iter().filter_map(|flag| flag.to_str());
    let server = flags.find_map(|flag| flag.strip_prefix("--listen-client-urls=")).context("etcd listens")?;
    kubeconfig.clusters[0].cluster.as_mut().context("a cluster")?.server = Some(server.to_owned());
    let config = ClientConfig::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let body = json!({ "revision": revision, "physical": true }).to_string().into_bytes();
    let request = http::Request::post("/v3/kv/compaction").body(body)?;
    Client::try_from(config)?.request_text(request).await?;
    Ok(())
}

#[tokio::test]
async fn the_control_plane_goes_stands_still_and_forgets_and_the_clock_jumps() -> Result<()> {
    let stage = Stage::set().await?;
    stage.space.create_ready("settled", spec()).await?;
    stage.server_killed().await.context("API server killed and restarted")?;
    stage.paused("a", ControlPlane::apiserver).await.context("API server paused")?;
    stage.paused("b", ControlPlane::etcd).await.context("etcd paused")?;
    stage.history_forgotten().await.context("etcd compacted")?;
    stage.clock_steps().await.context("clock stepped")?;
    stage.operator.stop().await
}
