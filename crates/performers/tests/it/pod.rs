//! The pod as the API server stores it.

use anyhow::{Context, Result};
use api::performer::FINALIZER;
use k8s_openapi::api::{
    core::v1::{Container, Pod, PodSpec, ServiceAccount},
    discovery::v1::EndpointSlice,
    node::v1::RuntimeClass,
    scheduling::v1::PriorityClass,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};

use crate::{
    harness::{World, spec, spec_with},
    observe::{create, eventually, line, uid, writes},
};

fn pod_spec(pod: &Pod) -> &PodSpec {
    pod.spec.as_ref().expect("a pod has a spec")
}

fn container(pod: &Pod) -> &Container {
    &pod_spec(pod).containers[0]
}

fn label<'a>(pod: &'a Pod, name: &str) -> &'a str {
    pod.metadata.labels.as_ref().and_then(|labels| labels.get(name)).map_or("", String::as_str)
}

async fn check_port(spec: Value, expected: i32) -> Result<()> {
    let space = World::calm().await.space("port").await;
    let performer = space.create_ready("a", spec).await?;
    let pod = space.pod("a").await?;
    let ports = container(&pod).ports.as_ref().context("ports")?;
    assert_eq!(ports.iter().map(|port| port.container_port).collect::<Vec<_>>(), [expected]);
    for probe in [&container(&pod).liveness_probe, &container(&pod).readiness_probe] {
        assert_eq!(probe.as_ref().and_then(|probe| probe.grpc.as_ref()).map(|grpc| grpc.port), Some(expected));
    }
    let service = space.service("a").await?.spec.context("spec")?;
    assert_eq!(service.ports.context("ports")?[0].port, expected);
    let endpoint = format!("performer-a.{}.svc.cluster.local:{expected}", space.namespace);
    assert_eq!(performer.status.context("status")?.grpc_endpoint, Some(endpoint));
    // What the cluster makes of all that: the Service leads to the pod's port.
    let slices: Api<EndpointSlice> = Api::namespaced(space.client.clone(), &space.namespace);
    let of_service = ListParams::default().labels("kubernetes.io/service-name=performer-a");
    let address = pod.status.context("status")?.pod_ip.context("address")?;
    eventually("the Service has the pod behind it", || async {
        let slices = slices.list(&of_service).await?.items;
        Ok(slices.iter().any(|slice| {
            let port = slice.ports.as_ref().and_then(|ports| ports.first()?.port);
            port == Some(expected) && slice.endpoints.iter().any(|endpoint| endpoint.addresses.contains(&address))
        }))
    })
    .await
}

#[tokio::test]
async fn p05_without_config_the_port_is_9090() -> Result<()> {
    check_port(spec(), 9090).await
}

#[tokio::test]
async fn p05_with_empty_config_the_port_is_9090() -> Result<()> {
    check_port(spec_with(json!({ "config": {} })), 9090).await
}

#[tokio::test]
async fn p05_a_given_port_is_used_everywhere() -> Result<()> {
    check_port(spec_with(json!({ "config": { "grpcPort": 8080 } })), 8080).await
}

#[tokio::test]
async fn p06_pod_and_service_have_the_prefixed_name_and_one_owner() -> Result<()> {
    let space = World::calm().await.space("name").await;
    let performer = space.create_ready("performer-ab12cd-0011aabb", spec()).await?;
    let expected = json!([{
        "apiVersion": "hourglass.eigenlayer.io/v1alpha1", "kind": "Performer", "name": "performer-ab12cd-0011aabb",
        "uid": uid(&performer), "controller": true, "blockOwnerDeletion": true,
    }]);
    let name = "performer-performer-ab12cd-0011aabb";
    let owners = [
        space.pods.get(name).await?.metadata.owner_references,
        space.services.get(name).await?.metadata.owner_references,
    ];
    for owner in owners {
        assert_eq!(serde_json::to_value(owner)?, expected);
    }
    let status = performer.status.context("status")?;
    assert_eq!((status.pod_name.as_deref(), status.service_name.as_deref()), (Some(name), Some(name)));
    Ok(())
}

#[tokio::test]
async fn p07_labels_are_as_published_and_valid_for_any_address() -> Result<()> {
    let space = World::calm().await.space("label").await;
    let long = format!("{}-{}", "a".repeat(62), "b".repeat(20));
    let cases = [
        ("0x1234567890ABCDEF1234567890abcdef12345678", "0x1234567890abcdef1234567890abcdef12345678".to_owned()),
        ("0xtest_avs_address", "0xtest-avs-address".to_owned()),
        ("0x1234567890abcdef...", "0x1234567890abcdef".to_owned()),
        (long.as_str(), "a".repeat(62)),
        ("eip155:1/0xAB cd", "eip155-1-0xab-cd".to_owned()),
        ("漢字", String::new()),
        ("-._", String::new()),
        ("", String::new()),
    ];
    for (number, (address, expected)) in cases.iter().enumerate() {
        let name = format!("a{number}");
        space.create_ready(&name, spec_with(json!({ "avsAddress": address }))).await?;
        let pod = space.pod(&name).await?;
        assert_eq!(label(&pod, "app"), "hourglass-performer");
        assert_eq!(label(&pod, "hourglass.eigenlayer.io/performer"), name);
        assert_eq!(label(&pod, "hourglass.eigenlayer.io/avs"), expected, "{address}");
    }
    Ok(())
}

#[tokio::test]
async fn p08_the_finalizer_is_stored_before_the_pod() -> Result<()> {
    let world = World::calm().await;
    let space = world.space("finalizer").await;
    let mark = world.control_plane.audit().mark()?;
    let performer = space.create_ready("a", spec()).await?;
    assert_eq!(FINALIZER, "hourglass.eigenlayer.io/performer-finalizer");
    assert_eq!(performer.metadata.finalizers.as_deref(), Some(&[FINALIZER.to_owned()][..]));
    let lines: Vec<_> = writes(&world.control_plane, &space, mark)?.iter().map(line).collect();
    assert_eq!(lines[..3], ["patch performers", "create pods", "create services"]);
    Ok(())
}

#[tokio::test]
async fn p09_one_container_and_only_what_was_given() -> Result<()> {
    let space = World::calm().await.space("container").await;
    space.create_ready("plain", spec()).await?;
    let config = json!({ "command": ["/run"], "args": ["--fast", ""] });
    space.create_ready("full", spec_with(json!({ "config": config, "imagePullPolicy": "Always" }))).await?;
    let (plain, full) = (space.pod("plain").await?, space.pod("full").await?);
    for pod in [&plain, &full] {
        let spec = pod_spec(pod);
        assert_eq!(spec.containers.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["performer"]);
        assert_eq!(spec.init_containers, None);
        assert_eq!(spec.restart_policy.as_deref(), Some("Always"));
        assert_eq!(spec.termination_grace_period_seconds, Some(30));
        let port = &container(pod).ports.as_ref().context("ports")?[0];
        assert_eq!((port.name.as_deref(), port.protocol.as_deref()), (Some("grpc"), Some("TCP")));
        assert_eq!(container(pod).image.as_deref(), Some("registry.test/performer:v1"));
    }
    assert_eq!((&container(&plain).command, &container(&plain).args), (&None, &None));
    assert_eq!(container(&plain).image_pull_policy.as_deref(), Some("IfNotPresent"));
    assert_eq!(container(&full).command, Some(vec!["/run".to_owned()]));
    assert_eq!(container(&full).args, Some(vec!["--fast".to_owned(), String::new()]));
    assert_eq!(container(&full).image_pull_policy.as_deref(), Some("Always"));
    Ok(())
}

#[tokio::test]
async fn p10_probe_numbers_are_the_published_ones() -> Result<()> {
    let space = World::calm().await.space("probe").await;
    space.create_ready("a", spec()).await?;
    let pod = space.pod("a").await?;
    let numbers = |delay, period, timeout| {
        json!({
            "grpc": { "port": 9090, "service": "" }, "initialDelaySeconds": delay, "periodSeconds": period,
            "timeoutSeconds": timeout, "failureThreshold": 3, "successThreshold": 1,
        })
    };
    assert_eq!(serde_json::to_value(&container(&pod).liveness_probe)?, numbers(30, 10, 5));
    assert_eq!(serde_json::to_value(&container(&pod).readiness_probe)?, numbers(5, 15, 1));
    assert_eq!(container(&pod).startup_probe, None);
    Ok(())
}

#[tokio::test]
async fn p11_environment_is_ordered_and_the_next_pod_is_the_same() -> Result<()> {
    let space = World::calm().await.space("env").await;
    let config = json!({
        "environment": { "ZED": "1", "alpha": "Grüße 漢字 🎭\n\"quoted\" $(ZED)", "BETA": "", "GAMMA": "x" },
        "environmentFrom": [
            { "name": "SECRET", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } },
            { "name": "MAP", "valueFrom": { "configMapKeyRef": { "name": "c", "key": "k", "optional": true } } },
            { "name": "GAMMA" },
        ],
    });
    space.create_ready("a", spec_with(json!({ "config": config }))).await?;
    let first = space.pod("a").await?;
    let env = serde_json::to_value(&container(&first).env)?;
    assert_eq!(
        env,
        json!([
            { "name": "BETA" },
            { "name": "GAMMA", "value": "x" },
            { "name": "ZED", "value": "1" },
            { "name": "alpha", "value": "Grüße 漢字 🎭\n\"quoted\" $(ZED)" },
            { "name": "SECRET", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } },
            { "name": "MAP", "valueFrom": { "configMapKeyRef": { "name": "c", "key": "k", "optional": true } } },
            { "name": "GAMMA" },
        ])
    );
    space.pods.delete("performer-a", &DeleteParams::default()).await?;
    let second = space.until_replaced("a", &first).await?;
    // All that we build; names of token volumes and the node are the cluster's.
    let built = |pod: &Pod| {
        let mut spec = pod_spec(pod).clone();
        (spec.node_name, spec.volumes) = (None, None);
        spec.containers[0].volume_mounts = None;
        let meta = &pod.metadata;
        serde_json::to_string(&json!([meta.labels, meta.annotations, meta.owner_references, spec])).expect("JSON")
    };
    assert_eq!(built(&first), built(&second));
    Ok(())
}

#[tokio::test]
async fn a_huge_environment_arrives_whole() -> Result<()> {
    let space = World::calm().await.space("huge").await;
    let environment: serde_json::Map<_, _> =
        (0..2000).map(|number| (format!("NAME_{number:04}"), json!("x".repeat(150)))).collect();
    space.create_ready("a", spec_with(json!({ "config": { "environment": environment } }))).await?;
    assert_eq!(container(&space.pod("a").await?).env.as_ref().map(Vec::len), Some(2000));
    Ok(())
}

#[tokio::test]
async fn p12_p13_p14_hardware_reaches_the_pod() -> Result<()> {
    let space = World::calm().await.space("hardware").await;
    let hardware = json!({
        "gpuCount": 2, "gpuType": "nvidia-a100", "teeRequired": true, "teeType": "sgx",
        "customLabels": { "tier": "custom", "intel.feature.node.kubernetes.io/sgx": "custom" },
    });
    let fields = json!({
        "hardwareRequirements": hardware,
        "resources": { "limits": { "cpu": "1", "nvidia.com/nvidia-a100": "9" } },
        "scheduling": { "nodeSelector": { "tier": "scheduling", "zone": "a" } },
    });
    let created = space.create("a", spec_with(fields)).await?;
    space.until_condition("a", "Degraded", "True", "HardwareUnavailable").await?;
    let pod = space.pod("a").await?;
    let resources = serde_json::to_value(&container(&pod).resources)?;
    assert_eq!(resources["limits"], json!({ "cpu": "1", "nvidia.com/nvidia-a100": "2" }));
    assert_eq!(resources["requests"]["nvidia.com/nvidia-a100"], "2");
    let selector = serde_json::to_value(&pod_spec(&pod).node_selector)?;
    let expected = json!({ "zone": "a", "tier": "custom", "intel.feature.node.kubernetes.io/sgx": "custom" });
    assert_eq!(selector, expected);
    assert_eq!(space.performers.get("a").await?.spec, created.spec);
    Ok(())
}

#[tokio::test]
async fn p15_placement_secrets_and_account_reach_the_pod() -> Result<()> {
    let space = World::calm().await.space("placement").await;
    let name = &space.namespace;
    create::<RuntimeClass>(&Api::all(space.client.clone()), json!({ "metadata": { "name": name }, "handler": "h" }))
        .await?;
    let class = json!({ "metadata": { "name": name }, "value": 1000 });
    create::<PriorityClass>(&Api::all(space.client.clone()), class).await?;
    let accounts = Api::namespaced(space.client.clone(), name);
    create::<ServiceAccount>(&accounts, json!({ "metadata": { "name": "runner" } })).await?;
    let affinity = json!({
        "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
            { "matchExpressions": [{ "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] }] },
        ] } },
        "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 7, "podAffinityTerm": {
            "topologyKey": "kubernetes.io/hostname", "namespaceSelector": {},
            "labelSelector": { "matchLabels": { "app": "hourglass-performer" } },
        } }] },
    });
    let toleration = json!({
        "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 77,
    });
    let scheduling = json!({
        "affinity": affinity, "tolerations": [toleration], "runtimeClass": name, "priorityClassName": name,
        "nodeSelector": { "kubernetes.io/arch": "amd64" },
    });
    let fields = json!({
        "scheduling": scheduling, "config": { "serviceAccountName": "runner" },
        "imagePullSecrets": [{ "name": "one" }, { "name": "two" }],
    });
    space.create_ready("a", spec_with(fields)).await?;
    let pod = serde_json::to_value(space.pod("a").await?.spec)?;
    assert_eq!(pod["affinity"], affinity);
    assert!(pod["tolerations"].as_array().context("tolerations")?.contains(&toleration));
    assert_eq!(pod["runtimeClassName"], name.as_str());
    assert_eq!((&pod["priorityClassName"], &pod["priority"]), (&json!(name), &json!(1000)));
    assert_eq!(pod["serviceAccountName"], "runner");
    assert_eq!(pod["imagePullSecrets"], json!([{ "name": "one" }, { "name": "two" }]));
    assert_eq!(pod["nodeSelector"], json!({ "kubernetes.io/arch": "amd64" }));
    Ok(())
}

#[tokio::test]
async fn many_performers_of_one_avs_live_side_by_side() -> Result<()> {
    let space = World::calm().await.space("same").await;
    let names: Vec<_> = (0..12).map(|number| format!("p{number}")).collect();
    for name in &names {
        space.create(name, spec()).await?;
    }
    for name in &names {
        space.until_ready(name).await?;
        let selector = space.service(name).await?.spec.context("spec")?.selector.context("selector")?;
        let labels = selector.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
        let behind = space.pods.list(&ListParams::default().labels(&labels)).await?.items;
        assert_eq!(behind.len(), 1, "a Service leads to its own pod alone");
    }
    Ok(())
}
