//! What is decoded of each kind, and what of that is kept.

use api::workspace::HelmRelease;
use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use plan::releases::{Stored, StoredStatus};
use runtime::{Key, Metadata};

use crate::workspace::projection;

/// A Secret as far as its metadata show it.
#[derive(Clone, Debug)]
pub struct SecretFacts {
    /// The release whose revision Helm keeps in it, if it is one of Helm's.
    pub revision: Option<Box<(String, Stored)>>,
    /// For those who derive Secrets.
    pub stored: projection::Stored,
}

#[allow(clippy::unnecessary_wraps, reason = "the form that every kind's filter has")]
pub fn project_secret(view: Metadata<Secret>) -> Option<SecretFacts> {
    Some(SecretFacts {
        revision: revision(&view.metadata).map(Box::new),
        stored: projection::Stored::of_metadata(view),
    })
}

/// What Helm's labels on a storage Secret say.
pub fn revision(metadata: &ObjectMeta) -> Option<(String, Stored)> {
    let labels = metadata.labels.as_ref()?;
    let label = |name: &str| labels.get(name).map(String::as_str);
    if label("owner") != Some("helm") {
        return None;
    }
    let stored = Stored {
        revision: label("version")?.parse().ok()?,
        status: StoredStatus::read(label("status").unwrap_or_default()),
        uid: metadata.uid.clone().unwrap_or_default(),
        resource_version: metadata.resource_version.clone().unwrap_or_default(),
        created_at: metadata.creation_timestamp.as_ref().map(|time| time.0),
    };
    Some((label("name")?.to_owned(), stored))
}

/// Namespace and name of the Helm release that an object stands for.
pub fn release_key(object: &HelmRelease) -> Key {
    let spec = object.spec.as_ref();
    let own_namespace = object.metadata.namespace.as_deref().unwrap_or_default();
    let namespace = spec.and_then(|spec| spec.target_namespace.as_deref()).unwrap_or(own_namespace);
    let own_name = object.metadata.name.as_deref().unwrap_or_default();
    Key::new(namespace, spec.and_then(|spec| spec.release_name.as_deref()).unwrap_or(own_name))
}
