//! The client of an agent: one stream of reports.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use futures::Stream;
use tonic::transport::{Channel, Endpoint, Uri};

use super::{Addresses, CallError, Connector};
use crate::wire::{HealthReportRequest, agent_service_client::AgentServiceClient};

/// The agents' port allows pings from every 10 s on, without streams too. A stream of reports has no answers: a server
/// that hangs would not be noticed otherwise.
const PING: Duration = Duration::from_secs(20);
const PING_PATIENCE: Duration = Duration::from_secs(10);

/// A client of one shard's agent port.
pub struct AgentClient {
    connector: Connector,
    channel: ArcSwap<Channel>,
}

impl AgentClient {
    /// Connects at the first report.
    pub fn new(addresses: Addresses, tls: Arc<rustls::ClientConfig>) -> Self {
        let connector = Connector::new(addresses, tls);
        let channel = ArcSwap::from_pointee(open(&connector));
        Self { connector, channel }
    }

    /// Uses another certificate from the next stream on.
    pub fn replace_tls(&self, tls: Arc<rustls::ClientConfig>) {
        self.connector.replace_tls(tls);
        self.channel.store(Arc::new(open(&self.connector)));
    }

    /// Sends reports until the stream or the connection ends.
    pub async fn report(
        &self,
        reports: impl Stream<Item = HealthReportRequest> + Send + 'static,
    ) -> Result<(), CallError> {
        let mut client = AgentServiceClient::new(Channel::clone(&self.channel.load()));
        client.submit_health_report(reports).await?;
        Ok(())
    }
}

fn open(connector: &Connector) -> Channel {
    Endpoint::from(Uri::from_static("http://shard"))
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PING_PATIENCE)
        .connect_with_connector_lazy(connector.clone())
}
