//! Pod and Service, exactly as sections 2, 4 and 5 of the specification have them.

use std::collections::BTreeMap;

use api::performer::{
    API_VERSION, APP, CONTAINER_NAME, GENERATION_ANNOTATION, GRPC_PORT_NAME, IMAGE_ANNOTATION, INPUT_HASH_ANNOTATION,
    KIND, LABEL_APP, LABEL_AVS, LABEL_PERFORMER, REPLACEMENTS_ANNOTATION, VERSION_ANNOTATION,
};
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, GRPCAction, Pod, PodSpec, Probe, Service, ServicePort, ServiceSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Desired, Identity};

/// The pod for these inputs; `replacements` counts the pods in a row that failed before it.
pub fn pod(desired: &Desired, identity: &Identity, replacements: u32) -> Pod {
    Pod {
        metadata: ObjectMeta {
            labels: Some(labels(desired, identity)),
            annotations: Some(annotations(desired, identity, replacements)),
            ..metadata(identity)
        },
        spec: Some(PodSpec {
            containers: vec![container(desired)],
            restart_policy: Some("Always".to_owned()),
            node_selector: some_map(&desired.node_selector),
            tolerations: some_list(&desired.tolerations),
            affinity: desired.affinity.as_deref().cloned(),
            runtime_class_name: some_text(&desired.runtime_class),
            priority_class_name: some_text(&desired.priority_class),
            image_pull_secrets: some_list(&desired.image_pull_secrets),
            service_account_name: some_text(&desired.service_account),
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// The Service in front of the pod.
pub fn service(desired: &Desired, identity: &Identity) -> Service {
    Service {
        metadata: metadata(identity),
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
            selector: Some(BTreeMap::from([(LABEL_PERFORMER.to_owned(), identity.name.clone())])),
            ports: Some(vec![ServicePort {
                name: Some(GRPC_PORT_NAME.to_owned()),
                port: i32::from(desired.grpc_port),
                target_port: Some(IntOrString::String(GRPC_PORT_NAME.to_owned())),
                protocol: Some("TCP".to_owned()),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn metadata(identity: &Identity) -> ObjectMeta {
    ObjectMeta {
        name: Some(identity.owned_name()),
        namespace: Some(identity.namespace.clone()),
        owner_references: Some(vec![OwnerReference {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            name: identity.name.clone(),
            uid: identity.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]),
        ..ObjectMeta::default()
    }
}

fn labels(desired: &Desired, identity: &Identity) -> BTreeMap<String, String> {
    BTreeMap::from([
        (LABEL_APP.to_owned(), APP.to_owned()),
        (LABEL_PERFORMER.to_owned(), identity.name.clone()),
        (LABEL_AVS.to_owned(), desired.avs_label.clone()),
    ])
}

fn annotations(desired: &Desired, identity: &Identity, replacements: u32) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::from([
        (INPUT_HASH_ANNOTATION.to_owned(), desired.hash()),
        (IMAGE_ANNOTATION.to_owned(), desired.image.clone()),
        (VERSION_ANNOTATION.to_owned(), desired.version.clone()),
    ]);
    if let Some(generation) = identity.generation {
        annotations.insert(GENERATION_ANNOTATION.to_owned(), generation.to_string());
    }
    if replacements > 0 {
        annotations.insert(REPLACEMENTS_ANNOTATION.to_owned(), replacements.to_string());
    }
    annotations
}

fn container(desired: &Desired) -> Container {
    Container {
        name: CONTAINER_NAME.to_owned(),
        image: Some(desired.image.clone()),
        image_pull_policy: Some(desired.image_pull_policy.clone()),
        command: some_list(&desired.command),
        args: some_list(&desired.args),
        env: some_list(&desired.env),
        ports: Some(vec![ContainerPort {
            name: Some(GRPC_PORT_NAME.to_owned()),
            container_port: i32::from(desired.grpc_port),
            protocol: Some("TCP".to_owned()),
            ..ContainerPort::default()
        }]),
        resources: desired.resources.clone(),
        liveness_probe: Some(probe(desired, 30, 10, 5)),
        readiness_probe: Some(probe(desired, 5, 15, 1)),
        ..Container::default()
    }
}

/// A gRPC health probe; the original operator's numbers, in seconds, and three failures.
fn probe(desired: &Desired, delay: i32, period: i32, timeout: i32) -> Probe {
    Probe {
        grpc: Some(GRPCAction { port: i32::from(desired.grpc_port), service: None }),
        initial_delay_seconds: Some(delay),
        period_seconds: Some(period),
        timeout_seconds: Some(timeout),
        failure_threshold: Some(3),
        ..Probe::default()
    }
}

fn some_text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn some_list<T: Clone>(list: &[T]) -> Option<Vec<T>> {
    (!list.is_empty()).then(|| list.to_vec())
}

fn some_map(map: &BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    (!map.is_empty()).then(|| map.clone())
}
