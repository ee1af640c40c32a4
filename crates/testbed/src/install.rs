//! Installing an operator the way its chart does: any objects, in order, as the admin.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
    runtime::wait::{await_condition, conditions::is_crd_established},
};
use serde_json::Value;

use crate::control_plane::{Error, READY_PATIENCE};

/// Applies the objects one after another; a CRD is served before the next object is applied.
pub(crate) async fn install(client: &Client, objects: &[Value]) -> Result<(), Error> {
    for object in objects {
        let object: DynamicObject = serde_json::from_value(object.clone()).expect("an object has kind and metadata");
        let types = object.types.as_ref().expect("an object has apiVersion and kind");
        let kind = GroupVersionKind::try_from(types).expect("an apiVersion is GROUP/VERSION");
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let name = object.metadata.name.as_deref().expect("an object to install has a name");
        api.patch(name, &PatchParams::apply("testbed").force(), &Patch::Apply(&object)).await?;
        if types.kind == "CustomResourceDefinition" {
            served(client, name).await?;
        }
    }
    Ok(())
}

async fn served(client: &Client, name: &str) -> Result<(), Error> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let established = await_condition(crds, name, is_crd_established());
    let not_ready = |why: String| Error::NotReady { what: format!("CRD {name}: {why}"), waited: READY_PATIENCE };
    match tokio::time::timeout(READY_PATIENCE, established).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(not_ready(error.to_string())),
        Err(_) => Err(not_ready("not established".to_owned())),
    }
}
