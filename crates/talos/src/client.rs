//! The client of the machine API: one node, through its own endpoint or through another node's.

mod connect;
mod error;
mod maintenance;
mod stream;

use std::{
    future::Future,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

pub use connect::{Credentials, Fingerprint};
pub use error::Error;
pub use maintenance::{Maintenance, Stage};
use tonic::{Code, Request, Response, Status, metadata::MetadataValue, transport::Channel};

use crate::{
    MESSAGE_LIMIT,
    protocol::machine::{
        ApplyConfiguration, ApplyConfigurationRequest, BootstrapRequest, EtcdForfeitLeadershipRequest,
        EtcdLeaveClusterRequest, EtcdMember, EtcdMemberAlarm, EtcdMemberListRequest, EtcdMemberStatus,
        EtcdRemoveMemberByIdRequest, GenerateClientConfiguration, GenerateClientConfigurationRequest, RebootRequest,
        ResetRequest, ServiceInfo, ShutdownRequest, UpgradeRequest, Version, apply_configuration_request::Mode,
        machine_service_client::MachineServiceClient,
    },
    talosconfig::Role,
};

/// Everything but defragmentation is answered from memory or by one write to etcd; a node that needs longer is as good
/// as gone, and the next round asks again.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// etcd answers when it has rewritten its whole database, of up to 8 GiB.
const DEFRAGMENT_LIMIT: Duration = Duration::from_mins(2);

/// etcd lets a member go only when all others were connected for five seconds; the node asks it until then.
const LEAVE_LIMIT: Duration = Duration::from_secs(30);

/// Speaks with one node. Cheap to clone; clones share a connection.
#[derive(Clone, Debug)]
pub struct Client {
    service: MachineServiceClient<Channel>,
    /// Nodes that the endpoint forwards to; itself where empty.
    targets: Targets,
}

#[derive(Clone, Debug)]
enum Targets {
    Endpoint,
    One(IpAddr),
    Many(Vec<IpAddr>),
}

/// What one of several nodes answered.
#[derive(Debug)]
pub struct Answer<T> {
    /// As the endpoint names it: the address it was asked under.
    pub node: String,
    pub reply: Result<T, Error>,
}

/// Calls one method with a deadline and hands back all messages of its reply.
macro_rules! messages {
    ($client:expr, $limit:expr, $rpc:literal, $method:ident, $request:expr) => {{
        let mut service = $client.service.clone();
        let request = $client.request($request);
        bounded($rpc, $limit, service.$method(request)).await?.into_inner().messages
    }};
}

/// Calls one method of one node; an error that the endpoint reports for the node is the call's error.
macro_rules! call {
    ($client:expr, $limit:expr, $rpc:literal, $method:ident, $request:expr) => {{
        let messages = messages!($client, $limit, $rpc, $method, $request);
        let message = messages.into_iter().next().ok_or(Error::Empty { rpc: $rpc })?;
        match message.metadata.as_ref().and_then(|metadata| Error::from_metadata($rpc, metadata)) {
            Some(error) => return Err(error),
            None => message,
        }
    }};
}

impl Client {
    /// Connects when first used.
    pub fn new(endpoint: SocketAddr, credentials: &Credentials) -> Self {
        Self { service: service(credentials.channel(endpoint)), targets: Targets::Endpoint }
    }

    /// The same connection, with calls forwarded to another node of the cluster.
    #[must_use]
    pub fn on(&self, node: IpAddr) -> Self {
        Self { service: self.service.clone(), targets: Targets::One(node) }
    }

    pub async fn version(&self) -> Result<Version, Error> {
        Ok(call!(self, CALL_LIMIT, "Version", version, ()))
    }

    pub async fn hostname(&self) -> Result<String, Error> {
        Ok(call!(self, CALL_LIMIT, "Hostname", hostname, ()).hostname)
    }

    pub async fn services(&self) -> Result<Vec<ServiceInfo>, Error> {
        Ok(call!(self, CALL_LIMIT, "ServiceList", service_list, ()).services)
    }

    /// Replaces the configuration of a node that has one.
    pub async fn apply(&self, configuration: &str, mode: Mode) -> Result<ApplyConfiguration, Error> {
        let request = ApplyConfigurationRequest {
            data: configuration.as_bytes().to_vec(),
            mode: mode.into(),
            ..ApplyConfigurationRequest::default()
        };
        Ok(call!(self, CALL_LIMIT, "ApplyConfiguration", apply_configuration, request))
    }

    /// Starts etcd of the first control plane; from the uploaded snapshot when `recover`.
    pub async fn bootstrap(&self, recover: bool) -> Result<(), Error> {
        let request = BootstrapRequest { recover_etcd: recover, recover_skip_hash_check: false };
        call!(self, CALL_LIMIT, "Bootstrap", bootstrap, request);
        Ok(())
    }

    /// Starts etcd of the first control plane, unless it was started before: a call whose reply was lost is repeated
    /// without harm.
    pub async fn ensure_bootstrapped(&self) -> Result<(), Error> {
        match self.bootstrap(false).await {
            Err(Error::Refused { code: Code::AlreadyExists, .. }) => Ok(()),
            other => other,
        }
    }

    /// Members as the cluster knows them; needs a leader.
    pub async fn etcd_members(&self) -> Result<Vec<EtcdMember>, Error> {
        let request = EtcdMemberListRequest { query_local: false };
        Ok(call!(self, CALL_LIMIT, "EtcdMemberList", etcd_member_list, request).members)
    }

    pub async fn etcd_status(&self) -> Result<EtcdMemberStatus, Error> {
        let status = call!(self, CALL_LIMIT, "EtcdStatus", etcd_status, ());
        status.member_status.ok_or(Error::Empty { rpc: "EtcdStatus" })
    }

    /// The status of several nodes by one call to the endpoint.
    pub async fn etcd_status_of(&self, nodes: &[IpAddr]) -> Result<Vec<Answer<EtcdMemberStatus>>, Error> {
        let many = Self { service: self.service.clone(), targets: Targets::Many(nodes.to_vec()) };
        let messages = messages!(many, CALL_LIMIT, "EtcdStatus", etcd_status, ());
        Ok(messages
            .into_iter()
            .map(|message| {
                let metadata = message.metadata.unwrap_or_default();
                let reply = match Error::from_metadata("EtcdStatus", &metadata) {
                    Some(error) => Err(error),
                    None => message.member_status.ok_or(Error::Empty { rpc: "EtcdStatus" }),
                };
                Answer { node: metadata.hostname, reply }
            })
            .collect())
    }

    /// Alarms of all members, each with its member's id.
    pub async fn etcd_alarms(&self) -> Result<Vec<EtcdMemberAlarm>, Error> {
        Ok(call!(self, CALL_LIMIT, "EtcdAlarmList", etcd_alarm_list, ()).member_alarms)
    }

    /// Clears the alarms of the node's own member and returns them.
    pub async fn etcd_disarm_alarms(&self) -> Result<Vec<EtcdMemberAlarm>, Error> {
        Ok(call!(self, CALL_LIMIT, "EtcdAlarmDisarm", etcd_alarm_disarm, ()).member_alarms)
    }

    /// Gives unused space back; the member answers nothing else meanwhile.
    pub async fn etcd_defragment(&self) -> Result<(), Error> {
        call!(self, DEFRAGMENT_LIMIT, "EtcdDefragment", etcd_defragment, ());
        Ok(())
    }

    /// For members whose node is gone; a living node leaves by itself ([`Self::etcd_leave`]).
    pub async fn etcd_remove_member(&self, member_id: u64) -> Result<(), Error> {
        let request = EtcdRemoveMemberByIdRequest { member_id };
        call!(self, CALL_LIMIT, "EtcdRemoveMemberByID", etcd_remove_member_by_id, request);
        Ok(())
    }

    /// Gives leadership to another member; the new leader's name, or `None` where the node did not lead.
    pub async fn etcd_forfeit_leadership(&self) -> Result<Option<String>, Error> {
        let request = EtcdForfeitLeadershipRequest {};
        let reply = call!(self, CALL_LIMIT, "EtcdForfeitLeadership", etcd_forfeit_leadership, request);
        Ok(Some(reply.member).filter(|member| !member.is_empty()))
    }

    /// Removes the node's own member and ends its etcd.
    pub async fn etcd_leave(&self) -> Result<(), Error> {
        call!(self, LEAVE_LIMIT, "EtcdLeaveCluster", etcd_leave_cluster, EtcdLeaveClusterRequest {});
        Ok(())
    }

    pub async fn reboot(&self) -> Result<(), Error> {
        call!(self, CALL_LIMIT, "Reboot", reboot, RebootRequest::default());
        Ok(())
    }

    pub async fn shutdown(&self, force: bool) -> Result<(), Error> {
        call!(self, CALL_LIMIT, "Shutdown", shutdown, ShutdownRequest { force });
        Ok(())
    }

    /// Wipes the node. Gracefully it leaves etcd first and refuses where that is not safe.
    pub async fn reset(&self, graceful: bool, reboot: bool) -> Result<(), Error> {
        let request = ResetRequest { graceful, reboot, ..ResetRequest::default() };
        call!(self, CALL_LIMIT, "Reset", reset, request);
        Ok(())
    }

    pub async fn upgrade(&self, image: &str, stage: bool) -> Result<(), Error> {
        let request = UpgradeRequest { image: image.to_owned(), stage, preserve: true, ..UpgradeRequest::default() };
        call!(self, CALL_LIMIT, "Upgrade", upgrade, request);
        Ok(())
    }

    /// A new client certificate and the talosconfig around it.
    pub async fn client_configuration(
        &self,
        role: Role,
        lifetime: Duration,
    ) -> Result<GenerateClientConfiguration, Error> {
        let request = GenerateClientConfigurationRequest {
            roles: vec![role.name().to_owned()],
            crt_ttl: prost_types::Duration::try_from(lifetime).ok(),
        };
        Ok(call!(self, CALL_LIMIT, "GenerateClientConfiguration", generate_client_configuration, request))
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let value = |node: &IpAddr| MetadataValue::try_from(node.to_string()).expect("an address is plain ASCII");
        match &self.targets {
            Targets::Endpoint => {}
            Targets::One(node) => {
                request.metadata_mut().insert("node", value(node));
            }
            Targets::Many(nodes) => {
                for node in nodes {
                    request.metadata_mut().append("nodes", value(node));
                }
            }
        }
        request
    }
}

fn service(channel: Channel) -> MachineServiceClient<Channel> {
    MachineServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT).max_encoding_message_size(MESSAGE_LIMIT)
}

/// The reply, or why there is none in time.
async fn bounded<T>(
    rpc: &'static str,
    limit: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<Response<T>, Error> {
    match tokio::time::timeout(limit, call).await {
        Ok(reply) => reply.map_err(|status| Error::from_status(rpc, &status)),
        Err(_) => Err(Error::TimedOut { rpc, seconds: limit.as_secs() }),
    }
}
