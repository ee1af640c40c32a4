//! A cluster as its admin sees it: putting our objects in, and telling them from others'.

use std::{path::Path, time::Duration};

use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Namespace},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    config::Kubeconfig,
    core::{ApiResource, GroupVersionKind},
};
use runtime::{
    config_of_kubeconfig,
    rights::{layer_role, rbac},
};
use serde::Serialize;
use testbed::control_plane::READY_PATIENCE;
use tokio::time::Instant;

use super::{event::Report, explained};
use crate::{Failure, layers};

/// The chart's own, so that `dev` shows what a real installation may do.
pub const NAMESPACE: &str = "strata-system";
pub const ACCOUNT: &str = "strata";

/// On everything that `dev up` creates, and the only ground on which it changes or removes anything.
const OWNER_LABEL: &str = "app.kubernetes.io/managed-by";
const OWNER: &str = "strata-dev";

pub const POLL: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub struct Cluster {
    pub client: Client,
    pub kubeconfig: Kubeconfig,
}

impl Cluster {
    /// By a context of the file, or by its current one.
    pub async fn connect(path: &Path, context: Option<&str>) -> Result<Self, Failure> {
        let fail = |error: &dyn std::error::Error| {
            Failure::new(format!("cannot use the kubeconfig {}: {}", path.display(), explained(error)))
        };
        let mut kubeconfig = Kubeconfig::read_from(path).map_err(|error| fail(&error))?;
        if let Some(context) = context {
            kubeconfig.current_context = Some(context.to_owned());
        }
        let config = config_of_kubeconfig(kubeconfig.clone(), None).await.map_err(|error| fail(&error))?;
        let client = testbed::patient(config).map_err(|error| fail(&error))?;
        client.apiserver_version().await.map_err(|error| fail(&error))?;
        Ok(Self { client, kubeconfig })
    }

    pub fn api(&self, object: &DynamicObject) -> Api<DynamicObject> {
        let types = object.types.as_ref().expect("our objects name their kind");
        let kind = GroupVersionKind::try_from(types).expect("our objects name a well-formed kind");
        let resource = ApiResource::from_gvk(&kind);
        match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// Namespace, CRDs and rights. What somebody else put there is used as it is.
    pub async fn install(&self, report: &Report) -> Result<(), Failure> {
        for object in installed() {
            if !self.apply(&object).await? {
                report.note(format!("{} was there before: left as it is", named(&object)));
            }
        }
        self.crds_served().await
    }

    /// Creates or updates an object of ours; `false` if one of somebody else's has its name.
    pub async fn apply(&self, object: &DynamicObject) -> Result<bool, Failure> {
        let (api, name) = (self.api(object), object.name_any());
        if api.get_opt(&name).await?.is_some_and(|present| !is_ours(&present.metadata)) {
            return Ok(false);
        }
        // Forced: what a user edited in our own objects would otherwise block every later start.
        api.patch(&name, &PatchParams::apply(OWNER).force(), &Patch::Apply(&marked(object))).await?;
        Ok(true)
    }

    /// Creates an object; `false` if it is there already, whosever it is.
    pub async fn create(&self, object: &DynamicObject) -> Result<bool, Failure> {
        let api = self.api(object);
        // The patient client takes what it finds for what it was to create.
        if api.get_opt(&object.name_any()).await?.is_some() {
            return Ok(false);
        }
        match api.create(&PostParams::default(), &marked(object)).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub async fn has_lease(&self) -> Result<bool, Failure> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        Ok(leases.get_opt(runtime::rights::DEFAULT_LEASE).await?.is_some())
    }

    async fn crds_served(&self) -> Result<(), Failure> {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let deadline = Instant::now() + READY_PATIENCE;
        for name in layers::crds().iter().map(ResourceExt::name_any) {
            while !is_served(&crds.get(&name).await?) {
                if Instant::now() > deadline {
                    let patience = READY_PATIENCE.as_secs();
                    return Err(Failure::new(format!("the API server does not serve {name} after {patience} s")));
                }
                tokio::time::sleep(POLL).await;
            }
        }
        Ok(())
    }
}

fn is_served(crd: &CustomResourceDefinition) -> bool {
    let conditions = crd.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Established" && condition.status == "True")
}

/// All that the operator needs, in the order of creation.
pub fn installed() -> Vec<DynamicObject> {
    let metadata = ObjectMeta { name: Some(NAMESPACE.to_owned()), ..ObjectMeta::default() };
    let rbac = rbac(NAMESPACE, ACCOUNT, &layers::rights());
    let mut objects = vec![dynamic(&Namespace { metadata, ..Namespace::default() })];
    objects.extend(layers::crds().iter().map(dynamic));
    objects.extend([
        dynamic(&rbac.account),
        dynamic(&rbac.cluster_role),
        dynamic(&rbac.cluster_binding),
        dynamic(&rbac.role),
        dynamic(&rbac.binding),
    ]);
    objects.extend(layers::roles().iter().map(dynamic));
    // On one's own machine helm may act as the operator.
    objects.push(dynamic(&workspaces::rights::helm_binding(NAMESPACE, ACCOUNT)));
    for spec in layers::all() {
        if !spec.own_namespace.is_empty() {
            let (role, binding) = layer_role(NAMESPACE, ACCOUNT, spec.name, spec.own_namespace);
            objects.extend([dynamic(&role), dynamic(&binding)]);
        }
        for account in spec.accounts {
            let (account, binding) = account.objects(NAMESPACE);
            objects.extend([dynamic(&account), dynamic(&binding)]);
        }
    }
    objects
}

pub fn dynamic<T: Serialize>(object: &T) -> DynamicObject {
    let value = serde_json::to_value(object).expect("Kubernetes objects have a JSON form");
    serde_json::from_value(value).expect("a Kubernetes object has kind and metadata")
}

fn marked(object: &DynamicObject) -> DynamicObject {
    let mut object = object.clone();
    object.labels_mut().insert(OWNER_LABEL.to_owned(), OWNER.to_owned());
    object
}

pub fn is_ours(metadata: &ObjectMeta) -> bool {
    metadata.labels.as_ref().and_then(|labels| labels.get(OWNER_LABEL)).is_some_and(|owner| owner == OWNER)
}

/// `Performer performers-demo/basic`.
pub fn named(object: &DynamicObject) -> String {
    let kind = object.types.as_ref().map_or("object", |types| types.kind.as_str());
    match object.namespace() {
        Some(namespace) => format!("{kind} {namespace}/{}", object.name_any()),
        None => format!("{kind} {}", object.name_any()),
    }
}
