//! The objects of a release as they are on the server: whether they differ from it, and their replicas.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use api::workspace::{DriftIgnore, StoppedWorkload};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
    discovery::{self, Scope},
};
use plan::{object::differs, releases::Difference};
use runtime::Key;
use serde_json::{Value, json};

use super::storage::Manifest;

/// Helm's own field manager, so that what is set back is Helm's as before.
const HELM: &str = "helm";
/// Fields that differ between any two reads of one object.
const NOTED_BY_SERVER: [&str; 4] = ["managedFields", "resourceVersion", "generation", "uid"];

/// An object of a manifest, ready to be asked for.
pub struct Target {
    pub kind: GroupVersionKind,
    pub key: Key,
    /// As Helm applies it.
    pub desired: Value,
}

impl Target {
    /// `Deployment web`.
    pub fn title(&self) -> String {
        format!("{} {}", self.kind.kind, self.key.name)
    }
}

/// The targets of a manifest. Helm puts its own marks on every object, which the manifest does not show.
pub fn targets(manifest: Manifest, release: &Key) -> Vec<Target> {
    if manifest.unreadable > 0 {
        tracing::warn!(
            documents = manifest.unreadable,
            "part of the release's manifest cannot be read and is left out"
        );
    }
    manifest.objects.into_iter().filter_map(|object| target(object, release)).collect()
}

fn target(mut desired: Value, release: &Key) -> Option<Target> {
    let api_version = desired["apiVersion"].as_str()?.to_owned();
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let kind = GroupVersionKind::gvk(group, version, desired["kind"].as_str()?);
    let name = desired["metadata"]["name"].as_str()?.to_owned();
    let namespace = desired["metadata"]["namespace"].as_str().unwrap_or(&release.namespace).to_owned();
    desired["metadata"]["labels"]["app.kubernetes.io/managed-by"] = json!("Helm");
    desired["metadata"]["annotations"]["meta.helm.sh/release-name"] = json!(&*release.name);
    desired["metadata"]["annotations"]["meta.helm.sh/release-namespace"] = json!(&*release.namespace);
    Some(Target { kind, key: Key::new(namespace, name), desired })
}

/// Where kinds are served; asked once per kind.
#[derive(Default)]
pub struct Discovered(Mutex<HashMap<GroupVersionKind, (ApiResource, Scope)>>);

impl Discovered {
    async fn api(&self, client: &Client, target: &Target) -> Result<Api<DynamicObject>, kube::Error> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&target.kind).cloned();
        let (resource, scope) = if let Some(known) = known {
            known
        } else {
            let (resource, capabilities) = discovery::pinned_kind(client, &target.kind).await?;
            let found = (resource, capabilities.scope);
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(target.kind.clone(), found.clone());
            found
        };
        Ok(match scope {
            Scope::Cluster => Api::all_with(client.clone(), &resource),
            Scope::Namespaced => Api::namespaced_with(client.clone(), &target.key.namespace, &resource),
        })
    }

    /// What differs, by asking the server what an apply would change.
    pub async fn drift(
        &self,
        client: &Client,
        targets: &[Target],
        ignore: &[DriftIgnore],
    ) -> Result<Vec<Difference>, kube::Error> {
        let mut found = Vec::new();
        for target in targets {
            let api = self.api(client, target).await?;
            let what = match api.get_opt(&target.key.name).await? {
                None => Some("is gone".to_owned()),
                Some(live) => {
                    let params = PatchParams { dry_run: true, ..PatchParams::apply(HELM).force() };
                    let applied = api.patch(&target.key.name, &params, &Patch::Apply(&target.desired)).await?;
                    difference(target, &applied, &live, ignore)
                }
            };
            found.extend(what.map(|what| Difference { object: target.title(), what }));
        }
        Ok(found)
    }

    /// Sets the named objects back.
    pub async fn correct(
        &self,
        client: &Client,
        targets: &[Target],
        drifted: &[Difference],
        ignore: &[DriftIgnore],
    ) -> Result<(), kube::Error> {
        for target in targets.iter().filter(|target| drifted.iter().any(|d| d.object == target.title())) {
            let api = self.api(client, target).await?;
            let mut desired = target.desired.clone();
            // Ignored fields stay with whoever set them, unless the object is made anew.
            if api.get_opt(&target.key.name).await?.is_some() {
                paths(target, ignore).for_each(|path| remove(&mut desired, path));
            }
            api.patch(&target.key.name, &PatchParams::apply(HELM).force(), &Patch::Apply(&desired)).await?;
        }
        Ok(())
    }

    /// Replicas of the Deployments and StatefulSets; those that are gone are left out.
    pub async fn replicas(&self, client: &Client, targets: &[Target]) -> Result<Vec<StoppedWorkload>, kube::Error> {
        let mut found = Vec::new();
        for target in targets.iter().filter(|target| is_workload(target)) {
            let api = self.api(client, target).await?;
            let scale = match api.get_scale(&target.key.name).await {
                Ok(scale) => scale,
                Err(kube::Error::Api(status)) if status.code == 404 => continue,
                Err(error) => return Err(error),
            };
            let replicas = scale.spec.and_then(|spec| spec.replicas).unwrap_or(0);
            found.push(StoppedWorkload { kind: target.kind.kind.clone(), name: target.key.name.to_string(), replicas });
        }
        Ok(found)
    }

    pub async fn scale(
        &self,
        client: &Client,
        targets: &[Target],
        workloads: &[StoppedWorkload],
        manager: &str,
    ) -> Result<(), kube::Error> {
        for workload in workloads {
            let is_it = |t: &&Target| is_workload(t) && t.kind.kind == workload.kind && *t.key.name == *workload.name;
            let Some(target) = targets.iter().find(is_it) else { continue };
            let api = self.api(client, target).await?;
            let patch = json!({ "spec": { "replicas": workload.replicas } });
            let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
            api.patch_scale(&target.key.name, &params, &Patch::Merge(&patch)).await?;
        }
        Ok(())
    }
}

fn is_workload(target: &Target) -> bool {
    target.kind.group == "apps" && matches!(target.kind.kind.as_str(), "Deployment" | "StatefulSet")
}

/// The first place where an apply would change something.
fn difference(
    target: &Target,
    applied: &DynamicObject,
    live: &DynamicObject,
    ignore: &[DriftIgnore],
) -> Option<String> {
    let [applied, live] = [applied, live].map(|object| {
        let mut value = serde_json::to_value(object).unwrap_or_default();
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.retain(|field, _| !NOTED_BY_SERVER.contains(&field.as_str()));
        }
        value.as_object_mut().map(|object| object.remove("status"));
        paths(target, ignore).for_each(|path| remove(&mut value, path));
        value
    });
    differs(&applied, &live)
}

/// The ignored paths of one object.
fn paths<'a>(target: &Target, ignore: &'a [DriftIgnore]) -> impl Iterator<Item = &'a str> {
    let (kind, name) = (target.kind.kind.clone(), target.key.name.clone());
    let applies = move |rule: &&DriftIgnore| {
        rule.target.as_ref().is_none_or(|target| {
            target.kind.as_ref().is_none_or(|wanted| *wanted == kind)
                && target.name.as_deref().is_none_or(|wanted| *wanted == *name)
        })
    };
    ignore.iter().filter(applies).flat_map(|rule| rule.paths.iter().map(String::as_str))
}

/// Removes what a JSON pointer leads to.
fn remove(value: &mut Value, pointer: &str) {
    let Some((parent, last)) = pointer.rsplit_once('/') else { return };
    let last = last.replace("~1", "/").replace("~0", "~");
    match value.pointer_mut(parent) {
        Some(Value::Object(fields)) => drop(fields.remove(&last)),
        Some(Value::Array(elements)) => {
            if let Ok(index) = last.parse::<usize>()
                && index < elements.len()
            {
                elements.remove(index);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_removes_what_it_names_and_all_below() {
        let mut value = json!({ "spec": { "replicas": 3, "a/b": { "c": 1 } }, "list": [1, 2] });
        for pointer in ["/spec/replicas", "/spec/a~1b", "/list/0", "/nothing/here", "bad"] {
            remove(&mut value, pointer);
        }
        assert_eq!(value, json!({ "spec": {}, "list": [2] }));
    }

    #[test]
    fn a_target_carries_the_marks_that_helm_puts_on_it() {
        let object = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" } });
        let manifest = Manifest { objects: vec![object, json!({ "kind": "List" })], unreadable: 0 };
        let targets = targets(manifest, &Key::new("team", "web"));
        assert_eq!(targets.len(), 1);
        assert_eq!(targets[0].key, Key::new("team", "web"));
        assert_eq!(targets[0].desired["metadata"]["annotations"]["meta.helm.sh/release-name"], "web");
    }
}
