//! The binary takes the arguments that the chart gives it.

use std::{net::SocketAddr, path::Path};

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::Deployment;
use serde_json::{Value, json};
use testbed::{
    Options,
    process::{Child, Program},
    tools,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    harness::{OPERATOR_ACCOUNT, OPERATOR_NAMESPACE, observe},
    scene::{Scene, eventually},
};

/// Arguments of the operator in the chart rendered with its defaults.
async fn rendered(directory: &Path) -> Result<Vec<String>> {
    let output = directory.join("deployment.yaml");
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/strata");
    let helm = Program::new("helm", tools::path("helm").await?, &output)
        .args(["template", "strata", "--namespace", OPERATOR_NAMESPACE, "--show-only", "templates/deployment.yaml"])
        .args([chart]);
    let helm = Child::start(helm)?;
    assert_eq!(helm.exited().await, 0, "{}", helm.log_tail());
    let deployment: Deployment = serde_saphyr::from_str(&std::fs::read_to_string(output)?)?;
    let pod = deployment.spec.and_then(|spec| spec.template.spec).context("it has a pod")?;
    pod.containers.into_iter().find_map(|container| container.args).context("its container has arguments")
}

/// Where it listens, by its own log.
pub fn health_address(log: &Path) -> Option<SocketAddr> {
    let text = std::fs::read_to_string(log).ok()?;
    let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let line = lines.find(|line| line["message"] == "listening")?;
    line["health"].as_str()?.strip_prefix("Some(")?.strip_suffix(')')?.parse().ok()
}

pub async fn readiness(address: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn the_operator_becomes_ready_with_the_arguments_of_the_chart() -> Result<()> {
    let scene = Scene::start(Options::bare()).await?;
    let directory = scene.control_plane.directory();
    let rbac = runtime::rights::rbac(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT, &strata::layers::rights());
    let crds = strata::layers::crds().into_iter().map(|crd| json!(crd));
    scene.control_plane.install(&crds.chain(rbac.objects()).collect::<Vec<_>>()).await?;
    let mut args = rendered(directory).await?;
    // The chart's volume is not here, and helm is not beside the binary as in the image.
    args.retain(|arg| !arg.starts_with("--helm-directory="));
    // The chart's ports are fixed and open to all; everything else stays as it is.
    let mut replaced = 0;
    for arg in args.iter_mut().filter(|arg| arg.contains("-bind-address=:")) {
        let (flag, _) = arg.split_once('=').context("a flag with its value")?;
        *arg = format!("{flag}=127.0.0.1:0");
        replaced += 1;
    }
    assert_eq!(replaced, 2, "{args:?}");
    let log = directory.join("chart.log");
    let program = Program::new("strata operator", env!("CARGO_BIN_EXE_strata"), &log)
        .args(args)
        .args(["--kubeconfig".into(), scene.proxy.kubeconfig_path()])
        .args(["--helm".into(), tools::path("helm").await?])
        .args(["--helm-directory".into(), directory.join("helm")])
        .env("POD_NAMESPACE", OPERATOR_NAMESPACE);
    let operator = Child::start(program)?;

    let listening = || health_address(&log).is_some() || !operator.is_running();
    eventually("it listens", listening).await?;
    let address = health_address(&log).with_context(|| operator.log_tail())?;
    observe::eventually("it is ready", || async { Ok(readiness(address).await?.starts_with("HTTP/1.0 200")) })
        .await
        .with_context(|| operator.log_tail())
}
