//! The gRPC services: who may call, and how errors become codes.

mod agent;
mod operator;
mod registration;

use std::{convert::Infallible, pin::Pin, sync::Arc};

use plan::shard::refusal::Code;
use process::explained;
use tonic::{Request, Status, body::Body, service::interceptor::InterceptedService};
use tower::util::{BoxCloneSyncService, MapResponse};

use super::{
    listener::ClientCertificate,
    term::{Term, TermError},
};
use crate::{
    clock::Clock,
    identity::{Peer, Registrar, Role},
    store::{Lead, StoreError},
    wire::{
        MESSAGE_LIMIT, agent_service_server::AgentServiceServer, operator_service_server::OperatorServiceServer,
        registration_service_server::RegistrationServiceServer,
    },
};

/// The lead of the cluster, while this server has it.
pub type ClusterLead = Arc<arc_swap::ArcSwapOption<Lead>>;

/// What the services work with.
#[derive(Clone)]
pub struct Parts {
    pub term: Arc<Term>,
    pub registrar: Arc<Registrar>,
    pub cluster_lead: ClusterLead,
    pub clock: Clock,
}

/// A service as a listener takes it.
pub type GrpcService = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Infallible>;

pub fn operator_service(parts: Parts) -> GrpcService {
    let clock = parts.clock.clone();
    let service = OperatorServiceServer::new(operator::Operator(parts))
        .max_decoding_message_size(MESSAGE_LIMIT)
        .max_encoding_message_size(MESSAGE_LIMIT);
    let admitted = InterceptedService::new(service, move |request| admit(request, Role::Operator, &clock));
    GrpcService::new(MapResponse::new(admitted, |response: http::Response<_>| response.map(Body::new)))
}

/// A report and its files' states are far smaller; its stream stays open, so that no other limit bounds it.
const REPORT: usize = 512 * 1024;

pub fn agent_service(parts: Parts) -> GrpcService {
    let clock = parts.clock.clone();
    let service = AgentServiceServer::new(agent::Agent(parts))
        .max_decoding_message_size(REPORT)
        .max_encoding_message_size(MESSAGE_LIMIT);
    let admitted = InterceptedService::new(service, move |request| admit(request, Role::Agent, &clock));
    GrpcService::new(MapResponse::new(admitted, |response: http::Response<_>| response.map(Body::new)))
}

/// Open to clients without a certificate: the nonce says who they are.
pub fn registration_service(parts: Parts) -> GrpcService {
    // A nonce and a key are small; the caller is not known yet.
    const SMALL: usize = 64 * 1024;
    GrpcService::new(RegistrationServiceServer::new(registration::Registration(parts)).max_decoding_message_size(SMALL))
}

/// Admits a client of that role, and says who it is.
fn admit(mut request: Request<()>, role: Role, clock: &Clock) -> Result<Request<()>, Status> {
    let certificate = request.extensions().get::<ClientCertificate>().and_then(|certificate| certificate.0.clone());
    let peer = Peer::read(certificate.as_deref(), clock.now())?;
    if peer.role != role {
        let text = format!("this port is for the role {}, the certificate has {}", role.as_str(), peer.role.as_str());
        return Err(Status::permission_denied(text));
    }
    request.extensions_mut().insert(peer);
    Ok(request)
}

/// Who calls. The interceptor has said so.
fn peer<T>(request: &Request<T>) -> Result<Peer, Status> {
    request.extensions().get::<Peer>().cloned().ok_or_else(|| Status::unauthenticated("the client is not known"))
}

type Events<T> = Pin<Box<dyn futures::Stream<Item = Result<T, Status>> + Send>>;

impl From<TermError> for Status {
    fn from(error: TermError) -> Self {
        match error {
            TermError::Lost(_) => Self::unavailable("this server does not lead any more; try again"),
            TermError::Store(StoreError::Conflict { .. }) => Self::aborted("another change was first; try again"),
            TermError::Store(error) => {
                tracing::warn!(error = %explained(&error), "storage");
                Self::unavailable("storage is unavailable; try again")
            }
            TermError::Provider(error) => error.into(),
            TermError::Refused(refusal) => Self::new(code(refusal.code), refusal.message),
            // Quotes nothing: a configuration is of all tenants.
            TermError::Config { .. } => Self::failed_precondition(
                "the configuration in storage has problems, and the last good one stays; `strata shard validate` and \
                 the server's log name them",
            ),
            TermError::Quarantined(_) => Self::internal(error.to_string()),
            TermError::Damaged { .. } => {
                tracing::error!(%error, "storage");
                Self::internal("an object in storage is damaged; the server's log names it")
            }
        }
    }
}

fn code(code: Code) -> tonic::Code {
    match code {
        Code::InvalidArgument => tonic::Code::InvalidArgument,
        Code::FailedPrecondition => tonic::Code::FailedPrecondition,
        Code::NotFound => tonic::Code::NotFound,
        Code::AlreadyExists => tonic::Code::AlreadyExists,
        Code::PermissionDenied => tonic::Code::PermissionDenied,
        Code::ResourceExhausted => tonic::Code::ResourceExhausted,
    }
}
