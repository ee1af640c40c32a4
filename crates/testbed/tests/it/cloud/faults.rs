//! Each fault, as the vendors' own programs see it.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use talos::{Error, snapshot::SnapshotError};
use testbed::{
    cloud::{Cloud, Reply, Request, Where, ask},
    talos::{Impairment, eventually, partitions_here},
};

use super::{Node, Person, until_fine};

/// All that leave the cluster as it was.
pub async fn check_all(person: &Person<'_>, [first, second, third]: [&Node; 3]) -> Result<()> {
    programs_run_as_their_server(person.cloud, first)?;
    an_expired_certificate_is_refused(person, second).await?;
    a_call_fails_as_asked(person, second).await?;
    a_snapshot_that_ends_early_is_noticed(person, second).await?;
    a_stopped_etcd_and_a_silent_kubelet_are_seen(person, third).await?;
    a_slow_disk_is_complained_about(person, first).await?;
    if let Err(missing) = partitions_here() {
        testbed::skip(missing.to_string()).map_err(anyhow::Error::msg)?;
    } else {
        a_partition_of_the_apis_leaves_etcd_alone(person, second, first).await?;
        a_whole_partition_costs_a_member(person, third, first).await?;
    }
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
    person.until_it_answers(node).await
}

/// A fault of the next call of one kind.
fn call(node: &Node, rpc: &str, kind: &str) -> Request {
    Request::Node { name: node.name.clone(), rpc: Some(rpc.to_owned()), kind: kind.to_owned(), times: Some(1) }
}

/// Faults of calls, and the code under which talosctl shows each.
const CALLS: [(&str, &str); 7] = [
    ("permission-denied", "PermissionDenied"),
    ("unavailable", "Unavailable"),
    ("deadline-exceeded", "DeadlineExceeded"),
    ("resource-exhausted", "ResourceExhausted"),
    ("internal", "Internal"),
    ("unknown", "Unknown"),
    // The connection ends before the reply.
    ("lost-response", "Unavailable"),
];

async fn a_call_fails_as_asked(person: &Person<'_>, node: &Node) -> Result<()> {
    for (kind, code) in CALLS {
        person.fault(call(node, "ServiceList", kind)).await?;
        let Reply::Faults(active) = person.fault(Request::List).await? else { bail!("no list") };
        ensure!(active.len() == 1 && active[0].kind == kind, "{active:?}");
        person.talosctl_at(node, &["service"]).await?.refused(&[code]).context(kind)?;
        ensure!(person.fault(Request::List).await? == Reply::Faults(Vec::new()), "{kind} was met");
    }
    person.fault(call(node, "ServiceList", "slow=0.1")).await?;
    person.talosctl_at(node, &["service"]).await?.fine()?;
    let refused = person.fault(call(node, "ServiceList", "sometimes")).await.unwrap_err().to_string();
    ensure!(refused.contains("deadline-exceeded"), "{refused}");
    let refused = person.fault(call(node, "ServiceLists", "unavailable")).await.unwrap_err().to_string();
    ensure!(refused.contains("there are") && refused.contains("ServiceList,"), "{refused}");
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

/// By the vendor's program and by ours.
async fn a_snapshot_that_ends_early_is_noticed(person: &Person<'_>, node: &Node) -> Result<()> {
    let file = person.stock.folder.join("early.snapshot");
    let file = file.to_str().context("path")?;
    person.fault(call(node, "EtcdSnapshot", "ends-early=10000")).await?;
    person.talosctl_at(node, &["etcd", "snapshot", file]).await?.refused(&["sha256 checksum not found"])?;
    person.talosctl_at(node, &["etcd", "snapshot", file]).await?.fine()?;
    person.fault(call(node, "EtcdSnapshot", "ends-early=10000")).await?;
    match person.client(node)?.etcd_snapshot(&mut tokio::io::sink()).await {
        Err(Error::Snapshot(SnapshotError::EndedEarly { size: 10_000 })) => Ok(()),
        other => bail!("{other:?}"),
    }
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
    person.is_unhealthy(node).await?;
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
    let leads = || async { person.make_leader(node).await.map_err(|error| error.to_string()) };
    eventually("it leads", leads).await?;
    let log = person.cloud.world().machine(&node.name).context("no server")?.directory().join("etcd.log");
    // On a busy machine it may have complained before.
    let before = std::fs::read_to_string(&log)?.len();
    person.fault_of(node, "slow-disk").await?;
    let complains = || async {
        let text = std::fs::read_to_string(&log).map_err(|error| error.to_string())?.split_off(before);
        let words = ["slow disk", "took too long", "lost leader", "stepped down"];
        if words.iter().any(|words| text.contains(words)) { Ok(()) } else { Err(text) }
    };
    eventually("etcd complains about its disk", complains).await?;
    person.clear().await?;
    person.until_member_is_back(node).await
}

impl Person<'_> {
    async fn make_leader(&self, node: &Node) -> Result<()> {
        let said = self.etcdctl(node, &["endpoint", "status", "-w", "json"]).await?.fine()?;
        let status: Value = serde_json::from_str(said.lines().next().unwrap_or_default())?;
        let (id, leader) = (&status[0]["Status"]["header"]["member_id"], &status[0]["Status"]["leader"]);
        if id == leader {
            return Ok(());
        }
        let id = format!("{:x}", id.as_u64().context("no id")?);
        for name in ["stock-cp-1", "stock-cp-2", "stock-cp-3"] {
            let other = Node::named(self.cloud, name)?;
            // Only the leader hands leadership over.
            if self.etcdctl(&other, &["move-leader", &id]).await?.is_fine {
                return Ok(());
            }
        }
        bail!("no member handed leadership to {id}")
    }

    async fn until_it_answers(&self, node: &Node) -> Result<()> {
        until_fine("a version", async || self.talosctl_at(node, &["version"]).await).await.map(drop)
    }
}

const UNREACHABLE: [&str; 4] = ["DeadlineExceeded", "Unavailable", "timeout", "connection"];

async fn a_partition_of_the_apis_leaves_etcd_alone(person: &Person<'_>, node: &Node, other: &Node) -> Result<()> {
    person.fault_of(node, "api-partition").await?;
    person.talosctl_at(node, &["version"]).await?.refused(&UNREACHABLE)?;
    let through = ["--endpoints", &other.public, "--nodes", &node.private, "version"];
    person.talosctl(&through).await?.refused(&UNREACHABLE)?;
    person.until_ready_is(node, "Unknown").await?;
    until_fine("a healthy member", async || person.etcdctl(node, &["endpoint", "health"]).await).await?;
    person.clear().await?;
    person.until_it_answers(node).await?;
    person.until_ready_is(node, "True").await
}

async fn a_whole_partition_costs_a_member(person: &Person<'_>, node: &Node, other: &Node) -> Result<()> {
    person.fault_of(node, "partition").await?;
    let machine = person.cloud.world().machine(&node.name).context("no server")?;
    ensure!(machine.impairments() == [Impairment::Partition]);
    person.is_unhealthy(node).await?;
    person.talosctl_at(node, &["version"]).await?.refused(&UNREACHABLE)?;
    person.until_ready_is(node, "Unknown").await?;
    // The others are a quorum and go on.
    until_fine("a write", async || person.etcdctl(other, &["put", "during", "partition"]).await).await?;
    person.clear().await?;
    person.until_member_is_back(node).await?;
    let value = until_fine("a read", async || person.etcdctl(node, &["get", "during"]).await).await?;
    ensure!(value.contains("partition"), "it caught up: {value}");
    person.until_ready_is(node, "True").await
}

pub async fn a_server_without_power_is_off_for_its_cloud_too(person: &Person<'_>, node: &Node) -> Result<()> {
    person.fault_of(node, "power-off").await?;
    person.talosctl_at(node, &["version"]).await?.refused(&UNREACHABLE)?;
    ensure!(person.hcloud_status(&node.name).await? == "off");
    Ok(())
}

/// A server that the vendor lost: its API, the nodes and etcd agree that it is not there.
pub async fn a_lost_server_is_absent_everywhere(person: &Person<'_>, node: &Node, other: &Node) -> Result<()> {
    ensure!(person.hcloud_status(&node.name).await? == "running");
    person.fault_of(node, "delete").await?;
    ensure!(person.hcloud_status(&node.name).await? == "absent");
    person.talosctl_at(node, &["version"]).await?.refused(&UNREACHABLE)?;
    let through = ["--endpoints", &other.public, "--nodes", &node.private, "version"];
    person.talosctl(&through).await?.refused(&UNREACHABLE)?;
    person.is_unhealthy(node).await?;
    let members = async || person.talosctl_at(other, &["etcd", "members"]).await;
    let members = until_fine("etcd's members", members).await?;
    ensure!(members.contains(&node.name), "etcd keeps a member whose server is gone: {members}");
    Ok(())
}
