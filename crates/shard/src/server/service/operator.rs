//! The operator's port.

use tonic::{Request, Response, Status, async_trait};

use super::{Events, Parts, peer};
use crate::{
    store::Lead,
    wire::{self, Fence, operator_service_server::OperatorService},
};

pub struct Operator(pub Parts);

type Answer<T> = Result<Response<T>, Status>;

/// The features are cut; clients know this code as their absence.
fn no_sleep<T>() -> Answer<T> {
    Err(Status::unimplemented("tenants do not sleep on this server"))
}

fn named(id: &str) -> Result<(), Status> {
    if id.is_empty() { Err(Status::invalid_argument("instance_id: must not be empty")) } else { Ok(()) }
}

#[async_trait]
impl OperatorService for Operator {
    async fn renew_certificate(
        &self,
        request: Request<wire::RenewCertificateRequest>,
    ) -> Answer<wire::RenewCertificateResponse> {
        let peer = peer(&request)?;
        let key = request.into_inner().public_key_pem;
        if key.is_empty() {
            return Err(Status::invalid_argument("public_key_pem: must not be empty"));
        }
        if !self.0.cluster_lead.load().as_deref().is_some_and(Lead::is_valid) {
            return Err(Status::failed_precondition("this server does not lead the cluster; ask another shard"));
        }
        let issued = self.0.registrar.renew(&peer, &key, self.0.clock.now()).await?;
        Ok(Response::new(wire::RenewCertificateResponse {
            client_certificate_pem: issued.certificate_pem,
            expires_at: Some(wire::timestamp(issued.expires_at)),
        }))
    }

    async fn get_config_status(&self, _: Request<()>) -> Answer<wire::GetConfigStatusResponse> {
        Ok(Response::new(self.0.term.config_status()))
    }

    async fn refresh_config(&self, request: Request<()>) -> Answer<wire::RefreshConfigResponse> {
        let tenant = peer(&request)?.tenant;
        Ok(Response::new(self.0.term.refresh_config(&tenant).await?))
    }

    async fn list_groups(&self, request: Request<()>) -> Answer<wire::ListGroupsResponse> {
        let tenant = peer(&request)?.tenant;
        self.0.term.tenant_readable(&tenant)?;
        Ok(Response::new(self.0.term.list_groups(&tenant)))
    }

    async fn upsert_group(&self, request: Request<wire::UpsertGroupRequest>) -> Answer<wire::GroupStatus> {
        let (tenant, fence) = (peer(&request)?.tenant, Fence::read(request.metadata())?);
        Ok(Response::new(self.0.term.upsert_group(&tenant, request.into_inner(), &fence).await?))
    }

    async fn delete_group(&self, request: Request<wire::DeleteGroupRequest>) -> Answer<()> {
        let (tenant, fence) = (peer(&request)?.tenant, Fence::read(request.metadata())?);
        Ok(Response::new(self.0.term.delete_group(&tenant, &request.into_inner().key, &fence).await?))
    }

    async fn create_instance(
        &self,
        request: Request<wire::CreateInstanceRequest>,
    ) -> Answer<wire::CreateInstanceResponse> {
        let (tenant, fence) = (peer(&request)?.tenant, Fence::read(request.metadata())?);
        Ok(Response::new(self.0.term.create_instance(&tenant, request.into_inner(), &fence).await?))
    }

    async fn delete_instance(
        &self,
        request: Request<wire::DeleteInstanceRequest>,
    ) -> Answer<wire::DeleteInstanceResponse> {
        let (tenant, fence) = (peer(&request)?.tenant, Fence::read(request.metadata())?);
        let id = request.into_inner().instance_id;
        named(&id)?;
        Ok(Response::new(self.0.term.delete_instance(&tenant, &id, &fence).await?))
    }

    async fn get_instance_status(
        &self,
        request: Request<wire::GetInstanceStatusRequest>,
    ) -> Answer<wire::InstanceStatusResponse> {
        let tenant = peer(&request)?.tenant;
        let id = request.into_inner().instance_id;
        named(&id)?;
        Ok(Response::new(self.0.term.instance_status(&tenant, &id)?))
    }

    async fn acknowledge_drained(&self, request: Request<wire::AcknowledgeDrainedRequest>) -> Answer<()> {
        let (tenant, fence) = (peer(&request)?.tenant, Fence::read(request.metadata())?);
        let id = request.into_inner().instance_id;
        named(&id)?;
        Ok(Response::new(self.0.term.acknowledge_drained(&tenant, &id, &fence)?))
    }

    async fn sleep_tenant(&self, _: Request<wire::SleepTenantRequest>) -> Answer<wire::SleepTenantResponse> {
        no_sleep()
    }

    async fn wake_tenant(&self, _: Request<wire::WakeTenantRequest>) -> Answer<wire::WakeTenantResponse> {
        no_sleep()
    }

    async fn get_tenant_status(
        &self,
        _: Request<wire::GetTenantStatusRequest>,
    ) -> Answer<wire::GetTenantStatusResponse> {
        no_sleep()
    }

    type WatchGroupsStream = Events<wire::GroupEvent>;

    async fn watch_groups(&self, request: Request<()>) -> Answer<Self::WatchGroupsStream> {
        let tenant = peer(&request)?.tenant;
        self.0.term.tenant_readable(&tenant)?;
        Ok(Response::new(Box::pin(self.0.term.watch_groups(&tenant))))
    }

    type WatchInstancesStream = Events<wire::InstanceEvent>;

    async fn watch_instances(&self, request: Request<()>) -> Answer<Self::WatchInstancesStream> {
        let tenant = peer(&request)?.tenant;
        Ok(Response::new(Box::pin(self.0.term.watch_instances(&tenant))))
    }

    type WatchErrorsStream = Events<wire::ErrorEvent>;

    async fn watch_errors(&self, request: Request<()>) -> Answer<Self::WatchErrorsStream> {
        let tenant = peer(&request)?.tenant;
        Ok(Response::new(Box::pin(self.0.term.watch_errors(&tenant))))
    }
}
