//! One release of the campaign: what it is asked to become, and whether it did.

use std::{fmt, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use api::{
    condition::{ConditionStatus, ConditionType},
    workspace::{FINALIZER, HelmRelease, ROLLBACK_ANNOTATION},
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Secret, Service},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    runtime::wait::await_condition,
};
use serde_json::{Value, json};

/// Far above what anything here takes; then the release is stuck and needs a human.
const PATIENCE: Duration = Duration::from_mins(5);
const VERSIONS: [&str; 2] = ["1.0.0", "1.1.0"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flow {
    Install,
    Upgrade,
    /// By the annotation.
    Rollback,
    /// An upgrade that the API server refuses, and the rollback that follows.
    Remedy,
    Uninstall,
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl Flow {
    /// What helm stores on the way.
    pub fn statuses(self) -> &'static [&'static str] {
        match self {
            Self::Install => &["pending-install", "deployed"],
            Self::Upgrade => &["pending-upgrade", "superseded", "deployed"],
            Self::Rollback => &["pending-rollback", "superseded", "deployed"],
            Self::Remedy => &["pending-upgrade", "failed", "pending-rollback", "deployed"],
            Self::Uninstall => &["uninstalling"],
        }
    }
}

/// Where the releases are.
pub struct Namespace {
    pub secrets: Api<Secret>,
    releases: Api<HelmRelease>,
    deployments: Api<Deployment>,
    services: Api<Service>,
    config_maps: Api<ConfigMap>,
    repo: String,
}

impl Namespace {
    pub fn new(client: Client, namespace: &str, repo: String) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), namespace),
            releases: Api::namespaced(client.clone(), namespace),
            deployments: Api::namespaced(client.clone(), namespace),
            services: Api::namespaced(client.clone(), namespace),
            config_maps: Api::namespaced(client, namespace),
            repo,
        }
    }

    async fn patch(&self, name: &str, patch: Value) -> Result<()> {
        self.releases.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }
}

/// What a deployed revision holds.
#[derive(Clone, Debug)]
struct Content {
    version: &'static str,
    note: String,
    revision: u32,
}

pub struct Release {
    pub name: String,
    chart: &'static str,
    /// The operation of this wave.
    pub flow: Flow,
    /// It did not reach its end.
    pub is_lost: bool,
    /// How often something was asked for: makes every wish a new one.
    wishes: u32,
    uid: String,
    /// What this wave is to end with; nothing before an install and after an uninstall.
    wanted: Option<Content>,
    /// What was deployed before the last upgrade, if that was the last thing that happened.
    former: Option<Content>,
}

impl Release {
    pub fn new(name: String, chart: &'static str) -> Self {
        let flow = Flow::Install;
        Self { name, chart, flow, is_lost: false, wishes: 0, uid: String::new(), wanted: None, former: None }
    }

    /// What may come next.
    pub fn ways(&self) -> &'static [Flow] {
        match (&self.wanted, &self.former) {
            (None, _) => &[Flow::Install],
            (Some(_), None) => &[Flow::Upgrade, Flow::Remedy, Flow::Uninstall],
            (Some(_), Some(_)) => &[Flow::Rollback, Flow::Remedy, Flow::Uninstall, Flow::Upgrade],
        }
    }

    /// Asks for the operation of this wave.
    pub async fn trigger(&mut self, place: &Namespace) -> Result<()> {
        self.wishes += 1;
        let (wish, name) = (self.wishes, self.name.as_str());
        let content = |version| Content { version, note: format!("wish {wish}"), revision: 0 };
        let spec = |content: &Content, replicas: i32| json!({ "chart": { "version": content.version }, "values": { "note": content.note, "replicas": replicas } });
        let replicas = i32::from(self.chart == "web");
        match self.flow {
            Flow::Install => {
                let wanted = content(VERSIONS[0]);
                let object = serde_json::from_value(self.object(&place.repo, &wanted, replicas))?;
                let made = place.releases.create(&PostParams::default(), &object).await?;
                self.uid = made.metadata.uid.unwrap_or_default();
                (self.wanted, self.former) = (Some(wanted), None);
            }
            Flow::Upgrade => {
                let wanted = content(VERSIONS[wish as usize % 2]);
                place.patch(name, json!({ "spec": spec(&wanted, replicas) })).await?;
                self.former = self.wanted.replace(wanted);
            }
            Flow::Rollback => {
                self.wanted = self.former.take();
                let revision = self.wanted.as_ref().map_or(0, |wanted| wanted.revision);
                let annotations = json!({ ROLLBACK_ANNOTATION: format!("{revision}@{wish}") });
                place.patch(name, json!({ "metadata": { "annotations": annotations } })).await?;
            }
            Flow::Remedy => {
                // No Deployment has less than no replicas.
                place.patch(name, json!({ "spec": spec(&content(VERSIONS[1]), -1) })).await?;
                self.former = None;
            }
            Flow::Uninstall => {
                place.releases.delete(name, &DeleteParams::default()).await?;
                (self.wanted, self.former) = (None, None);
            }
        }
        Ok(())
    }

    fn object(&self, repo: &str, content: &Content, replicas: i32) -> Value {
        json!({
            "metadata": { "name": self.name },
            "spec": {
                "chart": { "repo": repo, "name": self.chart, "version": content.version },
                "values": { "note": content.note, "replicas": replicas },
                "wait": self.chart == "web",
                "timeout": "1m",
                "upgrade": { "remediation": "rollback" },
            },
        })
    }

    /// Waits for the end of this wave's operation and looks at everything that there must be, or must not.
    pub async fn finished(&mut self, place: &Namespace) -> Result<()> {
        let end = await_condition(place.releases.clone(), &self.name, |object: Option<&HelmRelease>| {
            object
                .filter(|object| object.metadata.uid.as_ref() == Some(&self.uid))
                .map_or_else(|| self.flow == Flow::Uninstall, |object| self.is_reached(object))
        });
        let result = match tokio::time::timeout(PATIENCE, end).await {
            Ok(object) => self.check(place, object?.as_ref()).await,
            Err(_) => bail!("not reached\n{}", self.describe(place).await),
        };
        if result.is_err() {
            return result.with_context(|| format!("{} has ended", self.name)).context(self.describe(place).await);
        }
        result
    }

    fn is_reached(&self, object: &HelmRelease) -> bool {
        let (Some(status), Some(wanted)) = (&object.status, &self.wanted) else { return false };
        let is = |kind, wanted| {
            status
                .condition(kind)
                .is_some_and(|found| found.status == wanted && found.observed_generation == object.metadata.generation)
        };
        let (ready, remediated) = match self.flow {
            Flow::Install | Flow::Upgrade => (ConditionStatus::True, ConditionStatus::False),
            Flow::Rollback => (ConditionStatus::True, ConditionStatus::True),
            Flow::Remedy => (ConditionStatus::False, ConditionStatus::True),
            Flow::Uninstall => return false,
        };
        let newest = status.history.first();
        let is_deployed = newest.is_some_and(|newest| newest.chart_version.as_deref() == Some(wanted.version));
        let annotation = object.metadata.annotations.as_ref().and_then(|all| all.get(ROLLBACK_ANNOTATION));
        let is_handled = annotation == status.last_handled_rollback.as_ref();
        let is_observed = status.observed_generation == object.metadata.generation;
        is(ConditionType::Ready, ready)
            && is(ConditionType::Remediated, remediated)
            && is_deployed
            && is_handled
            && is_observed
            && status.operation.is_none()
    }

    async fn check(&mut self, place: &Namespace, object: Option<&HelmRelease>) -> Result<()> {
        let stored = self.stored(place).await?;
        let deployment = place.deployments.get_opt(&self.name).await?;
        let Some(wanted) = &mut self.wanted else {
            ensure!(stored.is_empty(), "storage is left: {stored:?}");
            let service = place.services.get_opt(&self.name).await?;
            ensure!(deployment.is_none() && service.is_none(), "objects are left");
            return Ok(());
        };
        let object = object.context("it is gone")?;
        let finalizers = object.metadata.finalizers.as_deref().unwrap_or_default();
        ensure!(finalizers == [FINALIZER], "finalizers {finalizers:?}");
        let (last, older) = stored.split_last().context("nothing is stored")?;
        ensure!(last.1 == "deployed", "newest is {last:?}");
        ensure!(older.iter().all(|(_, status)| status == "superseded" || status == "failed"), "history {older:?}");
        wanted.revision = last.0;
        let shown = object.status.as_ref().and_then(|status| status.history.first()).map(|newest| newest.revision);
        ensure!(shown == Some(last.0), "status shows {shown:?} of {last:?}");
        let note = if self.chart == "four" {
            let annotations = deployment.context("the Deployment is gone")?.metadata.annotations;
            annotations.and_then(|mut all| all.remove("strata.dev/note"))
        } else {
            let map = place.config_maps.get(&format!("{}-values", self.name)).await?;
            let values: Value = serde_json::from_str(&map.data.unwrap_or_default()["values.json"])?;
            values["note"].as_str().map(str::to_owned)
        };
        ensure!(note.as_ref() == Some(&wanted.note), "it holds {note:?} instead of {:?}", wanted.note);
        Ok(())
    }

    /// Revisions and statuses of Helm's storage, oldest first.
    async fn stored(&self, place: &Namespace) -> Result<Vec<(u32, String)>> {
        let ours = ListParams::default().labels(&format!("owner=helm,name={}", self.name));
        let mut stored = Vec::new();
        for secret in place.secrets.list_metadata(&ours).await? {
            let mut labels = secret.metadata.labels.unwrap_or_default();
            let mut label = |name| labels.remove(name).with_context(|| format!("label {name}"));
            stored.push((label("version")?.parse()?, label("status")?));
        }
        stored.sort();
        Ok(stored)
    }

    /// All that there is to see, for whoever must find out what went wrong.
    async fn describe(&self, place: &Namespace) -> String {
        let object = place.releases.get_opt(&self.name).await;
        let (stored, wanted) = (self.stored(place).await, &self.wanted);
        let object = object.map(|object| object.map(|object| json!(object)));
        let text = object.map(|object| serde_json::to_string_pretty(&object).unwrap_or_default());
        format!("wanted {wanted:?}\nstored {stored:?}\n{}", text.unwrap_or_else(|error| error.to_string()))
    }
}
