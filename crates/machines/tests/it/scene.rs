//! A namespace with its own shards and its own operator, on the control plane that all tests share.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use api::machine::{API_VERSION, NstanceMachinePool, NstanceShardGroup};
use k8s_openapi::{
    api::{core::v1::Node, events::v1::Event},
    serde::de::DeserializeOwned,
};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use machines::{
    ApiServer, Config,
    config::{Given, Settings},
    shards::Pace,
};
use process::{Clock, Health};
use runtime::{LeaseConfig, ListMode, Metrics, Operator};
use serde_json::{Value, json};
use shard::provider::InProcess;
use tempfile::TempDir;
use testbed::{ControlPlane, Looks, kwok::NODE_LABEL};
use tokio::{runtime::Runtime, sync::oneshot, task::JoinHandle};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    bed,
    zones::{CLUSTER, TENANT, Zones, listed},
};

/// Far above what anything here takes; it ends a test that would otherwise hang.
pub const PATIENCE: Duration = Duration::from_mins(3);

/// Between two looks at what gives no event.
pub const LOOK: Duration = Duration::from_millis(100);

/// As often as a shard is listed at rest.
pub const POLL: Duration = Duration::from_secs(2);

/// The operator's configuration.
const CONFIG: &str = "config.yaml";

pub struct Scene {
    pub zones: Arc<Zones>,
    pub namespace: String,
    pub client: Client,
    /// Of the API server that the instances join, where it counts as another one.
    pub endpoint: Option<String>,
    /// How the operator reaches the API server, where it is not the administrator's way.
    pub kubeconfig: Option<PathBuf>,
    /// How its caches are filled; as the server can if `None`.
    pub list_mode: Option<ListMode>,
    /// Rounds of one kind at once, where it is not the default.
    pub concurrency: Option<usize>,
    /// Where the list of shards is, in place of the file.
    pub shards_config_map: Option<String>,
    /// The administrator's kubeconfig.
    admin: PathBuf,
    /// As often as a shard is listed at rest.
    pub poll: Duration,
    directory: TempDir,
    /// Ends with the scene.
    operator: Option<Running>,
    _kubelets: DropGuard,
}

/// An operator on a runtime of its own: where that ends, nothing of the operator goes on.
pub struct Running {
    pub health: Health,
    pub metrics: Arc<Metrics>,
    runtime: Option<Runtime>,
    stop: CancellationToken,
    task: JoinHandle<Result<()>>,
}

impl Running {
    /// Ends it in order.
    pub async fn stop(mut self) -> Result<()> {
        self.stop.cancel();
        (&mut self.task).await?
    }

    /// Ends it as SIGKILL would: nothing of it goes on after this.
    async fn kill(mut self) -> Result<()> {
        if let Some(runtime) = self.runtime.take() {
            tokio::task::spawn_blocking(move || runtime.shutdown_timeout(PATIENCE)).await?;
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Scene {
    /// With these shards, and an operator that knows them all.
    pub async fn new(name: &str, shards: &[&str]) -> Result<Self> {
        Self::with_groups(name, shards, json!({})).await
    }

    /// With static groups on every shard.
    pub async fn with_groups(name: &str, shards: &[&str], groups: Value) -> Result<Self> {
        let mut scene = Self::without_operator(name, shards, groups).await?;
        scene.start().await?;
        Ok(scene)
    }

    pub async fn without_operator(name: &str, shards: &[&str], groups: Value) -> Result<Self> {
        let control_plane = bed::shared().await?;
        Self::made(control_plane, control_plane.client().await?, name, shards, groups).await
    }

    /// The instances join the cluster that this client reaches.
    pub async fn joining(workload: Client, name: &str, shards: &[&str], groups: Value) -> Result<Self> {
        Self::made(bed::shared().await?, workload, name, shards, groups).await
    }

    /// On a control plane that has the layer's definitions and Cluster API.
    pub async fn on(control_plane: &ControlPlane, name: &str, shards: &[&str], groups: Value) -> Result<Self> {
        Self::made(control_plane, control_plane.client().await?, name, shards, groups).await
    }

    async fn made(
        control_plane: &ControlPlane,
        workload: Client,
        name: &str,
        shards: &[&str],
        groups: Value,
    ) -> Result<Self> {
        let namespace = control_plane.namespace(name).await?;
        let zones = Arc::new(Zones::start(shards, &groups).await?);
        let client = control_plane.client().await?;
        let stop = CancellationToken::new();
        tokio::spawn(kubelets(workload, zones.cloud.clone(), stop.clone()));
        let directory = tempfile::tempdir()?;
        let scene = Self {
            zones,
            namespace,
            client,
            endpoint: None,
            kubeconfig: None,
            list_mode: None,
            concurrency: None,
            shards_config_map: None,
            admin: control_plane.kubeconfig(),
            poll: POLL,
            directory,
            operator: None,
            _kubelets: stop.drop_guard(),
        };
        scene.install(control_plane).await?;
        scene.write_shards(shards)?;
        Ok(scene)
    }

    /// What an administrator makes before the operator starts.
    async fn install(&self, control_plane: &ControlPlane) -> Result<()> {
        let namespace = self.namespace.as_str();
        let account = machines::LAYER.accounts[0];
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": format!("{}-{namespace}", account.role) },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": account.role },
            "subjects": [{ "kind": "ServiceAccount", "name": account.name, "namespace": namespace }],
        });
        let metadata = |name: &str| json!({ "name": name, "namespace": namespace });
        let roles: Vec<Value> = (machines::LAYER.roles)().iter().map(|role| json!(role)).collect();
        control_plane.install(&roles).await?;
        control_plane
            .install(&[
                json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(account.name) }),
                binding,
                json!({
                    "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("nstance-cluster-ca"),
                    "data": { "ca.crt": self.zones.authority.certificate_pem() },
                }),
                json!({
                    "apiVersion": "v1", "kind": "Secret", "metadata": metadata("nstance-operator-nonce"),
                    "stringData": { "nonce.jwt": self.zones.nonce()? },
                }),
            ])
            .await?;
        Ok(())
    }

    /// Writes the operator's configuration file with these shards.
    pub fn write_shards(&self, shards: &[&str]) -> Result<()> {
        let mut all = self.zones.addresses();
        all.retain(|shard, _| shards.contains(&shard.as_str()));
        self.write_addresses(CONFIG, &all)?;
        Ok(())
    }

    pub fn write_config(&self, text: &str) -> Result<()> {
        std::fs::write(self.directory.path().join(CONFIG), text)?;
        Ok(())
    }

    /// Writes a configuration file with these addresses.
    pub fn write_addresses(&self, file: &str, shards: &BTreeMap<String, Value>) -> Result<PathBuf> {
        let config = json!({ "cluster_id": CLUSTER, "tenant": TENANT, "shards": shards });
        let path = self.directory.path().join(file);
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }

    pub async fn start(&mut self) -> Result<()> {
        self.operator = Some(self.spawn(self.directory.path().join(CONFIG), None).await?);
        Ok(())
    }

    /// Starts an operator with this configuration; with a lease it may be one of several.
    pub async fn spawn(&self, file: PathBuf, lease: Option<LeaseConfig>) -> Result<Running> {
        // Cluster API does not take the operator's way: a proxy there sees the operator's calls alone.
        let api_server = ApiServer::of(&read_config(&self.admin).await?, None);
        let config = read_config(self.kubeconfig.as_ref().unwrap_or(&self.admin)).await?;
        let given = Given {
            file: Some(file),
            shards_config_map: self.shards_config_map.clone(),
            capi_endpoint: self.endpoint.clone(),
            ..Given::default()
        };
        let mut layer = Config::new(Settings::read(&given, &self.namespace)?, api_server);
        layer.pace = Pace { poll: self.poll };
        layer.concurrency = self.concurrency.unwrap_or(layer.concurrency);
        // Nothing in these tests is linked later than this.
        layer.on_demand.grace = Duration::from_secs(1);
        let stop = CancellationToken::new();
        let settings = runtime::Settings { lease, list_mode: self.list_mode, ..process_settings() };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (token, (made, known)) = (stop.clone(), oneshot::channel());
        let task = runtime.spawn(async move {
            let mut operator = Operator::new(runtime::connect(config)?, settings, Clock::default(), token);
            operator.layer("machines");
            machines::install(&mut operator, &layer);
            let _ = made.send((operator.health.clone(), operator.metrics.clone()));
            Ok(operator.run(|_| {}).await?)
        });
        let (health, metrics) = known.await?;
        Ok(Running { health, metrics, runtime: Some(runtime), stop, task })
    }

    pub async fn stop(&mut self) -> Result<()> {
        match self.operator.take() {
            Some(running) => running.stop().await,
            None => Ok(()),
        }
    }

    /// Ends the operator as SIGKILL would.
    pub async fn kill(&mut self) -> Result<()> {
        if let Some(running) = self.operator.take() {
            running.kill().await?;
        }
        Ok(())
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub fn capi(&self, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &capi_resource(kind))
    }

    /// A pool of a group that is not static, and its MachinePool.
    pub async fn create_pool(&self, name: &str, shards: &[&str], replicas: Option<i32>) -> Result<()> {
        self.create_pool_with(name, json!({ "group": name, "shards": shards, "template": "web" })).await?;
        self.create_machine_pool(name, replicas).await
    }

    pub async fn create_pool_with(&self, name: &str, spec: Value) -> Result<()> {
        let metadata = json!({ "name": name, "namespace": self.namespace });
        let object =
            json!({ "apiVersion": API_VERSION, "kind": "NstanceMachinePool", "metadata": metadata, "spec": spec });
        self.api::<NstanceMachinePool>().create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        Ok(())
    }

    pub async fn create_machine_pool(&self, name: &str, replicas: Option<i32>) -> Result<()> {
        let cluster = format!("{CLUSTER}--{TENANT}");
        let infrastructure =
            json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "NstanceMachinePool", "name": name });
        let template = json!({ "spec": {
            "clusterName": cluster, "bootstrap": { "dataSecretName": "" }, "infrastructureRef": infrastructure,
        }});
        let mut spec = json!({ "clusterName": cluster, "template": template });
        if let Some(replicas) = replicas {
            spec["replicas"] = json!(replicas);
        }
        let object = DynamicObject::new(name, &capi_resource("MachinePool")).data(json!({ "spec": spec }));
        let pools = self.capi("MachinePool");
        let made = match pools.create(&PostParams::default(), &object).await {
            Err(kube::Error::Api(status)) if status.code == 409 => pools.get(name).await?,
            made => made?,
        };
        // The operator may have been quicker: it makes one for a pool that is ten seconds old.
        if made.data["spec"]["replicas"] != json!(replicas) {
            let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
            pools.patch(name, &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }

    pub async fn scale(&self, name: &str, replicas: i32) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
        self.capi("MachinePool").patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    pub async fn patch_pool(&self, name: &str, patch: Value) -> Result<()> {
        self.api::<NstanceMachinePool>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    pub async fn delete<K>(&self, name: &str) -> Result<()>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        self.api::<K>().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    pub async fn pool(&self, name: &str) -> Result<Option<NstanceMachinePool>> {
        Ok(self.api::<NstanceMachinePool>().get_opt(name).await?)
    }

    pub async fn shard_group(&self, group: &str, shard: &str) -> Result<Option<NstanceShardGroup>> {
        Ok(self.api::<NstanceShardGroup>().get_opt(&format!("{group}--{shard}")).await?)
    }

    /// Events of one object: type, reason and note.
    pub async fn events(&self, name: &str) -> Result<Vec<(String, String, String)>> {
        let all = self.api::<Event>().list(&ListParams::default()).await?;
        let about = |event: &Event| event.regarding.as_ref().is_some_and(|object| object.name.as_deref() == Some(name));
        let words = |event: Event| {
            (event.type_.unwrap_or_default(), event.reason.unwrap_or_default(), event.note.unwrap_or_default())
        };
        Ok(all.items.into_iter().filter(about).map(words).collect())
    }

    /// Waits for an event of this type and reason that says this: it is written after the status.
    pub async fn until_event(&self, name: &str, expected: (&str, &str), words: &str) -> Result<()> {
        let look = || async {
            let events = self.events(name).await?;
            Ok(events.iter().any(|(kind, reason, note)| (&**kind, &**reason) == expected && note.contains(words)))
        };
        self.until(&format!("{name} has an event {expected:?}"), look).await
    }

    /// Sizes of the group on each shard as the shards have it.
    pub async fn sizes(&self, group: &str, shards: &[&str]) -> Result<Vec<Option<i32>>> {
        let mut sizes = Vec::new();
        for shard in shards {
            let groups = listed(&self.zones.client(shard)?).await?;
            sizes.push(groups.iter().find(|found| found.key == group).map(|found| found.size));
        }
        Ok(sizes)
    }

    pub async fn until_sizes(&self, group: &str, shards: &[&str], sizes: &[Option<i32>]) -> Result<()> {
        self.until(&format!("{group} has {sizes:?}"), || async { Ok(self.sizes(group, shards).await? == sizes) }).await
    }

    /// Looks until it is so.
    pub async fn until<F>(&self, what: &str, look: impl FnMut() -> F) -> Result<()>
    where
        F: Future<Output = Result<bool>>,
    {
        let mut look = look;
        let looking = async {
            let mut looks = Looks::default();
            loop {
                match look().await {
                    Ok(true) => return Ok(()),
                    Ok(false) => looks.next().await,
                    Err(error) => return Err(error),
                }
            }
        };
        match tokio::time::timeout(PATIENCE, looking).await {
            Ok(result) => result.with_context(|| what.to_owned()),
            Err(_) => bail!("{what}: not within {} s; {}", PATIENCE.as_secs(), self.describe().await),
        }
    }

    /// Waits for a condition of a pool: `status/reason`.
    pub async fn until_pool(&self, name: &str, condition: &str, expected: &str) -> Result<String> {
        self.until_pool_says(name, condition, expected, "").await
    }

    /// With these words in its message, which follows what the pool's shard groups say.
    pub async fn until_pool_says(&self, name: &str, condition: &str, expected: &str, part: &str) -> Result<String> {
        let mut message = String::new();
        let seen = &mut message;
        let looking = async {
            let mut looks = Looks::default();
            loop {
                let pool = self.pool(name).await?;
                let (words, found) = words(&json!(pool.and_then(|pool| pool.status)), condition);
                *seen = format!("{words}: {found}");
                if words == expected && found.contains(part) {
                    return Ok::<_, anyhow::Error>(found);
                }
                looks.next().await;
            }
        };
        match tokio::time::timeout(PATIENCE, looking).await {
            Ok(found) => found,
            Err(_) => bail!("pool {name} {condition}={expected} not seen, but {message}; {}", self.describe().await),
        }
    }

    /// The same for a shard group.
    pub async fn until_shard_group(&self, group: &str, shard: &str, condition: &str, expected: &str) -> Result<String> {
        let mut message = String::new();
        let seen = &mut message;
        let looking = async {
            let mut looks = Looks::default();
            loop {
                let found = self.shard_group(group, shard).await?;
                let (words, found) = words(&json!(found.and_then(|found| found.status)), condition);
                *seen = format!("{words}: {found}");
                if words == expected {
                    return Ok::<_, anyhow::Error>(found);
                }
                looks.next().await;
            }
        };
        match tokio::time::timeout(PATIENCE, looking).await {
            Ok(found) => found,
            Err(_) => bail!("{group}--{shard} {condition}={expected} not seen, but {message}"),
        }
    }

    /// For the message of a test that waits in vain.
    async fn describe(&self) -> String {
        let pools = self.api::<NstanceMachinePool>().list(&ListParams::default()).await;
        let groups = self.api::<NstanceShardGroup>().list(&ListParams::default()).await;
        let shown = |value: Value| serde_json::to_string(&value).unwrap_or_default();
        let pools =
            pools.map(|all| all.items.iter().map(|pool| shown(json!([pool.spec, pool.status]))).collect::<Vec<_>>());
        let groups = groups
            .map(|all| all.items.iter().map(|found| shown(json!([found.spec, found.status]))).collect::<Vec<_>>());
        format!("pools {pools:?}; shard groups {groups:?}")
    }
}

/// `status/reason` and the message of one condition.
fn words(status: &Value, condition: &str) -> (String, String) {
    let all = status["conditions"].as_array().cloned().unwrap_or_default();
    let found = all.into_iter().find(|one| one["type"] == condition).unwrap_or_default();
    let word = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    (format!("{}/{}", word("status"), word("reason")), word("message"))
}

fn capi_resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", kind))
}

async fn read_config(path: &Path) -> Result<kube::Config> {
    let kubeconfig = kube::config::Kubeconfig::read_from(path)?;
    let options = kube::config::KubeConfigOptions::default();
    Ok(kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?)
}

fn process_settings() -> runtime::Settings {
    runtime::Settings {
        lease: None,
        health_address: None,
        metrics_address: None,
        grace: Duration::from_secs(1),
        request_timeout: Duration::from_secs(10),
        list_mode: None,
        instance: "test".into(),
    }
}

/// Stands for the kubelets: a Node for every machine of the cloud, which KWOK keeps ready.
async fn kubelets(client: Client, cloud: InProcess, stop: CancellationToken) {
    let nodes = Api::<Node>::all(client);
    let mut known = BTreeSet::new();
    loop {
        for machine in cloud.machines() {
            let id = machine.instance_id;
            let Some(order) = cloud.order(&id).filter(|_| !known.contains(&id)) else { continue };
            let node = json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": { "name": id, "labels": { NODE_LABEL: "true" } },
                "spec": { "providerID": format!("process:///{}/{id}", order.shard) },
            });
            let made = nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await;
            // It is there also where the answer to an earlier request was lost.
            if made.is_ok() || matches!(&made, Err(kube::Error::Api(status)) if status.code == 409) {
                known.insert(id);
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}
