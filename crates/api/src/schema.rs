//! From Rust types to custom resource definitions that an API server takes.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::schema::{OptionalEnum, OptionalIntOrString, StructuralSchemaRewriter};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use schemars::transform::AddNullable;
use serde_json::{Value, json};

/// What quantities look like in Kubernetes' own schemas.
const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// Beside a pattern: the message for a user who writes something else. No API server sees it.
pub(crate) const REMEDY: &str = "x-remedy";

/// What an API server estimates for one rule at most is 10 000 000; half of it, since ours is a rough guess at its
/// guess.
const RULE_COST: u64 = 5_000_000;

/// The names and the look of one kind.
pub(crate) struct Definition {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub short_names: &'static [&'static str],
    /// Where `kubectl get CATEGORY` lists the kind.
    pub category: &'static str,
    /// Labels of the definition itself, by which other programs find it.
    pub labels: &'static [(&'static str, &'static str)],
    pub columns: Vec<Value>,
    /// The schema of the whole object. A kind whose schema has no `status` has no such subresource.
    pub schema: Value,
}

/// The category of strata's own kinds.
pub(crate) const CATEGORY: &str = "strata";

impl Definition {
    pub(crate) fn crd(self) -> CustomResourceDefinition {
        let mut names = json!({
            "kind": self.kind,
            "listKind": format!("{}List", self.kind),
            "plural": self.plural,
            "singular": self.singular,
            "categories": [self.category],
        });
        if !self.short_names.is_empty() {
            names["shortNames"] = json!(self.short_names);
        }
        let mut metadata = json!({ "name": format!("{}.{}", self.plural, self.group) });
        if !self.labels.is_empty() {
            metadata["labels"] = self.labels.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        }
        let has_status = self.schema["properties"].get("status").is_some();
        let subresources = if has_status { json!({ "status": {} }) } else { json!({}) };
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": metadata,
            "spec": {
                "group": self.group,
                "names": names,
                "scope": "Namespaced",
                "versions": [{
                    "name": self.version,
                    "served": true,
                    "storage": true,
                    "subresources": subresources,
                    "additionalPrinterColumns": self.columns,
                    "schema": { "openAPIV3Schema": self.schema },
                }],
            },
        });
        serde_json::from_value(definition).expect("a definition made of literals and generated schemas")
    }
}

/// A column of `kubectl get`.
pub(crate) fn column(name: &str, kind: &str, path: &str) -> Value {
    json!({ "name": name, "type": kind, "jsonPath": path })
}

/// A column that only `-o wide` shows.
pub(crate) fn wide_column(name: &str, kind: &str, path: &str) -> Value {
    json!({ "name": name, "type": kind, "jsonPath": path, "priority": 1 })
}

/// One rule of admission: what must hold, and the message for a user who breaks it.
pub(crate) fn rule(rule: &str, message: &str) -> Value {
    json!({ "rule": rule, "message": message })
}

/// The schema of a type, in the form that Kubernetes takes.
pub(crate) fn schema_of<T: JsonSchema>() -> Value {
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
    walk("", &mut schema, &mut fit);
    teach(&mut schema, 1);
    schema
}

/// Makes rules of patterns that have a remedy: of a pattern alone people are only shown the regular expression. Where
/// a schema may apply so often that the API server would not take the rule, the pattern stays.
fn teach(schema: &mut Value, times: u64) {
    let Some(object) = schema.as_object_mut() else { return };
    let most = ["maxItems", "maxProperties"].iter().find_map(|limit| object.get(*limit)?.as_u64());
    for keyword in ["items", "additionalProperties"] {
        if let Some(child) = object.get_mut(keyword) {
            teach(child, times.saturating_mul(most.unwrap_or(u64::MAX)));
        }
    }
    for (_, child) in object.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        teach(child, times);
    }
    let Some(remedy) = object.remove(REMEDY) else { return };
    let pattern = object["pattern"].as_str().unwrap_or_default().to_owned();
    let max_length = object["maxLength"].as_u64().unwrap_or(u64::MAX);
    // A tenth for each of up to four bytes, times a quarter for each character of the pattern.
    let cost = max_length.saturating_mul(4).div_ceil(10).saturating_mul(pattern.len().div_ceil(4) as u64);
    if cost.saturating_mul(times) > RULE_COST {
        return;
    }
    object.remove("pattern");
    let form = rule(&format!("self.matches(r'{pattern}')"), remedy.as_str().unwrap_or_default());
    match object.entry("x-kubernetes-validations").or_insert_with(|| json!([])) {
        Value::Array(rules) => rules.insert(0, form),
        other => *other = json!([form]),
    }
}

/// Calls `change` for a schema and, after them, all schemas inside it, each with the property's name.
pub(crate) fn walk(name: &str, schema: &mut Value, change: &mut impl FnMut(&str, &mut serde_json::Map<String, Value>)) {
    let Some(object) = schema.as_object_mut() else { return };
    for keyword in ["items", "additionalProperties"] {
        if let Some(child) = object.get_mut(keyword) {
            walk("", child, change);
        }
    }
    for (name, child) in object.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        walk(name, child, change);
    }
    change(name, object);
}

/// `Option` in Rust means that a field may be left out; `null` stays refused. The generated defaults only mirror
/// Rust's.
fn fit(name: &str, object: &mut serde_json::Map<String, Value>) {
    for generated in ["nullable", "default", "title"] {
        object.remove(generated);
    }
    // Kubernetes knows signed formats only; the minimum says the rest.
    if object.get("format").and_then(Value::as_str).is_some_and(|format| format.starts_with("uint")) {
        object.remove("format");
    }
    if let Some(values) = object.get_mut("enum").and_then(Value::as_array_mut) {
        values.retain(|value| !value.is_null());
    }
    if object.get("x-kubernetes-int-or-string") == Some(&json!(true)) {
        if name.is_empty() {
            object.remove("description");
        }
        object.insert("anyOf".to_owned(), json!([{ "type": "integer" }, { "type": "string" }]));
        object.insert("pattern".to_owned(), json!(QUANTITY));
    }
}
