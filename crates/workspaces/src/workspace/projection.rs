//! What of each kind stays in memory.
#![allow(clippy::unnecessary_wraps, clippy::needless_pass_by_value, reason = "the form that every kind's filter has")]

use api::workspace::{HelmRelease, HelmReleaseStatus, LABEL_MANAGED_BY, MANAGED_BY, User, UserStatus, Workspace};
use k8s_openapi::{
    api::{
        core::v1::{Namespace, Pod},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use plan::workspaces::{Body, Found, user::PodFacts, workspace::Endpoint};
use runtime::{Json, Metadata, Parts, Versioned};
use serde::Serialize;
use serde_json::{Value, json};

use crate::release::SecretFacts;

/// Where `kubectl apply` writes the whole object, with the content of a Secret.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The controller of an object.
pub struct Owner<'a> {
    pub kind: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
}

/// What has a controller, perhaps.
pub trait Owned {
    fn owner(&self) -> Option<Owner<'_>>;
    fn found(version: &Versioned<Self>) -> Found
    where
        Self: Sized;
}

/// A derived object, or one of a name that a derived one could have.
#[derive(Clone, Debug)]
pub struct Stored {
    uid: Box<str>,
    owner: Option<(Box<str>, Box<str>, Box<str>)>,
    is_going: bool,
    generation: Option<i64>,
    /// JSON; a tree of values would take several times the memory. Empty for strangers, who are only counted.
    content: Box<[u8]>,
    status: Value,
}

impl Stored {
    fn new(metadata: &ObjectMeta, content: impl FnOnce() -> Value, status: Value) -> Self {
        let owners = metadata.owner_references.as_deref().unwrap_or_default();
        let owner = owners.iter().find(|owner| owner.controller == Some(true));
        let is_ours = metadata.labels.as_ref().and_then(|labels| labels.get(LABEL_MANAGED_BY)).map(String::as_str);
        let content = if is_ours == Some(MANAGED_BY) || owner.is_some() { content() } else { Value::Null };
        Self {
            uid: metadata.uid.as_deref().unwrap_or_default().into(),
            owner: owner.map(|o| (o.kind.as_str().into(), o.name.as_str().into(), o.uid.as_str().into())),
            is_going: metadata.deletion_timestamp.is_some(),
            generation: metadata.generation,
            content: serde_json::to_vec(&content).expect("values are JSON").into(),
            status,
        }
    }

    /// What only metadata are known of.
    pub fn of_metadata<K>(mut object: Metadata<K>) -> Self {
        if let Some(annotations) = &mut object.metadata.annotations {
            annotations.remove(LAST_APPLIED);
        }
        Self::new(&object.metadata, || json!({ "metadata": object.metadata }), Value::Null)
    }

    fn found_at(&self, version: u64) -> Found {
        Found {
            uid: self.uid.to_string(),
            resource_version: version.to_string(),
            owner_uid: self.owner().map(|owner| owner.uid.to_owned()),
            is_going: self.is_going,
            generation: self.generation,
            content: Body(self.content()),
            status: self.status.clone(),
            accepted: None,
        }
    }

    pub fn content(&self) -> Value {
        serde_json::from_slice(&self.content).expect("it was written as JSON")
    }

    /// The content as JSON.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.content).expect("it was written as JSON")
    }
}

impl Owned for Stored {
    fn owner(&self) -> Option<Owner<'_>> {
        self.owner.as_ref().map(|(kind, name, uid)| Owner { kind, name, uid })
    }

    fn found(version: &Versioned<Self>) -> Found {
        version.value.found_at(version.version)
    }
}

impl Owned for SecretFacts {
    fn owner(&self) -> Option<Owner<'_>> {
        self.stored.owner()
    }

    fn found(version: &Versioned<Self>) -> Found {
        version.value.stored.found_at(version.version)
    }
}

pub fn whole<K>(object: Json<K>) -> Option<Stored> {
    Some(Stored::new(&object.metadata, || object.content, Value::Null))
}

pub fn with_status<K>(object: Json<K>) -> Option<Stored> {
    Some(Stored::new(&object.metadata, || object.content, object.status))
}

pub fn metadata<K>(object: Metadata<K>) -> Option<Stored> {
    Some(Stored::of_metadata(object))
}

pub fn is_going(namespace: Metadata<Namespace>) -> Option<bool> {
    Some(namespace.metadata.deletion_timestamp.is_some())
}

pub fn pod(pod: Json<Pod>) -> Option<PodFacts> {
    Some(PodFacts::read(&pod.status))
}

/// Where the API server answers, by a slice of the Service `default/kubernetes`.
pub fn endpoints(slice: EndpointSlice) -> Option<Vec<Endpoint>> {
    if slice.metadata.namespace.as_deref() != Some("default") {
        return None;
    }
    let addresses = slice.endpoints.into_iter().flat_map(|endpoint| endpoint.addresses);
    let ports: Vec<i32> = slice.ports.unwrap_or_default().into_iter().filter_map(|port| port.port).collect();
    let mut endpoints: Vec<_> = addresses
        .flat_map(|address| ports.iter().map(move |port| Endpoint { address: address.clone(), port: *port }))
        .collect();
    endpoints.sort();
    Some(endpoints)
}

/// Stands for a status that cannot be read, where only its text is passed on: it reads as unreadable there as well.
const UNREADABLE: &str = "unreadable";

macro_rules! typed {
    ($project:ident, $kind:ident, $unreadable:expr, $is_unreadable:expr) => {
        pub fn $project(object: Parts<$kind>) -> Option<$kind> {
            let (spec, status) = (object.spec(), object.status());
            // Unknown is not absent: nothing is decided on a status as if there were none.
            let status = if object.has_status() { status.or($unreadable) } else { None };
            Some($kind { metadata: object.metadata, spec, status })
        }

        impl Owned for $kind {
            fn owner(&self) -> Option<Owner<'_>> {
                owner(&self.metadata)
            }

            fn found(version: &Versioned<Self>) -> Found {
                let object = &version.value;
                let content = $kind { status: None, ..object.clone() };
                let is_unreadable = object.status.as_ref().is_some_and($is_unreadable);
                let status = if is_unreadable { json!(UNREADABLE) } else { json!(object.status) };
                found(&object.metadata, version.version, &content, status)
            }
        }
    };
}

// Nothing is decided on a Workspace's own status.
typed!(workspace, Workspace, None, |_| false);
typed!(user, User, Some(UserStatus { is_unreadable: true, ..UserStatus::default() }), |status| status.is_unreadable);
typed!(
    release,
    HelmRelease,
    Some(HelmReleaseStatus { is_unreadable: true, ..HelmReleaseStatus::default() }),
    |status| status.is_unreadable
);

fn owner(metadata: &ObjectMeta) -> Option<Owner<'_>> {
    let owner = metadata.owner_references.as_ref()?.iter().find(|owner| owner.controller == Some(true))?;
    Some(Owner { kind: &owner.kind, name: &owner.name, uid: &owner.uid })
}

fn found(metadata: &ObjectMeta, version: u64, content: &impl Serialize, status: Value) -> Found {
    Found {
        uid: metadata.uid.clone().unwrap_or_default(),
        resource_version: version.to_string(),
        owner_uid: owner(metadata).map(|owner| owner.uid.to_owned()),
        is_going: metadata.deletion_timestamp.is_some(),
        generation: metadata.generation,
        content: Body(json!(content)),
        status,
        accepted: None,
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    fn seen(status: Value) -> (HelmRelease, Found) {
        let object = json!({ "metadata": { "name": "a", "resourceVersion": "1" }, "status": status });
        let release = release(serde_json::from_value(object).unwrap()).unwrap();
        (release.clone(), HelmRelease::found(&Versioned { version: 1, value: release }))
    }

    #[test]
    fn a_status_that_cannot_be_read_is_not_taken_for_none() {
        let (none, found) = seen(Value::Null);
        assert_eq!((none.status, found.status), (None, Value::Null));
        let (sound, found) = seen(json!({ "holdsData": true }));
        assert_eq!((sound.status.unwrap().is_unreadable, found.status), (false, json!({ "holdsData": true })));
        let (broken, found) = seen(json!({ "holdsData": "perhaps" }));
        assert!(broken.status.unwrap().is_unreadable);
        assert!(HelmReleaseStatus::deserialize(&found.status).is_err(), "{}", found.status);
    }
}
