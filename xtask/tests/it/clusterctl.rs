//! What clusterctl installs, and the cluster that it generates, on a real API server with Cluster API's own controllers.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind},
    runtime::wait::await_condition,
};
use serde_json::Value;
use testbed::{
    ControlPlane, Options,
    capi::{self, ClusterApi},
};

/// A busy machine is slow; nothing here takes a tenth of it otherwise.
const PATIENCE: Duration = Duration::from_mins(1);

/// Fills in variables as clusterctl does: `${NAME}` and `${NAME:=default}`.
fn filled(text: &str, values: &[(&str, &str)]) -> Result<String> {
    let mut parts = text.split("${");
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (variable, rest) = part.split_once('}').context("a variable without an end")?;
        let (name, default) =
            variable.split_once(":=").map_or((variable, None), |(name, default)| (name, Some(default)));
        let value = values.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        match value.or(default) {
            Some(value) => filled.push_str(value),
            None => bail!("value for variables [{name}] is not set"),
        }
        filled.push_str(rest);
    }
    Ok(filled)
}

fn objects(file: &str, values: &[(&str, &str)]) -> Result<Vec<Value>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/clusterctl").join(file);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(serde_saphyr::from_multiple(&filled(&text, values)?)?)
}

#[tokio::test]
async fn the_components_install_and_the_template_makes_a_cluster() -> Result<()> {
    let control_plane = ControlPlane::start(Options::bare()).await?;
    let cluster_api = ClusterApi::start(&control_plane, &capi::Options::default()).await?;
    let shards = [("NSTANCE_CLUSTER_ID", "prod"), ("NSTANCE_SHARDS", "{eu-1: 10.0.1.10:8993, eu-2: 10.0.2.10:8993}")];
    let components = objects("infrastructure-components.yaml", &shards)?;
    control_plane.install(&components).await?;
    let missing = objects("infrastructure-components.yaml", &[]).unwrap_err().to_string();
    assert_eq!(missing, "value for variables [NSTANCE_CLUSTER_ID] is not set");
    let map = components.iter().find(|object| object["metadata"]["name"] == "nstance-shards").context("the shards")?;
    let listed: Value = serde_saphyr::from_str(map["data"]["config.yaml"].as_str().context("a file")?)?;
    assert_eq!(listed["shards"]["eu-2"], "10.0.2.10:8993");

    let cluster = [
        ("CLUSTER_NAME", "prod--default"),
        ("NAMESPACE", "strata-system"),
        ("WORKER_MACHINE_COUNT", "3"),
        ("NSTANCE_POOL_SHARDS", "[eu-1, eu-2]"),
        ("NSTANCE_TEMPLATE", "small"),
    ];
    // The webhooks of Cluster API judge it as well.
    control_plane.install(&objects("cluster-template.yaml", &cluster)?).await?;
    let client = control_plane.client().await?;
    let api = |group: &str, version: &str, kind: &str| -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(client.clone(), "strata-system", &resource)
    };
    let pool = api("cluster.x-k8s.io", "v1beta2", "MachinePool").get("workers").await?;
    assert_eq!(pool.data["spec"]["replicas"], 3);
    let pool = api(::api::machine::GROUP, "v1beta1", "NstanceMachinePool").get("workers").await?;
    assert_eq!(pool.data["spec"]["shards"], serde_json::json!(["eu-1", "eu-2"]));
    // By the labels on the definitions Cluster API finds the contract; then it owns what its objects refer to.
    for (kind, name) in [
        ("NstanceCluster", "prod--default"),
        ("NstanceControlPlane", "prod--default"),
        ("NstanceMachinePool", "workers"),
    ] {
        let is_owned = |object: Option<&DynamicObject>| {
            object.is_some_and(|object| object.metadata.owner_references.iter().flatten().next().is_some())
        };
        let owned = await_condition(api(::api::machine::GROUP, "v1beta1", kind), name, is_owned);
        tokio::time::timeout(PATIENCE, owned).await.with_context(|| format!("Cluster API does not take {kind}"))??;
    }
    cluster_api.stop().await?;
    Ok(control_plane.stop().await?)
}
