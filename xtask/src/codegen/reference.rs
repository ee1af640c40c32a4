//! Reference pages made from the code.

use anyhow::{Context, Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use runtime::rights::Right;

const NOTE: &str = "<!-- Written by `cargo xtask codegen`; do not edit. -->\n";

/// Fields whose inner form Kubernetes itself documents.
const KUBERNETES_TYPES: &[(&str, &str)] = &[
    ("affinity", "core/v1 Affinity"),
    ("conditions", "list of meta/v1 Condition"),
    ("configMapKeyRef", "core/v1 ConfigMapKeySelector"),
    ("resources", "core/v1 ResourceRequirements"),
    ("secretKeyRef", "core/v1 SecretKeySelector"),
    ("tolerations", "list of core/v1 Toleration"),
];

/// Every right of the operator with its reason.
pub fn rights(cluster: &[Right], own_namespace: &[Right]) -> String {
    let table = |rights: &[Right]| -> String {
        let head = "| API group | Resource | Verbs | Why |\n| --- | --- | --- | --- |\n".to_owned();
        let rows = rights.iter().map(|right| {
            let group = if right.group.is_empty() { "core" } else { right.group };
            format!("| {group} | {} | {} | {} |\n", right.resource, right.verbs.join(", "), right.why)
        });
        std::iter::once(head).chain(rows).collect()
    };
    format!(
        "# Rights of the operator\n\n{NOTE}\n## In the whole cluster\n\n{}\n## In its own namespace\n\n{}",
        table(cluster),
        table(own_namespace)
    )
}

/// Every field of a kind with type, default and meaning.
pub fn fields(crd: &CustomResourceDefinition) -> Result<String> {
    let version = crd.spec.versions.first().context("the CRD has no version")?;
    let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
    let mut rows = Vec::new();
    for part in ["spec", "status"] {
        let properties = schema.and_then(|schema| schema.properties.as_ref());
        match properties.and_then(|all| all.get(part)) {
            Some(schema) => describe(part, schema, &mut rows),
            // A template has none.
            None if part == "status" => {}
            None => bail!("the CRD has no {part}"),
        }
    }
    let kind = &crd.spec.names.kind;
    Ok(format!(
        "# {kind}\n\n{NOTE}\n`{}/{}`, {}. Required fields are marked *.\n\n\
         | Field | Type | Default | Meaning |\n| --- | --- | --- | --- |\n{}",
        crd.spec.group,
        version.name,
        crd.spec.scope.to_lowercase(),
        rows.concat()
    ))
}

fn describe(path: &str, schema: &JSONSchemaProps, rows: &mut Vec<String>) {
    let Some(properties) = &schema.properties else { return };
    let required = schema.required.as_deref().unwrap_or_default();
    for (name, field) in properties {
        let mark = if required.contains(name) { "*" } else { "" };
        let kubernetes = KUBERNETES_TYPES.iter().find(|(field, _)| field == name);
        let type_ = kubernetes.map_or_else(|| type_name(field), |(_, type_)| (*type_).to_owned());
        let default = field.default.as_ref().map(|value| format!("`{}`", value.0)).unwrap_or_default();
        let meaning = field.description.as_deref().unwrap_or_default().replace('\n', " ").replace('|', "\\|");
        rows.push(format!("| `{path}.{name}`{mark} | {type_} | {default} | {meaning} |\n"));
        if kubernetes.is_none() {
            let (path, inner) = match entries(field) {
                Some(entries) => (format!("{path}.{name}.<name>"), entries),
                None => (format!("{path}.{name}"), items(field).unwrap_or(field)),
            };
            describe(&path, inner, rows);
        }
    }
}

fn items(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match schema.items.as_ref()? {
        JSONSchemaPropsOrArray::Schema(items) => Some(items),
        JSONSchemaPropsOrArray::Schemas(_) => None,
    }
}

/// What a map holds.
fn entries(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match schema.additional_properties.as_ref()? {
        JSONSchemaPropsOrBool::Schema(entries) => Some(entries),
        JSONSchemaPropsOrBool::Bool(_) => None,
    }
}

fn type_name(schema: &JSONSchemaProps) -> String {
    if let Some(values) = &schema.enum_ {
        let values: Vec<_> = values.iter().filter_map(|value| value.0.as_str()).collect();
        return values.join(", ");
    }
    if let Some(items) = items(schema) {
        return format!("list of {}", type_name(items));
    }
    if let Some(entries) = entries(schema) {
        return format!("map of {}", type_name(entries));
    }
    let name = schema.type_.as_deref().unwrap_or("any");
    let range = match (schema.minimum, schema.maximum) {
        (Some(least), Some(most)) => format!(" {least} to {most}"),
        (Some(least), None) => format!(" from {least}"),
        _ => String::new(),
    };
    format!("{}{range}", schema.format.as_deref().unwrap_or(name))
}
