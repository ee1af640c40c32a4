//! A cloud with a cluster of three control planes that stock programs built: the one testbed of this size in the suite, so
//! that all that takes several control planes is one story. What stock programs see when something fails, and how members
//! of etcd come and go.

mod faults;
mod members;

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use talos::{Client, Credentials, Talosconfig};
use tempfile::TempDir;
use testbed::{
    cloud::{Cloud, Reply, Request, Stock, ask},
    talos::{Machine, eventually},
    tools,
};
use tokio::process::Command;

/// Three control planes on two busy cores were seen to need an eighth of it; a command that speaks with a server that is cut
/// off ends by its own limit.
const LIMIT: Duration = Duration::from_mins(15);

/// For a member that may be away, which is not waited for.
const HEALTH: [&str; 3] = ["endpoint", "health", "--command-timeout=3s"];

/// A person with the vendors' programs.
struct Person<'a> {
    cloud: &'a Cloud,
    stock: Stock,
}

/// What a program said, both streams, and whether it succeeded.
struct Said {
    is_fine: bool,
    text: String,
}

impl Said {
    fn fine(self) -> Result<String> {
        ensure!(self.is_fine, "{}", self.text);
        Ok(self.text)
    }

    fn refused(self, words: &[&str]) -> Result<()> {
        let has_one = words.iter().any(|word| self.text.contains(word));
        ensure!(!self.is_fine && has_one, "not one of {words:?}: {}", self.text);
        Ok(())
    }
}

async fn said(mut command: Command) -> Result<Said> {
    let output = tokio::time::timeout(LIMIT, command.output()).await.context("it does not end")??;
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    Ok(Said { is_fine: output.status.success(), text })
}

/// On a busy machine what is fine may fail for a moment: a leader is late, or another one is chosen.
async fn until_fine(what: &str, run: impl AsyncFn() -> Result<Said>) -> Result<String> {
    let fine = || async { run().await.and_then(Said::fine).map_err(|error| error.to_string()) };
    Ok(eventually(what, fine).await?)
}

impl Person<'_> {
    async fn run(&self, program: &Path, arguments: &[&str]) -> Result<Said> {
        let mut command = self.stock.command(self.cloud, program).await?;
        command.args(arguments);
        said(command).await
    }

    async fn script(&self, arguments: &[&str]) -> Result<()> {
        said(self.stock.script(self.cloud, arguments).await?).await?.fine().map(drop)
    }

    /// What Hetzner's own library says about a server.
    async fn hcloud_status(&self, server: &str) -> Result<String> {
        let said = self.run(&tools::path("hcloudcheck").await?, &["status", server]).await?.fine()?;
        Ok(said.trim().to_owned())
    }

    /// A client of a node with the administrator's certificate that talosctl made.
    fn client(&self, node: &Node) -> Result<Client> {
        let talosconfig = Talosconfig::from_yaml(&std::fs::read_to_string(self.stock.folder.join("talosconfig"))?)?;
        Ok(Client::new(node.machine.endpoint(), &Credentials::from_talosconfig(&talosconfig)?))
    }

    async fn talosctl(&self, arguments: &[&str]) -> Result<Said> {
        self.run(&tools::path("talosctl").await?, arguments).await
    }

    /// To one node, through its own endpoint.
    async fn talosctl_at(&self, node: &Node, arguments: &[&str]) -> Result<Said> {
        let mut all = vec!["--endpoints", &node.public, "--nodes", &node.private];
        all.extend(arguments);
        self.talosctl(&all).await
    }

    async fn etcdctl(&self, node: &Node, arguments: &[&str]) -> Result<Said> {
        let endpoint = format!("--endpoints=https://{}:2379", node.private);
        let file = |flag: &str, name: &str| format!("--{flag}={}", self.stock.folder.join(name).display());
        let keys = [file("cacert", "etcd-ca.crt"), file("cert", "etcd.crt"), file("key", "etcd.key")];
        let mut all: Vec<&str> = keys.iter().map(String::as_str).collect();
        // What is fine may be slow, on a busy machine.
        all.extend([endpoint.as_str(), "--command-timeout=30s"]);
        all.extend(arguments);
        self.run(&tools::path("etcdctl").await?, &all).await
    }

    async fn is_unhealthy(&self, node: &Node) -> Result<()> {
        self.etcdctl(node, &HEALTH).await?.refused(&["unhealthy"])
    }

    /// Certificates for etcdctl, from the secrets that talosctl made.
    fn write_etcd_keys(&self) -> Result<()> {
        let secrets = talos::Secrets::from_yaml(&std::fs::read_to_string(self.stock.folder.join("secrets.yaml"))?)?;
        let authority = talos::Authority::open(secrets.etcd)?;
        let subject = talos::certificate::Subject { common_name: Some("person"), ..Default::default() };
        let pair = authority.sign(&subject, jiff::Timestamp::now(), talos::talosconfig::LIFETIME)?;
        for (name, text) in
            [("etcd-ca.crt", authority.certificate()), ("etcd.crt", &pair.certificate), ("etcd.key", &pair.key)]
        {
            std::fs::write(self.stock.folder.join(name), text)?;
        }
        Ok(())
    }

    /// The status of a Node's condition Ready.
    async fn readiness(&self, node: &Node) -> Result<String> {
        let kubectl = tools::path("kubectl").await?;
        let nodes =
            self.run(&kubectl, &["--request-timeout=5s", "get", "node", &node.name, "-o", "json"]).await?.fine()?;
        let found: Value = serde_json::from_str(&nodes)?;
        let conditions = found["status"]["conditions"].as_array().context("no conditions")?;
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready").context("no Ready")?;
        Ok(ready["status"].as_str().unwrap_or_default().to_owned())
    }

    async fn until_ready_is(&self, node: &Node, status: &str) -> Result<()> {
        let is_so = || async {
            let found = self.readiness(node).await.map_err(|error| error.to_string())?;
            if found == status { Ok(()) } else { Err(found) }
        };
        Ok(eventually(&format!("{} is {status}", node.name), is_so).await?)
    }

    async fn until_member_is_back(&self, node: &Node) -> Result<()> {
        let healthy = || async {
            let said = self.etcdctl(node, &HEALTH).await.map_err(|error| error.to_string())?;
            if said.is_fine { Ok(()) } else { Err(said.text) }
        };
        Ok(eventually("the member is back", healthy).await?)
    }

    /// Asks the control port as `strata dev fault` does.
    async fn fault(&self, request: Request) -> Result<Reply> {
        match ask(self.cloud.control(), self.cloud.token(), &request).await? {
            Reply::Refused(why) => bail!("{why}"),
            reply => Ok(reply),
        }
    }

    async fn fault_of(&self, node: &Node, kind: &str) -> Result<()> {
        let request = Request::Node { name: node.name.clone(), rpc: None, kind: kind.to_owned(), times: None };
        self.fault(request).await.map(drop)
    }

    async fn clear(&self) -> Result<()> {
        self.fault(Request::Clear).await?;
        ensure!(self.fault(Request::List).await? == Reply::Faults(Vec::new()));
        Ok(())
    }
}

/// A control plane.
#[derive(Clone)]
struct Node {
    name: String,
    public: String,
    private: String,
    machine: Arc<Machine>,
}

impl Node {
    fn named(cloud: &Cloud, name: &str) -> Result<Self> {
        let machine = cloud.world().machine(name).with_context(|| format!("no server {name}"))?;
        let (public, private) = (machine.public().to_string(), machine.private().to_string());
        Ok(Self { name: name.to_owned(), public, private, machine })
    }
}

/// One story, since three control planes take their time to start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_programs_build_three_control_planes_see_every_fault_and_replace_them() -> Result<()> {
    let folder = TempDir::new()?;
    let cloud = Cloud::start(&folder.path().join("cloud")).await?;
    let person =
        Person { cloud: &cloud, stock: Stock { name: "stock", folder: folder.path().join("person"), workers: 0 } };
    person.script(&["up"]).await?;
    person.write_etcd_keys()?;
    let [first, second, third] =
        ["stock-cp-1", "stock-cp-2", "stock-cp-3"].map(|name| Node::named(&cloud, name).unwrap());
    faults::check_all(&person, [&first, &second, &third]).await?;
    members::leadership_moves(&person, [&first, &second, &third]).await?;
    members::a_stopped_member_returns(&person, &first, &third).await?;
    let snapshot = members::a_running_member_refuses_recovery(&person, &first).await?;
    faults::a_server_without_power_is_off_for_its_cloud_too(&person, &third).await?;
    person.script(&["replace", &third.name]).await?;
    ensure!(cloud.world().machine(&third.name).is_none(), "the old server is gone");
    let members = until_fine("etcd's members", async || person.talosctl(&["etcd", "members"]).await).await?;
    ensure!(members.contains("stock-cp-new") && !members.contains(&third.name), "{members}");
    faults::a_lost_server_is_absent_everywhere(&person, &second, &first).await?;
    members::a_dead_voter_blocks_additions_until_it_is_removed(&person, &first, &second).await?;
    members::a_graceful_reset_leaves_etcd(&person, &first, &Node::named(&cloud, "stock-cp-new")?).await?;
    members::a_lost_cluster_is_recovered_from_the_snapshot(&person, &first, &snapshot).await?;
    cloud.stop().await;
    members::nothing_runs(&first).await
}
