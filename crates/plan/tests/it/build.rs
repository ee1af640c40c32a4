//! What is built from a spec: rows P05 to P16.

use std::collections::BTreeMap;

use api::condition::Reason;
use api::performer::Performer;
use k8s_openapi::api::core::v1::{Pod, Service};
use plan::performers::{Desired, Identity, avs_label, pod, service, validate};
use serde_json::{Value, json};

use crate::world::{basic, performer, with};

fn desired(spec: Value) -> Desired {
    validate(&performer(spec)).unwrap()
}

fn built(spec: Value) -> Value {
    let performer = performer(spec);
    let pod = pod(&validate(&performer).unwrap(), &Identity::of(&performer), 0);
    serde_json::to_value(pod).unwrap()
}

fn container(spec: Value) -> Value {
    built(spec)["spec"]["containers"][0].clone()
}

fn built_service(spec: Value) -> Value {
    let performer = performer(spec);
    let service: Service = service(&validate(&performer).unwrap(), &Identity::of(&performer));
    serde_json::to_value(service).unwrap()
}

#[test]
fn p05_effective_port_everywhere() {
    for (config, port) in
        [(Value::Null, 9090), (json!({}), 9090), (json!({ "grpcPort": 8080 }), 8080), (json!({ "grpcPort": 0 }), 9090)]
    {
        let spec = with(basic(), json!({ "config": config }));
        let container = container(spec.clone());
        assert_eq!(container["ports"], json!([{ "name": "grpc", "containerPort": port, "protocol": "TCP" }]));
        assert_eq!(container["livenessProbe"]["grpc"], json!({ "port": port }));
        assert_eq!(container["readinessProbe"]["grpc"], json!({ "port": port }));
        assert_eq!(built_service(spec)["spec"]["ports"][0]["port"], port);
    }
}

#[test]
fn p06_names_and_controller_reference() {
    let owner = json!([{
        "apiVersion": "hourglass.eigenlayer.io/v1alpha1", "kind": "Performer", "name": "p",
        "uid": "uid-of-the-performer", "controller": true, "blockOwnerDeletion": true,
    }]);
    for object in [built(basic()), built_service(basic())] {
        assert_eq!(object["metadata"]["name"], "performer-p");
        assert_eq!(object["metadata"]["namespace"], "ns");
        assert_eq!(object["metadata"]["ownerReferences"], owner);
    }
}

#[test]
fn p07_pod_labels() {
    assert_eq!(
        built(basic())["metadata"]["labels"],
        json!({
            "app": "hourglass-performer",
            "hourglass.eigenlayer.io/performer": "p",
            "hourglass.eigenlayer.io/avs": "0xab",
        })
    );
    let address = "0xABCDEF1234567890abcdef1234567890abcdef12";
    assert_eq!(avs_label(address), address.to_lowercase());
    assert_eq!(avs_label("0x1234567890abcdef..."), "0x1234567890abcdef");
    assert_eq!(avs_label("my_avs address"), "my-avs-address");
    assert_eq!(avs_label(&format!("{}-x", "a".repeat(62))), "a".repeat(62));
    assert_eq!(avs_label("é_"), "");
}

#[test]
fn p09_one_container_and_only_what_was_given() {
    let bare = built(basic());
    assert_eq!(bare["spec"]["containers"].as_array().unwrap().len(), 1);
    assert_eq!(bare["spec"]["restartPolicy"], "Always");
    let container = &bare["spec"]["containers"][0];
    assert_eq!(container["name"], "performer");
    assert_eq!(container["image"], "repo:1");
    assert_eq!(container["imagePullPolicy"], "IfNotPresent");
    for absent in ["command", "args", "env", "resources"] {
        assert_eq!(container.get(absent), None, "{absent}");
    }
    for absent in ["nodeSelector", "tolerations", "affinity", "serviceAccountName", "imagePullSecrets"] {
        assert_eq!(bare["spec"].get(absent), None, "{absent}");
    }
    let given = json!({ "imagePullPolicy": "Never", "config": { "command": ["/run"], "args": ["-v", ""] } });
    let container = self::container(with(basic(), given));
    assert_eq!(container["command"], json!(["/run"]));
    assert_eq!(container["args"], json!(["-v", ""]));
    assert_eq!(container["imagePullPolicy"], "Never");
}

#[test]
fn p10_probe_numbers() {
    let container = container(basic());
    let probe = |delay, period, timeout| {
        json!({
            "grpc": { "port": 9090 }, "initialDelaySeconds": delay, "periodSeconds": period,
            "timeoutSeconds": timeout, "failureThreshold": 3,
        })
    };
    assert_eq!(container["livenessProbe"], probe(30, 10, 5));
    assert_eq!(container["readinessProbe"], probe(5, 15, 1));
}

#[test]
fn p11_environment_sorted_then_sources_in_order() {
    let config = json!({
        "environment": { "Z": "1", "A": "2", "M": "" },
        "environmentFrom": [
            { "name": "SECRET", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k", "optional": true } } },
            { "name": "A", "valueFrom": { "configMapKeyRef": { "name": "c", "key": "k" } } },
            { "name": "NOTHING" },
            { "name": "EMPTY", "valueFrom": {} },
        ],
    });
    let spec = with(basic(), json!({ "config": config }));
    assert_eq!(
        container(spec.clone())["env"],
        json!([
            { "name": "A", "value": "2" },
            { "name": "M", "value": "" },
            { "name": "Z", "value": "1" },
            { "name": "SECRET", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k", "optional": true } } },
            { "name": "A", "valueFrom": { "configMapKeyRef": { "name": "c", "key": "k" } } },
            { "name": "NOTHING" },
            { "name": "EMPTY" },
        ])
    );
    assert_eq!(built(spec.clone()).to_string(), built(spec).to_string());
}

#[test]
fn p12_gpu_count_without_type_gives_nvidia_gpu() {
    let gpu = |hardware: Value| container(with(basic(), json!({ "hardwareRequirements": hardware })));
    let both = |name: &str, count: &str| json!({ "limits": { name: count }, "requests": { name: count } });
    assert_eq!(gpu(json!({ "gpuCount": 2 }))["resources"], both("nvidia.com/gpu", "2"));
    assert_eq!(gpu(json!({ "gpuCount": 2, "gpuType": "" }))["resources"], both("nvidia.com/gpu", "2"));
    let a100 = gpu(json!({ "gpuCount": 1, "gpuType": "nvidia-a100" }));
    assert_eq!(a100["resources"], both("nvidia.com/nvidia-a100", "1"));
    assert_eq!(gpu(json!({ "gpuCount": 0, "gpuType": "nvidia-a100" })).get("resources"), None);
}

#[test]
fn p12_gpu_overwrites_that_resource_and_keeps_the_others() {
    let spec = json!({
        "resources": { "limits": { "nvidia.com/gpu": "8", "cpu": 1 }, "requests": { "memory": "1Gi" } },
        "hardwareRequirements": { "gpuCount": 1 },
    });
    assert_eq!(
        container(with(basic(), spec))["resources"],
        json!({
            "limits": { "nvidia.com/gpu": "1", "cpu": "1" },
            "requests": { "nvidia.com/gpu": "1", "memory": "1Gi" },
        })
    );
}

#[test]
fn p13_tee_selectors() {
    let selector = |hardware: Value| {
        built(with(basic(), json!({ "hardwareRequirements": hardware })))["spec"].get("nodeSelector").cloned()
    };
    for (kind, label) in [
        ("sgx", "intel.feature.node.kubernetes.io/sgx"),
        ("sev", "amd.feature.node.kubernetes.io/sev"),
        ("tdx", "intel.feature.node.kubernetes.io/tdx"),
    ] {
        let found = selector(json!({ "teeRequired": true, "teeType": kind }));
        assert_eq!(found, Some(json!({ label: "true" })), "{kind}");
        assert_eq!(selector(json!({ "teeRequired": false, "teeType": kind })), None, "{kind}");
    }
    assert_eq!(selector(json!({ "teeRequired": true, "teeType": "other" })), None);
    assert_eq!(selector(json!({ "teeRequired": true })), None);
}

#[test]
fn p14_node_selector_precedence_without_touching_the_spec() {
    let sgx = "intel.feature.node.kubernetes.io/sgx";
    let spec = json!({
        "scheduling": { "nodeSelector": { "a": "scheduling", "b": "scheduling", sgx: "scheduling" } },
        "hardwareRequirements": { "teeRequired": true, "teeType": "sgx", "customLabels": { "b": "custom" } },
    });
    let performer = performer(with(basic(), spec.clone()));
    let before = performer.clone();
    let desired = validate(&performer).unwrap();
    let expected = [("a", "scheduling"), ("b", "custom"), (sgx, "true")];
    assert_eq!(desired.node_selector, BTreeMap::from(expected.map(|(k, v)| (k.to_owned(), v.to_owned()))));
    assert_eq!(performer, before);
    let over = with(spec, json!({ "hardwareRequirements": { "customLabels": { sgx: "custom" } } }));
    assert_eq!(built(with(basic(), over))["spec"]["nodeSelector"][sgx], "custom");
}

#[test]
fn p15_everything_else_reaches_the_pod() {
    let tolerations = json!([{ "key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60 }]);
    let affinity = json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
        { "topologyKey": "zone", "labelSelector": {} },
    ] } });
    let spec = json!({
        "config": { "serviceAccountName": "sa" },
        "imagePullSecrets": [{ "name": "registry" }],
        "scheduling": {
            "tolerations": tolerations, "affinity": affinity, "runtimeClass": "kata", "priorityClassName": "high",
        },
    });
    let pod = built(with(basic(), spec));
    let expected = json!({
        "tolerations": tolerations, "affinity": affinity, "runtimeClassName": "kata",
        "priorityClassName": "high", "imagePullSecrets": [{ "name": "registry" }], "serviceAccountName": "sa",
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&pod["spec"][field], value, "{field}");
    }
}

#[test]
fn p16_service_is_exact() {
    let service = built_service(with(basic(), json!({ "config": { "grpcPort": 8080 } })));
    assert_eq!(
        service["spec"],
        json!({
            "type": "ClusterIP",
            "selector": { "hourglass.eigenlayer.io/performer": "p" },
            "ports": [{ "name": "grpc", "port": 8080, "targetPort": "grpc", "protocol": "TCP" }],
        })
    );
    assert_eq!(service["metadata"].get("labels"), None);
}

#[test]
fn p36_names_that_can_never_work() {
    let named = |name: &str| {
        let mut performer = performer(basic());
        performer.metadata.name = Some(name.to_owned());
        validate(&performer).map_err(|invalid| invalid.reason)
    };
    assert!(named(&"x".repeat(53)).is_ok());
    assert_eq!(named(&"x".repeat(54)), Err(Reason::InvalidName));
    assert_eq!(named("a.b"), Err(Reason::InvalidName));
}

#[test]
fn specs_without_what_a_pod_needs_are_invalid() {
    let mut performer = performer(basic());
    performer.spec.as_mut().unwrap().image = " ".to_owned();
    assert_eq!(validate(&performer).unwrap_err().reason, Reason::InvalidSpec);
    performer.spec = None;
    assert_eq!(validate(&performer).unwrap_err().reason, Reason::InvalidSpec);
}

#[test]
fn equivalent_specs_hash_alike() {
    let hash = |change: Value| desired(with(basic(), change)).hash();
    let plain = hash(json!({}));
    for same in [
        json!({ "config": {} }),
        json!({ "config": { "grpcPort": 9090, "environment": {}, "args": [], "serviceAccountName": "" } }),
        json!({ "imagePullPolicy": "IfNotPresent", "resources": { "limits": {} }, "imagePullSecrets": [] }),
        json!({ "scheduling": { "affinity": {}, "nodeSelector": {}, "runtimeClass": "" } }),
        json!({ "hardwareRequirements": { "gpuCount": 0, "teeRequired": false, "customLabels": {} } }),
        json!({ "avsAddress": "0xab" }),
    ] {
        assert_eq!(hash(same.clone()), plain, "{same}");
    }
    let cpu = |amount: Value| hash(json!({ "resources": { "limits": { "cpu": amount } } }));
    assert_eq!(cpu(json!(1)), cpu(json!("1")));
    for other in [
        json!({ "image": "repo:2" }),
        json!({ "version": "2" }),
        json!({ "imagePullPolicy": "Always" }),
        json!({ "config": { "grpcPort": 9091 } }),
        json!({ "config": { "environment": { "A": "" } } }),
        json!({ "config": { "args": [""] } }),
        json!({ "config": { "serviceAccountName": "sa" } }),
        json!({ "scheduling": { "priorityClassName": "high" } }),
        json!({ "hardwareRequirements": { "gpuCount": 1 } }),
    ] {
        assert_ne!(hash(other.clone()), plain, "{other}");
    }
}

/// Pods in the field carry this hash: should it change, an update of the operator replaces them all.
#[test]
fn the_hash_of_a_spec_never_changes() {
    assert_eq!(desired(basic()).hash(), "0a7d93bec6a7d893");
    let full = json!({
        "config": { "environment": { "A": "1" }, "args": ["-v"], "command": ["/run"], "serviceAccountName": "sa" },
        "resources": { "limits": { "cpu": "1" } },
        "scheduling": {
            "nodeSelector": { "a": "b" }, "runtimeClass": "kata", "priorityClassName": "high",
            "tolerations": [{ "key": "k" }], "affinity": { "nodeAffinity": {} },
        },
        "imagePullSecrets": [{ "name": "r" }],
    });
    assert_eq!(desired(with(basic(), full)).hash(), "3c991f9a75c3f196");
}

#[test]
fn golden_pods_of_the_examples() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/performers");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let mut pods = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        pods.extend(documents.into_iter().filter(|d| d["kind"] == "Performer").map(|d| pod_of(&d)));
    }
    insta::assert_json_snapshot!(pods);
}

fn pod_of(manifest: &Value) -> Pod {
    let mut performer: Performer = serde_json::from_value(manifest.clone()).unwrap();
    performer.metadata.uid = Some("uid".to_owned());
    pod(&validate(&performer).unwrap(), &Identity::of(&performer), 0)
}

#[test]
fn p02_every_published_example_yields_its_pod() {
    let Some(folder) = testbed::published() else {
        return;
    };
    let files = std::fs::read_dir(folder.join("manifests/hourglass")).unwrap().map(|e| e.unwrap().path());
    let manifests: Vec<_> = files.filter(|p| p.extension().is_some_and(|e| e == "yaml")).collect();
    assert_eq!(manifests.len(), 10);
    for path in manifests {
        let manifest: Value = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let pod = serde_json::to_value(pod_of(&manifest)).unwrap();
        let (spec, pod_spec) = (&manifest["spec"], &pod["spec"]);
        let container = &pod_spec["containers"][0];
        let file = path.display();
        assert_eq!(container["image"], spec["image"], "{file}");
        assert_eq!(container["args"], spec["config"]["args"], "{file}");
        assert_eq!(container["command"], spec["config"]["command"], "{file}");
        assert_eq!(container["ports"][0]["containerPort"], port_of(spec), "{file}");
        assert_eq!(pod_spec["tolerations"], spec["scheduling"]["tolerations"], "{file}");
        assert_eq!(pod_spec["affinity"], spec["scheduling"]["affinity"], "{file}");
        assert_eq!(pod_spec["runtimeClassName"], spec["scheduling"]["runtimeClass"], "{file}");
        assert_eq!(pod_spec["priorityClassName"], spec["scheduling"]["priorityClassName"], "{file}");
        let labels = spec["hardwareRequirements"]["customLabels"].as_object().into_iter().flatten();
        for (name, value) in labels {
            assert_eq!(&pod_spec["nodeSelector"][name], value, "{file} {name}");
        }
        let limits = spec["resources"]["limits"].as_object().into_iter().flatten();
        for (name, value) in limits {
            assert_eq!(&container["resources"]["limits"][name], value, "{file} {name}");
        }
    }
}

fn port_of(spec: &Value) -> Value {
    spec["config"].get("grpcPort").cloned().unwrap_or(json!(9090))
}
