//! The definition as the API server serves it.

use std::path::Path;

use anyhow::{Context, Result};
use api::performer::Performer;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, PostParams},
};
use serde_json::{Value, json};
use testbed::{ControlPlane, Options, published};

use crate::{
    harness::{Space, World, apply, condition, install_crd, namespace, spec, spec_with},
    observe::eventually,
};

pub const PUBLISHED: [&str; 2] =
    ["hourglass.eigenlayer.io_performers.yaml", "hourglass.eigenlayer.io_performers.chart.yaml"];

/// Sends a YAML file to the API server as it is, which reads it more leniently than a YAML library of ours would.
async fn apply_file(client: &Client, path: &str, file: &Path) -> Result<Value> {
    let uri = format!("{path}?fieldManager=test&force=true");
    let request = http::Request::patch(uri).header("content-type", "application/apply-patch+yaml");
    Ok(client.request(request.body(std::fs::read(file)?)?).await?)
}

/// Installs one of the published definitions.
pub async fn install_published(client: &Client, folder: &Path, file: &str) -> Result<()> {
    const NAME: &str = "performers.hourglass.eigenlayer.io";
    let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{NAME}");
    apply_file(client, &path, &folder.join("crds/hourglass").join(file)).await?;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let stored = crds.get(NAME).await?;
    install_crd(client, &CustomResourceDefinition { metadata: named(NAME), status: None, ..stored }).await
}

fn named(name: &str) -> kube::api::ObjectMeta {
    kube::api::ObjectMeta { name: Some(name.to_owned()), ..kube::api::ObjectMeta::default() }
}

/// Performers as plain JSON: what our own type cannot say can be said.
fn plain(space: &Space) -> Api<DynamicObject> {
    Api::namespaced_with(space.client.clone(), &space.namespace, &ApiResource::erase::<Performer>(&()))
}

fn plain_object(name: &str, body: Value) -> DynamicObject {
    DynamicObject::new(name, &ApiResource::erase::<Performer>(&())).data(body)
}

async fn create_plain(space: &Space, name: &str, body: Value) -> Result<DynamicObject, kube::Error> {
    plain(space).create(&PostParams::default(), &plain_object(name, body)).await
}

#[tokio::test]
async fn p01_the_served_definition_has_the_published_identity_and_columns() -> Result<()> {
    let space = World::calm().await.space("crd").await;
    let crds: Api<CustomResourceDefinition> = Api::all(space.client.clone());
    let crd = serde_json::to_value(crds.get("performers.hourglass.eigenlayer.io").await?)?;
    let names = &crd["status"]["acceptedNames"];
    assert_eq!(crd["spec"]["group"], "hourglass.eigenlayer.io");
    assert_eq!(crd["spec"]["scope"], "Namespaced");
    assert_eq!(
        (&names["kind"], &names["listKind"], &names["plural"], &names["singular"], &names["shortNames"]),
        (&json!("Performer"), &json!("PerformerList"), &json!("performers"), &json!("performer"), &Value::Null)
    );
    let versions = crd["spec"]["versions"].as_array().context("versions")?;
    assert_eq!(versions.len(), 1);
    assert_eq!((&versions[0]["name"], &versions[0]["served"]), (&json!("v1alpha1"), &json!(true)));
    assert_eq!(versions[0]["storage"], json!(true));
    assert_eq!(versions[0]["subresources"], json!({ "status": {} }));

    // What `kubectl get performers` prints.
    space.create_ready("a", spec_with(json!({ "version": "v1" }))).await?;
    let path = format!("/apis/hourglass.eigenlayer.io/v1alpha1/namespaces/{}/performers", space.namespace);
    let request = http::Request::get(path).header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    let table: Value = space.client.request(request.body(Vec::new())?).await?;
    let columns = table["columnDefinitions"].as_array().context("columns")?;
    let columns: Vec<_> =
        columns.iter().map(|c| (c["name"].as_str(), c["type"].as_str(), c["priority"].as_i64())).collect();
    let expected =
        ["Name", "AVS", "Image", "Version", "Phase", "Endpoint"].map(|name| (Some(name), Some("string"), Some(0)));
    assert_eq!(columns[..6], expected);
    assert_eq!(columns[6..], [(Some("Age"), Some("date"), Some(0))]);
    let cells = table["rows"][0]["cells"].as_array().context("a row")?;
    let endpoint = format!("performer-a.{}.svc.cluster.local:9090", space.namespace);
    let expected = ["a", "0x1234567890abcdef1234567890abcdef12345678", "registry.test/performer:v1", "v1", "Running"];
    assert_eq!(cells[..5], expected.map(|cell| json!(cell)));
    assert_eq!(cells[5], json!(endpoint));
    Ok(())
}

#[tokio::test]
async fn p02_all_ten_example_manifests_apply() -> Result<()> {
    let Some(folder) = published() else { return Ok(()) };
    let world = World::calm().await;
    let client = world.control_plane.client().await?;
    let mut count = 0;
    for file in std::fs::read_dir(folder.join("manifests/hourglass"))? {
        let file = file?.path();
        if file.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let manifest: Value = serde_saphyr::from_str(&std::fs::read_to_string(&file)?)?;
        let place = manifest["metadata"]["namespace"].as_str().unwrap_or("default");
        let name = manifest["metadata"]["name"].as_str().context("a name")?;
        apply(&Api::all(client.clone()), place, &namespace(place)).await?;
        let path = format!("/apis/hourglass.eigenlayer.io/v1alpha1/namespaces/{place}/performers/{name}");
        let stored = apply_file(&client, &path, &file).await.with_context(|| format!("{}", file.display()))?;
        let mut expected = manifest["spec"].clone();
        if expected.get("imagePullPolicy").is_none() {
            expected["imagePullPolicy"] = json!("IfNotPresent");
        }
        assert_eq!(stored["spec"], expected, "{}", file.display());
        // It need not run here (no such node or runtime class), but its status always says why.
        let performers: Api<Performer> = Api::namespaced(client.clone(), place);
        crate::harness::until(&performers, name, "reported on", |p| {
            let is_ready = condition(p, "Available")["status"] == "True";
            let generation = json!(p.metadata.generation);
            let is_explained = condition(p, "Degraded")["status"] == "True";
            condition(p, "Available")["observedGeneration"] == generation && (is_ready || is_explained)
        })
        .await?;
        count += 1;
    }
    assert_eq!(count, 10);
    Ok(())
}

/// Objects at the edges of the published schemas.
fn odd_objects() -> Vec<Value> {
    let with = |fields: Value| json!({ "spec": spec_with(fields) });
    vec![
        json!({}),
        json!({ "spec": { "avsAddress": "", "image": "" } }),
        json!({ "spec": { "avsAddress": "päö 漢字 \u{0}x", "image": "not an image: at all" } }),
        with(json!({ "version": "" , "config": {} })),
        with(json!({ "config": { "grpcPort": 1, "args": [], "command": [""], "environment": {} } })),
        with(json!({ "config": { "grpcPort": 65535, "environment": { "": "", "a b": "c" } } })),
        with(
            json!({ "resources": { "limits": { "cpu": 2, "x": ".5e-3" }, "requests": {}, "claims": [{ "name": "c", "request": "r" }] } }),
        ),
        with(
            json!({ "hardwareRequirements": { "gpuCount": 0, "gpuType": "a b", "teeRequired": true, "teeType": "?" } }),
        ),
        with(
            json!({ "hardwareRequirements": { "gpuCount": 2_147_483_647, "customLabels": { "not a label!": "x y" } } }),
        ),
        with(json!({ "scheduling": { "tolerations": [{}, { "operator": "Nonsense", "tolerationSeconds": -1 }] } })),
        with(json!({ "scheduling": { "affinity": { "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution":
            [{ "topologyKey": "", "labelSelector": {}, "namespaces": [], "matchLabelKeys": ["k"] }] } } } })),
        with(
            json!({ "scheduling": { "affinity": {}, "nodeSelector": { "": "" }, "runtimeClass": "", "priorityClassName": "" } }),
        ),
        with(
            json!({ "scheduling": { "affinity": { "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution":
            [{ "weight": 1, "preference": { "matchFields": [{ "key": "k", "operator": "Gt", "values": ["1"] }] } }] } } } }),
        ),
        with(json!({ "imagePullSecrets": [{}, { "name": "a" }, { "name": "a" }] })),
        with(json!({ "imagePullPolicy": "Never", "nobody": { "knows": "this field" } })),
    ]
}

/// Whatever a published definition stores is valid under ours: kept, written again, and created afresh.
async fn check_superset(file: &str) -> Result<()> {
    let Some(folder) = published() else { return Ok(()) };
    let control_plane = ControlPlane::start(Options { fsync: false, ..Options::bare() }).await?;
    let client = control_plane.client().await?;
    install_published(&client, &folder, file).await?;
    let (before, after) = (Space::new(&control_plane, "before").await?, Space::new(&control_plane, "after").await?);
    for (number, object) in odd_objects().into_iter().enumerate() {
        create_plain(&before, &format!("odd-{number}"), object.clone()).await.with_context(|| object.to_string())?;
    }
    install_crd(&client, &api::performer::crd()).await?;
    eventually("our definition is served", || async {
        let probe = json!({ "spec": spec_with(json!({ "config": { "environmentFrom": [{ "name": "X" }] } })) });
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let stored = plain(&before).create(&params, &plain_object("probe", probe)).await?;
        Ok(stored.data["spec"]["config"]["environmentFrom"].is_array())
    })
    .await?;
    for (number, object) in odd_objects().into_iter().enumerate() {
        let name = format!("odd-{number}");
        let mut stored = plain(&before).get(&name).await?;
        serde_json::from_value::<Performer>(serde_json::to_value(&stored)?).context("our type reads it")?;
        stored.metadata.labels = Some([("touched".to_owned(), "yes".to_owned())].into());
        let kept =
            plain(&before).replace(&name, &PostParams::default(), &stored).await.with_context(|| name.clone())?;
        assert_eq!(kept.data["spec"], stored.data["spec"]);
        create_plain(&after, &name, object).await.with_context(|| name.clone())?;
    }
    control_plane.stop().await?;
    Ok(())
}

#[tokio::test]
async fn p02_what_the_published_definition_stores_is_valid_under_ours() -> Result<()> {
    check_superset(PUBLISHED[0]).await
}

#[tokio::test]
async fn p02_what_the_published_chart_stores_is_valid_under_ours() -> Result<()> {
    check_superset(PUBLISHED[1]).await
}

#[tokio::test]
async fn p03_environment_sources_and_service_account_survive() -> Result<()> {
    let space = World::calm().await.space("survive").await;
    let config = json!({
        "serviceAccountName": "runner",
        "environmentFrom": [
            { "name": "A", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k", "optional": true } } },
            { "name": "B", "valueFrom": { "configMapKeyRef": { "name": "c", "key": "k" } } },
            { "name": "C" },
        ],
    });
    create_plain(&space, "a", json!({ "spec": spec_with(json!({ "config": config })) })).await?;
    let stored = plain(&space).get("a").await?.data["spec"]["config"].clone();
    assert_eq!(stored["serviceAccountName"], config["serviceAccountName"]);
    assert_eq!(stored["environmentFrom"], config["environmentFrom"]);
    let typed = space.performers.get("a").await?;
    assert_eq!(serde_json::to_value(typed.spec)?["config"]["environmentFrom"], config["environmentFrom"]);
    Ok(())
}

#[tokio::test]
async fn p04_impossible_values_are_refused_and_the_pull_policy_has_a_default() -> Result<()> {
    let space = World::calm().await.space("refuse").await;
    let without = |field: &str| {
        let mut spec = spec();
        spec.as_object_mut().unwrap().remove(field);
        spec
    };
    let cases = [
        ("spec.avsAddress", without("avsAddress")),
        ("spec.image", without("image")),
        ("spec.config.grpcPort", spec_with(json!({ "config": { "grpcPort": 0 } }))),
        ("spec.config.grpcPort", spec_with(json!({ "config": { "grpcPort": 65536 } }))),
        ("spec.imagePullPolicy", spec_with(json!({ "imagePullPolicy": "Sometimes" }))),
        ("spec.hardwareRequirements.gpuCount", spec_with(json!({ "hardwareRequirements": { "gpuCount": -1 } }))),
    ];
    for (field, spec) in cases {
        match create_plain(&space, "bad", json!({ "spec": spec })).await {
            Err(kube::Error::Api(status)) => {
                assert_eq!(status.code, 422, "{field}");
                assert!(status.message.contains(field), "{field}: {}", status.message);
            }
            other => panic!("{field}: {other:?}"),
        }
    }
    let stored = create_plain(&space, "good", json!({ "spec": spec() })).await?;
    assert_eq!(stored.data["spec"]["imagePullPolicy"], "IfNotPresent");
    Ok(())
}

#[tokio::test]
async fn examples_of_the_repository_apply_and_are_explained() -> Result<()> {
    let space = World::calm().await.space("examples").await;
    for file in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/performers"))? {
        let text = std::fs::read_to_string(file?.path())?;
        for document in text.split("\n---\n") {
            let manifest: Value = serde_saphyr::from_str(document)?;
            if manifest["kind"] != "Performer" {
                continue;
            }
            let name = manifest["metadata"]["name"].as_str().context("a name")?;
            space.create(name, manifest["spec"].clone()).await?;
            space.until(name, "reported on", |p| !condition(p, "Available").is_null()).await?;
        }
    }
    Ok(())
}
