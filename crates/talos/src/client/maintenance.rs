//! A node without configuration. It accepts TLS without a client certificate, and that alone tells it from a
//! configured one: what it answers to `Version` differs between versions of Talos.

use std::{net::SocketAddr, sync::Arc};

use tonic::{Code, transport::Channel};

use super::{CALL_LIMIT, Error, Fingerprint, bounded, connect::Pin, service};
use crate::protocol::machine::{ApplyConfigurationRequest, machine_service_client::MachineServiceClient};

/// Where a node is in its life, as a client without certificate sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It waits for a configuration. Talos says which version it is from 1.13 on.
    Maintenance { version: Option<String> },
    /// It asks for a client certificate.
    Configured,
}

/// Speaks with one node that has no configuration, and with no other: the first certificate met is the only one
/// accepted later.
#[derive(Clone, Debug)]
pub struct Maintenance {
    pin: Arc<Pin>,
    service: MachineServiceClient<Channel>,
}

impl Maintenance {
    /// Connects when first used.
    pub fn new(address: SocketAddr) -> Self {
        let pin = Pin::new();
        let service = service(pin.channel(address));
        Self { pin, service }
    }

    /// Of the certificate that the node showed, once it was asked anything.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.pin.met()
    }

    /// Whether the node waits for a configuration. An error means that this is unknown.
    pub async fn stage(&self) -> Result<Stage, Error> {
        let mut service = self.service.clone();
        match bounded("Version", CALL_LIMIT, service.version(())).await {
            Ok(reply) => {
                let version = reply.into_inner().messages.into_iter().find_map(|message| message.version);
                Ok(Stage::Maintenance { version: version.map(|version| version.tag) })
            }
            Err(Error::Refused { code: Code::Unimplemented | Code::PermissionDenied, .. }) => {
                Ok(Stage::Maintenance { version: None })
            }
            Err(Error::CertificateRequired { .. }) => Ok(Stage::Configured),
            Err(error) => Err(error),
        }
    }

    /// Gives the node its configuration; it reboots into it. The reply is all there is to wait for: some versions keep
    /// the connection for a while. Returns the node's warnings.
    pub async fn apply(&self, configuration: &str) -> Result<Vec<String>, Error> {
        const RPC: &str = "ApplyConfiguration";
        let request = ApplyConfigurationRequest {
            data: configuration.as_bytes().to_vec(),
            ..ApplyConfigurationRequest::default()
        };
        let mut service = self.service.clone();
        let reply = bounded(RPC, CALL_LIMIT, service.apply_configuration(request)).await?.into_inner();
        let message = reply.messages.into_iter().next().ok_or(Error::Empty { rpc: RPC })?;
        match message.metadata.as_ref().and_then(|metadata| Error::from_metadata(RPC, metadata)) {
            Some(error) => Err(error),
            None => Ok(message.warnings),
        }
    }
}
