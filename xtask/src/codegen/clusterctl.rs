//! What clusterctl installs the machines layer from: the chart with that layer alone, in the form that clusterctl's
//! contract asks for. The template of a cluster beside them is written by hand.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use strata::layers;

use super::{Generated, HEADER, NAMESPACE};
use crate::workspace;

/// Where the three files are.
const FOLDER: &str = "deploy/clusterctl";
const LAYER: &str = "machines";
/// The contract of Cluster API that this version fulfils; the definitions carry it as a label.
const CONTRACT: &str = "v1beta2";
/// By this label clusterctl finds what belongs to a provider. Users name it `nstance` in clusterctl's configuration.
const PROVIDER_LABEL: &str = "cluster.x-k8s.io/provider";
const PROVIDER: &str = "infrastructure-nstance";
/// Names of all objects, other than those of a chart `strata` in the same cluster.
const RELEASE: &str = "strata-machines";
/// Of the ConfigMap below.
const SHARDS: &str = "nstance-shards";

/// Written as it is: the value of the variable, a map on one line, must stand in it unquoted.
const SHARDS_CONFIG_MAP: &str = "\
apiVersion: v1
kind: ConfigMap
metadata:
  labels:
    cluster.x-k8s.io/provider: infrastructure-nstance
  name: nstance-shards
  namespace: strata-system
data:
  config.yaml: |
    shards: ${NSTANCE_SHARDS}
";

/// Both files.
pub fn files(helm: &Path) -> Result<[Generated; 2]> {
    Ok([
        Generated::new(format!("{FOLDER}/metadata.yaml"), metadata(env!("CARGO_PKG_VERSION"))?),
        Generated::new(format!("{FOLDER}/infrastructure-components.yaml"), components(helm)?),
    ])
}

/// Which contract the versions of a series fulfil.
fn metadata(version: &str) -> Result<String> {
    let mut numbers = version.split('.');
    let (major, minor) = numbers.next().zip(numbers.next()).context("a version has three numbers")?;
    Ok(format!(
        "{HEADER}apiVersion: clusterctl.cluster.x-k8s.io/v1alpha3\nkind: Metadata\nreleaseSeries:\n\
         - major: {major}\n  minor: {minor}\n  contract: {CONTRACT}\n"
    ))
}

fn components(helm: &Path) -> Result<String> {
    let layer = layers::all().find(|spec| spec.name == LAYER).context("there is no layer of that name")?;
    let namespace = serde_saphyr::from_str::<Value>(NAMESPACE)?;
    let definitions = (layer.crds)().into_iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
    let rendered: Vec<Value> = serde_saphyr::from_multiple(&render(helm)?)?;
    let mut text = HEADER.to_owned();
    for mut object in std::iter::once(namespace).chain(definitions).chain(rendered) {
        adapt(&mut object)?;
        text.push_str(serde_saphyr::to_string(&object)?.trim_end());
        text.push_str("\n---\n");
    }
    text.push_str(SHARDS_CONFIG_MAP);
    Ok(text)
}

fn render(helm: &Path) -> Result<String> {
    let arguments = json!([
        "--machines-cluster-id=${NSTANCE_CLUSTER_ID}",
        "--machines-tenant=${NSTANCE_TENANT:=default}",
        format!("--machines-shards-config-map={SHARDS}"),
    ]);
    let mut template = Command::new(helm);
    template.args(["template", RELEASE, "charts/strata", "--namespace", "strata-system"]);
    template.args(["--set-json", &format!("operator.layers={}", json!([LAYER]))]);
    template.args(["--set-json", &format!("operator.extraArgs={arguments}")]);
    // An operator of another chart in the namespace leads for itself.
    template.args(["--set", &format!("leaderElection.leaseName={RELEASE}")]);
    // Without helm processes.
    template.args(["--set", "resources.limits.memory=256Mi"]);
    workspace::output(template.current_dir(workspace::root()))
}

/// Labels an object, takes Helm's marks off, and names the container as the contract does.
fn adapt(object: &mut Value) -> Result<()> {
    let metadata = object["metadata"].as_object_mut().context("an object has metadata")?;
    let labels = metadata.entry("labels").or_insert_with(|| json!({}));
    let labels = labels.as_object_mut().context("labels are a map")?;
    labels.remove("helm.sh/chart");
    labels.remove("app.kubernetes.io/managed-by");
    labels.insert(PROVIDER_LABEL.to_owned(), json!(PROVIDER));
    if object["kind"] == "Deployment" {
        let containers = object.pointer_mut("/spec/template/spec/containers").and_then(Value::as_array_mut);
        let containers = containers.context("a Deployment has containers")?;
        ensure!(containers.len() == 1, "the operator has one container");
        containers[0]["name"] = json!("manager");
        object["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] =
            json!("manager");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::tools;

    #[test]
    fn a_series_names_the_contract() {
        let text = metadata("0.12.3").unwrap();
        assert!(text.ends_with("releaseSeries:\n- major: 0\n  minor: 12\n  contract: v1beta2\n"), "{text}");
    }

    #[test]
    fn the_files_are_fresh() {
        let files = files(&tools::path("helm").unwrap()).unwrap();
        assert_eq!(super::super::stale(&files), Vec::<&str>::new(), "run cargo xtask codegen");
    }

    /// Names of the variables in a text as clusterctl finds them.
    fn variables(text: &str) -> BTreeSet<&str> {
        let names = text.split("${").skip(1).filter_map(|rest| rest.split([':', '}']).next());
        names.collect()
    }

    #[test]
    fn the_components_keep_clusterctls_contract() {
        let text = components(&tools::path("helm").unwrap()).unwrap();
        assert_eq!(variables(&text), BTreeSet::from(["NSTANCE_CLUSTER_ID", "NSTANCE_SHARDS", "NSTANCE_TENANT"]));
        // clusterctl makes one of two.
        assert!(!text.contains("$$"), "a doubled dollar is lost");
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        for object in &objects {
            assert_eq!(object["metadata"]["labels"][PROVIDER_LABEL], PROVIDER, "{object}");
            let namespace = &object["metadata"]["namespace"];
            assert!(namespace.is_null() || namespace == "strata-system", "{object}");
        }
        let of_kind = |kind: &str| objects.iter().filter(|object| object["kind"] == kind).collect::<Vec<_>>();
        assert_eq!(of_kind("Namespace").len(), 1);
        let definitions = of_kind("CustomResourceDefinition");
        assert_eq!(definitions.len(), 6);
        for definition in definitions {
            assert_eq!(definition["metadata"]["labels"]["cluster.x-k8s.io/v1beta2"], "v1beta1", "{definition}");
        }
        let [shards] = of_kind("ConfigMap")[..] else { panic!("one ConfigMap") };
        assert_eq!(shards["metadata"]["name"], SHARDS);
        let [deployment] = of_kind("Deployment")[..] else { panic!("one Deployment") };
        assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["name"], "manager");
    }
}
