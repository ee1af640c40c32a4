//! What is decoded of an object: the whole of it, its metadata, or as little as a layer asks for.

use std::{borrow::Cow, collections::BTreeMap, fmt::Debug, marker::PhantomData};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::{Map, Value, value::RawValue};

/// What is decoded from the API server for a kind: as little of the object as the layer needs.
pub trait View:
    Resource<DynamicType: Clone + Debug + Send + Sync> + DeserializeOwned + Clone + Debug + Send + Sync + 'static
{
}

impl<W> View for W where
    W: Resource<DynamicType: Clone + Debug + Send + Sync> + DeserializeOwned + Clone + Debug + Send + Sync + 'static
{
}

/// Gives a view, a struct with a field `metadata`, the identity of the Kubernetes type that it is a part of.
#[macro_export]
macro_rules! view_of {
    ($view:ty, $object:ty) => {
        impl k8s_openapi::Resource for $view {
            const API_VERSION: &'static str = <$object as k8s_openapi::Resource>::API_VERSION;
            const GROUP: &'static str = <$object as k8s_openapi::Resource>::GROUP;
            const KIND: &'static str = <$object as k8s_openapi::Resource>::KIND;
            const VERSION: &'static str = <$object as k8s_openapi::Resource>::VERSION;
            const URL_PATH_SEGMENT: &'static str = <$object as k8s_openapi::Resource>::URL_PATH_SEGMENT;
            type Scope = <$object as k8s_openapi::Resource>::Scope;
        }

        impl k8s_openapi::Metadata for $view {
            type Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

            fn metadata(&self) -> &Self::Ty {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut Self::Ty {
                &mut self.metadata
            }
        }
    };
}

/// For `#[serde(deserialize_with)]` on a part of a [`View`]. One object that cannot be read must not end the watch of all
/// others: it counts as having no such part, which planning reports as invalid. The error would quote what stands
/// there, so it is not even logged.
pub fn readable<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Option<T>, D::Error> {
    // Its text, not a tree of values: most objects are read, and then it is decoded once.
    let text = Box::<RawValue>::deserialize(deserializer)?;
    Ok(serde_json::from_str(text.get()).ok())
}

/// Gives a view the identity of the kind `K` that it is a part of.
macro_rules! part_of_k {
    ($view:ident, metadata_only: $metadata_only:literal) => {
        impl<K: Resource> Resource for $view<K> {
            type DynamicType = K::DynamicType;
            type Scope = K::Scope;

            fn metadata_api() -> bool {
                $metadata_only
            }

            fn kind(types: &Self::DynamicType) -> Cow<'_, str> {
                K::kind(types)
            }

            fn group(types: &Self::DynamicType) -> Cow<'_, str> {
                K::group(types)
            }

            fn version(types: &Self::DynamicType) -> Cow<'_, str> {
                K::version(types)
            }

            fn plural(types: &Self::DynamicType) -> Cow<'_, str> {
                K::plural(types)
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

/// The metadata of a `K`. The server sends nothing else: contents of Secrets never come here.
#[derive(Clone, Debug, Deserialize)]
#[serde(bound = "")]
pub struct Metadata<K> {
    #[serde(deserialize_with = "lean_metadata")]
    pub metadata: ObjectMeta,
    #[serde(skip)]
    kind: PhantomData<fn() -> K>,
}

part_of_k!(Metadata, metadata_only: true);

/// A whole `K` as data, for comparison with what is desired.
#[derive(Clone, Debug)]
pub struct Json<K> {
    pub metadata: ObjectMeta,
    /// All but `status` and `metadata.managedFields`.
    pub content: Value,
    pub status: Value,
    kind: PhantomData<fn() -> K>,
}

part_of_k!(Json, metadata_only: false);

impl<'de, K> Deserialize<'de> for Json<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut content = Map::deserialize(deserializer)?;
        let status = content.remove("status").unwrap_or_default();
        let metadata = content.get_mut("metadata").and_then(Value::as_object_mut);
        let metadata = metadata.map(|metadata| {
            metadata.remove("managedFields");
            lean_metadata(&*metadata)
        });
        // As in `undecodable`: the words of serde would quote what they stumbled over.
        let metadata = metadata.and_then(Result::ok).ok_or(serde::de::Error::custom("metadata cannot be read"))?;
        Ok(Self { metadata, content: content.into(), status, kind: PhantomData })
    }
}

impl<K> Json<K> {
    pub fn live(&self) -> Live {
        Live(serde_json::to_vec(&self.content).expect("it was read from JSON").into())
    }
}

/// An object as it is on the server, kept as text: a tree of values takes several times the memory, and is only needed
/// in rounds of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live(Box<[u8]>);

impl Live {
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.0).expect("it was written as JSON")
    }
}

/// A `K` with spec and status as they were sent, for the layer to read: a tree of values in between takes up to a hundred
/// times the memory of its text, and users choose the text.
#[derive(Clone, Debug, Deserialize)]
#[serde(bound = "")]
pub struct Parts<K> {
    #[serde(deserialize_with = "lean_metadata")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: Option<Box<RawValue>>,
    #[serde(default)]
    status: Option<Box<RawValue>>,
    #[serde(skip)]
    kind: PhantomData<fn() -> K>,
}

part_of_k!(Parts, metadata_only: false);

impl<K> Parts<K> {
    /// `None` where there is none, and for one that cannot be read: it must not end the watch of all others, and planning
    /// reports it as invalid.
    pub fn spec<T: DeserializeOwned>(&self) -> Option<T> {
        self.spec.as_ref().and_then(|spec| serde_json::from_str(spec.get()).ok())
    }

    /// Whether there is one, readable or not.
    pub fn has_status(&self) -> bool {
        self.status.is_some()
    }

    /// As [`Self::spec`].
    pub fn status<T: DeserializeOwned>(&self) -> Option<T> {
        self.status.as_ref().and_then(|status| serde_json::from_str(status.get()).ok())
    }
}

/// The part of metadata that any controller needs. managedFields, the bulk of most objects, is skipped while decoding.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LeanMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    finalizers: Option<Vec<String>>,
    owner_references: Option<Vec<OwnerReference>>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

impl From<LeanMetadata> for ObjectMeta {
    fn from(lean: LeanMetadata) -> Self {
        Self {
            name: lean.name,
            namespace: lean.namespace,
            uid: lean.uid,
            resource_version: lean.resource_version,
            generation: lean.generation,
            creation_timestamp: lean.creation_timestamp,
            deletion_timestamp: lean.deletion_timestamp,
            deletion_grace_period_seconds: lean.deletion_grace_period_seconds,
            finalizers: lean.finalizers,
            owner_references: lean.owner_references,
            labels: lean.labels,
            annotations: lean.annotations,
            ..Self::default()
        }
    }
}

/// For `#[serde(deserialize_with)]` on the metadata of a [`View`].
pub fn lean_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    LeanMetadata::deserialize(deserializer).map(Into::into)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_whole_object_is_kept_without_what_the_server_notes_for_itself() {
        let object: Json<ConfigMap> = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1"}, "status": {"ready": 2},
            "metadata": {"name": "a", "resourceVersion": "7", "labels": {"x": "y"}, "managedFields": [{"manager": "m"}]},
        }))
        .unwrap();
        assert_eq!(object.status["ready"], 2);
        assert_eq!(object.metadata.labels.as_ref().unwrap()["x"], "y");
        assert_eq!(
            object.live().value(),
            json!({
                "apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1"},
                "metadata": {"name": "a", "resourceVersion": "7", "labels": {"x": "y"}},
            })
        );
    }

    #[test]
    fn a_part_that_cannot_be_read_costs_no_other() {
        let text = r#"{"metadata": {"name": "a"}, "spec": {"a": 1}, "status": {"a": "x"}}"#;
        let parts: Parts<ConfigMap> = serde_json::from_str(text).unwrap();
        assert_eq!(parts.spec::<BTreeMap<String, u8>>(), Some([("a".to_owned(), 1)].into()));
        assert_eq!(parts.status::<BTreeMap<String, u8>>(), None);
        let bare: Parts<ConfigMap> = serde_json::from_str(r#"{"metadata": {"name": "a"}, "spec": null}"#).unwrap();
        assert_eq!((bare.spec::<Value>(), bare.status::<Value>()), (None, None));
    }

    #[test]
    fn unreadable_metadata_is_not_quoted() {
        let error = serde_json::from_value::<Json<ConfigMap>>(json!({"metadata": {"name": ["secret"]}})).unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn a_view_is_found_where_its_kind_is() {
        assert_eq!(Metadata::<Namespace>::url_path(&(), None), "/api/v1/namespaces");
        assert!(Metadata::<Namespace>::metadata_api());
        assert!(!Json::<Namespace>::metadata_api());
    }
}
