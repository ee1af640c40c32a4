//! The vendor's own programs against simulated nodes, and against what the crate writes.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use talos::{Role, client::Stage};
use tempfile::TempDir;
use testbed::{
    process::{Child, Program},
    talos::{Cluster, Machine, MachineOptions, eventually, reaches_stage},
};

use crate::one_cluster;

/// No command here waits for anything but an answer on loopback.
const LIMIT: Duration = Duration::from_mins(3);

struct Output {
    status: i32,
    /// Both streams.
    text: String,
}

impl Output {
    fn succeeded(self) -> Result<String> {
        ensure!(self.status == 0, "status {}: {}", self.status, self.text);
        Ok(self.text)
    }
}

async fn run(name: &str, arguments: &[&str]) -> Result<Output> {
    let home = TempDir::new()?;
    let log = home.path().join("output");
    let program = Program::new(name, testbed::tools::path(name).await?, &log)
        .args(arguments.iter().copied())
        .env("HOME", home.path());
    let child = Child::start(program)?;
    let status = tokio::time::timeout(LIMIT, child.exited()).await.context(name.to_owned())?;
    Ok(Output { status, text: std::fs::read_to_string(log)? })
}

/// A person with talosctl, a talosconfig and one node.
struct Person {
    directory: TempDir,
    endpoint: String,
    node: String,
}

impl Person {
    fn at(cluster: &Cluster, machine: &Machine) -> Result<Self> {
        let directory = TempDir::new()?;
        std::fs::write(directory.path().join("talosconfig"), cluster.talosconfig.to_yaml())?;
        let endpoint = cluster.control_planes[0].public().to_string();
        Ok(Self { directory, endpoint, node: machine.private().to_string() })
    }

    fn file(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    async fn talosctl(&self, arguments: &[&str]) -> Result<Output> {
        self.talosctl_as("talosconfig", arguments).await
    }

    async fn talosctl_as(&self, config: &str, arguments: &[&str]) -> Result<Output> {
        let config = self.file(config);
        let mut all = vec!["--talosconfig", &config, "-e", &self.endpoint, "-n", &self.node];
        all.extend(arguments);
        run("talosctl", &all).await
    }
}

#[tokio::test]
async fn talosctl_reads_a_node() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let machine = &cluster.control_planes[0];
    let person = Person::at(&cluster, machine)?;
    let version = person.talosctl(&["version"]).await?.succeeded()?;
    ensure!(version.contains("NODE:") && version.matches("v1.12.1").count() == 2, "{version}");
    let services = person.talosctl(&["service"]).await?.succeeded()?;
    let etcd = services.lines().find(|line| line.contains(" etcd ")).with_context(|| services.clone())?;
    ensure!(etcd.contains("Running") && etcd.contains("OK"), "{etcd}");
    let members = person.talosctl(&["etcd", "members"]).await?.succeeded()?;
    ensure!(members.contains(machine.name()) && members.contains(":2380"), "{members}");
    let status = person.talosctl(&["etcd", "status"]).await?.succeeded()?;
    ensure!(status.contains("3.6.7") && status.contains("false"), "{status}");
    let alarms = person.talosctl(&["etcd", "alarm", "list"]).await?.succeeded()?;
    ensure!(!alarms.contains("NOSPACE"), "{alarms}");
    person.talosctl(&["etcd", "alarm", "disarm"]).await?.succeeded()?;
    person.talosctl(&["etcd", "defrag"]).await?.succeeded()?;
    let bootstrap = person.talosctl(&["bootstrap"]).await?;
    ensure!(bootstrap.status != 0 && bootstrap.text.contains("AlreadyExists"), "{}", bootstrap.text);
    let snapshot = person.file("etcd.snapshot");
    person.talosctl(&["etcd", "snapshot", &snapshot]).await?.succeeded()?;
    let checked = run("etcdutl", &["snapshot", "status", &snapshot]).await?.succeeded()?;
    ensure!(checked.contains(','), "{checked}");
    Ok(())
}

#[tokio::test]
async fn talosctl_fetches_a_kubeconfig() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let person = Person::at(&cluster, &cluster.control_planes[0])?;
    let kubeconfig = person.file("kubeconfig");
    let alone = one_cluster::KUBECONFIG.lock().await;
    person.talosctl(&["kubeconfig", &kubeconfig]).await?.succeeded()?;
    drop(alone);
    let nodes = run("kubectl", &["--kubeconfig", &kubeconfig, "get", "nodes"]).await?.succeeded()?;
    ensure!(nodes.contains(cluster.control_planes[0].name()) && nodes.contains("v1.35.0"), "{nodes}");
    Ok(())
}

#[tokio::test]
async fn talosctl_reader_is_denied() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let person = Person::at(&cluster, &cluster.control_planes[0])?;
    person.talosctl(&["config", "new", "--roles", "os:reader", &person.file("reader")]).await?.succeeded()?;
    person.talosctl_as("reader", &["version"]).await?.succeeded()?;
    let reboot = person.talosctl_as("reader", &["reboot", "--wait=false"]).await?;
    ensure!(reboot.status != 0 && reboot.text.contains("PermissionDenied"), "{}", reboot.text);
    Ok(())
}

#[tokio::test]
async fn talosctl_configures_and_resets_a_worker() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let worker = cluster.world.create("one-w-script", MachineOptions::default()).await?;
    let person = Person::at(&cluster, &worker)?;
    let file = person.file("worker.yaml");
    std::fs::write(&file, cluster.configuration(&worker, Role::Worker))?;
    let address = worker.public().to_string();
    run("talosctl", &["apply-config", "--insecure", "-n", &address, "-f", &file]).await?.succeeded()?;
    reaches_stage(&worker, &Stage::Configured).await?;
    let kubelet = || async {
        let services = person.talosctl(&["service"]).await.map_err(|error| error.to_string())?.text;
        let kubelet = services.lines().find(|line| line.contains(" kubelet ")).unwrap_or_default();
        if kubelet.contains("Running") { Ok(()) } else { Err(services) }
    };
    eventually("the worker's kubelet", kubelet).await?;
    person.talosctl(&["reset", "--wait=false", "--reboot", "--graceful=false"]).await?.succeeded()?;
    reaches_stage(&worker, &Stage::Maintenance { version: None }).await?;
    cluster.world.delete("one-w-script").await;
    Ok(())
}

#[tokio::test]
async fn k48_the_vendor_accepts_our_configurations_and_secrets() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let directory = TempDir::new()?;
    let file = |name: &str| directory.path().join(name).display().to_string();
    for (name, role) in [("controlplane", Role::ControlPlane), ("worker", Role::Worker)] {
        let path = file(name);
        std::fs::write(&path, cluster.configuration(&cluster.control_planes[0], role))?;
        run("talosctl", &["validate", "--mode", "cloud", "--strict", "--config", &path]).await?.succeeded()?;
        let report = run("talosprobe", &["validate", &path]).await?.succeeded()?;
        ensure!(report.contains(r#""warnings":null"#) && report.contains("HostnameConfig"), "{name}: {report}");
    }
    let secrets = file("secrets.yaml");
    std::fs::write(&secrets, cluster.secrets.to_yaml())?;
    let arguments = ["gen", "config", "one", "https://192.0.2.1:6443", "--with-secrets", &secrets, "-o", &file("out")];
    run("talosctl", &arguments).await?.succeeded()?;
    ensure!(Path::new(&file("out")).join("controlplane.yaml").is_file());
    let theirs = file("theirs.yaml");
    run("talosctl", &["gen", "secrets", "-o", &theirs]).await?.succeeded()?;
    talos::Secrets::from_yaml(&std::fs::read_to_string(&theirs)?)?;
    Ok(())
}

#[tokio::test]
async fn the_vendors_library_speaks_with_both_stages() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let machine = &cluster.control_planes[0];
    let person = Person::at(&cluster, machine)?;
    let bare = cluster.world.create("one-w-probe", MachineOptions::default()).await?;
    let report = run("talosprobe", &["maintenance", &bare.public().to_string()]).await?.succeeded()?;
    ensure!(report.contains(r#""code":"Unimplemented""#) && report.contains("maintenance mode"), "{report}");
    cluster.world.delete("one-w-probe").await;
    let config = person.file("talosconfig");
    let report = run("talosprobe", &["node", &config, &person.endpoint, &person.node]).await?.succeeded()?;
    ensure!(report.contains(r#""version":"v1.12.1""#) && report.contains(r#""etcd":"Running""#), "{report}");
    let file = person.file("snapshot");
    run("talosprobe", &["snapshot", &config, &person.endpoint, &file]).await?.succeeded()?;
    run("etcdutl", &["snapshot", "status", &file]).await?.succeeded()?;
    Ok(())
}

#[tokio::test]
async fn etcdctl_speaks_with_the_member() -> Result<()> {
    let cluster = one_cluster::running().await?;
    let machine = &cluster.control_planes[0];
    let directory = TempDir::new()?;
    let file = |name: &str| directory.path().join(name).display().to_string();
    let authority = talos::Authority::open(cluster.secrets.etcd.clone())?;
    let now = cluster.talosconfig.certificate()?.not_before;
    let subject = talos::certificate::Subject { common_name: Some("person"), ..Default::default() };
    let pair = authority.sign(&subject, now, talos::talosconfig::LIFETIME)?;
    for (name, text) in [("ca", authority.certificate()), ("crt", &pair.certificate), ("key", &pair.key)] {
        std::fs::write(file(name), text)?;
    }
    let endpoint = format!("--endpoints=https://{}:2379", machine.private());
    let keys =
        [format!("--cacert={}", file("ca")), format!("--cert={}", file("crt")), format!("--key={}", file("key"))];
    let mut arguments: Vec<&str> = keys.iter().map(String::as_str).collect();
    arguments.extend([endpoint.as_str(), "member", "list"]);
    let members = run("etcdctl", &arguments).await?.succeeded()?;
    ensure!(members.contains(machine.name()) && members.contains("started"), "{members}");
    Ok(())
}
