//! The simulated cluster of `strata dev`, as the vendors' programs see it.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::Mutex,
};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use testbed::tools;

use super::environment::{Environment, command, eventually, run, signal};

/// Where the cluster's files are.
struct Cluster {
    status: Value,
}

impl Cluster {
    async fn of(dev: &Environment) -> Result<Self> {
        Ok(Self { status: dev.status().await? })
    }

    fn text(&self, pointer: &str) -> Result<&str> {
        self.status.pointer(pointer).and_then(Value::as_str).with_context(|| format!("no {pointer}: {}", self.status))
    }

    fn path(&self, pointer: &str) -> Result<PathBuf> {
        let path = PathBuf::from(self.text(pointer)?);
        ensure!(path.is_file(), "{} is not there", path.display());
        Ok(path)
    }

    async fn tool(&self, name: &str, arguments: &[&str]) -> Result<String> {
        let output = run(command(&tools::path(name).await?, arguments)).await?;
        ensure!(output.status.success(), "{name} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let kubeconfig = self.path("/clusters/0/kubeconfig")?;
        let mut all = vec!["--kubeconfig", kubeconfig.to_str().context("path")?];
        all.extend(arguments);
        self.tool("kubectl", &all).await
    }

    async fn talosctl(&self, arguments: &[&str]) -> Result<String> {
        let talosconfig = self.path("/clusters/0/talosconfig")?;
        let mut all = vec!["--talosconfig", talosconfig.to_str().context("path")?];
        all.extend(arguments);
        self.tool("talosctl", &all).await
    }

    async fn etcdctl(&self, arguments: &[&str]) -> Result<String> {
        let flag =
            |name: &str, pointer: &str| Ok::<_, anyhow::Error>(format!("--{name}={}", self.path(pointer)?.display()));
        let keys = [
            flag("cacert", "/clusters/0/etcd/ca")?,
            flag("cert", "/clusters/0/etcd/cert")?,
            flag("key", "/clusters/0/etcd/key")?,
            format!("--endpoints={}", self.text("/clusters/0/etcd/endpoints/0")?),
            // Its own two and five seconds are short on a busy machine.
            "--dial-timeout=30s".to_owned(),
            "--command-timeout=60s".to_owned(),
        ];
        let mut all: Vec<&str> = keys.iter().map(String::as_str).collect();
        all.extend(arguments);
        self.tool("etcdctl", &all).await
    }

    /// Names of the Nodes, all of which are ready.
    async fn nodes(&self) -> Result<Vec<String>> {
        let nodes = self.kubectl(&["get", "nodes", "--no-headers"]).await?;
        let column = |line: &str, number| line.split_whitespace().nth(number).unwrap_or_default().to_owned();
        ensure!(nodes.lines().all(|line| column(line, 1) == "Ready"), "{nodes}");
        Ok(nodes.lines().map(|line| column(line, 0)).collect())
    }

    /// On a busy machine a kubelet may be late, and an API server refuse for a moment.
    async fn ready_nodes(&self) -> Result<Vec<String>> {
        let nodes = Mutex::default();
        let are_ready = async || {
            let found = self.nodes().await.unwrap_or_default();
            let is_enough = !found.is_empty();
            *nodes.lock().expect("nobody panics here") = found;
            Ok(is_enough)
        };
        eventually("Nodes that are ready", are_ready).await?;
        Ok(nodes.into_inner().expect("nobody panics here"))
    }

    /// Of Hetzner's API, with a program that every machine has.
    async fn hcloud(&self, path: &str) -> Result<Value> {
        let header = format!("Authorization: Bearer {}", self.text("/hcloud/token")?);
        let url = format!("{}{path}", self.text("/hcloud/endpoint")?);
        let output = run(command(Path::new("curl"), &["--silent", "--header", &header, &url])).await?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

#[tokio::test]
async fn a_simulated_cluster_is_reached_by_stock_programs_and_returns_with_its_disks() -> Result<()> {
    let dev = Environment::new().await?;
    dev.dev(&["up", "--detach", "--cluster", "dev"]).await?;
    let cluster = Cluster::of(&dev).await?;
    assert_status_has_its_form(&cluster)?;
    let names = cluster.ready_nodes().await?;
    let (server, worker) = (&names[0], &names[1]);
    ensure!(names.len() == 2 && server.starts_with("dev-cp-") && worker.starts_with("dev-w-"), "{names:?}");
    let members = cluster.talosctl(&["etcd", "members"]).await?;
    ensure!(members.contains(server.as_str()), "{members}");
    cluster.etcdctl(&["put", "kept", "on-disk"]).await?;
    let servers = cluster.hcloud("/servers").await?;
    let of_api: Vec<_> = servers["servers"].as_array().context("no list")?.iter().map(|one| &one["name"]).collect();
    ensure!(of_api.len() == 2 && of_api.contains(&&json!(server)), "{of_api:?}");
    assert_logs_have_their_form(&cluster, server)?;
    assert_configuration_is_the_nodes_own(&dev, &cluster, server).await?;
    faults_come_and_go(&dev, &cluster, worker).await?;

    let other = dev.command(&["up", "--detach", "--cluster", "ha"]);
    let refused = run(other).await?;
    ensure!(!refused.status.success(), "another cluster is up");

    nothing_is_left_of_a_killed_environment(&dev, &cluster, worker).await?;
    dev.dev(&["up", "--detach", "--cluster", "dev"]).await?;
    let back = Cluster::of(&dev).await?;
    assert_eq!(back.status["clusters"], cluster.status["clusters"], "what people wrote down still works");
    assert_eq!(back.status["hcloud"], cluster.status["hcloud"]);
    eventually("the same Nodes", async || Ok(back.nodes().await.is_ok_and(|nodes| nodes == names))).await?;
    ensure!(back.etcdctl(&["get", "kept"]).await?.contains("on-disk"), "the disk was lost");

    dev.dev(&["up", "--detach", "--fresh", "--cluster", "dev", "--cloud-controller"]).await?;
    let fresh = Cluster::of(&dev).await?;
    let new = fresh.ready_nodes().await?;
    ensure!(new.iter().all(|name| !names.contains(name)), "servers were kept");
    the_node_of_a_lost_server_goes(&dev, &fresh, &new[1]).await
}

/// The stand-in cloud controller was asked for.
async fn the_node_of_a_lost_server_goes(dev: &Environment, cluster: &Cluster, worker: &str) -> Result<()> {
    dev.dev(&["fault", "node", worker, "--kind", "delete"]).await?;
    let is_gone = async || {
        let nodes = cluster.kubectl(&["get", "nodes", "--no-headers", "--output", "name"]).await;
        Ok(nodes.is_ok_and(|nodes| !nodes.contains(worker)))
    };
    eventually("the Node of a lost server to be gone", is_gone).await
}

/// No process, rule or address, whatever the environment was doing.
async fn nothing_is_left_of_a_killed_environment(dev: &Environment, cluster: &Cluster, worker: &str) -> Result<()> {
    let endpoint = cluster.text("/clusters/0/etcd/endpoints/0")?;
    let address = endpoint.trim_start_matches("https://").split(':').next().unwrap_or_default();
    let address: Ipv4Addr = address.parse()?;
    let can_partition = testbed::talos::partitions_here().is_ok();
    if can_partition {
        dev.dev(&["fault", "node", worker, "--kind", "partition"]).await?;
    }
    signal(dev.supervisors()?[0], Signal::KILL)?;
    eventually("every process to be gone", async || Ok(dev.processes()?.is_empty())).await?;
    for port in [2379, 2380, 6443, 50000] {
        let is_free = async || Ok(tokio::net::TcpListener::bind((address, port)).await.is_ok());
        eventually("the server's ports to be free", is_free).await?;
    }
    if can_partition {
        let table = format!("strata_{}", address.octets()[1]);
        let has_no_rules = async || {
            let tables = run(command(Path::new("nft"), &["list", "tables"])).await?;
            Ok(!String::from_utf8_lossy(&tables.stdout).contains(&table))
        };
        eventually("the rules to be gone", has_no_rules).await?;
    }
    Ok(())
}

fn assert_status_has_its_form(cluster: &Cluster) -> Result<()> {
    let hcloud = cluster.status["hcloud"].as_object().context("no hcloud")?;
    assert_eq!(hcloud.keys().collect::<Vec<_>>(), ["endpoint", "log", "token"]);
    ensure!(
        cluster.text("/hcloud/endpoint")?.starts_with("http://") && cluster.text("/hcloud/endpoint")?.ends_with("/v1")
    );
    assert_eq!(cluster.text("/hcloud/token")?.len(), 64);
    let one = cluster.status["clusters"][0].as_object().context("no cluster")?;
    let keys = ["config", "etcd", "kubeconfig", "name", "namespace", "talosLog", "talosconfig"];
    assert_eq!(one.keys().collect::<Vec<_>>(), keys);
    assert_eq!((&one["name"], &one["namespace"]), (&json!("dev"), &json!("k8zner-system")));
    let etcd = one["etcd"].as_object().context("no etcd")?;
    assert_eq!(etcd.keys().collect::<Vec<_>>(), ["ca", "cert", "endpoints", "key"]);
    cluster.path("/clusters/0/config").map(drop)
}

/// Whole lines of the documented fields, and none of the simulators' own parts.
fn assert_logs_have_their_form(cluster: &Cluster, server: &str) -> Result<()> {
    let lines = |pointer: &str| -> Result<Vec<Value>> {
        let text = std::fs::read_to_string(cluster.path(pointer)?)?;
        Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
    };
    let fields = |line: &Value| line.as_object().map(|line| line.keys().cloned().collect::<Vec<_>>());
    let hcloud = lines("/hcloud/log")?;
    assert_eq!(fields(&hcloud[0]), Some(["method", "path", "status", "time"].map(str::to_owned).to_vec()));
    ensure!(hcloud.iter().any(|line| line["method"] == "POST" && line["path"] == "/servers" && line["status"] == 201));
    let talos = lines("/clusters/0/talosLog")?;
    assert_eq!(fields(&talos[0]), Some(["code", "node", "rpc", "time"].map(str::to_owned).to_vec()));
    let is_bootstrap = |line: &&Value| line["rpc"] == "Bootstrap" && line["code"] == "OK";
    let bootstraps: Vec<_> = talos.iter().filter(is_bootstrap).collect();
    ensure!(bootstraps.len() == 1 && bootstraps[0]["node"] == server, "once, on the first: {bootstraps:?}");
    let time = talos[0]["time"].as_str().unwrap_or_default();
    let shape: String = time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(shape, "0000-00-00T00:00:00.000000Z");
    Ok(())
}

/// `strata cluster config` prints what the node was given, with and without a file.
async fn assert_configuration_is_the_nodes_own(dev: &Environment, cluster: &Cluster, server: &str) -> Result<()> {
    let binary = Path::new(env!("CARGO_BIN_EXE_strata"));
    let mut plain = command(binary, &["cluster", "config", server]);
    plain.current_dir("/").env("STRATA_DEV_DIR", dev.directory());
    plain.env_remove("HCLOUD_TOKEN").env_remove("HCLOUD_ENDPOINT");
    let plain = run(plain).await?;
    ensure!(plain.status.success(), "{}", String::from_utf8_lossy(&plain.stderr));
    let applied = std::fs::read(dev.directory().join(format!("cloud/servers/{server}/config.yaml")))?;
    ensure!(plain.stdout == applied, "it differs from what the node has");
    let file = cluster.path("/clusters/0/config")?;
    assert_an_upgrade_that_waits_changes_no_node(dev, &file, server, &applied).await?;
    let mut named = command(binary, &["cluster", "config", "missing", "-c", file.to_str().context("path")?]);
    named.env("HCLOUD_TOKEN", cluster.text("/hcloud/token")?).env("HCLOUD_ENDPOINT", cluster.text("/hcloud/endpoint")?);
    let refused = run(named).await?;
    let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && printed.contains("there is no server missing"), "{printed}");
    Ok(())
}

/// Nodes have the versions of the control planes, not those that the file names for later.
async fn assert_an_upgrade_that_waits_changes_no_node(
    dev: &Environment,
    file: &Path,
    server: &str,
    applied: &[u8],
) -> Result<()> {
    let text = std::fs::read_to_string(file)?;
    let later = text.replace("v1.12.1", "v1.13.6").replace("1.35.0", "1.36.0");
    ensure!(later != text, "{text}");
    std::fs::write(file, later)?;
    let mut config = command(Path::new(env!("CARGO_BIN_EXE_strata")), &["cluster", "config", server]);
    config.current_dir("/").env("STRATA_DEV_DIR", dev.directory());
    config.env_remove("HCLOUD_TOKEN").env_remove("HCLOUD_ENDPOINT");
    let config = run(config).await?;
    std::fs::write(file, text)?;
    let notes = String::from_utf8_lossy(&config.stderr).into_owned();
    ensure!(config.status.success() && config.stdout == applied, "{notes}");
    ensure!(notes.contains("run Talos v1.12.1 and Kubernetes 1.35.0") && notes.contains("v1.13.6"), "{notes}");
    Ok(())
}

async fn faults_come_and_go(dev: &Environment, cluster: &Cluster, worker: &str) -> Result<()> {
    let op = ["fault", "hcloud", "--op", "GET /servers", "--kind", "503", "--times", "1"];
    dev.dev(&op).await?;
    let listed: Value = serde_json::from_str(&dev.dev(&["fault", "list", "-o", "json"]).await?)?;
    assert_eq!(listed, json!([{ "on": "hcloud", "of": "GET /servers", "kind": "503", "times": 1 }]));
    assert_eq!(cluster.hcloud("/servers").await?["error"]["code"], "unavailable");
    assert_eq!(dev.dev(&["fault", "list", "-o", "json"]).await?.trim(), "[]");
    let refused = run(dev.command(&["fault", "node", worker, "--kind", "bad-mood"])).await?;
    let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && printed.contains("api-partition"), "{printed}");

    dev.dev(&["fault", "node", worker, "--kind", "kubelet-stopped"]).await?;
    let is_unknown = async || {
        let node = cluster.kubectl(&["get", "node", worker, "--no-headers"]).await;
        Ok(node.is_ok_and(|node| node.contains("NotReady")))
    };
    eventually("a Node that is not ready", is_unknown).await?;
    dev.dev(&["fault", "clear"]).await?;
    eventually("a Node that is ready again", async || Ok(cluster.nodes().await.is_ok())).await
}
