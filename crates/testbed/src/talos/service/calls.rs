//! Every call of the machine API that a simulated node knows.

use std::{io, sync::Arc};

use futures::{FutureExt, StreamExt, stream::BoxStream};
use talos::protocol::{
    common::Data,
    machine::{self as api, apply_configuration_request::Mode, machine_service_server::MachineService as MachineApi},
};
use tokio::io::AsyncWriteExt;
use tonic::{Code, Request, Response, Status, Streaming};

use super::{Agent, StreamTarget, delay, lose_reply, node_of, record, recorded, replies};
use crate::talos::{
    applied::Applied,
    fault::CallFault,
    machine::{After, Machine},
    node::Bootstrap,
};

type Reply<T> = Result<Response<T>, Status>;

/// Runs `$body` on every node that the call is for and puts the answers into one reply.
macro_rules! reply {
    ($agent:ident, $request:ident, $rpc:literal, $response:ident, |$machine:ident, $message:ident| $body:expr) => {{
        let input = $request.get_ref().clone();
        let run = move |$machine: Arc<Machine>| {
            let $message = input.clone();
            async move { $body }.boxed()
        };
        let messages = $agent.each(&$request, $rpc, run).await?;
        Ok(Response::new(api::$response { messages }))
    }};
}

#[tonic::async_trait]
impl MachineApi for Agent {
    type EtcdSnapshotStream = BoxStream<'static, Result<Data, Status>>;
    type KubeconfigStream = BoxStream<'static, Result<Data, Status>>;

    async fn version(&self, request: Request<()>) -> Reply<api::VersionResponse> {
        reply!(self, request, "Version", VersionResponse, |machine, _empty| Ok(replies::version(&machine)))
    }

    async fn hostname(&self, request: Request<()>) -> Reply<api::HostnameResponse> {
        reply!(self, request, "Hostname", HostnameResponse, |machine, _empty| {
            Ok(api::Hostname { metadata: None, hostname: node_of(&machine)?.hostname.clone() })
        })
    }

    async fn service_list(&self, request: Request<()>) -> Reply<api::ServiceListResponse> {
        reply!(self, request, "ServiceList", ServiceListResponse, |machine, _empty| {
            Ok(api::ServiceList { metadata: None, services: node_of(&machine)?.services() })
        })
    }

    async fn apply_configuration(
        &self,
        request: Request<api::ApplyConfigurationRequest>,
    ) -> Reply<api::ApplyConfigurationResponse> {
        reply!(self, request, "ApplyConfiguration", ApplyConfigurationResponse, |machine, message| apply(
            &machine, &message
        ))
    }

    async fn bootstrap(&self, request: Request<api::BootstrapRequest>) -> Reply<api::BootstrapResponse> {
        reply!(self, request, "Bootstrap", BootstrapResponse, |machine, message| {
            let skip_hash_check = message.recover_skip_hash_check;
            let how = if message.recover_etcd { Bootstrap::Recover { skip_hash_check } } else { Bootstrap::New };
            node_of(&machine)?.bootstrap(how)?;
            Ok(api::Bootstrap::default())
        })
    }

    async fn etcd_member_list(
        &self,
        request: Request<api::EtcdMemberListRequest>,
    ) -> Reply<api::EtcdMemberListResponse> {
        reply!(self, request, "EtcdMemberList", EtcdMemberListResponse, |machine, message| {
            let members = node_of(&machine)?.etcd_members(message.query_local).await?;
            let legacy_members = members.iter().map(|member| member.hostname.clone()).collect();
            Ok(api::EtcdMembers { metadata: None, legacy_members, members })
        })
    }

    async fn etcd_remove_member_by_id(
        &self,
        request: Request<api::EtcdRemoveMemberByIdRequest>,
    ) -> Reply<api::EtcdRemoveMemberByIdResponse> {
        reply!(self, request, "EtcdRemoveMemberByID", EtcdRemoveMemberByIdResponse, |machine, message| {
            node_of(&machine)?.etcd_remove(message.member_id).await?;
            Ok(api::EtcdRemoveMemberById::default())
        })
    }

    async fn etcd_leave_cluster(
        &self,
        request: Request<api::EtcdLeaveClusterRequest>,
    ) -> Reply<api::EtcdLeaveClusterResponse> {
        reply!(self, request, "EtcdLeaveCluster", EtcdLeaveClusterResponse, |machine, _empty| {
            node_of(&machine)?.etcd_leave().await?;
            Ok(api::EtcdLeaveCluster::default())
        })
    }

    async fn etcd_forfeit_leadership(
        &self,
        request: Request<api::EtcdForfeitLeadershipRequest>,
    ) -> Reply<api::EtcdForfeitLeadershipResponse> {
        reply!(self, request, "EtcdForfeitLeadership", EtcdForfeitLeadershipResponse, |machine, _empty| {
            let member = node_of(&machine)?.etcd_forfeit().await?;
            Ok(api::EtcdForfeitLeadership { metadata: None, member })
        })
    }

    async fn etcd_alarm_list(&self, request: Request<()>) -> Reply<api::EtcdAlarmListResponse> {
        reply!(self, request, "EtcdAlarmList", EtcdAlarmListResponse, |machine, _empty| {
            Ok(api::EtcdAlarm { metadata: None, member_alarms: node_of(&machine)?.etcd_alarms().await? })
        })
    }

    async fn etcd_alarm_disarm(&self, request: Request<()>) -> Reply<api::EtcdAlarmDisarmResponse> {
        reply!(self, request, "EtcdAlarmDisarm", EtcdAlarmDisarmResponse, |machine, _empty| {
            Ok(api::EtcdAlarmDisarm { metadata: None, member_alarms: node_of(&machine)?.etcd_disarm().await? })
        })
    }

    async fn etcd_defragment(&self, request: Request<()>) -> Reply<api::EtcdDefragmentResponse> {
        reply!(self, request, "EtcdDefragment", EtcdDefragmentResponse, |machine, _empty| {
            node_of(&machine)?.etcd_defragment().await?;
            Ok(api::EtcdDefragment::default())
        })
    }

    async fn etcd_status(&self, request: Request<()>) -> Reply<api::EtcdStatusResponse> {
        reply!(self, request, "EtcdStatus", EtcdStatusResponse, |machine, _empty| {
            let member_status = Some(node_of(&machine)?.etcd_status().await?);
            Ok(api::EtcdStatus { metadata: None, member_status })
        })
    }

    async fn etcd_snapshot(&self, request: Request<api::EtcdSnapshotRequest>) -> Reply<Self::EtcdSnapshotStream> {
        const RPC: &str = "EtcdSnapshot";
        let target = self.stream_target(&request, RPC)?;
        let snapshot = async { node_of(&target.machine)?.etcd_snapshot().await }.await;
        let pieces = snapshot.inspect_err(|status| record(&target.machine, RPC, status.code()))?;
        Ok(Response::new(recorded(target, self.machine().clone(), RPC, pieces)))
    }

    async fn etcd_recover(&self, request: Request<Streaming<Data>>) -> Reply<api::EtcdRecoverResponse> {
        const RPC: &str = "EtcdRecover";
        let target = self.stream_target(&request, RPC)?;
        let stored = store_snapshot(&target, request.into_inner()).await;
        record(&target.machine, RPC, stored.as_ref().map_or_else(Status::code, |()| Code::Ok));
        stored?;
        delay(target.fault).await;
        if target.fault == Some(CallFault::LostReply) {
            lose_reply(self.machine()).await;
        }
        let message = api::EtcdRecover { metadata: target.metadata };
        Ok(Response::new(api::EtcdRecoverResponse { messages: vec![message] }))
    }

    async fn kubeconfig(&self, request: Request<()>) -> Reply<Self::KubeconfigStream> {
        const RPC: &str = "Kubeconfig";
        let target = self.stream_target(&request, RPC)?;
        let archive = node_of(&target.machine).and_then(|node| replies::kubeconfig(&node));
        let archive = archive.inspect_err(|status| record(&target.machine, RPC, status.code()))?;
        let pieces = futures::stream::once(async move { Ok(archive) });
        Ok(Response::new(recorded(target, self.machine().clone(), RPC, pieces)))
    }

    async fn reboot(&self, request: Request<api::RebootRequest>) -> Reply<api::RebootResponse> {
        reply!(self, request, "Reboot", RebootResponse, |machine, _message| {
            machine.soon(After::Reboot);
            Ok(api::Reboot::default())
        })
    }

    async fn shutdown(&self, request: Request<api::ShutdownRequest>) -> Reply<api::ShutdownResponse> {
        reply!(self, request, "Shutdown", ShutdownResponse, |machine, _message| {
            machine.soon(After::Halt);
            Ok(api::Shutdown::default())
        })
    }

    async fn reset(&self, request: Request<api::ResetRequest>) -> Reply<api::ResetResponse> {
        reply!(self, request, "Reset", ResetResponse, |machine, message| reset(&machine, &message))
    }

    async fn upgrade(&self, request: Request<api::UpgradeRequest>) -> Reply<api::UpgradeResponse> {
        reply!(self, request, "Upgrade", UpgradeResponse, |machine, message| upgrade(&machine, &message))
    }

    async fn generate_client_configuration(
        &self,
        request: Request<api::GenerateClientConfigurationRequest>,
    ) -> Reply<api::GenerateClientConfigurationResponse> {
        reply!(self, request, "GenerateClientConfiguration", GenerateClientConfigurationResponse, |machine, message| {
            replies::client_configuration(&machine, &message)
        })
    }
}

fn io_failed(error: &io::Error) -> Status {
    Status::internal(error.to_string())
}

/// Stores a configuration and reboots into it, as far as the mode asks for that.
fn apply(machine: &Arc<Machine>, request: &api::ApplyConfigurationRequest) -> Result<api::ApplyConfiguration, Status> {
    let mode = request.mode();
    let is_new = machine.node().is_none();
    if is_new && matches!(mode, Mode::NoReboot | Mode::Staged) {
        let name = mode.as_str_name().to_lowercase().replace('_', "-");
        let why = format!("apply configuration --mode='{name}' is not supported in maintenance mode");
        return Err(Status::unimplemented(why));
    }
    Applied::read(&request.data)
        .map_err(|why| Status::invalid_argument(format!("configuration validation failed: {why}")))?;
    let details = if request.dry_run { "Dry run summary" } else { "Applied configuration" };
    if !request.dry_run {
        machine.write_configuration(&request.data).map_err(|error| io_failed(&error))?;
        if is_new || matches!(mode, Mode::Reboot | Mode::Auto) {
            machine.soon(After::Reboot);
        }
    }
    Ok(api::ApplyConfiguration { mode: mode.into(), mode_details: details.to_owned(), ..Default::default() })
}

/// Wipes the disk; a control plane leaves etcd first where that is asked for, and stays as it is where it cannot.
fn reset(machine: &Arc<Machine>, request: &api::ResetRequest) -> Result<api::Reset, Status> {
    if !request.system_partitions_to_wipe.is_empty() {
        return Err(Status::unimplemented("a simulated node wipes its whole disk"));
    }
    let after = if request.reboot { After::WipeAndReboot } else { After::WipeAndHalt };
    let leaves = node_of(machine).ok().filter(|node| request.graceful && node.is_control_plane());
    let machine = machine.clone();
    tokio::spawn(async move {
        let left = match leaves {
            Some(node) => node.etcd_leave().await,
            None => Ok(()),
        };
        match left {
            Ok(()) => machine.soon(after),
            Err(status) => {
                tracing::warn!(server = machine.name(), %status, "a node cannot leave etcd and is not reset");
            }
        }
    });
    Ok(api::Reset::default())
}

fn upgrade(machine: &Arc<Machine>, request: &api::UpgradeRequest) -> Result<api::Upgrade, Status> {
    let version = request.image.rsplit_once(':').map(|(_, tag)| tag).filter(|tag| tag.starts_with('v'));
    let Some(version) = version else {
        return Err(Status::unknown(format!("error validating installer image {:?}: no version", request.image)));
    };
    machine.write_version(version).map_err(|error| io_failed(&error))?;
    if !request.stage {
        machine.soon(After::Reboot);
    }
    Ok(api::Upgrade { ack: "Upgrade request received".to_owned(), ..Default::default() })
}

/// An upload that breaks leaves nothing.
async fn store_snapshot(target: &StreamTarget, mut pieces: Streaming<Data>) -> Result<(), Status> {
    let node = node_of(&target.machine)?;
    if !node.is_control_plane() {
        return Err(Status::unimplemented("etcd recover is only available on control plane nodes"));
    }
    if node.etcd_child().is_some() {
        return Err(Status::failed_precondition("etcd service is not ready for recovery yet"));
    }
    // Of this upload alone: one that its caller gave up may still be under way when the next begins.
    let part = node.recovery_part().map_err(|error| io_failed(&error))?;
    let mut file = tokio::fs::File::from_std(part.reopen().map_err(|error| io_failed(&error))?);
    let mut left = target.limit();
    while let Some(piece) = pieces.next().await {
        let bytes = piece?.bytes;
        let bytes = &bytes[..bytes.len().min(left)];
        left -= bytes.len();
        file.write_all(bytes).await.map_err(|error| io_failed(&error))?;
    }
    file.flush().await.map_err(|error| io_failed(&error))?;
    // To tonic an upload that was given up ends as a whole one does; hyper drops its call once that waits.
    tokio::task::yield_now().await;
    part.persist(node.recovery_file()).map_err(|error| io_failed(&error.error))?;
    Ok(())
}
