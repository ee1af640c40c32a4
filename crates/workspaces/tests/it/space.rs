//! One test's namespace, and the few verbs that tests of HelmReleases are written in.
//!
//! The whole-system tests of `strata` take this file in by its path: as a crate it would need an arrow from testbed to
//! the layers.

use std::{fmt::Debug, future::Future, time::Duration};

use anyhow::{Context, Result, bail};
use api::workspace::{HelmRelease, User as TeamUser, Workspace};
use futures::future::try_join_all;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::Deployment,
        coordination::v1::Lease,
        core::v1::{ConfigMap, Namespace, Secret},
        events::v1::Event,
        rbac::v1::ClusterRoleBinding,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    runtime::wait::{await_condition, conditions::is_deleted},
};
use runtime::rights;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use testbed::{
    ControlPlane, Lent, Looks, User,
    audit::{Entry, Mark},
    helm::Helm,
    may,
};

/// Far above what anything here takes; it ends a test that would otherwise hang.
pub const PATIENCE: Duration = Duration::from_mins(5);

pub const OPERATOR_NAMESPACE: &str = "strata-system";
pub const OPERATOR_ACCOUNT: &str = "strata";
/// As the audit log names it.
pub const OPERATOR_USER: &str = "system:serviceaccount:strata-system:strata";

/// The operator as the chart runs it.
pub fn operator_user() -> User {
    User::service_account(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT)
}

/// Whether helm may act as the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelmRole {
    Bound,
    NotBound,
}

/// For tests with operators of their own, one after another.
pub const OWN: &str = "own operators";
/// For operators that many tests share. They never end, so that each has a control plane without a past.
pub const SHARED: &str = "shared operators";

/// A control plane with what the chart installs and nothing left for operators to act on.
pub async fn lent(purpose: &'static str, helm: HelmRole) -> Result<Lent> {
    let control_plane = ControlPlane::lent(purpose).await?;
    vacate(&control_plane).await?;
    if helm == HelmRole::NotBound {
        unbind(&control_plane.client().await?).await?;
    }
    install(&control_plane, helm).await?;
    Ok(control_plane)
}

/// Removes what an earlier test left for operators to act on: objects of our kinds, and leases without a holder.
async fn vacate(control_plane: &ControlPlane) -> Result<()> {
    let client = control_plane.client().await?;
    remove_all::<Workspace>(&client).await?;
    remove_all::<TeamUser>(&client).await?;
    remove_all::<HelmRelease>(&client).await?;
    let leases: Api<Lease> = Api::namespaced(client, OPERATOR_NAMESPACE);
    leases.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    Ok(())
}

/// Takes helm's right to act as the operator back, where an earlier test gave it.
async fn unbind(client: &Client) -> Result<()> {
    let binding = workspaces::rights::helm_binding(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT).name_any();
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    if bindings.get_opt(&binding).await?.is_none() {
        return Ok(());
    }
    bindings.delete(&binding, &DeleteParams::default()).await?;
    let all = json!({ "verb": "*", "group": "*", "resource": "*" });
    eventually("the operator may no longer do all", async || Ok(!may(client, &operator_user(), &all).await?)).await
}

/// Removes all objects of a kind, where it is served, without the operator that their finalizers wait for.
async fn remove_all<K>(client: &Client) -> Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    if crds.get_opt(&format!("{}.{}", K::plural(&()), K::group(&()))).await?.is_none() {
        return Ok(());
    }
    let left = Api::<K>::all(client.clone()).list_metadata(&ListParams::default()).await?;
    let remove = async |object: kube::core::PartialObjectMeta<K>| {
        let namespace = object.namespace().context("an object of ours has a namespace")?;
        let (api, name) = (Api::<K>::namespaced(client.clone(), &namespace), object.name_any());
        let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        match api.patch_metadata(&name, &PatchParams::default(), &free).await {
            // One that was being deleted goes with its finalizer.
            Ok(_) => drop(api.delete(&name, &DeleteParams::default()).await),
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error.into()),
        }
        anyhow::Ok(())
    };
    try_join_all(left.into_iter().map(remove)).await?;
    Ok(())
}

/// Installs what the chart installs: namespace, CRDs, account, roles; and where the API server answers.
pub async fn install(control_plane: &ControlPlane, helm: HelmRole) -> Result<()> {
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(OPERATOR_NAMESPACE.to_owned());
    let mut objects = vec![json!(namespace)];
    objects.extend(api::workspace::crds().map(|crd| json!(crd)));
    objects.extend(rights::rbac(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT, workspaces::rights::CLUSTER).objects());
    objects.push(json!(workspaces::rights::helm_role()));
    if helm == HelmRole::Bound {
        objects.push(json!(workspaces::rights::helm_binding(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT)));
    }
    // An API server on a loopback address publishes none of its own.
    objects.push(json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": "kubernetes", "namespace": "default", "labels": { "kubernetes.io/service-name": "kubernetes" },
        },
        "endpoints": [{ "addresses": ["192.0.2.10"] }], "ports": [{ "name": "https", "port": 6443 }],
    }));
    Ok(control_plane.install(&objects).await?)
}

/// Asks until the answer is yes.
pub async fn eventually<F: Future<Output = Result<bool>>>(what: &str, mut holds: impl FnMut() -> F) -> Result<()> {
    let asking = async {
        let mut looks = Looks::default();
        while !holds().await? {
            looks.next().await;
        }
        Ok(())
    };
    tokio::time::timeout(PATIENCE, asking).await.with_context(|| format!("it never came true that {what}"))?
}

/// Waits, by watch, until an object is as `holds` wants it.
pub async fn until<K>(api: &Api<K>, name: &str, what: &str, holds: impl Fn(&K) -> bool) -> Result<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Serialize + 'static,
{
    let condition = |object: Option<&K>| object.is_some_and(&holds);
    if let Ok(found) = tokio::time::timeout(PATIENCE, await_condition(api.clone(), name, condition)).await {
        return found?.with_context(|| format!("{name} vanished"));
    }
    let last = api.get_opt(name).await?;
    bail!("{name} did not become {what}; it is\n{}", serde_json::to_string_pretty(&last)?)
}

/// A condition as JSON; null when absent.
pub fn condition(release: &HelmRelease, kind: &str) -> Value {
    let status = json!(release.status);
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or(Value::Null)
}

/// Message of the condition Ready.
pub fn message(release: &HelmRelease) -> String {
    condition(release, "Ready")["message"].as_str().unwrap_or_default().to_owned()
}

#[derive(Clone)]
pub struct Space<'a> {
    pub control_plane: &'a ControlPlane,
    /// `http://…` of the sample charts.
    pub charts: String,
    pub client: Client,
    pub namespace: String,
    pub releases: Api<HelmRelease>,
    pub secrets: Api<Secret>,
    pub config_maps: Api<ConfigMap>,
    pub deployments: Api<Deployment>,
    pub events: Api<Event>,
}

impl<'a> Space<'a> {
    pub async fn new(control_plane: &'a ControlPlane, charts: String, prefix: &str) -> Result<Self> {
        let namespace = control_plane.namespace(prefix).await?;
        let client = control_plane.client().await?;
        Ok(Self {
            control_plane,
            charts,
            releases: Api::namespaced(client.clone(), &namespace),
            secrets: Api::namespaced(client.clone(), &namespace),
            config_maps: Api::namespaced(client.clone(), &namespace),
            deployments: Api::namespaced(client.clone(), &namespace),
            events: Api::namespaced(client.clone(), &namespace),
            client,
            namespace,
        })
    }

    /// A sample chart of the repository.
    pub fn chart(&self, name: &str, version: &str) -> Value {
        json!({ "repo": self.charts, "name": name, "version": version })
    }

    /// A spec of a sample chart with further fields.
    pub fn spec(&self, name: &str, version: &str, fields: Value) -> Value {
        let mut spec = json!({ "chart": self.chart(name, version) });
        spec.as_object_mut().expect("a map").extend(fields.as_object().expect("a map of fields").clone());
        spec
    }

    /// `four` 1.0.0 with further fields.
    pub fn four(&self, fields: Value) -> Value {
        self.spec("four", "1.0.0", fields)
    }

    pub fn release(&self, name: &str, spec: &Value) -> HelmRelease {
        let object = json!({ "metadata": { "name": name, "namespace": self.namespace }, "spec": spec });
        serde_json::from_value(object).expect("a HelmRelease")
    }

    pub async fn create(&self, name: &str, spec: Value) -> Result<HelmRelease> {
        Ok(self.releases.create(&PostParams::default(), &self.release(name, &spec)).await?)
    }

    /// Creates and waits until ready.
    pub async fn install(&self, name: &str, spec: Value) -> Result<HelmRelease> {
        self.create(name, spec).await?;
        self.ready(name).await
    }

    pub async fn patch(&self, name: &str, patch: Value) -> Result<HelmRelease> {
        Ok(self.releases.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?)
    }

    pub async fn change(&self, name: &str, fields: Value) -> Result<HelmRelease> {
        self.patch(name, json!({ "spec": fields })).await
    }

    pub async fn annotate(&self, name: &str, annotation: &str, value: &str) -> Result<HelmRelease> {
        self.patch(name, json!({ "metadata": { "annotations": { annotation: value } } })).await
    }

    pub async fn until(&self, name: &str, what: &str, holds: impl Fn(&HelmRelease) -> bool) -> Result<HelmRelease> {
        until(&self.releases, name, what, holds).await
    }

    /// Waits until a condition that speaks of the present spec has this status and reason.
    pub async fn condition(&self, name: &str, kind: &str, status: &str, reason: &str) -> Result<HelmRelease> {
        let what = format!("{kind}={status} {reason}");
        self.until(name, &what, |release| {
            let found = condition(release, kind);
            found["status"] == status
                && found["reason"] == reason
                && found["observedGeneration"] == json!(release.metadata.generation)
        })
        .await
    }

    /// Waits until the present spec is deployed and nothing is left to be done.
    pub async fn ready(&self, name: &str) -> Result<HelmRelease> {
        self.until(name, "ready", |release| {
            let ready = condition(release, "Ready");
            let status = release.status.as_ref();
            ready["status"] == "True"
                && ready["observedGeneration"] == json!(release.metadata.generation)
                && status.is_some_and(|status| status.observed_generation == release.metadata.generation)
        })
        .await
    }

    pub async fn delete(&self, name: &str) -> Result<()> {
        self.releases.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    pub async fn gone(&self, name: &str) -> Result<()> {
        let Some(release) = self.releases.get_opt(name).await? else { return Ok(()) };
        let uid = release.metadata.uid.unwrap_or_default();
        let gone = await_condition(self.releases.clone(), name, is_deleted(&uid));
        match tokio::time::timeout(PATIENCE, gone).await {
            Ok(result) => result.map(drop).map_err(Into::into),
            Err(_) => bail!("{name} did not go: {:#}", json!(self.releases.get_opt(name).await?)),
        }
    }

    /// Revisions of a release and their states as Helm stores them.
    pub async fn history(&self, name: &str) -> Result<Vec<(u32, String)>> {
        let listed =
            self.secrets.list_metadata(&ListParams::default().labels(&format!("owner=helm,name={name}"))).await?;
        let mut history = Vec::new();
        for mut labels in listed.into_iter().filter_map(|secret| secret.metadata.labels) {
            let version = labels.remove("version").context("Helm labels the revision")?;
            history.push((version.parse()?, labels.remove("status").context("Helm labels the state")?));
        }
        history.sort();
        Ok(history)
    }

    /// Asserts Helm's revisions, written like `1 superseded, 2 deployed`.
    pub async fn check_history(&self, name: &str, expected: &str) -> Result<()> {
        let found: Vec<_> =
            self.history(name).await?.iter().map(|(revision, state)| format!("{revision} {state}")).collect();
        assert_eq!(found.join(", "), expected, "{name}");
        Ok(())
    }

    /// The stock helm, in this namespace.
    pub async fn helm(&self, helm: &Helm, arguments: &[&str]) -> Result<String> {
        let kubeconfig = self.control_plane.kubeconfig();
        let kubeconfig = kubeconfig.to_str().context("a path in UTF-8")?;
        let fixed = ["--namespace", &self.namespace, "--kubeconfig", kubeconfig];
        Ok(helm.run(arguments.iter().chain(&fixed)).await?)
    }

    pub async fn secret(&self, name: &str, data: Value) -> Result<()> {
        let secret = serde_json::from_value(json!({ "metadata": { "name": name }, "stringData": data }))?;
        self.secrets.patch(name, &PatchParams::apply("test").force(), &Patch::Apply::<Secret>(secret)).await?;
        Ok(())
    }

    /// A ServiceAccount, with the rights of a ClusterRole in this namespace.
    pub async fn account(&self, name: &str, role: Option<&str>) -> Result<()> {
        let metadata = json!({ "name": name, "namespace": self.namespace });
        let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata });
        let binding = role.map(|role| {
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": metadata,
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
                "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": self.namespace }],
            })
        });
        Ok(self.control_plane.install(&binding.into_iter().chain([account]).collect::<Vec<_>>()).await?)
    }

    pub async fn config_map(&self, name: &str, data: Value) -> Result<()> {
        let map = serde_json::from_value(json!({ "metadata": { "name": name }, "data": data }))?;
        self.config_maps.patch(name, &PatchParams::apply("test").force(), &Patch::Apply::<ConfigMap>(map)).await?;
        Ok(())
    }

    /// What the values of a release of chart `web` were.
    pub async fn values(&self, name: &str) -> Result<Value> {
        let map = self.config_maps.get(&format!("{name}-values")).await?;
        let data = map.data.context("it has data")?;
        Ok(serde_json::from_str(&data["values.json"])?)
    }

    /// Events about an object, as `reason: note`, oldest first.
    pub async fn recorded(&self, name: &str) -> Result<Vec<String>> {
        let mut events = self.events.list(&ListParams::default()).await?.items;
        events.retain(|event| event.regarding.as_ref().is_some_and(|about| about.name.as_deref() == Some(name)));
        events.retain(|event| event.reporting_controller.as_deref().is_some_and(|who| who.contains("strata")));
        events.sort_by_key(|event| event.event_time.as_ref().map(|time| time.0));
        let text = |event: Event| format!("{}: {}", event.reason.unwrap_or_default(), event.note.unwrap_or_default());
        Ok(events.into_iter().map(text).collect())
    }

    /// Waits for an event about an object that begins so.
    pub async fn until_recorded(&self, name: &str, start: &str) -> Result<String> {
        let mut found = None;
        let asking = async {
            let mut looks = Looks::default();
            while found.is_none() {
                looks.next().await;
                found = self.recorded(name).await?.into_iter().find(|event| event.starts_with(start));
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(PATIENCE, asking).await.with_context(|| format!("no event {start} of {name}"))??;
        found.context("it was found")
    }

    /// What the operator wrote in this namespace since `mark`, events aside, in the order of arrival.
    pub fn writes(&self, mark: Mark) -> Result<Vec<Entry>> {
        let mut entries = self.control_plane.audit().entries_after(mark)?;
        entries.retain(|entry| {
            entry.user == OPERATOR_USER
                && entry.namespace == self.namespace
                && entry.is_write()
                && entry.resource != "events"
        });
        entries.sort_by_key(|entry| entry.received_at);
        Ok(entries)
    }

    /// A place in the audit log behind all that was done before: the server notes a request a little after its effect.
    pub async fn mark(&self) -> Result<Mark> {
        let audit = self.control_plane.audit();
        let before = audit.mark()?;
        let name = "audit-fence";
        self.config_map(name, json!({ "at": format!("{before:?}") })).await?;
        let is_fence = |entry: &Entry| entry.namespace == self.namespace && entry.name == name;
        audit.wait_for(before, is_fence).await?.context("the audit log stands still")?;
        Ok(audit.mark()?)
    }
}
