//! Ours against the published definitions, schema by schema.

use std::path::Path;

use serde_json::{Value, json};

use super::crd;
use crate::performer::Performer;
use crate::published::{SCHEMA, faults, notices_what_it_should};

fn read(path: &Path) -> Value {
    let text = without_descriptions(&std::fs::read_to_string(path).unwrap());
    serde_saphyr::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Descriptions play no part, and the published files indent the lines of some quoted ones less
/// than YAML asks for.
fn without_descriptions(text: &str) -> String {
    let is_open = |line: &str, quote| !line.ends_with(quote) || line.ends_with("\\\"");
    let mut kept = String::new();
    let mut open_quote = None;
    for line in text.lines() {
        let description = line.trim_start().strip_prefix("description: ").unwrap_or_default();
        let opening = description.chars().next().filter(|c| "'\"".contains(*c));
        if let Some(quote) = open_quote.or(opening) {
            open_quote = Some(quote).filter(|quote| is_open(line, *quote));
            continue;
        }
        kept.push_str(line);
        kept.push('\n');
    }
    kept
}

fn published() -> Vec<(String, Value)> {
    let Some(folder) = testbed::published() else {
        return Vec::new();
    };
    ["hourglass.eigenlayer.io_performers.yaml", "hourglass.eigenlayer.io_performers.chart.yaml"]
        .map(|file| (file.to_owned(), read(&folder.join("crds/hourglass").join(file))))
        .into()
}

fn ours() -> Value {
    serde_json::to_value(crd()).unwrap()
}

#[test]
fn p01_identity_scope_and_columns_equal_the_published() {
    let ours = ours();
    for (file, theirs) in published() {
        for path in ["/metadata/name", "/spec/group", "/spec/scope", "/spec/versions/0/name"] {
            assert_eq!(ours.pointer(path), theirs.pointer(path), "{file} {path}");
        }
        for path in ["served", "storage", "subresources", "additionalPrinterColumns"] {
            let path = format!("/spec/versions/0/{path}");
            assert_eq!(ours.pointer(&path), theirs.pointer(&path), "{file} {path}");
        }
        for (name, value) in theirs["spec"]["names"].as_object().unwrap() {
            assert_eq!(&ours["spec"]["names"][name], value, "{file} {name}");
        }
    }
    assert_eq!(ours["spec"]["names"].get("shortNames"), None);
}

#[test]
fn p02_ours_accepts_all_that_the_published_schemas_accept() {
    let ours = ours();
    for (file, theirs) in published() {
        let (ours, theirs) = (ours.pointer(SCHEMA).unwrap(), theirs.pointer(SCHEMA).unwrap());
        let faults = faults(&file, ours, theirs, |_, _, _, _| None);
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }
}

#[test]
fn comparison_notices_what_it_should() {
    notices_what_it_should(|_, _, _, _| None);
}

#[test]
fn p03_both_fields_that_the_published_schemas_lost_are_there() {
    let ours = ours();
    let config = ours.pointer(SCHEMA).unwrap().pointer("/properties/spec/properties/config/properties").unwrap();
    assert_eq!(config["serviceAccountName"]["type"], "string");
    assert_eq!(config["environmentFrom"]["items"]["required"], json!(["name"]));
    let from = &config["environmentFrom"]["items"]["properties"]["valueFrom"]["properties"];
    for source in ["secretKeyRef", "configMapKeyRef"] {
        assert_eq!(from[source]["required"], json!(["key"]));
        assert_eq!(from[source]["properties"]["optional"]["type"], "boolean");
    }
}

#[test]
fn p04_defaults_ranges_and_enums() {
    let ours = ours();
    let spec = ours.pointer(SCHEMA).unwrap().pointer("/properties/spec").unwrap();
    assert_eq!(spec["required"], json!(["avsAddress", "image"]));
    let fields = &spec["properties"];
    assert_eq!(fields["imagePullPolicy"]["enum"], json!(["Always", "Never", "IfNotPresent"]));
    assert_eq!(fields["imagePullPolicy"]["default"], "IfNotPresent");
    let port = &fields["config"]["properties"]["grpcPort"];
    assert_eq!((port["minimum"].as_f64(), port["maximum"].as_f64()), (Some(1.0), Some(65535.0)));
    assert_eq!(port["default"], 9090);
    assert_eq!(fields["config"].get("default"), None);
    assert_eq!(fields["hardwareRequirements"]["properties"]["gpuCount"]["minimum"].as_f64(), Some(0.0));
}

#[test]
fn every_field_of_ours_is_described() {
    fn check(path: &str, schema: &Value) {
        for (name, child) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            assert!(child.get("description").is_some() || path == ".metadata", "{path} has no description");
            check(&path, child);
            check(&path, &child["items"]);
        }
    }
    check("", ours().pointer(SCHEMA).unwrap());
}

#[test]
fn p02_every_published_example_decodes_and_loses_nothing() {
    let Some(folder) = testbed::published() else { return };
    let files = std::fs::read_dir(folder.join("manifests/hourglass")).unwrap().map(|e| e.unwrap().path());
    let manifests: Vec<_> = files.filter(|p| p.extension().is_some_and(|e| e == "yaml")).collect();
    assert_eq!(manifests.len(), 10);
    for path in manifests {
        let value = read(&path);
        let performer: Performer = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(&performer).unwrap(), value, "{}", path.display());
    }
}

#[test]
fn whatever_is_stored_decodes() {
    for stored in [
        json!({ "metadata": { "name": "no-spec" } }),
        json!({ "metadata": { "name": "empty" }, "spec": {} }),
        json!({ "spec": { "config": { "grpcPort": 1e12 }, "hardwareRequirements": { "gpuCount": 4_000_000_000_u64 } } }),
        json!({ "spec": { "config": { "grpcPort": 9090.0, "args": null }, "imagePullSecrets": [{}] } }),
        json!({ "spec": { "resources": { "limits": { "cpu": 1, "memory": "1Gi" } }, "newer": { "field": 1 } } }),
        json!({ "status": { "phase": "Sleeping", "readyTime": "yesterday", "conditions": [{ "type": "Other" }] } }),
    ] {
        let decoded = serde_json::from_value::<Performer>(stored.clone());
        assert!(decoded.is_ok(), "{stored}: {decoded:?}");
    }
}

#[test]
fn only_what_is_set_is_written() {
    let bare = serde_json::to_value(Performer::default()).unwrap();
    assert_eq!(bare, json!({ "apiVersion": "hourglass.eigenlayer.io/v1alpha1", "kind": "Performer", "metadata": {} }));
    let status = serde_json::to_value(crate::performer::PerformerStatus::default()).unwrap();
    assert_eq!(status, json!({}));
}
