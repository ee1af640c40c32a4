//! The steps of `docs/guide/migrate-from-hourglass.md`, with a chart that has its CRD as a template,
//! as the chart `hourglass-operator` does.

use std::fs;
use std::path::Path;

use anyhow::Result;
use testbed::{ControlPlane, control_plane::Options};

use crate::program::{Program, create_performer, root};

fn write_old_chart(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder.join("templates"))?;
    fs::write(folder.join("Chart.yaml"), "apiVersion: v2\nname: old\nversion: 0.1.0\n")?;
    fs::write(folder.join("values.yaml"), "crd:\n  install: true\n")?;
    let crd = fs::read_to_string(root().join("charts/strata/crds/performers.hourglass.eigenlayer.io.yaml"))?;
    let template = format!("{{{{- if .Values.crd.install }}}}\n{crd}{{{{- end }}}}\n");
    fs::write(folder.join("templates/crd.yaml"), template)?;
    Ok(())
}

#[tokio::test]
async fn the_guide_keeps_every_performer() -> Result<()> {
    let control_plane = ControlPlane::start(Options::bare()).await?;
    let helm = Program::on("helm", &control_plane).await?;
    let kubectl = Program::on("kubectl", &control_plane).await?;
    let folder = tempfile::tempdir()?;
    write_old_chart(folder.path())?;
    let chart = folder.path().display();

    helm.run(&format!("install old {chart} --namespace hourglass-system --create-namespace"))?;
    create_performer(&kubectl).await?;

    kubectl.run("annotate crd performers.hourglass.eigenlayer.io helm.sh/resource-policy=keep")?;
    helm.run(&format!("upgrade old {chart} --namespace hourglass-system --reuse-values --set crd.install=false"))?;
    kubectl.run("apply --server-side --force-conflicts -f charts/strata/crds/")?;
    helm.run("install strata charts/strata --namespace strata-system --create-namespace --skip-crds")?;
    helm.run("uninstall old --namespace hourglass-system")?;
    assert_ne!(kubectl.run("get performers --all-namespaces --output name")?, "");
    control_plane.stop().await?;
    Ok(())
}
