//! A control plane with Workspaces and Users on it, and the few verbs that tests are written in.

use std::{fmt::Debug, future::Future, time::Duration};

use anyhow::{Context, Result, bail};
use api::workspace::{HelmRelease, User, Workspace, WorkspacePhase};
use futures::{StreamExt, pin_mut};
use k8s_openapi::{
    Metadata, NamespaceResourceScope,
    api::{
        apps::v1::StatefulSet,
        core::v1::{Namespace, PersistentVolumeClaim, Pod},
    },
};
use kube::{
    Api, Client, Config as ClientConfig, Resource,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    runtime::{
        WatchStreamExt,
        wait::{await_condition, conditions::is_deleted},
        watcher,
    },
};
use process::Clock;
use runtime::{Operator, Settings};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use testbed::{
    Lent, Looks,
    audit::{Entry, Mark},
    fault::FaultProxy,
};
use tokio::sync::{OnceCell, oneshot};
use tokio_util::sync::CancellationToken;
use workspaces::workspace;

use crate::space::{self, HelmRole, OPERATOR_USER, lent, operator_user};

/// Far above what anything here takes; it ends a test that would otherwise hang.
pub const PATIENCE: Duration = Duration::from_mins(10);

/// Requests are given up soon, so that faults of that kind cost little time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Where there are no such faults. Longer than a request takes on a busy machine: a create that is given up and carried
/// out later would be repeated.
pub const PATIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// What the stand-in for helm makes of a chart of this name.
pub const BROKEN: &str = "broken";
pub const DATABASE: &str = "database";

/// One control plane and one operator for all tests of this process, each in a namespace of its own.
pub struct World {
    pub control_plane: Lent,
    /// Between the operator and the API server.
    pub proxy: FaultProxy,
    pub metrics: std::sync::Arc<runtime::Metrics>,
}

static WORLD: OnceCell<World> = OnceCell::const_new();
static HASTY: OnceCell<World> = OnceCell::const_new();

impl World {
    /// The default resync: what happens within seconds here was not caused by it.
    pub async fn shared() -> &'static Self {
        WORLD.get_or_init(|| Self::on_own_thread(workspace::Config::default(), REQUEST_TIMEOUT)).await
    }

    /// A short resync.
    pub async fn hasty() -> &'static Self {
        let config = workspace::Config { resync: Duration::from_millis(500), ..workspace::Config::default() };
        HASTY.get_or_init(|| Self::on_own_thread(config, PATIENT_TIMEOUT)).await
    }

    /// On a thread and runtime of its own, because those of a test end with the test.
    async fn on_own_thread(config: workspace::Config, request_timeout: Duration) -> Self {
        let (sender, receiver) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                if sender.send(Self::on(space::SHARED, config, request_timeout).await).is_ok() {
                    std::future::pending::<()>().await;
                }
            });
        });
        receiver.await.expect("the world's thread lives").expect("the world starts")
    }

    /// A world for one test alone.
    pub async fn start(config: workspace::Config) -> Result<Self> {
        Self::with_timeout(config, REQUEST_TIMEOUT).await
    }

    /// One whose requests are given up after this time.
    pub async fn with_timeout(config: workspace::Config, request_timeout: Duration) -> Result<Self> {
        Self::on(space::OWN, config, request_timeout).await
    }

    async fn on(purpose: &'static str, config: workspace::Config, request_timeout: Duration) -> Result<Self> {
        let control_plane = lent(purpose, HelmRole::NotBound).await?;
        let kubeconfig = Kubeconfig::read_from(control_plane.kubeconfig_as(&operator_user()).await?)?;
        let proxy = FaultProxy::start(kubeconfig, 7).await?;
        let options = KubeConfigOptions::default();
        let client = runtime::connect(ClientConfig::from_custom_kubeconfig(proxy.kubeconfig(), &options).await?)?;
        let settings = Settings {
            lease: None,
            health_address: None,
            metrics_address: None,
            grace: Duration::from_secs(5),
            request_timeout,
            list_mode: None,
            instance: "test".into(),
        };
        let mut operator = Operator::new(client, settings, Clock::default(), CancellationToken::new());
        workspace::install_alone(&mut operator, &config);
        let metrics = operator.metrics.clone();
        tokio::spawn(operator.run(|_| {}));
        tokio::spawn(play_helm(control_plane.client().await?));
        Ok(Self { control_plane, proxy, metrics })
    }

    pub async fn space(&self, prefix: &str) -> Result<Space> {
        let namespace = self.control_plane.namespace(prefix).await?;
        let client = self.control_plane.client().await?;
        Ok(Space { client, namespace })
    }

    /// The operator's requests in one namespace since `mark`, in the order they arrived, events aside.
    pub fn requests(&self, space: &Space, mark: Mark) -> Result<Vec<Entry>> {
        let mut entries = self.control_plane.audit().entries_after(mark)?;
        entries.retain(|e| e.user == OPERATOR_USER && e.namespace == space.namespace && e.resource != "events");
        entries.sort_by_key(|entry| entry.received_at);
        Ok(entries)
    }

    pub fn mark(&self) -> Result<Mark> {
        Ok(self.control_plane.audit().mark()?)
    }

    /// Rounds that the operator made in a namespace, however they ended.
    fn rounds(&self, space: &Space, controller: &str) -> f64 {
        let text = self.metrics.encode().expect("metrics encode");
        let labels = format!("controller=\"{controller}\",namespace=\"{}\"", space.namespace);
        let start = format!("strata_reconcile_total{{{labels}");
        let lines = text.lines().filter(|line| line.starts_with(&start));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Waits until the operator has made so many more rounds of a kind in the namespace.
    pub async fn more_rounds(&self, space: &Space, controller: &str, count: u32) -> Result<()> {
        let before = self.rounds(space, controller);
        eventually("enough rounds were made", async || Ok(self.rounds(space, controller) >= before + f64::from(count)))
            .await
    }
}

/// Reports on HelmReleases as the rest of the layer would; no chart is installed.
async fn play_helm(client: Client) {
    let releases = watcher(Api::<HelmRelease>::all(client.clone()), watcher::Config::default());
    let releases = releases.default_backoff().applied_objects();
    pin_mut!(releases);
    while let Some(release) = releases.next().await {
        let Ok(release) = release else { continue };
        let generation = release.metadata.generation;
        if release.status.as_ref().is_some_and(|status| status.observed_generation == generation) {
            continue;
        }
        let chart = release.spec.as_ref().map(|spec| spec.chart.name.clone()).unwrap_or_default();
        let (status, reason) = if chart == BROKEN { ("False", "InstallFailed") } else { ("True", "InstallSucceeded") };
        let condition = json!({
            "type": "Ready", "status": status, "reason": reason, "message": "as the chart's name says",
            "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let status = json!({
            "observedGeneration": generation, "lastAppliedRevision": "1.0.0", "holdsData": chart == DATABASE,
            "conditions": [condition],
        });
        let api: Api<HelmRelease> =
            Api::namespaced(client.clone(), release.metadata.namespace.as_deref().unwrap_or(""));
        let name = release.metadata.name.clone().unwrap_or_default();
        let (params, status) = (PatchParams::default(), Patch::Merge(json!({ "status": status })));
        let mut looks = Looks::default();
        while let Err(error) = api.patch_status(&name, &params, &status).await {
            // One that was deleted meanwhile is of no interest.
            if matches!(&error, kube::Error::Api(status) if status.is_not_found()) {
                break;
            }
            looks.next().await;
        }
    }
}

/// Asks until the answer is yes.
pub async fn eventually<F: Future<Output = Result<bool>>>(what: &str, mut holds: impl FnMut() -> F) -> Result<()> {
    let (deadline, mut looks) = (tokio::time::Instant::now() + PATIENCE, Looks::default());
    while !holds().await? {
        if tokio::time::Instant::now() > deadline {
            bail!("it never came true that {what}");
        }
        looks.next().await;
    }
    Ok(())
}

pub fn chart(name: &str) -> Value {
    json!({ "repo": "https://charts.example", "name": name, "version": "1.0.0" })
}

pub fn user(slug: &str) -> Value {
    json!({ "slug": slug, "email": format!("{slug}@example.com"), "permissions": ["code-server"] })
}

/// What any object here is.
pub trait Object:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Metadata<Ty = ObjectMeta>
    + Clone
    + DeserializeOwned
    + Serialize
    + Debug
    + Send
    + 'static
{
}

impl<K> Object for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Metadata<Ty = ObjectMeta>
        + Clone
        + DeserializeOwned
        + Serialize
        + Debug
        + Send
        + 'static
{
}

/// One test's namespace.
pub struct Space {
    pub client: Client,
    pub namespace: String,
}

impl Space {
    pub fn api<K: Object>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub async fn get<K: Object>(&self, name: &str) -> Result<K> {
        self.api().get(name).await.with_context(|| format!("{name} in {}", self.namespace))
    }

    pub async fn has<K: Object>(&self, name: &str) -> Result<bool> {
        Ok(self.api::<K>().get_opt(name).await?.is_some())
    }

    /// Names of all objects of a kind that strata manages, in order.
    pub async fn names<K: Object>(&self) -> Result<Vec<String>> {
        let ours = ListParams::default().labels("app.kubernetes.io/managed-by=strata");
        let mut names: Vec<_> =
            self.api::<K>().list(&ours).await?.items.into_iter().filter_map(|o| o.metadata().name.clone()).collect();
        names.sort();
        Ok(names)
    }

    pub async fn create<K: Object>(&self, object: Value) -> Result<K> {
        Ok(self.api().create(&PostParams::default(), &serde_json::from_value(object)?).await?)
    }

    pub async fn patch<K: Object>(&self, name: &str, patch: Value) -> Result<K> {
        Ok(self.api().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?)
    }

    /// Waits, by watch, until an object is as `holds` wants it.
    pub async fn until<K: Object>(&self, name: &str, what: &str, holds: impl Fn(&K) -> bool) -> Result<K> {
        let condition = |object: Option<&K>| object.is_some_and(&holds);
        if let Ok(found) = tokio::time::timeout(PATIENCE, await_condition(self.api::<K>(), name, condition)).await {
            return found?.with_context(|| format!("{name} vanished"));
        }
        let last = self.api::<K>().get_opt(name).await?;
        bail!("{name} did not become {what}; it is\n{}", serde_json::to_string_pretty(&last)?)
    }

    pub async fn delete<K: Object>(&self, name: &str) -> Result<K> {
        let object: K = self.get(name).await?;
        self.api::<K>().delete(name, &DeleteParams::default()).await?;
        Ok(object)
    }

    pub async fn until_gone<K: Object>(&self, object: &K) -> Result<()> {
        let (name, uid) = (object.metadata().name.as_deref().unwrap_or(""), object.metadata().uid.as_deref());
        let gone = await_condition(self.api::<K>(), name, is_deleted(uid.unwrap_or("")));
        tokio::time::timeout(PATIENCE, gone).await.with_context(|| format!("{name} did not go"))??;
        Ok(())
    }

    pub async fn workspace(&self, name: &str, spec: Value) -> Result<Workspace> {
        self.create(json!({ "metadata": { "name": name }, "spec": spec })).await
    }

    pub async fn change(&self, name: &str, spec: Value) -> Result<Workspace> {
        self.patch(name, json!({ "spec": spec })).await
    }

    /// Waits until the status speaks of the present spec, in this phase.
    pub async fn until_phase(&self, name: &str, phase: WorkspacePhase) -> Result<Workspace> {
        self.until(name, &format!("{phase:?}"), |workspace: &Workspace| {
            let status = workspace.status.clone().unwrap_or_default();
            status.observed_generation == workspace.metadata.generation && status.phase == Some(phase)
        })
        .await
    }

    pub async fn ready_workspace(&self, name: &str, spec: Value) -> Result<Workspace> {
        self.workspace(name, spec).await?;
        self.until_phase(name, WorkspacePhase::Ready).await
    }

    /// Waits until a User's status speaks of the present spec, with this reason.
    pub async fn until_user(&self, slug: &str, reason: &str) -> Result<User> {
        self.until(slug, reason, |user: &User| {
            let status = user.status.clone().unwrap_or_default();
            let ready = status.conditions.first().map(|ready| ready.reason.as_str());
            status.observed_generation == user.metadata.generation && ready == Some(reason)
        })
        .await
    }

    pub async fn pod(&self, slug: &str) -> Result<Pod> {
        self.get(&format!("code-server-{slug}-0")).await
    }

    pub async fn set(&self, slug: &str) -> Result<StatefulSet> {
        self.get(&format!("code-server-{slug}")).await
    }

    pub async fn claim(&self, slug: &str) -> Result<PersistentVolumeClaim> {
        self.get(&format!("home-code-server-{slug}-0")).await
    }

    pub async fn namespace(&self) -> Result<Namespace> {
        Ok(Api::all(self.client.clone()).get(&self.namespace).await?)
    }
}

pub fn uid<K: Object>(object: &K) -> String {
    object.metadata().uid.clone().unwrap_or_default()
}

/// A condition of a Workspace: `False ObjectTaken: …`.
pub fn condition(workspace: &Workspace, kind: &str) -> String {
    let status = workspace.status.clone().unwrap_or_default();
    let found = status.conditions.iter().find(|condition| condition.kind.as_str() == kind);
    found.map_or_else(String::new, |c| format!("{:?} {}: {}", c.status, c.reason, c.message))
}

/// `patch users/ana`.
pub fn line(entry: &Entry) -> String {
    let slash = if entry.subresource.is_empty() { "" } else { "/" };
    format!("{} {}{slash}{}/{}", entry.verb, entry.resource, entry.subresource, entry.name)
}
