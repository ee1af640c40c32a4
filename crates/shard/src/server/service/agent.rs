//! The agents' port. Keys and files are not pushed: their streams stay open and silent, so that stock agents stay
//! connected.

use std::time::Duration;

use futures::StreamExt;
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::{Events, Parts, peer};
use crate::wire::{self, agent_service_server::AgentService};

/// Between two reports of one stream: an agent sends one a minute, and one that floods waits.
const PACE: Duration = Duration::from_millis(100);

pub struct Agent(pub Parts);

type Answer<T> = Result<Response<T>, Status>;

#[async_trait]
impl AgentService for Agent {
    type ReceiveKeyRequestsStream = Events<wire::KeyRequest>;

    async fn receive_key_requests(&self, _: Request<()>) -> Answer<Self::ReceiveKeyRequestsStream> {
        Ok(Response::new(futures::stream::pending().boxed()))
    }

    async fn submit_public_keys(&self, request: Request<wire::PublicKeysRequest>) -> Answer<()> {
        let peer = peer(&request)?;
        own(&peer.id, &request.into_inner().instance_id)?;
        Ok(Response::new(()))
    }

    async fn submit_health_report(&self, request: Request<Streaming<wire::HealthReportRequest>>) -> Answer<()> {
        let peer = peer(&request)?;
        let _open = self.0.term.health_stream(&peer.tenant, &peer.id);
        let mut reports = request.into_inner();
        while let Some(report) = reports.message().await? {
            own(&peer.id, &report.instance_id)?;
            let notice =
                report.termination_notice.map(|notice| notice.deadline.as_ref().and_then(wire::read_timestamp));
            self.0.term.report_health(&peer.tenant, &peer.id, notice)?;
            tokio::time::sleep(PACE).await;
        }
        Ok(Response::new(()))
    }

    type ReceiveFilesStream = Events<wire::FileMessage>;

    async fn receive_files(&self, _: Request<()>) -> Answer<Self::ReceiveFilesStream> {
        Ok(Response::new(futures::stream::pending().boxed()))
    }
}

/// An agent speaks for its own instance.
fn own(id: &str, claimed: &str) -> Result<(), Status> {
    if id == claimed { Ok(()) } else { Err(Status::permission_denied("instance_id: not the certificate's")) }
}
