//! One namespace asks for all that it can get, and another is served as if it were alone.

use std::{net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context, Result};
use api::{
    condition::{ConditionType, Reason},
    performer::Performer,
    workspace::FINALIZER,
};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use runtime::rights;
use serde_json::{Value, json};
use testbed::{
    ControlPlane, Options,
    charts::{Access, ChartRepository},
    kwok::Behaviour,
    process::{Child, Program},
};
use tokio::{io::AsyncWriteExt, net::TcpListener};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    harness::{spec, spec_with},
    space::{HelmRole, OPERATOR_ACCOUNT, OPERATOR_NAMESPACE, Space, install, message, operator_user, until},
};

/// What the chart gives the operator beside helm: `resources.limits.memory` less `helm.memory`.
const OPERATOR_MEMORY: u64 = 256 << 20;

/// For one object of a tenant.
const PATIENCE: Duration = Duration::from_mins(15);

/// `strata operator` as it runs by default, but for the lease: the API server has two processors here and other tests beside
/// it, so heavy objects keep it from answering for longer than a renewal of a short lease may take.
async fn operator(control_plane: &ControlPlane) -> Result<Child> {
    let directory = control_plane.directory();
    let kubeconfig = control_plane.kubeconfig_as(&operator_user()).await?;
    let program = Program::new("strata operator", env!("CARGO_BIN_EXE_strata"), directory.join("operator.log"))
        .args(["operator", "--metrics-bind-address=0", "--health-probe-bind-address=0", "--lease-duration=1m"])
        .args([Path::new("--kubeconfig"), &kubeconfig])
        .args([Path::new("--helm"), &testbed::tools::path("helm").await?])
        .args([Path::new("--helm-directory"), &directory.join("helm")])
        .env("POD_NAMESPACE", OPERATOR_NAMESPACE);
    Ok(Child::start(program)?)
}

/// The most memory that a process had resident.
fn peak_bytes(operator: &Child) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", operator.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("the kernel states it")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}

/// A repository whose index has no end.
async fn endless_repository() -> Result<(AbortOnDropHandle<()>, SocketAddr)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let serve = async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
                while stream.write_all(b"1000\r\n").await.is_ok() {
                    let _ = stream.write_all(&[b' '; 0x1000]).await;
                    let _ = stream.write_all(b"\r\n").await;
                }
            });
        }
    };
    Ok((AbortOnDropHandle::new(tokio::spawn(serve)), address))
}

/// A tenant who gets no answer in time tries again: on a busy machine a heavy object takes the API server longer than the
/// 34 s that it gives a request. It may be there all the same.
async fn insist<T>(mut send: impl AsyncFnMut() -> kube::Result<T>) -> Result<()> {
    let insisting = async {
        loop {
            match send().await {
                Err(kube::Error::Api(status)) if status.code == 504 => {}
                Err(kube::Error::Api(status)) if status.is_already_exists() => return Ok(()),
                sent => return sent.map(drop),
            }
        }
    };
    tokio::time::timeout(PATIENCE, insisting).await.context("what a tenant sends has no answer")??;
    Ok(())
}

/// All that the hostile namespace asks for at once.
struct Hostile<'a> {
    space: &'a Space<'a>,
    performers: Api<Performer>,
}

impl Hostile<'_> {
    fn repository(address: SocketAddr) -> Value {
        json!({ "chart": { "repo": format!("http://{address}"), "name": "four", "version": "1.0.0" } })
    }

    /// Says to stand for the release of another namespace, and goes with the operator's finalizer.
    async fn claim(&self, victim: &Space<'_>, release: &str) -> Result<()> {
        let spec = self.space.four(json!({ "targetNamespace": victim.namespace, "releaseName": release }));
        let mut claim = self.space.release("claim", &spec);
        claim.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
        self.space.releases.create(&PostParams::default(), &claim).await?;
        Ok(())
    }

    async fn releases(&self, silent: SocketAddr, endless: SocketAddr) -> Result<()> {
        let space = self.space;
        // Not by way of our own type, which would not even hold them.
        let many = (0..25_000).map(|_| json!({ "a": 0 })).collect::<Vec<_>>();
        let kind = GroupVersionKind::gvk(api::workspace::GROUP, api::workspace::VERSION, "HelmRelease");
        let mut heavy = DynamicObject::new("heavy", &ApiResource::from_gvk(&kind));
        heavy.data = json!({ "spec": space.four(json!({ "values": { "list": many } })) });
        let releases: Api<DynamicObject> =
            Api::namespaced_with(space.client.clone(), &space.namespace, &ApiResource::from_gvk(&kind));
        insist(async || releases.create(&PostParams::default(), &heavy).await).await?;
        let patient = json!({ "timeout": "1h", "memory": "1Gi", "values": { "fault": "slow-start" } });
        for number in 0..6 {
            space.create(&format!("patient-{number}"), space.spec("broken", "1.0.0", patient.clone())).await?;
            space.create(&format!("silent-{number}"), Self::repository(silent)).await?;
            let next = format!("circle-{}", (number + 1) % 6);
            space.create(&format!("circle-{number}"), space.four(json!({ "dependsOn": [next] }))).await?;
        }
        space.create("endless", Self::repository(endless)).await?;
        for number in 0..10 {
            let labels = json!({ "owner": "helm", "name": "patient-0", "status": "deployed", "version": "4294967295" });
            let metadata = json!({ "name": format!("record-{number}"), "labels": labels });
            let secret = serde_json::from_value(json!({ "metadata": metadata }))?;
            space.secrets.create(&PostParams::default(), &secret).await?;
        }
        Ok(())
    }

    async fn performers(&self) -> Result<()> {
        let services: Api<Service> = Api::namespaced(self.space.client.clone(), &self.space.namespace);
        let taken = json!({ "metadata": { "name": "performer-p0" }, "spec": { "ports": [{ "port": 80 }] } });
        services.create(&PostParams::default(), &serde_json::from_value(taken)?).await?;
        for number in 0..30 {
            let behaviour = [Behaviour::Failed, Behaviour::CrashLoop, Behaviour::ImagePullFailed][number % 3];
            let amount = json!({ (format!("made.up/r{number}")): "1" });
            let resources = json!({ "requests": amount, "limits": amount });
            let spec = spec_with(json!({ "image": behaviour.image(), "resources": resources }));
            let performer = json!({ "metadata": { "name": format!("p{number}") }, "spec": spec });
            self.performers.create(&PostParams::default(), &serde_json::from_value(performer)?).await?;
        }
        // Each takes three bytes here, and a hundred in each copy that a round would have.
        let tolerations = vec![json!({}); 100_000];
        for number in 0..8 {
            let spec = spec_with(json!({ "scheduling": { "tolerations": tolerations } }));
            let performer = json!({ "metadata": { "name": format!("heavy-{number}") }, "spec": spec });
            let performer = serde_json::from_value(performer)?;
            insist(async || self.performers.create(&PostParams::default(), &performer).await).await?;
        }
        Ok(())
    }

    /// Changes objects again and again, each of which is a reason for a round.
    async fn keep_changing(&self) -> Result<()> {
        for number in 0u64.. {
            let patch = json!({ "metadata": { "annotations": { "note": number.to_string() } } });
            self.space.patch(&format!("circle-{}", number % 6), patch.clone()).await?;
            self.performers.patch(&format!("p{}", number % 30), &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        Ok(())
    }
}

/// What the calm namespace asks for after that.
async fn served(calm: &Space<'_>) -> Result<()> {
    let performers: Api<Performer> = Api::namespaced(calm.client.clone(), &calm.namespace);
    let performer = serde_json::from_value(json!({ "metadata": { "name": "calm" }, "spec": spec() }))?;
    performers.create(&PostParams::default(), &performer).await?;
    let is_ready = |performer: &Performer| performer.status.as_ref().is_some_and(|status| status.ready);
    let releases = ["web", "second", "third"].map(|name| calm.install(name, calm.four(json!({}))));
    tokio::try_join!(until(&performers, "calm", "ready", is_ready), try_join_all(releases))?;
    Ok(())
}

#[tokio::test]
async fn a_hostile_namespace_keeps_no_other_from_being_served() -> Result<()> {
    let control_plane = ControlPlane::start(Options { fsync: false, ..Options::default() }).await?;
    install(&control_plane, HelmRole::Bound).await?;
    let rbac = rights::rbac(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT, &strata::layers::rights());
    let crd = json!(api::performer::crd());
    control_plane.install(&rbac.objects().into_iter().chain([crd]).collect::<Vec<_>>()).await?;
    let charts = ChartRepository::start(Access::Anyone).await?;
    let calm = Space::new(&control_plane, charts.url(), "calm").await?;
    let space = Space::new(&control_plane, charts.url(), "hostile").await?;
    let operator = operator(&control_plane).await?;
    let performers = Api::namespaced(space.client.clone(), &space.namespace);
    let hostile = Hostile { space: &space, performers };
    // Connections are made by the kernel and never accepted.
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let (_endless, endless) = endless_repository().await?;
    hostile.claim(&calm, "web").await?;
    tokio::try_join!(hostile.releases(silent.local_addr()?, endless), hostile.performers())?;

    tokio::select! {
        served = served(&calm) => served.with_context(|| operator.log_tail())?,
        changing = hostile.keep_changing() => changing?,
    }

    let claim = space.condition("claim", "Ready", "False", "InvalidSpec").await?;
    assert_eq!(claim.status.map(|status| status.history.len()), Some(0), "it learns nothing of the other's release");
    space.delete("claim").await?;
    space.gone("claim").await?;
    calm.check_history("web", "1 deployed").await?;
    let heavy = space.condition("heavy", "Ready", "False", "ValuesInvalid").await?;
    assert!(message(&heavy).starts_with("spec.values: more than"), "{}", message(&heavy));
    space.condition("circle-0", "Ready", "False", "DependencyCycle").await?;
    let is_refused = |performer: &Performer| {
        let degraded = performer.status.as_ref().and_then(|status| status.condition(ConditionType::Degraded));
        degraded.is_some_and(|degraded| degraded.reason == Reason::InvalidSpec)
    };
    until(&hostile.performers, "heavy-0", "refused", is_refused).await?;
    assert!(operator.is_running(), "{}", operator.log_tail());
    let peak = peak_bytes(&operator)?;
    assert!(peak < OPERATOR_MEMORY, "{} MiB", peak >> 20);
    Ok(())
}
