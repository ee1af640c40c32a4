//! A cloud with a cluster of three control planes that stock programs built, and what they see when something fails.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;
use testbed::{
    cloud::{Cloud, Reply, Request, Where, ask},
    talos::{Impairment, eventually, partitions_here},
    tools,
};
use tokio::process::Command;

/// A command waits for answers on loopback; one that speaks with a server that is cut off ends by its own limit.
const LIMIT: Duration = Duration::from_mins(2);
const CLUSTER: &str = "stock";

/// A person with the vendors' programs.
struct Person<'a> {
    cloud: &'a Cloud,
    folder: PathBuf,
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

impl Person<'_> {
    async fn run(&self, program: &Path, arguments: &[&str]) -> Result<Said> {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("HOME", &self.folder)
            .env("TALOSCONFIG", self.folder.join("talosconfig"))
            .env("KUBECONFIG", self.folder.join("kubeconfig"))
            .env("HCLOUD_ENDPOINT", self.cloud.endpoint())
            .env("HCLOUD_TOKEN", self.cloud.token())
            .env("CLUSTER", CLUSTER)
            .env("RANGE", self.cloud.network().to_string())
            .env("FOLDER", &self.folder)
            .env("TALOSCTL", tools::path("talosctl").await?)
            .env("KUBECTL", tools::path("kubectl").await?)
            .kill_on_drop(true);
        let output = tokio::time::timeout(3 * LIMIT, command.output()).await.context("it does not end")??;
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        Ok(Said { is_fine: output.status.success(), text })
    }

    async fn script(&self, arguments: &[&str]) -> Result<()> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/three-control-planes.sh");
        self.run(&script, arguments).await?.fine().map(drop)
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
        let file = |flag: &str, name: &str| format!("--{flag}={}", self.folder.join(name).display());
        let keys = [file("cacert", "etcd-ca.crt"), file("cert", "etcd.crt"), file("key", "etcd.key")];
        let mut all: Vec<&str> = keys.iter().map(String::as_str).collect();
        all.extend([endpoint.as_str(), "--command-timeout=3s"]);
        all.extend(arguments);
        self.run(&tools::path("etcdctl").await?, &all).await
    }

    /// Certificates for etcdctl, from the secrets that talosctl made.
    fn write_etcd_keys(&self) -> Result<()> {
        let secrets = talos::Secrets::from_yaml(&std::fs::read_to_string(self.folder.join("secrets.yaml"))?)?;
        let authority = talos::Authority::open(secrets.etcd)?;
        let subject = talos::certificate::Subject { common_name: Some("person"), ..Default::default() };
        let pair = authority.sign(&subject, jiff::Timestamp::now(), talos::talosconfig::LIFETIME)?;
        for (name, text) in
            [("etcd-ca.crt", authority.certificate()), ("etcd.crt", &pair.certificate), ("etcd.key", &pair.key)]
        {
            std::fs::write(self.folder.join(name), text)?;
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
            let said = self.etcdctl(node, &["endpoint", "health"]).await.map_err(|error| error.to_string())?;
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
}

impl Node {
    fn named(cloud: &Cloud, name: &str) -> Result<Self> {
        let machine = cloud.world().machine(name).with_context(|| format!("no server {name}"))?;
        Ok(Self { name: name.to_owned(), public: machine.public().to_string(), private: machine.private().to_string() })
    }
}

/// One story, since three control planes take their time to start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_programs_build_three_control_planes_see_every_fault_and_replace_one() -> Result<()> {
    let folder = TempDir::new()?;
    let cloud = Cloud::start(&folder.path().join("cloud")).await?;
    let person = Person { cloud: &cloud, folder: folder.path().join("person") };
    person.script(&["up"]).await?;
    person.write_etcd_keys()?;
    let [first, second, third] =
        ["stock-cp-1", "stock-cp-2", "stock-cp-3"].map(|name| Node::named(&cloud, name).unwrap());
    programs_run_as_their_server(&cloud, &first)?;
    an_expired_certificate_is_refused(&person, &second).await?;
    a_call_fails_as_asked(&person, &second).await?;
    a_stopped_etcd_and_a_silent_kubelet_are_seen(&person, &third).await?;
    a_slow_disk_is_complained_about(&person, &first).await?;
    if let Err(missing) = partitions_here() {
        testbed::skip(missing.to_string()).map_err(anyhow::Error::msg)?;
    } else {
        a_partition_of_the_apis_leaves_etcd_alone(&person, &second, &first).await?;
        a_whole_partition_costs_a_member(&person, &third, &first).await?;
    }
    a_server_without_power_is_off_for_its_cloud_too(&person, &third).await?;
    person.script(&["replace", &third.name]).await?;
    ensure!(cloud.world().machine(&third.name).is_none(), "the old server is gone");
    let members = person.talosctl(&["etcd", "members"]).await?.fine()?;
    ensure!(members.contains("stock-cp-new") && !members.contains(&third.name), "{members}");
    cloud.stop().await;
    Ok(())
}

/// Nothing else tells their traffic from that of other servers.
fn programs_run_as_their_server(cloud: &Cloud, node: &Node) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let machine = cloud.world().machine(&node.name).context("no server")?;
    let uid = u32::from(machine.private());
    for program in machine.programs() {
        let status = std::fs::read_to_string(format!("/proc/{}/status", program.pid))?;
        let own = status.lines().find(|line| line.starts_with("Uid:")).unwrap_or_default();
        ensure!(own.split_whitespace().nth(2) == Some(&uid.to_string()), "{}: {own}", program.name);
        let log = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&program.log)?);
        ensure!(log == uid, "{} belongs to {log}", program.log.display());
    }
    Ok(())
}

async fn an_expired_certificate_is_refused(person: &Person<'_>, node: &Node) -> Result<()> {
    person.fault_of(node, "certificate-expired").await?;
    person.talosctl_at(node, &["version"]).await?.refused(&["certificate has expired"])?;
    person.clear().await?;
    person.talosctl_at(node, &["version"]).await?.fine().map(drop)
}

async fn a_call_fails_as_asked(person: &Person<'_>, node: &Node) -> Result<()> {
    let call = |rpc: &str, kind: &str| Request::Node {
        name: node.name.clone(),
        rpc: Some(rpc.to_owned()),
        kind: kind.to_owned(),
        times: Some(1),
    };
    person.fault(call("ServiceList", "permission-denied")).await?;
    let Reply::Faults(active) = person.fault(Request::List).await? else { bail!("no list") };
    ensure!(active.len() == 1 && active[0].kind == "permission-denied", "{active:?}");
    person.talosctl_at(node, &["service"]).await?.refused(&["PermissionDenied"])?;
    person.talosctl_at(node, &["service"]).await?.fine()?;
    let refused = person.fault(call("ServiceList", "sometimes")).await.unwrap_err().to_string();
    ensure!(refused.contains("deadline-exceeded"), "{refused}");
    let refused = person.fault(Request::Node {
        name: "missing".to_owned(),
        rpc: None,
        kind: "partition".to_owned(),
        times: None,
    });
    let refused = refused.await.unwrap_err().to_string();
    ensure!(refused.contains("stock-cp-1"), "{refused}");
    let bad = ask(person.cloud.control(), "wrong", &Request::List).await?;
    ensure!(matches!(bad, Reply::Refused(_)), "{bad:?}");
    let capacity = Request::Hcloud {
        operation: "POST /servers".to_owned(),
        kind: "capacity".to_owned(),
        at: Where { location: Some("nbg1".to_owned()), server_type: None },
        times: None,
    };
    person.fault(capacity).await?;
    person.clear().await
}

async fn a_stopped_etcd_and_a_silent_kubelet_are_seen(person: &Person<'_>, node: &Node) -> Result<()> {
    let services_are = async |etcd: &str, kubelet: &str| {
        let services = person.talosctl_at(node, &["service"]).await?.fine()?;
        let is = |service: &str, state: &str| {
            services.lines().any(|line| line.contains(&format!(" {service} ")) && line.contains(state))
        };
        ensure!(is("etcd", etcd) && is("kubelet", kubelet), "{services}");
        anyhow::Ok(())
    };
    person.fault_of(node, "etcd-stopped").await?;
    person.etcdctl(node, &["endpoint", "health"]).await?.refused(&["unhealthy"])?;
    services_are("Finished", "").await?;
    person.clear().await?;
    person.until_member_is_back(node).await?;
    person.until_ready_is(node, "True").await?;
    person.fault_of(node, "kubelet-stopped").await?;
    person.until_ready_is(node, "Unknown").await?;
    services_are("Running", "Finished").await?;
    person.clear().await?;
    person.until_ready_is(node, "True").await
}

/// The leader says so itself, in its own words, or has lost its leadership by then.
async fn a_slow_disk_is_complained_about(person: &Person<'_>, node: &Node) -> Result<()> {
    let status = || async {
        let said = person.etcdctl(node, &["endpoint", "status", "-w", "json"]).await?.fine()?;
        let status: Value = serde_json::from_str(said.lines().next().unwrap_or_default())?;
        let status = &status[0]["Status"];
        anyhow::Ok((status["header"]["member_id"].clone(), status["leader"].clone()))
    };
    let (me, leader) = status().await?;
    if me != leader {
        let me = format!("{:x}", me.as_u64().context("no id")?);
        person.etcdctl_leader(&me).await?;
    }
    person.fault_of(node, "slow-disk").await?;
    let log = person.cloud.world().machine(&node.name).context("no server")?.directory().join("etcd.log");
    let complains = || async {
        let text = std::fs::read_to_string(&log).map_err(|error| error.to_string())?;
        let words = ["slow disk", "took too long", "lost leader", "stepped down"];
        if words.iter().any(|words| text.contains(words)) { Ok(()) } else { Err(text) }
    };
    eventually("etcd complains about its disk", complains).await?;
    person.clear().await?;
    person.until_member_is_back(node).await
}

impl Person<'_> {
    /// Makes the member with this id the leader.
    async fn etcdctl_leader(&self, id: &str) -> Result<()> {
        for name in ["stock-cp-1", "stock-cp-2", "stock-cp-3"] {
            let node = Node::named(self.cloud, name)?;
            // Only the leader hands leadership over.
            if self.etcdctl(&node, &["move-leader", id]).await?.is_fine {
                return Ok(());
            }
        }
        bail!("no member handed leadership to {id}")
    }
}

const UNREACHABLE: [&str; 4] = ["DeadlineExceeded", "Unavailable", "timeout", "connection"];

async fn a_partition_of_the_apis_leaves_etcd_alone(person: &Person<'_>, node: &Node, other: &Node) -> Result<()> {
    person.fault_of(node, "api-partition").await?;
    person.talosctl_at(node, &["version"]).await?.refused(&UNREACHABLE)?;
    let through = ["--endpoints", &other.public, "--nodes", &node.private, "version"];
    person.talosctl(&through).await?.refused(&UNREACHABLE)?;
    person.until_ready_is(node, "Unknown").await?;
    person.etcdctl(node, &["endpoint", "health"]).await?.fine()?;
    person.clear().await?;
    person.talosctl_at(node, &["version"]).await?.fine()?;
    person.until_ready_is(node, "True").await
}

async fn a_whole_partition_costs_a_member(person: &Person<'_>, node: &Node, other: &Node) -> Result<()> {
    person.fault_of(node, "partition").await?;
    let machine = person.cloud.world().machine(&node.name).context("no server")?;
    ensure!(machine.impairments() == [Impairment::Partition]);
    person.etcdctl(node, &["endpoint", "health"]).await?.refused(&["unhealthy"])?;
    person.talosctl_at(node, &["version"]).await?.refused(&UNREACHABLE)?;
    person.until_ready_is(node, "Unknown").await?;
    // The others are a quorum and go on.
    person.etcdctl(other, &["put", "during", "partition"]).await?.fine()?;
    person.clear().await?;
    person.until_member_is_back(node).await?;
    let value = person.etcdctl(node, &["get", "during"]).await?.fine()?;
    ensure!(value.contains("partition"), "it caught up: {value}");
    person.until_ready_is(node, "True").await
}

async fn a_server_without_power_is_off_for_its_cloud_too(person: &Person<'_>, node: &Node) -> Result<()> {
    person.fault_of(node, "power-off").await?;
    person.talosctl_at(node, &["version"]).await?.refused(&UNREACHABLE)?;
    let header = format!("Authorization: Bearer {}", person.cloud.token());
    let url = format!("{}/servers?name={}", person.cloud.endpoint(), node.name);
    let said = person.run(Path::new("curl"), &["--silent", "--header", &header, &url]).await?.fine()?;
    let servers: Value = serde_json::from_str(&said)?;
    ensure!(servers["servers"][0]["status"] == "off", "{said}");
    Ok(())
}
