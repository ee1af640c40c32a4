//! The node's etcd member: how it starts, joins, leaves and is asked.

use std::{
    fs::{self, Permissions},
    io,
    net::Ipv4Addr,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use futures::Stream;
use talos::{
    Authority,
    certificate::Subject,
    protocol::machine::{EtcdMember, EtcdMemberAlarm, EtcdMemberStatus, etcd_member_alarm::AlarmType},
};
use tempfile::NamedTempFile;
use tonic::{Code, Status};

use super::{
    etcd_api::{Alarm, EtcdApi, Member},
    node::{Bootstrap, Node, POLL, State, on_disk, text},
};
use crate::process::Child;

pub(super) const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;

/// On the disk.
const DATA: &str = "etcd";
const SNAPSHOT: &str = "etcd.snapshot";

/// A member that is started serves within seconds; two busy cores were seen to need ten times that.
const START_LIMIT: Duration = Duration::from_mins(2);

/// Talos' own: how long it tries to leave.
const LEAVE_LIMIT: Duration = Duration::from_mins(5);

impl Node {
    fn peer_url(&self) -> String {
        format!("https://{}:{PEER_PORT}", self.private)
    }

    fn etcd_data(&self) -> PathBuf {
        self.directory.join(DATA)
    }

    /// Where an uploaded snapshot waits for `Bootstrap`.
    pub(super) fn recovery_file(&self) -> PathBuf {
        self.directory.join(SNAPSHOT)
    }

    /// A file for an upload that is not whole yet. etcd reads it as another user.
    pub(super) fn recovery_part(&self) -> io::Result<NamedTempFile> {
        let mut file = tempfile::Builder::new();
        file.suffix(".part").permissions(Permissions::from_mode(0o644)).tempfile_in(&self.directory)
    }

    pub(super) fn has_etcd_data(&self) -> bool {
        self.etcd_data().join("member").exists()
    }

    /// The node's own member.
    pub(super) fn etcd(&self) -> Result<EtcdApi, Status> {
        Ok(EtcdApi::new((self.private, CLIENT_PORT).into(), self.etcd_credentials()?))
    }

    /// Starts the member from its data, from a bootstrap, or by joining the members there are, and waits until it
    /// votes.
    pub(super) async fn start_etcd(self: &Arc<Self>) -> Result<(), String> {
        let me = format!("{}={}", self.hostname, self.peer_url());
        let joined = if self.has_etcd_data() {
            self.launch_etcd("existing", &me)?;
            None
        } else {
            match self.bootstrap_or_join().await {
                Entry::Bootstrap(how) => {
                    self.prepare_bootstrap(how, &me).await?;
                    self.launch_etcd("new", &me)?;
                    None
                }
                Entry::Joined { id, cluster } => {
                    self.launch_etcd("existing", &cluster)?;
                    Some(id)
                }
            }
        };
        self.report("etcd", State::Running, "Started");
        let learner = match joined {
            Some(id) => Some(id),
            // The node may have been rebooted before its member could vote.
            None => self.learner().await?,
        };
        if let Some(id) = learner {
            self.promote(id).await;
        }
        self.serves().await
    }

    /// The own member's id, where it cannot vote yet.
    async fn learner(&self) -> Result<Option<u64>, String> {
        let etcd = self.etcd().map_err(|status| status.to_string())?;
        let status = self.answers(|| etcd.status()).await?;
        Ok(status.is_learner.then(|| status.header.unwrap_or_default().member_id))
    }

    /// Waits for `Bootstrap` or for a cluster that takes the node in.
    async fn bootstrap_or_join(&self) -> Entry {
        let mut bootstrap = self.bootstrap.subscribe();
        loop {
            if let Some(how) = *bootstrap.borrow_and_update() {
                return Entry::Bootstrap(how);
            }
            if let Some(entry) = self.join().await {
                return entry;
            }
            // A refused addition has no event to wait for: etcd admits one when it finds its members healthy.
            let _ = tokio::time::timeout(POLL, bootstrap.changed()).await;
        }
    }

    /// Asks members of the cluster in turn to add this node.
    async fn join(&self) -> Option<Entry> {
        for peer in self.other_control_planes() {
            let Ok(etcd) = peer.etcd() else { continue };
            let Ok(members) = etcd.members(true).await else { continue };
            match self.enter(&etcd, &members).await {
                Ok((id, cluster)) => return Some(Entry::Joined { id, cluster }),
                Err(status) => self.report("etcd", State::Preparing, status.message()),
            }
        }
        None
    }

    /// Adds this node, which has no data, as Talos does. A learner under its address that never started is the node's own
    /// of an interrupted start. A member of its name lost its data with the disk and is removed. Any other member under its
    /// address, such as that of a server whose address was given out again, stays in the way.
    async fn enter(&self, etcd: &EtcdApi, members: &[Member]) -> Result<(u64, String), Status> {
        let url = self.peer_url();
        let is_own = |member: &&Member| member.is_learner && member.name.is_empty() && member.peer_urls.contains(&url);
        if let Some(own) = members.iter().find(is_own) {
            return Ok((own.id, self.initial_cluster(members)));
        }
        if let Some(old) = members.iter().find(|member| member.name == self.hostname) {
            etcd.remove(old.id).await?;
        }
        let (own, members) = etcd.add_learner(&url).await?;
        Ok((own.id, self.initial_cluster(&members)))
    }

    /// `name=url` of every member; a member that has not started has no name, and this node is it.
    fn initial_cluster(&self, members: &[Member]) -> String {
        let part = |member: &Member| {
            let url = member.peer_urls.first().cloned().unwrap_or_default();
            let name = if url == self.peer_url() { &self.hostname } else { &member.name };
            // Another node that has not started either: any name does.
            if name.is_empty() { format!("member-{:x}={url}", member.id) } else { format!("{name}={url}") }
        };
        members.iter().map(part).collect::<Vec<_>>().join(",")
    }

    /// A learner votes when it has caught up with the leader; until then etcd refuses.
    async fn promote(&self, id: u64) {
        loop {
            for peer in self.other_control_planes() {
                let Ok(etcd) = peer.etcd() else { continue };
                match etcd.promote(id).await {
                    Ok(()) => return,
                    Err(status) if status.message().ends_with("can only promote a learner member") => return,
                    Err(status) => self.report("etcd", State::Running, status.message()),
                }
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn serves(&self) -> Result<(), String> {
        let etcd = self.etcd().map_err(|status| status.to_string())?;
        self.answers(|| etcd.members(true)).await.map(|_| ())
    }

    /// Asks the member until it answers or has ended.
    async fn answers<T, F>(&self, ask: impl Fn() -> F) -> Result<T, String>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let answers = async {
            loop {
                if let Ok(answer) = ask().await {
                    return Ok(answer);
                }
                if let Some(child) = self.etcd_child()
                    && !child.is_running()
                {
                    return Err(format!("etcd ended:\n{}", child.log_tail()));
                }
                tokio::time::sleep(POLL).await;
            }
        };
        let late = || Err("it does not serve".to_owned());
        tokio::time::timeout(START_LIMIT, answers).await.unwrap_or_else(|_| late())
    }

    async fn prepare_bootstrap(&self, how: Bootstrap, me: &str) -> Result<(), String> {
        let Bootstrap::Recover { skip_hash_check } = how else { return Ok(()) };
        let world = self.world.upgrade().ok_or("the testbed has ended")?;
        self.give(&self.recovery_file())?;
        let program = self
            .program("etcdutl", &world.programs.etcdutl)
            .args(["snapshot".to_owned(), "restore".to_owned(), on_disk(SNAPSHOT)])
            .args(["--data-dir".to_owned(), on_disk(DATA)])
            .args(["--name", &self.hostname, "--initial-cluster", me])
            .args(["--initial-advertise-peer-urls", &self.peer_url()])
            .args(skip_hash_check.then_some("--skip-hash-check"));
        let child = Child::start(program).map_err(|error| error.to_string())?;
        match child.exited().await {
            0 => fs::remove_file(self.recovery_file()).map_err(|error| error.to_string()),
            status => Err(format!("etcdutl ended with {status}:\n{}", child.log_tail())),
        }
    }

    fn launch_etcd(&self, state: &str, cluster: &str) -> Result<(), String> {
        let world = self.world.upgrade().ok_or("the testbed has ended")?;
        let keys = self.applied.control_plane.as_ref().ok_or("a worker has no etcd")?;
        let authority = Authority::open(keys.etcd.clone()).map_err(|error| error.to_string())?;
        let hosts = self.hosts();
        // Every connection on loopback comes from 127.0.0.1, and peers check the address they see: it is among them.
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        let subject = Subject { common_name: Some(&self.hostname), hosts: &hosts, ..Subject::default() };
        let [certificate, key] = self.write_identity("etcd", &authority, &subject)?.map(|path| text(&path));
        let trusted = text(&self.write("etcd-ca.crt", authority.certificate())?);
        let client_url = client_url(self.private);
        let flags = [
            ("name", self.hostname.clone()),
            ("data-dir", on_disk(DATA)),
            ("listen-client-urls", client_url.clone()),
            ("advertise-client-urls", client_url),
            ("listen-peer-urls", self.peer_url()),
            ("initial-advertise-peer-urls", self.peer_url()),
            ("initial-cluster", cluster.to_owned()),
            ("initial-cluster-state", state.to_owned()),
            ("cert-file", certificate.clone()),
            ("key-file", key.clone()),
            ("trusted-ca-file", trusted.clone()),
            ("client-cert-auth", "true".to_owned()),
            ("peer-cert-file", certificate),
            ("peer-key-file", key),
            ("peer-trusted-ca-file", trusted),
            ("peer-client-cert-auth", "true".to_owned()),
            ("log-level", "warn".to_owned()),
        ];
        let program = self
            .program("etcd", &world.programs.etcd)
            .args(flags.map(|(name, value)| format!("--{name}={value}")))
            .args((!world.options.fsync).then_some("--unsafe-no-fsync"));
        let child = Child::start(program).map_err(|error| error.to_string())?;
        self.set_etcd(Some(Arc::new(child)));
        Ok(())
    }

    fn other_control_planes(&self) -> Vec<Arc<Node>> {
        let Some(world) = self.world.upgrade() else { return Vec::new() };
        let mut nodes = world.control_planes(&self.applied.cluster_id);
        let is_within_reach = |node: &Node| !self.is_isolated() && !node.is_isolated();
        nodes.retain(|node| node.private != self.private && node.etcd_child().is_some() && is_within_reach(node));
        nodes
    }

    /// The first member of the cluster that answers, this node's own first.
    async fn any_etcd(self: &Arc<Self>) -> Result<(EtcdApi, Vec<Member>), Status> {
        let mut last = Status::unavailable("no etcd member of the cluster can be reached");
        for node in std::iter::once(self.clone()).chain(self.other_control_planes()) {
            let etcd = node.etcd()?;
            match etcd.members(true).await {
                Ok(members) => return Ok((etcd, members)),
                Err(status) => last = status,
            }
        }
        Err(last)
    }

    pub(super) async fn etcd_members(self: &Arc<Self>, local: bool) -> Result<Vec<EtcdMember>, Status> {
        let members =
            if local { self.etcd()?.members(false).await } else { self.any_etcd().await.map(|found| found.1) };
        let members = members.map_err(|status| passed_on(&status, ""))?;
        let member = |member: Member| EtcdMember {
            id: member.id,
            hostname: member.name,
            peer_urls: member.peer_urls,
            client_urls: member.client_urls,
            is_learner: member.is_learner,
        };
        Ok(members.into_iter().map(member).collect())
    }

    pub(super) async fn etcd_status(&self) -> Result<EtcdMemberStatus, Status> {
        let status = self.etcd()?.status().await?;
        Ok(EtcdMemberStatus {
            protocol_version: status.version,
            db_size: status.db_size,
            db_size_in_use: status.db_size_in_use,
            leader: status.leader,
            raft_index: status.raft_index,
            raft_term: status.raft_term,
            raft_applied_index: status.raft_applied_index,
            errors: status.errors,
            is_learner: status.is_learner,
            member_id: status.header.unwrap_or_default().member_id,
            storage_version: status.storage_version,
        })
    }

    pub(super) async fn etcd_alarms(&self) -> Result<Vec<EtcdMemberAlarm>, Status> {
        Ok(self.etcd()?.alarms().await?.iter().map(alarm).collect())
    }

    pub(super) async fn etcd_disarm(&self) -> Result<Vec<EtcdMemberAlarm>, Status> {
        Ok(self.etcd()?.disarm().await?.iter().map(alarm).collect())
    }

    pub(super) async fn etcd_defragment(&self) -> Result<(), Status> {
        self.etcd()?.defragment().await
    }

    pub(super) async fn etcd_remove(self: &Arc<Self>, id: u64) -> Result<(), Status> {
        let (etcd, _) = self.any_etcd().await?;
        etcd.remove(id).await.map_err(|status| {
            let is_missing = status.code() == Code::NotFound || status.message().contains("member not found");
            if is_missing {
                Status::not_found(status.message().to_owned())
            } else {
                passed_on(&status, "failed to remove member: ")
            }
        })
    }

    /// The new leader's name; empty where this member does not lead.
    pub(super) async fn etcd_forfeit(&self) -> Result<String, Status> {
        let etcd = self.etcd()?;
        let status = etcd.status().await?;
        let me = status.header.unwrap_or_default().member_id;
        if status.leader != me {
            return Ok(String::new());
        }
        let members = etcd.members(true).await?;
        let heir = members.into_iter().find(|member| member.id != me && !member.is_learner);
        let heir = heir.ok_or_else(|| {
            Status::unknown("failed to forfeit leadership: cannot forfeit leadership, only one member")
        })?;
        etcd.move_leader(heir.id).await?;
        Ok(heir.name)
    }

    /// Removes the own member, then ends it and forgets its data.
    pub(super) async fn etcd_leave(self: &Arc<Self>) -> Result<(), Status> {
        let leave = async {
            let me = self.own_member().await?;
            // A leader that is removed leaves the others without one until they notice.
            let _ = self.etcd_forfeit().await;
            self.remove_when_healthy(me).await
        };
        let late = || Status::deadline_exceeded("failed to leave cluster: etcdserver: unhealthy cluster");
        tokio::time::timeout(LEAVE_LIMIT, leave).await.unwrap_or_else(|_| Err(late()))?;
        self.stop_etcd().await;
        self.set_etcd(None);
        fs::remove_dir_all(self.etcd_data()).map_err(|error| Status::internal(error.to_string()))
    }

    async fn own_member(self: &Arc<Self>) -> Result<u64, Status> {
        let members = loop {
            match self.etcd()?.members(true).await {
                Err(status) if is_passing(&status) => tokio::time::sleep(POLL).await,
                found => break found?,
            }
        };
        let url = self.peer_url();
        let me = members.iter().find(|member| member.peer_urls.contains(&url));
        me.map(|me| me.id).ok_or_else(|| Status::not_found("failed to find the node's own member"))
    }

    /// etcd refuses while not all members were connected for some seconds, and Talos asks again.
    async fn remove_when_healthy(self: &Arc<Self>, id: u64) -> Result<(), Status> {
        loop {
            match self.etcd_remove(id).await {
                Err(status) if status.code() == Code::NotFound => return Ok(()),
                Err(status) if is_passing(&status) => tokio::time::sleep(POLL).await,
                end => return end,
            }
        }
    }

    pub(super) async fn etcd_snapshot(&self) -> Result<impl Stream<Item = Result<Vec<u8>, Status>> + use<>, Status> {
        self.etcd()?.snapshot().await
    }

    /// What `Bootstrap` refuses.
    pub(super) fn bootstrap(&self, how: Bootstrap) -> Result<(), Status> {
        if !self.is_control_plane() {
            return Err(Status::failed_precondition("bootstrap can only be performed on a control plane node"));
        }
        // Asked for before, and on its way: etcd has written nothing yet.
        let is_begun = *self.bootstrap.borrow() == Some(Bootstrap::New);
        if self.has_etcd_data() || self.etcd_child().is_some() || is_begun {
            return Err(Status::already_exists("etcd data directory is not empty"));
        }
        if how != Bootstrap::New && !self.recovery_file().exists() {
            return Err(Status::failed_precondition("etcd snapshot was not uploaded"));
        }
        self.bootstrap.send_replace(Some(how));
        Ok(())
    }
}

/// Of what etcd itself says Talos passes the words on, and not the code.
fn passed_on(status: &Status, doing: &str) -> Status {
    let message = status.message();
    if message.starts_with("etcdserver: ") { Status::unknown(format!("{doing}{message}")) } else { status.clone() }
}

/// Also where there was no answer in time: what was asked for may be done, and asking again shows it.
fn is_passing(status: &Status) -> bool {
    let words = ["unhealthy cluster", "server stopped", "leader changed", "request timed out", "no leader"];
    matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded)
        || words.iter().any(|why| status.message().contains(why))
}

enum Entry {
    Bootstrap(Bootstrap),
    Joined { id: u64, cluster: String },
}

fn alarm(alarm: &Alarm) -> EtcdMemberAlarm {
    let kind = AlarmType::try_from(alarm.alarm).unwrap_or(AlarmType::None);
    EtcdMemberAlarm { member_id: alarm.member_id, alarm: kind.into() }
}

/// Where a member of the node serves clients.
pub(super) fn client_url(address: Ipv4Addr) -> String {
    format!("https://{address}:{CLIENT_PORT}")
}
