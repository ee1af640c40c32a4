//! Writes what other files repeat from the code, or checks that it is fresh.

mod clusterctl;
mod reference;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use k8s_openapi::{
    api::rbac::v1::PolicyRule, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use runtime::{LayerSpec, rights::Right};
use serde::Serialize;
use strata::layers;

use crate::{tools, workspace};

const HEADER: &str = "# Written by `cargo xtask codegen`; do not edit.\n";

/// Plain YAML has no release to make the namespace.
const NAMESPACE: &str = "\
apiVersion: v1
kind: Namespace
metadata:
  name: strata-system
  labels:
    pod-security.kubernetes.io/enforce: restricted
";

/// One generated file, by its path in the repository.
struct Generated {
    path: String,
    text: String,
}

impl Generated {
    fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: path.into(), text: text.into() }
    }

    fn is_fresh(&self) -> bool {
        std::fs::read_to_string(workspace::root().join(&self.path)).is_ok_and(|text| text == self.text)
    }

    fn write(&self) -> Result<()> {
        if !self.is_fresh() {
            eprintln!("writing {}", self.path);
            workspace::write(&workspace::root().join(&self.path), self.text.as_bytes())?;
        }
        Ok(())
    }
}

/// Writes every generated file, or with `check` only names those that are stale.
pub fn run(check: bool) -> Result<()> {
    let parts = from_code()?;
    if !check {
        // The chart is rendered from these.
        parts.iter().try_for_each(Generated::write)?;
    }
    let rendered = from_chart(&tools::path("helm")?)?;
    if !check {
        return rendered.iter().try_for_each(Generated::write);
    }
    let stale = stale(parts.iter().chain(&rendered));
    if !stale.is_empty() {
        bail!("stale: {}; run cargo xtask codegen", stale.join(", "));
    }
    Ok(())
}

fn stale<'a>(files: impl IntoIterator<Item = &'a Generated>) -> Vec<&'a str> {
    files.into_iter().filter(|file| !file.is_fresh()).map(|file| file.path.as_str()).collect()
}

/// What follows from the layers alone.
fn from_code() -> Result<Vec<Generated>> {
    let cluster = [layers::rights().as_slice(), runtime::rights::CLUSTER].concat();
    let own_namespace = runtime::rights::OWN_NAMESPACE;
    let of_layers = layers::all().flat_map(|spec| spec.own_namespace).copied();
    let in_namespace: Vec<Right> = own_namespace.iter().copied().chain(of_layers).collect();
    let in_chart = |name: &str| format!("charts/strata/generated/{name}-rules.yaml");
    let crds = layers::crds();
    let mut generated = vec![
        Generated::new(in_chart("cluster-role"), rules(runtime::rights::CLUSTER)?),
        Generated::new(in_chart("role"), yaml(&own_rules(own_namespace))?),
        Generated::new(in_chart("view"), yaml(&user_rules(&crds, &["get", "list", "watch"], &["", "/status"]))?),
        Generated::new(in_chart("edit"), yaml(&user_rules(&crds, &EDIT, &[""]))?),
        Generated::new("docs/reference/rights.md", reference::rights(&cluster, &in_namespace)),
        layer_names("charts/strata/values.schema.json", ["\"layers\": {", "\"enum\": ["], "]", |spec| {
            Some(format!("\n              \"{}\"", spec.name))
        })?,
        layer_names("charts/strata/values.yaml", ["  layers: ", "["], "]", |spec| {
            spec.is_default.then(|| spec.name.to_owned())
        })?,
    ];
    for spec in layers::all() {
        generated.push(Generated::new(in_chart(spec.name), rules(spec.rights)?));
        if !spec.own_namespace.is_empty() {
            let name = format!("{}-namespace", spec.name);
            generated.push(Generated::new(in_chart(&name), rules(spec.own_namespace)?));
        }
    }
    for role in layers::roles() {
        let name = role.metadata.name.context("the role has no name")?;
        let short = name.strip_prefix("strata-").context("the role is not named as ours")?;
        generated.push(Generated::new(in_chart(short), yaml(&role.rules)?));
    }
    for crd in crds {
        let name = crd.metadata.name.as_deref().context("the CRD has no name")?;
        let page = format!("docs/reference/{}.md", crd.spec.names.kind.to_lowercase());
        generated.push(Generated::new(format!("charts/strata/crds/{name}.yaml"), yaml(&crd)?));
        generated.push(Generated::new(page, reference::fields(&crd)?));
    }
    Ok(generated)
}

/// What a user who may edit a namespace may do with the kinds of strata in it.
const EDIT: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

/// Rules for people: the verbs on every kind, and on the parts of it that are named.
fn user_rules(crds: &[CustomResourceDefinition], verbs: &[&str], parts: &[&str]) -> Vec<PolicyRule> {
    let rule = |crd: &CustomResourceDefinition| PolicyRule {
        api_groups: Some(vec![crd.spec.group.clone()]),
        resources: Some(parts.iter().map(|part| format!("{}{part}", crd.spec.names.plural)).collect()),
        verbs: verbs.iter().map(|&verb| verb.to_owned()).collect(),
        ..PolicyRule::default()
    };
    crds.iter().map(rule).collect()
}

/// The file with its one list of layers replaced: the list is behind the marks, one after the other, and goes up to
/// `end`. What is around it is written by hand.
fn layer_names(
    path: &str,
    marks: [&str; 2],
    end: &str,
    name: impl Fn(&LayerSpec) -> Option<String>,
) -> Result<Generated> {
    let text = std::fs::read_to_string(workspace::root().join(path)).with_context(|| format!("cannot read {path}"))?;
    let missing = || format!("{path} has no list of layers behind {marks:?}");
    let mut from = 0;
    for mark in marks {
        from += text[from..].find(mark).with_context(missing)? + mark.len();
    }
    let to = from + text[from..].find(end).with_context(missing)?;
    // Space before the end belongs to the form, not to the list.
    let to = from + text[from..to].trim_end().len();
    let names: Vec<_> = layers::all().filter_map(name).collect();
    let separator = if text[from..to].contains('\n') { "," } else { ", " };
    Ok(Generated::new(path, format!("{}{}{}", &text[..from], names.join(separator), &text[to..])))
}

fn rules(rights: &[Right]) -> Result<String> {
    yaml(&rights.iter().map(Right::rule).collect::<Vec<PolicyRule>>())
}

/// With the lease's name from the chart's values.
fn own_rules(rights: &[Right]) -> Vec<PolicyRule> {
    let lease = "{{ .Values.leaderElection.leaseName }}";
    rights.iter().map(|right| runtime::rights::own_rule(right, lease)).collect()
}

fn yaml(value: &impl Serialize) -> Result<String> {
    let text = serde_saphyr::to_string(value)?;
    Ok(format!("{HEADER}{}\n", text.trim_end()))
}

/// What is rendered from the chart.
fn from_chart(helm: &Path) -> Result<Vec<Generated>> {
    let mut rendered = vec![install_yaml(helm)?];
    rendered.extend(clusterctl::files(helm)?);
    Ok(rendered)
}

/// The chart with its default values, for those without Helm.
fn install_yaml(helm: &Path) -> Result<Generated> {
    let mut template = Command::new(helm);
    template.args(["template", "strata", "charts/strata", "--namespace", "strata-system", "--include-crds"]);
    let rendered = workspace::output(template.current_dir(workspace::root()))?;
    // No release stands behind plain YAML.
    let of_helm = ["# Source: ", "helm.sh/chart: ", "app.kubernetes.io/managed-by: Helm"];
    let lines = rendered.lines().filter(|line| !of_helm.iter().any(|mark| line.trim_start().starts_with(mark)));
    let text = lines.fold(format!("{HEADER}{NAMESPACE}"), |text, line| text + line + "\n");
    Ok(Generated::new("deploy/install.yaml", text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_files_are_fresh() {
        let parts = from_code().unwrap();
        assert_eq!(stale(&parts), Vec::<&str>::new(), "run cargo xtask codegen");
    }

    #[test]
    fn install_yaml_is_the_rendered_chart() {
        let install = install_yaml(&tools::path("helm").unwrap()).unwrap();
        assert!(install.is_fresh(), "run cargo xtask codegen");
    }

    #[test]
    fn a_missing_file_is_stale() {
        let file = Generated::new("no/such/file", "");
        assert_eq!(stale([&file]), ["no/such/file"]);
    }
}
