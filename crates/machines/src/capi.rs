//! What the layer keeps of Cluster API's own kinds.

use std::{collections::BTreeMap, time::Duration};

use api::machine::{
    DELETE_MACHINE_ANNOTATION, EXCLUDE_DRAINING_ANNOTATION, GROUP, NstanceMachine, NstanceMachinePool,
    PAUSED_ANNOTATION, PRE_DRAIN_HOOK,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

/// The group of Cluster API's own kinds.
pub(crate) const CLUSTER_API_GROUP: &str = "cluster.x-k8s.io";

/// A view of a kind of Cluster API, of which there is no Rust type.
macro_rules! cluster_api_kind {
    ($visibility:vis $view:ident, $kind:literal, $plural:literal $(, $spec:ty)?) => {
        #[derive(Clone, Debug, serde::Deserialize)]
        $visibility struct $view {
            #[serde(deserialize_with = "runtime::lean_metadata")]
            metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
            $(
                #[serde(default, deserialize_with = "runtime::readable")]
                spec: Option<$spec>,
            )?
        }

        impl k8s_openapi::Resource for $view {
            const API_VERSION: &'static str = "cluster.x-k8s.io/v1beta2";
            const GROUP: &'static str = $crate::capi::CLUSTER_API_GROUP;
            const KIND: &'static str = $kind;
            const VERSION: &'static str = "v1beta2";
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = k8s_openapi::NamespaceResourceScope;
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
pub(crate) use cluster_api_kind;

cluster_api_kind!(pub(crate) MachinePoolView, "MachinePool", "machinepools", MachinePoolSpec);
cluster_api_kind!(pub(crate) MachineView, "Machine", "machines", MachineSpec);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MachinePoolSpec {
    #[serde(default)]
    cluster_name: String,
    #[serde(default)]
    replicas: Option<i64>,
    #[serde(default)]
    template: Template,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Template {
    #[serde(default)]
    spec: MachineSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MachineSpec {
    #[serde(default)]
    infrastructure_ref: Reference,
    #[serde(default)]
    failure_domain: Option<String>,
    #[serde(default)]
    deletion: Deletion,
}

/// To an object in the same namespace.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Reference {
    api_group: String,
    kind: String,
    pub name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Deletion {
    #[serde(default)]
    node_drain_timeout_seconds: Option<u64>,
}

impl Reference {
    /// The name, if it is of this kind of ours.
    pub(crate) fn to(self, kind: &str) -> Option<String> {
        (self.api_group == GROUP && self.kind == kind).then_some(self.name)
    }
}

pub(crate) fn has(metadata: &ObjectMeta, annotation: &str) -> bool {
    metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(annotation))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MachinePool {
    /// Name of its Cluster.
    pub cluster: String,
    pub generation: Option<i64>,
    pub replicas: Option<i64>,
    /// The NstanceMachinePool that it names.
    pub pool: Option<String>,
}

#[expect(clippy::unnecessary_wraps, reason = "the form that every projection has")]
pub(crate) fn machine_pool(view: MachinePoolView) -> Option<MachinePool> {
    let spec = view.spec.unwrap_or_default();
    Some(MachinePool {
        cluster: spec.cluster_name,
        generation: view.metadata.generation,
        replicas: spec.replicas,
        pool: spec.template.spec.infrastructure_ref.to(NstanceMachinePool::KIND),
    })
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "facts about a Machine, each by itself")]
pub(crate) struct Machine {
    pub uid: String,
    /// Rules for drains select by them.
    pub labels: BTreeMap<String, String>,
    pub is_deleting: bool,
    /// To go before others.
    pub is_marked: bool,
    /// Cluster API waits for our drain.
    pub has_hook: bool,
    /// Cluster API does not drain its Node.
    pub is_excluded: bool,
    /// Cluster API does nothing to it.
    pub is_paused: bool,
    pub failure_domain: Option<String>,
    pub drain_timeout: Option<Duration>,
    /// The NstanceMachine that it names.
    pub infrastructure: Option<String>,
}

#[expect(clippy::unnecessary_wraps, reason = "the form that every projection has")]
pub(crate) fn machine(view: MachineView) -> Option<Machine> {
    let (metadata, spec) = (view.metadata, view.spec.unwrap_or_default());
    Some(Machine {
        is_deleting: metadata.deletion_timestamp.is_some(),
        is_marked: has(&metadata, DELETE_MACHINE_ANNOTATION),
        has_hook: has(&metadata, PRE_DRAIN_HOOK),
        is_excluded: has(&metadata, EXCLUDE_DRAINING_ANNOTATION),
        is_paused: has(&metadata, PAUSED_ANNOTATION),
        failure_domain: spec.failure_domain.filter(|domain| !domain.is_empty()),
        drain_timeout: spec.deletion.node_drain_timeout_seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs),
        infrastructure: spec.infrastructure_ref.to(NstanceMachine::KIND),
        labels: metadata.labels.unwrap_or_default(),
        uid: metadata.uid.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pool_of_another_provider_names_none_of_ours() {
        let read = |kind: &str| {
            let reference = json!({ "apiGroup": GROUP, "kind": kind, "name": "web" });
            let spec = json!({ "replicas": 3, "template": { "spec": { "infrastructureRef": reference } } });
            let view = serde_json::from_value(json!({ "metadata": { "name": "web" }, "spec": spec })).unwrap();
            machine_pool(view).unwrap()
        };
        assert_eq!(read("NstanceMachinePool").pool.as_deref(), Some("web"));
        assert_eq!(read("DockerMachinePool").pool, None);
        assert_eq!(read("NstanceMachinePool").replicas, Some(3));
        let strange = json!({ "metadata": { "name": "web" }, "spec": { "replicas": "many" } });
        assert_eq!(machine_pool(serde_json::from_value(strange).unwrap()).unwrap().replicas, None);
    }

    #[test]
    fn a_machine_shows_its_marks() {
        let metadata = json!({ "name": "a", "uid": "u", "annotations": {
            "cluster.x-k8s.io/delete-machine": "", "pre-drain.delete.hook.machine.cluster.x-k8s.io/strata": "",
        }});
        let spec = json!({ "failureDomain": "dev-1", "deletion": { "nodeDrainTimeoutSeconds": 60 } });
        let found = machine(serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()).unwrap();
        assert!(found.is_marked && found.has_hook && !found.is_excluded && !found.is_deleting);
        assert_eq!(found.failure_domain.as_deref(), Some("dev-1"));
        assert_eq!(found.drain_timeout, Some(Duration::from_mins(1)));
    }
}
