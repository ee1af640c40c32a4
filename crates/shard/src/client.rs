//! The typed client of one shard.
//!
//! One channel per shard. An endpoint may be a list of addresses: standbys refuse connections, so that trying them in
//! turn finds the leader. Every call has a deadline; a call that meets it drops the connection, because a peer that
//! hangs still answers TCP keepalive and would never be left otherwise.

mod address;
mod agent;
mod backoff;
mod connector;
mod leader;
mod watch;

use std::{future::Future, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use tokio::sync::watch as signal;
pub use tonic::Code;
use tonic::{
    Request, Response, Status,
    transport::{Channel, Endpoint, Uri},
};

pub use address::{Address, AddressError, Addresses};
pub use agent::AgentClient;
pub use backoff::Backoff;
pub use leader::{LeaderPorts, leader_ports};
pub use watch::{Watch, Watched};

use crate::wire::{
    self, Fence, MESSAGE_LIMIT, operator_service_client::OperatorServiceClient,
    registration_service_client::RegistrationServiceClient,
};
use connector::Connector;

/// The original waits without a limit, and one dead shard then blocks the caller for good.
const CALL_DEADLINE: Duration = Duration::from_secs(10);

/// A creation waits for the provider's answer.
const CREATE_DEADLINE: Duration = Duration::from_secs(30);

/// A client of one shard's operator port. Clones share the channel.
#[derive(Clone)]
pub struct Client {
    link: Arc<Link>,
}

/// The one channel and how to replace it.
struct Link {
    connector: Connector,
    channel: ArcSwap<Channel>,
    /// Counts channels. Streams end with theirs: on one that is left they would hang with its peer.
    generation: signal::Sender<u64>,
}

/// Why a call gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No peer answered in time. The call may or may not have taken effect.
    #[error("shard unreachable ({:?}): {}", .0.code(), .0.message())]
    Unreachable(Status),
    /// The server refused the call, and the same call will be refused again.
    #[error("shard refused the call ({:?}): {}", .0.code(), .0.message())]
    Refused(Status),
    /// The server could not carry the call out; a later attempt may succeed.
    #[error("shard failed ({:?}): {}", .0.code(), .0.message())]
    Failed(Status),
}

impl CallError {
    pub fn code(&self) -> Code {
        match self {
            Self::Unreachable(status) | Self::Refused(status) | Self::Failed(status) => status.code(),
        }
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        // A server's own `Unknown` has no source; one that tonic made from a broken connection has.
        if status.code() == Code::Unknown && std::error::Error::source(&status).is_some() {
            return Self::Unreachable(Status::unavailable(status.message()));
        }
        match status.code() {
            // tonic answers `Cancelled` when its own channel gives a request up.
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => Self::Unreachable(status),
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Unauthenticated => Self::Refused(status),
            Code::Ok | Code::Unknown | Code::ResourceExhausted | Code::Aborted | Code::Internal | Code::DataLoss => {
                Self::Failed(status)
            }
        }
    }
}

type Operator = OperatorServiceClient<Channel>;

impl Client {
    /// Connects at the first call.
    pub fn new(addresses: Addresses, tls: Arc<rustls::ClientConfig>) -> Self {
        let connector = Connector::new(addresses, tls);
        let channel = ArcSwap::from_pointee(open(&connector));
        Self { link: Arc::new(Link { connector, channel, generation: signal::Sender::new(0) }) }
    }

    /// Uses another certificate from the next call on; streams open anew.
    pub fn replace_tls(&self, tls: Arc<rustls::ClientConfig>) {
        self.link.connector.replace_tls(tls);
        self.link.reconnect();
    }

    /// The channel as it is now, for services that this client does not know.
    pub fn channel(&self) -> Channel {
        Channel::clone(&self.link.channel.load())
    }

    pub async fn renew_certificate(
        &self,
        public_key_pem: Vec<u8>,
    ) -> Result<wire::RenewCertificateResponse, CallError> {
        let request = Request::new(wire::RenewCertificateRequest { public_key_pem });
        self.call(CALL_DEADLINE, |mut client| async move { client.renew_certificate(request).await }).await
    }

    pub async fn config_status(&self) -> Result<wire::GetConfigStatusResponse, CallError> {
        self.call(CALL_DEADLINE, |mut client| async move { client.get_config_status(()).await }).await
    }

    pub async fn refresh_config(&self) -> Result<wire::RefreshConfigResponse, CallError> {
        self.call(CALL_DEADLINE, |mut client| async move { client.refresh_config(()).await }).await
    }

    pub async fn list_groups(&self) -> Result<Vec<wire::GroupStatus>, CallError> {
        let answer = self.call(CALL_DEADLINE, |mut client| async move { client.list_groups(()).await }).await?;
        Ok(answer.groups)
    }

    pub async fn upsert_group(
        &self,
        request: wire::UpsertGroupRequest,
        fence: &Fence,
    ) -> Result<wire::GroupStatus, CallError> {
        let request = fenced(request, fence)?;
        self.call(CALL_DEADLINE, |mut client| async move { client.upsert_group(request).await }).await
    }

    pub async fn delete_group(&self, key: &str, fence: &Fence) -> Result<(), CallError> {
        let request = fenced(wire::DeleteGroupRequest { key: key.to_owned() }, fence)?;
        self.call(CALL_DEADLINE, |mut client| async move { client.delete_group(request).await }).await
    }

    pub async fn create_instance(
        &self,
        request: wire::CreateInstanceRequest,
        fence: &Fence,
    ) -> Result<wire::CreateInstanceResponse, CallError> {
        let request = fenced(request, fence)?;
        self.call(CREATE_DEADLINE, |mut client| async move { client.create_instance(request).await }).await
    }

    pub async fn delete_instance(
        &self,
        instance_id: &str,
        fence: &Fence,
    ) -> Result<wire::DeleteInstanceResponse, CallError> {
        let request = fenced(wire::DeleteInstanceRequest { instance_id: instance_id.to_owned() }, fence)?;
        self.call(CALL_DEADLINE, |mut client| async move { client.delete_instance(request).await }).await
    }

    pub async fn instance_status(&self, instance_id: &str) -> Result<wire::InstanceStatusResponse, CallError> {
        let request = Request::new(wire::GetInstanceStatusRequest { instance_id: instance_id.to_owned() });
        self.call(CALL_DEADLINE, |mut client| async move { client.get_instance_status(request).await }).await
    }

    pub async fn acknowledge_drained(&self, instance_id: &str, fence: &Fence) -> Result<(), CallError> {
        let request = fenced(wire::AcknowledgeDrainedRequest { instance_id: instance_id.to_owned() }, fence)?;
        self.call(CALL_DEADLINE, |mut client| async move { client.acknowledge_drained(request).await }).await
    }

    /// Group changes, over as many connections as it takes.
    pub fn watch_groups(&self, seed: u64) -> Watch<wire::GroupEvent> {
        Watch::new(self.clone(), seed, |mut client| Box::pin(async move { client.watch_groups(()).await }))
    }

    /// Drain notices and deletions.
    pub fn watch_instances(&self, seed: u64) -> Watch<wire::InstanceEvent> {
        Watch::new(self.clone(), seed, |mut client| Box::pin(async move { client.watch_instances(()).await }))
    }

    /// What the provider refused.
    pub fn watch_errors(&self, seed: u64) -> Watch<wire::ErrorEvent> {
        Watch::new(self.clone(), seed, |mut client| Box::pin(async move { client.watch_errors(()).await }))
    }

    async fn call<T, F>(&self, deadline: Duration, send: impl FnOnce(Operator) -> F) -> Result<T, CallError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let generation = *self.link.generation.borrow();
        let answer = tokio::time::timeout(deadline, send(self.operator())).await;
        let status = match answer {
            Ok(Ok(response)) => return Ok(response.into_inner()),
            Ok(Err(status)) => status,
            Err(_) => {
                self.link.leave(generation);
                Status::deadline_exceeded(format!("no answer within {} s", deadline.as_secs()))
            }
        };
        Err(status.into())
    }

    fn operator(&self) -> Operator {
        OperatorServiceClient::new(self.channel())
            .max_decoding_message_size(MESSAGE_LIMIT)
            .max_encoding_message_size(MESSAGE_LIMIT)
    }
}

impl Link {
    /// Leaves a peer that accepted the connection and hangs: the next call tries the next address. Of several calls
    /// that met their deadline on one channel, the first leaves it.
    fn leave(&self, generation: u64) {
        if *self.generation.borrow() == generation {
            self.connector.advance();
            self.reconnect();
        }
    }

    fn reconnect(&self) {
        self.channel.store(Arc::new(open(&self.connector)));
        self.generation.send_modify(|count| *count += 1);
    }
}

/// Registers a client by its nonce, without a client certificate.
pub async fn register(
    addresses: Addresses,
    tls: Arc<rustls::ClientConfig>,
    registrant: Registrant,
    request: wire::RegisterClientRequest,
) -> Result<wire::RegisterClientResponse, CallError> {
    let mut client = RegistrationServiceClient::new(open(&Connector::new(addresses, tls)));
    let send = async {
        match registrant {
            Registrant::Agent => client.register_agent(request).await,
            Registrant::Operator => client.register_operator(request).await,
        }
    };
    let late = || Status::deadline_exceeded(format!("no answer within {} s", CALL_DEADLINE.as_secs()));
    let answer = tokio::time::timeout(CALL_DEADLINE, send).await.unwrap_or_else(|_| Err(late()))?;
    Ok(answer.into_inner())
}

/// Which kind of client registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registrant {
    Agent,
    Operator,
}

fn fenced<T>(message: T, fence: &Fence) -> Result<Request<T>, CallError> {
    let mut request = Request::new(message);
    fence.write(request.metadata_mut())?;
    Ok(request)
}

/// No HTTP/2 pings: a stock server closes a connection that is pinged more often than every five minutes.
fn open(connector: &Connector) -> Channel {
    // The connector knows the addresses and the TLS around them; this one only fills the requests' authority.
    Endpoint::from(Uri::from_static("http://shard")).connect_with_connector_lazy(connector.clone())
}
