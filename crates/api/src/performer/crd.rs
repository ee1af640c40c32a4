//! The custom resource definition, generated from the types of this module and fitted to the
//! published ones: every object that either of them accepts is accepted.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::schema::{OptionalEnum, OptionalIntOrString, StructuralSchemaRewriter};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use schemars::transform::AddNullable;
use serde_json::{Map, Value, json};

use super::{API_VERSION, DEFAULT_GRPC_PORT, GROUP, KIND, PLURAL, PerformerSpec, PerformerStatus, PullPolicy, VERSION};

/// The definition to install.
pub fn crd() -> CustomResourceDefinition {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{PLURAL}.{GROUP}") },
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": "PerformerList",
                "plural": PLURAL,
                "singular": "performer",
                "categories": ["strata"],
            },
            "scope": "Namespaced",
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "subresources": { "status": {} },
                "additionalPrinterColumns": [
                    column("AVS", "string", ".spec.avsAddress"),
                    column("Image", "string", ".spec.image"),
                    column("Version", "string", ".spec.version"),
                    column("Phase", "string", ".status.phase"),
                    column("Endpoint", "string", ".status.grpcEndpoint"),
                    column("Age", "date", ".metadata.creationTimestamp"),
                ],
                "schema": { "openAPIV3Schema": root() },
            }],
        },
    });
    serde_json::from_value(definition).expect("a definition made of literals and generated schemas")
}

fn column(name: &str, kind: &str, path: &str) -> Value {
    json!({ "name": name, "type": kind, "jsonPath": path })
}

/// `spec` is not required: the published schemas do not require it either.
fn root() -> Value {
    let mut spec = schema_of::<PerformerSpec>();
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
            "status": schema_of::<PerformerStatus>(),
        },
    })
}

fn schema_of<T: JsonSchema>() -> Value {
    let generator = SchemaSettings::openapi3()
        .with(|s| {
            s.inline_subschemas = true;
            s.meta_schema = None;
        })
        .with_transform(AddNullable::default())
        .with_transform(StructuralSchemaRewriter)
        .with_transform(OptionalEnum)
        .with_transform(OptionalIntOrString)
        .into_generator();
    let mut schema = generator.into_root_schema_for::<T>().to_value();
    fit("", &mut schema);
    schema
}

/// What quantities look like in the published schemas.
const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// Fits a generated schema, found under the property `name`, to the published one.
fn fit(name: &str, schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else {
        return;
    };
    // `Option` in Rust means that a field may be left out; `null` stays refused, as published. The
    // generated defaults only mirror Rust's; the two real ones are set by hand.
    for generated in ["nullable", "default", "title"] {
        object.remove(generated);
    }
    if let Some(values) = object.get_mut("enum").and_then(Value::as_array_mut) {
        values.retain(|value| !value.is_null());
    }
    if object.get("x-kubernetes-int-or-string") == Some(&json!(true)) {
        object.remove("description");
        object.insert("anyOf".to_owned(), json!([{ "type": "integer" }, { "type": "string" }]));
        object.insert("pattern".to_owned(), json!(QUANTITY));
    }
    for keyword in ["items", "additionalProperties"] {
        if let Some(child) = object.get_mut(keyword) {
            fit("", child);
        }
    }
    for (name, child) in object.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        fit(name, child);
    }
    extend(name, object);
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
