//! The custom resource definition, generated from the types of this module and fitted to the
//! published ones: every object that either of them accepts is accepted.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use crate::schema::{CATEGORY, Definition, column, schema_of, walk};

use super::{API_VERSION, DEFAULT_GRPC_PORT, GROUP, KIND, PLURAL, PerformerSpec, PerformerStatus, PullPolicy, VERSION};

/// The definition to install.
pub fn crd() -> CustomResourceDefinition {
    let definition = Definition {
        group: GROUP,
        version: VERSION,
        kind: KIND,
        plural: PLURAL,
        singular: "performer",
        short_names: &[],
        category: CATEGORY,
        labels: &[],
        columns: vec![
            column("AVS", "string", ".spec.avsAddress"),
            column("Image", "string", ".spec.image"),
            column("Version", "string", ".spec.version"),
            column("Phase", "string", ".status.phase"),
            column("Endpoint", "string", ".status.grpcEndpoint"),
            column("Age", "date", ".metadata.creationTimestamp"),
        ],
        schema: root(),
    };
    definition.crd()
}

/// `spec` is not required: the published schemas do not require it either.
fn root() -> Value {
    let mut spec = published::<PerformerSpec>();
    let properties = &mut spec["properties"];
    properties["imagePullPolicy"]["default"] = json!(PullPolicy::IfNotPresent);
    let port = &mut properties["config"]["properties"]["grpcPort"];
    port["default"] = json!(DEFAULT_GRPC_PORT);
    port["minimum"] = json!(1);
    port["maximum"] = json!(u16::MAX);
    properties["config"]["properties"]["environmentFrom"]["items"]["required"] = json!(["name"]);
    properties["hardwareRequirements"]["properties"]["gpuCount"]["minimum"] = json!(0);
    spec["required"] = json!(["avsAddress", "image"]);
    json!({
        "type": "object",
        "description": "A Performer runs one AVS workload as one pod behind one Service.",
        "properties": {
            "apiVersion": { "type": "string", "description": format!("Always {API_VERSION}.") },
            "kind": { "type": "string", "description": format!("Always {KIND}.") },
            "metadata": { "type": "object" },
            "spec": spec,
            "status": published::<PerformerStatus>(),
        },
    })
}

/// The generated schema, fitted to the published one.
fn published<T: JsonSchema>() -> Value {
    let mut schema = schema_of::<T>();
    walk("", &mut schema, &mut extend);
    schema
}

/// Adds what k8s-openapi's schemas leave out: Kubernetes extensions and ranges. And takes the name
/// of a reference out of what is required, as published.
fn extend(name: &str, object: &mut Map<String, Value>) {
    let atomic = ("x-kubernetes-map-type", json!("atomic"));
    match name {
        "claims" => {
            insert(object, [("x-kubernetes-list-type", json!("map")), ("x-kubernetes-list-map-keys", json!(["name"]))]);
        }
        "weight" => insert(object, [("minimum", json!(1)), ("maximum", json!(100))]),
        "nodeSelectorTerms" | "imagePullSecrets" => {
            if let Some(items) = object.get_mut("items").and_then(Value::as_object_mut) {
                items.remove("required");
                insert(items, [atomic]);
            }
        }
        "secretKeyRef" | "configMapKeyRef" => insert(object, [("required", json!(["key"])), atomic]),
        "preference" | "labelSelector" | "namespaceSelector" => insert(object, [atomic]),
        _ => {}
    }
}

fn insert<const N: usize>(object: &mut Map<String, Value>, entries: [(&str, Value); N]) {
    object.extend(entries.map(|(keyword, value)| (keyword.to_owned(), value)));
}

#[cfg(test)]
mod tests;
