//! What is decoded of Clusters and of the kinds that belong to one.

use std::sync::Arc;

use api::machine::{NstanceCluster, NstanceControlPlane, PAUSED_ANNOTATION, WORKLOAD_CLUSTER_ANNOTATION};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use plan::machines::cluster::ClusterFacts;
use runtime::{Key, Kind, Parts};
use serde::{Deserialize, de::DeserializeOwned};

use crate::capi::{CLUSTER_API_GROUP, Reference, cluster_api_kind, has};

pub(crate) type Clusters = Kind<ClusterView, ClusterFacts>;

cluster_api_kind!(pub(crate) ClusterView, "Cluster", "clusters", ClusterSpec);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClusterSpec {
    paused: Option<bool>,
    infrastructure_ref: Option<Reference>,
    control_plane_ref: Option<Reference>,
}

#[expect(clippy::unnecessary_wraps, reason = "the form that every kind's filter has")]
pub(crate) fn facts(cluster: ClusterView) -> Option<ClusterFacts> {
    let spec = cluster.spec.unwrap_or_default();
    Some(ClusterFacts {
        is_paused: spec.paused == Some(true) || is_paused(&cluster.metadata),
        is_deleting: cluster.metadata.deletion_timestamp.is_some(),
        infrastructure: spec.infrastructure_ref.and_then(|reference| reference.to(NstanceCluster::KIND)),
        has_control_plane: spec.control_plane_ref.is_some_and(|reference| !reference.name.is_empty()),
        name: cluster.metadata.name.unwrap_or_default(),
        uid: cluster.metadata.uid.unwrap_or_default(),
        resource_version: cluster.metadata.resource_version.unwrap_or_default(),
    })
}

/// Whether the object's own annotation stops every change.
pub(crate) fn is_paused(metadata: &ObjectMeta) -> bool {
    has(metadata, PAUSED_ANNOTATION)
}

/// The Cluster that Cluster API made the owner of an object.
pub(crate) fn owner(clusters: &Arc<Clusters>, metadata: &ObjectMeta) -> Option<ClusterFacts> {
    let owners = metadata.owner_references.iter().flatten();
    let of_capi = |version: &str| version.split_once('/').is_some_and(|(group, _)| group == CLUSTER_API_GROUP);
    let owner = owners.into_iter().find(|owner| owner.kind == "Cluster" && of_capi(&owner.api_version))?;
    let found = clusters.get(&Key::new(metadata.namespace.as_deref()?, owner.name.as_str()))?;
    (found.value.uid == owner.uid).then(|| found.value.clone())
}

/// A kind of ours as its object; of what may be large only the annotations stay that are looked at.
pub(crate) trait Object: Sized {
    type Spec: DeserializeOwned;
    type Status: DeserializeOwned;

    fn new(metadata: ObjectMeta, spec: Option<Self::Spec>, status: Option<Self::Status>) -> Self;
}

macro_rules! object {
    ($kind:ident, $spec:ident, $status:ident) => {
        impl Object for $kind {
            type Spec = api::machine::$spec;
            type Status = api::machine::$status;

            fn new(metadata: ObjectMeta, spec: Option<Self::Spec>, status: Option<Self::Status>) -> Self {
                Self { metadata, spec, status }
            }
        }
    };
}

object!(NstanceCluster, NstanceClusterSpec, NstanceClusterStatus);
object!(NstanceControlPlane, NstanceControlPlaneSpec, NstanceControlPlaneStatus);

#[expect(clippy::unnecessary_wraps, reason = "the form that every kind's filter has")]
pub(crate) fn project<K: Object>(parts: Parts<K>) -> Option<K> {
    let (spec, status) = (parts.spec(), parts.status());
    let mut metadata = parts.metadata;
    metadata.labels = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|name, _| [PAUSED_ANNOTATION, WORKLOAD_CLUSTER_ANNOTATION].contains(&name.as_str()));
    }
    Some(K::new(metadata, spec, status))
}
