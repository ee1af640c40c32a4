//! A namespace, and operators that run in it with the rights of the layer's ground and no other.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use jiff::SignedDuration;
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret, ServiceAccount},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use machines::{
    ApiServer,
    config::{Names, Settings as LayerSettings, ShardSource, Shards, Workload},
    ground::{self, Ground},
};
use process::{Clock, Health};
use runtime::{Metrics, Operator, Settings, rights};
use serde_json::{Value, json};
use testbed::{ControlPlane, User, until_allowed};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::bed;

/// A loaded machine needs seconds for what takes milliseconds; what never comes fails after this.
const PATIENCE: Duration = Duration::from_mins(3);
/// Of the operator.
const ACCOUNT: &str = "strata";
/// Of everything that belongs to the Cluster `dev--default`.
pub const CLUSTER: &str = "dev--default";

pub struct Space {
    pub control_plane: &'static ControlPlane,
    /// The administrator's.
    pub client: Client,
    pub namespace: String,
    config_file: tempfile::TempDir,
}

/// An operator that runs; dropped, it ends.
pub struct Running {
    pub ground: Ground,
    pub health: Health,
    pub metrics: Arc<Metrics>,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Running {
    /// Ends it in order.
    pub async fn stop(mut self) -> Result<()> {
        self.stop.cancel();
        if let Some(task) = self.task.take() {
            task.await?;
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Space {
    pub async fn new(name: &str) -> Result<Self> {
        let control_plane = bed::shared().await?;
        let namespace = control_plane.namespace(name).await?;
        let mut objects: Vec<Value> = rights::rbac(&namespace, ACCOUNT, &[]).objects().into();
        // Those of the whole cluster are another's of the same name for each namespace.
        for object in &mut objects {
            if object["metadata"]["namespace"].is_null() {
                let named = format!("{ACCOUNT}-{namespace}");
                object["metadata"]["name"] = json!(named);
                if object["kind"] == "ClusterRoleBinding" {
                    object["roleRef"]["name"] = json!(named);
                }
            }
        }
        let (role, binding) = rights::layer_role(&namespace, ACCOUNT, "machines", ground::OWN_NAMESPACE);
        objects.extend([json!(role), json!(binding)]);
        objects.extend(ground::roles().iter().map(|role| json!(role)));
        control_plane.install(&objects).await?;
        let (client, user) = (control_plane.client().await?, User::service_account(&namespace, ACCOUNT));
        // One of the whole cluster and one of the namespace: the operator must not ask before it has them.
        for right in [rights::CLUSTER[0], ground::OWN_NAMESPACE[0]] {
            until_allowed(&client, &user, right.verbs[0], right.group, right.resource, &namespace).await?;
        }
        let config_file = tempfile::tempdir()?;
        Ok(Self { control_plane, client, namespace, config_file })
    }

    /// The account by which Cluster API reaches the workload cluster, with its role.
    pub async fn workload_account(&self) -> Result<()> {
        for account in ground::ACCOUNTS {
            let (account, mut binding) = account.objects(&self.namespace);
            binding.metadata.name = Some(format!("workload-{}", self.namespace));
            self.control_plane.install(&[json!(account), json!(binding)]).await?;
        }
        Ok(())
    }

    /// Where the list of shards is read from.
    fn file(&self) -> std::path::PathBuf {
        self.config_file.path().join("config.yaml")
    }

    /// The list as an administrator would edit it.
    pub fn configure(&self, shards: &Shards) -> Result<()> {
        let entry = |address: &machines::config::ShardAddress| {
            json!({
                "registration_addr": address.registration.to_string(),
                "operator_addr": address.operator.to_string(),
            })
        };
        let shards: serde_json::Map<_, _> =
            shards.iter().map(|(shard, address)| (shard.clone(), entry(address))).collect();
        let text = json!({ "cluster_id": "dev", "tenant": "default", "shards": shards }).to_string();
        std::fs::write(self.file(), text)?;
        Ok(())
    }

    pub fn settings(&self, shards: Shards) -> Result<LayerSettings> {
        self.configure(&shards)?;
        let text = |text: &str| text.to_owned();
        Ok(LayerSettings {
            cluster_id: text("dev"),
            tenant: text("default"),
            namespace: self.namespace.clone(),
            source: ShardSource::File(self.file()),
            shards: Arc::new(shards),
            names: Names {
                ca_config_map: text("nstance-cluster-ca"),
                cert_secret: text("nstance-operator-cert"),
                key_secret: text("nstance-operator-key"),
                nonce_secret: text("nstance-operator-nonce"),
            },
            workload: Workload::Own { service_account: text("nstance-capi-workload") },
        })
    }

    /// Runs the ground of the layer.
    pub async fn run(&self, settings: &LayerSettings, clock: Clock) -> Result<Running> {
        let user = User::service_account(&self.namespace, ACCOUNT);
        let client = runtime::connect(self.control_plane.config_as(&user).await?)?;
        let stop = CancellationToken::new();
        let mut operator = Operator::new(client, process_settings(), clock, stop.clone());
        let kubeconfig = kube::config::Kubeconfig::read_from(self.control_plane.kubeconfig())?;
        let config =
            kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default()).await?;
        operator.layer("machines");
        let ground = ground::install(&mut operator, settings, &ApiServer::of(&config, None), Duration::from_mins(2));
        let (health, metrics, recorder) = (operator.health.clone(), operator.metrics.clone(), operator.events.clone());
        let task = tokio::spawn(async move {
            operator.run(|_| {}).await.expect("it runs until it is stopped");
            // Layers hold one for as long as they run.
            drop(recorder);
        });
        Ok(Running { ground, health, metrics, stop, task: Some(task) })
    }

    /// What the operator asked the API server for, which it does not any more: nothing that it may not, and everything in
    /// its namespace.
    pub async fn stayed_within_its_rights(&self) -> Result<()> {
        let user = format!("system:serviceaccount:{}:{ACCOUNT}", self.namespace);
        let mut entries = Vec::new();
        // The server logs a watch when it has noticed its end.
        until("the watches are in the audit log", async || {
            entries = self.control_plane.audit().entries()?;
            entries.retain(|entry| entry.user == user);
            let asked = |resource: &str| entries.iter().any(|entry| entry.resource == resource);
            Ok(asked("secrets") && asked("configmaps") && asked("clusters"))
        })
        .await?;
        // Whether the server streams lists is asked of it, not of a namespace.
        let is_elsewhere =
            |entry: &&testbed::audit::Entry| !entry.resource.is_empty() && entry.namespace != self.namespace;
        let wrong: Vec<_> = entries.iter().filter(|entry| entry.code == 403 || is_elsewhere(entry)).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        Ok(())
    }

    pub fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub async fn put_secret(&self, name: &str, entries: &[(&str, &str)]) -> Result<()> {
        let data = entries.iter().map(|(key, text)| ((*key).to_owned(), ByteString(text.as_bytes().to_vec())));
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let secret = Secret { metadata, data: Some(data.collect()), ..Secret::default() };
        self.secrets().create(&PostParams::default(), &secret).await?;
        Ok(())
    }

    /// An entry of a Secret; `None` where either is missing.
    pub async fn secret_entry(&self, name: &str, entry: &str) -> Result<Option<String>> {
        let secret = self.secrets().get_opt(name).await?;
        let bytes = secret.and_then(|secret| secret.data?.remove(entry));
        Ok(bytes.map(|bytes| String::from_utf8(bytes.0)).transpose()?)
    }

    /// Any change, so that its followers look.
    pub async fn touch(&self, secret: &str) -> Result<()> {
        let at = Clock::default().now().as_nanosecond().to_string();
        let patch = json!({ "metadata": { "annotations": { "strata.dev/touched": at } } });
        self.secrets().patch(secret, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    pub async fn put_ca(&self, pem: &str) -> Result<()> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "nstance-cluster-ca" },
            "data": { "ca.crt": pem },
        });
        maps.patch("nstance-cluster-ca", &PatchParams::apply("test").force(), &Patch::Apply(map)).await?;
        Ok(())
    }

    pub async fn account(&self, name: &str) -> Result<()> {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let account = ServiceAccount { metadata, ..ServiceAccount::default() };
        Api::namespaced(self.client.clone(), &self.namespace).create(&PostParams::default(), &account).await?;
        Ok(())
    }

    /// Objects of a kind of Cluster API or of ours.
    pub fn api(&self, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource(kind))
    }

    pub async fn get(&self, kind: &str, name: &str) -> Result<Option<DynamicObject>> {
        Ok(self.api(kind).get_opt(name).await?)
    }

    pub async fn patch(&self, kind: &str, name: &str, patch: Value) -> Result<()> {
        self.api(kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Waits until a condition of an object has this status and reason.
    pub async fn condition(&self, kind: &str, condition: &str, status: &str, reason: &str) -> Result<String> {
        let mut last = Value::Null;
        let wait = async {
            loop {
                if let Some(object) = self.get(kind, CLUSTER).await? {
                    last = object.data["status"]["conditions"].clone();
                    let is_it =
                        |one: &&Value| one["type"] == condition && one["status"] == status && one["reason"] == reason;
                    if let Some(found) = last.as_array().and_then(|all| all.iter().find(is_it)) {
                        return anyhow::Ok(found["message"].as_str().unwrap_or_default().to_owned());
                    }
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let found = tokio::time::timeout(PATIENCE, wait).await;
        found.with_context(|| format!("{kind} has no {condition}={status}/{reason}: {last}"))?
    }
}

pub fn resource(kind: &str) -> ApiResource {
    let of_capi = matches!(kind, "Cluster" | "MachinePool" | "Machine");
    let (group, version) =
        if of_capi { ("cluster.x-k8s.io", "v1beta2") } else { (api::machine::GROUP, api::machine::VERSION) };
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

fn process_settings() -> Settings {
    Settings {
        lease: None,
        health_address: None,
        metrics_address: None,
        grace: Duration::from_secs(1),
        request_timeout: Duration::from_secs(10),
        list_mode: None,
        instance: "test".into(),
    }
}

/// Waits for what a request shows.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let wait = async {
        while !is_so().await? {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, wait).await.with_context(|| format!("waiting until {what}"))?
}

pub fn minutes(minutes: i64) -> SignedDuration {
    SignedDuration::from_mins(minutes)
}
