//! Ours against the published definitions, schema by schema, and what the contracts of Cluster API ask for.

use serde_json::{Value, json};

use super::*;
use crate::condition::Reason;
use crate::published::{SCHEMA, faults, is_subset, notices_what_it_should};

fn ours() -> Vec<Value> {
    crds().iter().map(|crd| serde_json::to_value(crd).unwrap()).collect()
}

/// Each published definition beside ours of the same name.
fn pairs() -> Vec<(Value, Value)> {
    let Some(folder) = testbed::published() else { return Vec::new() };
    let files = std::fs::read_dir(folder.join("crds/nstance")).unwrap().map(|entry| entry.unwrap().path());
    let definitions = files.filter(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    let pairs: Vec<(Value, Value)> = definitions
        .map(|path| {
            let theirs: Value = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
            let same = |ours: &Value| ours["metadata"]["name"] == theirs["metadata"]["name"];
            (ours().into_iter().find(same).unwrap_or_else(|| panic!("none of ours is {}", path.display())), theirs)
        })
        .collect();
    assert_eq!(pairs.len(), 5);
    pairs
}

#[test]
fn a89_identity_category_and_columns_equal_the_published() {
    for (ours, theirs) in pairs() {
        let name = &theirs["metadata"]["name"];
        for path in ["/spec/group", "/spec/scope", "/spec/names", "/spec/versions/0/name"] {
            assert_eq!(ours.pointer(path), theirs.pointer(path), "{name} {path}");
        }
        for keyword in ["served", "storage", "subresources"] {
            assert_eq!(
                ours["spec"]["versions"][0][keyword], theirs["spec"]["versions"][0][keyword],
                "{name} {keyword}"
            );
        }
        let columns = |crd: &Value| {
            let columns = crd["spec"]["versions"][0]["additionalPrinterColumns"].as_array().unwrap();
            columns.iter().map(|column| json!([column["name"], column["type"], column["jsonPath"]])).collect::<Vec<_>>()
        };
        assert_eq!(columns(&ours), columns(&theirs), "{name}");
    }
}

#[test]
fn a69_every_definition_names_the_contracts_it_fulfils() {
    for crd in ours() {
        let labels = json!({ "cluster.x-k8s.io/v1beta1": "v1beta1", "cluster.x-k8s.io/v1beta2": "v1beta1" });
        assert_eq!(crd["metadata"]["labels"], labels, "{}", crd["metadata"]["name"]);
        assert_eq!(crd["spec"]["names"]["categories"], json!(["cluster-api"]));
        // Cluster API computes the name of a definition from group and kind.
        let kind = crd["spec"]["names"]["kind"].as_str().unwrap().to_lowercase();
        assert_eq!(crd["metadata"]["name"], format!("{kind}s.{GROUP}"));
    }
}

#[test]
fn a89_ours_accept_all_that_the_published_schemas_accept() {
    for (ours, theirs) in pairs() {
        let kind = theirs["spec"]["names"]["kind"].as_str().unwrap();
        let faults = faults(kind, ours.pointer(SCHEMA).unwrap(), theirs.pointer(SCHEMA).unwrap(), judge);
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }
}

/// What ours refuse although the published accept it, each by a ruling.
const EXCEPTIONS: [&str; 1] = ["NstanceMachinePool.spec.shards: maxItems"];

/// Where the published require a field that ours may also have under another name; a rule requires one of them.
const RELAXED: [&str; 2] = ["NstanceMachine.spec", "NstanceMachineTemplate.spec.template.spec"];

/// Rules are shown on an API server.
fn judge(path: &str, keyword: &str, ours: &Value, theirs: &Value) -> Option<bool> {
    match keyword {
        "x-kubernetes-validations" => Some(true),
        "required" => Some(is_subset(ours, theirs) && (is_subset(theirs, ours) || RELAXED.contains(&path))),
        _ => EXCEPTIONS.contains(&format!("{path}: {keyword}").as_str()).then_some(true),
    }
}

#[test]
fn comparison_notices_what_it_should() {
    notices_what_it_should(judge);
}

#[test]
fn every_field_is_described() {
    fn check(path: &str, schema: &Value) {
        for (name, child) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            assert!(child.get("description").is_some() || name == "metadata", "{path} has no description");
            check(&path, child);
            check(&path, &child["items"]);
        }
    }
    for crd in ours() {
        check(crd["spec"]["names"]["kind"].as_str().unwrap(), crd.pointer(SCHEMA).unwrap());
    }
}

/// The type of a field, by its path from the root.
fn type_at<'a>(crd: &'a Value, path: &str) -> &'a Value {
    let mut schema = crd.pointer(SCHEMA).unwrap();
    for name in path.split('.') {
        schema = &schema["properties"][name];
    }
    &schema["type"]
}

#[test]
fn a69_every_field_of_the_contracts_is_there_with_its_type() {
    let ours = ours();
    for (kind, path, expected) in [
        ("NstanceCluster", "spec.controlPlaneEndpoint.host", "string"),
        ("NstanceCluster", "spec.controlPlaneEndpoint.port", "integer"),
        ("NstanceCluster", "status.failureDomains", "array"),
        ("NstanceCluster", "status.initialization.provisioned", "boolean"),
        ("NstanceControlPlane", "status.externalManagedControlPlane", "boolean"),
        ("NstanceControlPlane", "status.initialization.controlPlaneInitialized", "boolean"),
        ("NstanceMachinePool", "spec.providerIDList", "array"),
        ("NstanceMachinePool", "status.replicas", "integer"),
        ("NstanceMachinePool", "status.ready", "boolean"),
        ("NstanceMachinePool", "status.initialization.provisioned", "boolean"),
        ("NstanceMachinePool", "status.infrastructureMachineKind", "string"),
        ("NstanceMachine", "spec.providerID", "string"),
        ("NstanceMachine", "status.failureDomain", "string"),
        ("NstanceMachine", "status.addresses", "array"),
        ("NstanceMachine", "status.ready", "boolean"),
        ("NstanceMachine", "status.initialization.provisioned", "boolean"),
        ("NstanceMachineTemplate", "spec.template.spec", "object"),
        ("NstanceMachineTemplate", "spec.template.metadata.labels", "object"),
    ] {
        let crd = ours.iter().find(|crd| crd["spec"]["names"]["kind"] == kind).unwrap();
        assert_eq!(type_at(crd, path), expected, "{kind} {path}");
    }
}

#[test]
fn a89_fields_beside_the_published_are_there() {
    let ours = ours();
    for (kind, path) in [
        ("NstanceMachinePool", "status.template"),
        ("NstanceMachinePool", "status.subnets"),
        ("NstanceMachinePool", "status.subnetPool"),
        ("NstanceMachinePool", "status.reportedShards"),
        ("NstanceShardGroup", "status.config.vars"),
        ("NstanceShardGroup", "status.lastSyncTime"),
        ("NstanceMachine", "spec.groupRef"),
    ] {
        let crd = ours.iter().find(|crd| crd["spec"]["names"]["kind"] == kind).unwrap();
        assert!(type_at(crd, path).is_string(), "{kind} {path}");
    }
}

#[test]
fn every_published_example_decodes_and_loses_nothing() {
    let Some(folder) = testbed::published() else { return };
    for file in ["examples-nstancemachinepool.yaml", "helm-readme-nstancemachinepool.yaml"] {
        let text = std::fs::read_to_string(folder.join("manifests/nstance").join(file)).unwrap();
        let mut value: Value = serde_saphyr::from_str(&text).unwrap();
        // The second sample lacks what every published schema requires.
        if value["spec"]["shards"].is_null() {
            value["spec"]["shards"] = json!(["dev-1"]);
        }
        let pool: NstanceMachinePool = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(&pool).unwrap(), value, "{file}");
    }
}

#[test]
fn whatever_is_stored_decodes() {
    fn check<T: serde::de::DeserializeOwned + std::fmt::Debug>(stored: &Value) {
        let decoded = serde_json::from_value::<T>(stored.clone());
        assert!(decoded.is_ok(), "{stored}: {decoded:?}");
    }
    check::<NstanceCluster>(&json!({ "metadata": { "name": "bare" } }));
    check::<NstanceCluster>(&json!({ "spec": { "controlPlaneEndpoint": { "host": "a", "port": 1e12 } } }));
    check::<NstanceMachinePool>(&json!({ "spec": { "group": "a", "shards": ["b"], "newer": 1 }, "status": {} }));
    check::<NstanceMachinePool>(&json!({ "status": { "conditions": [{ "type": "Other" }], "ready": null } }));
    check::<NstanceShardGroup>(&json!({ "spec": { "group": "a", "shard": "b", "size": 4_000_000_000_u64 } }));
    check::<NstanceShardGroup>(&json!({ "status": { "lastSyncTime": "yesterday", "replicas": null } }));
    check::<NstanceMachine>(&json!({ "spec": {}, "status": { "instanceID": "web" } }));
}

#[test]
fn a55_reasons_of_a_shard_become_reasons_of_a_condition() {
    for (word, reason) in [
        ("unhealthy", "Unhealthy"),
        ("spot-terminating", "SpotTerminating"),
        ("eligible-expiry", "EligibleExpiry"),
        ("forced-expiry", "ForcedExpiry"),
        ("ondemand-expiry", "OnDemandExpiry"),
        ("config-drift", "ConfigDrift"),
        ("scale-down", "ScaleDown"),
        ("preemption", "Preemption"),
        ("request", "Request"),
        ("host.maintenance_window 2", "HostMaintenanceWindow2"),
        ("2nd-chance", "ndChance"),
        ("", "ServerDeleted"),
        ("---", "ServerDeleted"),
        ("größe", "GrE"),
    ] {
        let found = MachineReason::of_deletion(word);
        assert_eq!(found.as_str(), reason, "{word:?}");
        let read: MachineReason = serde_json::from_value(json!(found)).unwrap();
        assert_eq!(read, found, "as it is stored");
    }
    assert_eq!(MachineReason::of_deletion(&"x".repeat(2000)).as_str().len(), 64);
    assert_eq!(MachineReason::of_deletion("scale-down"), MachineReason::Known(Reason::ScaleDown));
}

#[test]
fn a32_one_subnet_is_the_subnet_pool_however_it_is_written() {
    let pool = |body: Value| serde_json::from_value::<NstanceMachinePoolSpec>(body).unwrap();
    for (written, read) in [
        (json!({ "group": "a", "shards": ["b"], "subnets": ["private"] }), "private"),
        (json!({ "group": "a", "shards": ["b"], "subnetPool": "private" }), "private"),
        (json!({ "group": "a", "shards": ["b"], "subnetPool": "", "subnets": ["private"] }), "private"),
        (json!({ "group": "a", "shards": ["b"], "subnets": [] }), ""),
        (json!({ "group": "a", "shards": ["b"] }), ""),
    ] {
        assert_eq!(pool(written.clone()).subnet_pool(), read, "{written}");
    }
}
