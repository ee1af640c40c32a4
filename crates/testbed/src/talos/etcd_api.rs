//! The part of etcd's API that a Talos node uses.

use std::{future::Future, net::SocketAddr, time::Duration};

use futures::Stream;
use http::uri::PathAndQuery;
use prost::Message;
use talos::Credentials;
use tonic::{Request, Status, client::Grpc, transport::Channel};
use tonic_prost::ProstCodec;

/// A member answers at once or is not able to; it is asked again anyway.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// A database of a test is small, but two cores may be busy.
const DEFRAGMENT_LIMIT: Duration = Duration::from_mins(1);

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Member {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, repeated, tag = "3")]
    pub peer_urls: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub client_urls: Vec<String>,
    #[prost(bool, tag = "5")]
    pub is_learner: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Header {
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Status3 {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(string, tag = "2")]
    pub version: String,
    #[prost(int64, tag = "3")]
    pub db_size: i64,
    #[prost(uint64, tag = "4")]
    pub leader: u64,
    #[prost(uint64, tag = "5")]
    pub raft_index: u64,
    #[prost(uint64, tag = "6")]
    pub raft_term: u64,
    #[prost(uint64, tag = "7")]
    pub raft_applied_index: u64,
    #[prost(string, repeated, tag = "8")]
    pub errors: Vec<String>,
    #[prost(int64, tag = "9")]
    pub db_size_in_use: i64,
    #[prost(bool, tag = "10")]
    pub is_learner: bool,
    #[prost(string, tag = "11")]
    pub storage_version: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Alarm {
    #[prost(uint64, tag = "1")]
    pub member_id: u64,
    /// 1 is NOSPACE, 2 is CORRUPT.
    #[prost(int32, tag = "2")]
    pub alarm: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct AlarmRequest {
    /// 0 gets, 2 clears.
    #[prost(int32, tag = "1")]
    action: i32,
    #[prost(uint64, tag = "2")]
    member_id: u64,
    #[prost(int32, tag = "3")]
    alarm: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct AlarmResponse {
    #[prost(message, repeated, tag = "2")]
    alarms: Vec<Alarm>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct MemberAddRequest {
    #[prost(string, repeated, tag = "1")]
    peer_urls: Vec<String>,
    #[prost(bool, tag = "2")]
    is_learner: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct MemberAddResponse {
    #[prost(message, optional, tag = "2")]
    member: Option<Member>,
    #[prost(message, repeated, tag = "3")]
    members: Vec<Member>,
}

/// Of MemberRemove, MemberPromote and MoveLeader.
#[derive(Clone, PartialEq, Eq, Message)]
struct ById {
    #[prost(uint64, tag = "1")]
    id: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct MemberListRequest {
    #[prost(bool, tag = "1")]
    linearizable: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct MemberListResponse {
    #[prost(message, repeated, tag = "2")]
    members: Vec<Member>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct SnapshotResponse {
    #[prost(bytes = "vec", tag = "3")]
    blob: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Empty {}

/// Speaks with one member.
#[derive(Clone)]
pub(super) struct EtcdApi(Grpc<Channel>);

impl EtcdApi {
    pub(super) fn new(address: SocketAddr, credentials: &Credentials) -> Self {
        Self(Grpc::new(credentials.channel(address)))
    }

    /// Through the leader, or as the member itself knows.
    pub(super) async fn members(&self, linearizable: bool) -> Result<Vec<Member>, Status> {
        let request = MemberListRequest { linearizable };
        let reply: MemberListResponse = self.call("/etcdserverpb.Cluster/MemberList", request).await?;
        Ok(reply.members)
    }

    /// The new member and all members with it.
    pub(super) async fn add_learner(&self, peer_url: &str) -> Result<(Member, Vec<Member>), Status> {
        let request = MemberAddRequest { peer_urls: vec![peer_url.to_owned()], is_learner: true };
        let reply: MemberAddResponse = self.call("/etcdserverpb.Cluster/MemberAdd", request).await?;
        let member = reply.member.ok_or_else(|| Status::internal("etcd added no member"))?;
        Ok((member, reply.members))
    }

    pub(super) async fn promote(&self, id: u64) -> Result<(), Status> {
        let Empty {} = self.call("/etcdserverpb.Cluster/MemberPromote", ById { id }).await?;
        Ok(())
    }

    pub(super) async fn remove(&self, id: u64) -> Result<(), Status> {
        let Empty {} = self.call("/etcdserverpb.Cluster/MemberRemove", ById { id }).await?;
        Ok(())
    }

    pub(super) async fn move_leader(&self, id: u64) -> Result<(), Status> {
        let Empty {} = self.call("/etcdserverpb.Maintenance/MoveLeader", ById { id }).await?;
        Ok(())
    }

    pub(super) async fn status(&self) -> Result<Status3, Status> {
        self.call("/etcdserverpb.Maintenance/Status", Empty {}).await
    }

    pub(super) async fn alarms(&self) -> Result<Vec<Alarm>, Status> {
        let request = AlarmRequest { action: 0, member_id: 0, alarm: 0 };
        let reply: AlarmResponse = self.call("/etcdserverpb.Maintenance/Alarm", request).await?;
        Ok(reply.alarms)
    }

    /// Clears every alarm and returns what was cleared.
    pub(super) async fn disarm(&self) -> Result<Vec<Alarm>, Status> {
        let alarms = self.alarms().await?;
        for &Alarm { member_id, alarm } in &alarms {
            let request = AlarmRequest { action: 2, member_id, alarm };
            let _: AlarmResponse = self.call("/etcdserverpb.Maintenance/Alarm", request).await?;
        }
        Ok(alarms)
    }

    pub(super) async fn defragment(&self) -> Result<(), Status> {
        let call = self.unbounded("/etcdserverpb.Maintenance/Defragment", Empty {});
        let Empty {} = within(DEFRAGMENT_LIMIT, call).await?;
        Ok(())
    }

    /// The database and its digest, piece by piece.
    pub(super) async fn snapshot(&self) -> Result<impl Stream<Item = Result<Vec<u8>, Status>> + use<>, Status> {
        use futures::StreamExt;
        let mut grpc = self.ready().await?;
        let path = PathAndQuery::from_static("/etcdserverpb.Maintenance/Snapshot");
        let codec = ProstCodec::<Empty, SnapshotResponse>::default();
        let reply = grpc.server_streaming(Request::new(Empty {}), path, codec).await?;
        Ok(reply.into_inner().map(|piece| piece.map(|piece| piece.blob)))
    }

    async fn call<Q, R>(&self, path: &'static str, request: Q) -> Result<R, Status>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        within(CALL_LIMIT, self.unbounded(path, request)).await
    }

    async fn unbounded<Q, R>(&self, path: &'static str, request: Q) -> Result<R, Status>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let mut grpc = self.ready().await?;
        let codec = ProstCodec::<Q, R>::default();
        let reply = grpc.unary(Request::new(request), PathAndQuery::from_static(path), codec).await?;
        Ok(reply.into_inner())
    }

    async fn ready(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = self.0.clone();
        grpc.ready().await.map_err(|error| Status::unavailable(format!("etcd: {error}")))?;
        Ok(grpc)
    }
}

async fn within<T>(limit: Duration, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = || Status::deadline_exceeded("etcd does not answer");
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| Err(late()))
}
