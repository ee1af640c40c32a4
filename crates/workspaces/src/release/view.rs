//! What is decoded of each kind, and what of that is kept.

use api::workspace::{
    DELETE_DATA_ANNOTATION, FORCE_ANNOTATION, HelmRelease, HelmReleaseSpec, HelmReleaseStatus, LABEL_WORKSPACE,
    RECONCILE_ANNOTATION, ROLLBACK_ANNOTATION,
};
use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use plan::releases::{Stored, StoredStatus};
use runtime::{Key, Metadata, lean_metadata, readable, view_of};
use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
pub struct ReleaseView {
    #[serde(deserialize_with = "lean_metadata")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "readable")]
    spec: Option<HelmReleaseSpec>,
    #[serde(default, deserialize_with = "readable")]
    status: Option<HelmReleaseStatus>,
}

view_of!(ReleaseView, HelmRelease);

/// Annotations that decisions look at; the others may be large.
const ANNOTATIONS: [&str; 4] = [RECONCILE_ANNOTATION, FORCE_ANNOTATION, ROLLBACK_ANNOTATION, DELETE_DATA_ANNOTATION];

impl ReleaseView {
    #[allow(clippy::unnecessary_wraps, reason = "the form that every kind's filter has")]
    pub fn keep(self) -> Option<HelmRelease> {
        let mut metadata = self.metadata;
        metadata.owner_references = None;
        if let Some(annotations) = &mut metadata.annotations {
            annotations.retain(|name, _| ANNOTATIONS.contains(&name.as_str()));
        }
        if let Some(labels) = &mut metadata.labels {
            labels.retain(|name, _| name == LABEL_WORKSPACE);
        }
        Some(HelmRelease { metadata, spec: self.spec, status: self.status })
    }
}

/// A Secret as far as its metadata tell of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretFacts {
    /// Helm keeps a revision of the named release in it.
    Revision {
        release: Box<str>,
        stored: Box<Stored>,
    },
    Plain {
        version: Box<str>,
    },
}

pub fn keep_secret(view: Metadata<Secret>) -> Option<SecretFacts> {
    let metadata = view.metadata;
    match revision(&metadata) {
        Some((release, stored)) => Some(SecretFacts::Revision { release: release.into(), stored: Box::new(stored) }),
        None => Some(SecretFacts::Plain { version: metadata.resource_version?.into() }),
    }
}

/// What Helm's labels on a storage Secret say.
pub fn revision(metadata: &ObjectMeta) -> Option<(String, Stored)> {
    let labels = metadata.labels.as_ref()?;
    let label = |name: &str| labels.get(name).map(String::as_str);
    if label("owner") != Some("helm") {
        return None;
    }
    let changes = metadata.managed_fields.iter().flatten().filter_map(|entry| entry.time.as_ref());
    let stored = Stored {
        revision: label("version")?.parse().ok()?,
        status: StoredStatus::read(label("status").unwrap_or_default()),
        uid: metadata.uid.clone().unwrap_or_default(),
        resource_version: metadata.resource_version.clone().unwrap_or_default(),
        created_at: metadata.creation_timestamp.as_ref().map(|time| time.0),
        modified_at: changes.map(|time| time.0).max(),
    };
    Some((label("name")?.to_owned(), stored))
}

/// A ConfigMap's resource version: enough to know that it changed.
pub fn keep_config_map(view: Metadata<ConfigMap>) -> Option<Box<str>> {
    view.metadata.resource_version.map(Into::into)
}

/// Namespace and name of the Helm release that an object stands for.
pub fn release_key(object: &HelmRelease) -> Key {
    let spec = object.spec.as_ref();
    let own_namespace = object.metadata.namespace.as_deref().unwrap_or_default();
    let namespace = spec.and_then(|spec| spec.target_namespace.as_deref()).unwrap_or(own_namespace);
    let own_name = object.metadata.name.as_deref().unwrap_or_default();
    Key::new(namespace, spec.and_then(|spec| spec.release_name.as_deref()).unwrap_or(own_name))
}
