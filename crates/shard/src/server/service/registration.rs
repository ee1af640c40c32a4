//! The registration port.

use tonic::{Request, Response, Status, async_trait};

use super::Parts;
use crate::{
    identity::{Issued, Kind},
    store::Lead,
    wire::{self, registration_service_server::RegistrationService},
};

pub struct Registration(pub Parts);

type Answer<T> = Result<Response<T>, Status>;

fn answer(issued: Issued) -> Response<wire::RegisterClientResponse> {
    Response::new(wire::RegisterClientResponse {
        client_certificate_pem: issued.certificate_pem,
        expires_at: Some(wire::timestamp(issued.expires_at)),
    })
}

impl Registration {
    async fn register(&self, kind: Kind, request: wire::RegisterClientRequest) -> Result<Issued, Status> {
        let (token, key) = (&request.registration_nonce_jwt, &request.public_key_pem);
        self.0.registrar.register(kind, token, key, self.0.clock.now()).await
    }
}

#[async_trait]
impl RegistrationService for Registration {
    async fn register_agent(
        &self,
        request: Request<wire::RegisterClientRequest>,
    ) -> Answer<wire::RegisterClientResponse> {
        if !self.0.term.lead().is_valid() {
            return Err(Status::failed_precondition("this server does not lead the shard; try again"));
        }
        let request = request.into_inner();
        let claims = self.0.registrar.claims(Kind::Agent, &request.registration_nonce_jwt, self.0.clock.now())?;
        self.0.term.may_register(&claims.tenant, &claims.sub)?;
        let issued = self.register(Kind::Agent, request).await?;
        // It may have been deleted meanwhile: then its agent reports in vain.
        let _ = self.0.term.report_health(&claims.tenant, &claims.sub, None);
        Ok(answer(issued))
    }

    async fn register_operator(
        &self,
        request: Request<wire::RegisterClientRequest>,
    ) -> Answer<wire::RegisterClientResponse> {
        if !self.0.cluster_lead.load().as_deref().is_some_and(Lead::is_valid) {
            return Err(Status::failed_precondition("this server does not lead the cluster; ask another shard"));
        }
        Ok(answer(self.register(Kind::Operator, request.into_inner()).await?))
    }
}
