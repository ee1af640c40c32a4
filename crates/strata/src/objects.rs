//! Objects of one kind in one namespace, as the API server has them: read, changed, and its refusals explained.

use api::workspace::{HelmRelease, Workspace};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::Status,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{Failure, explained};

/// Whose fields they are that a command sets.
const FIELD_MANAGER: &str = "strata-cli";

/// Of the kinds of Cluster API itself.
pub const CLUSTER_API_GROUP: &str = "cluster.x-k8s.io";

/// Objects are kept whole, so that what this version does not know is printed as well.
pub struct Objects {
    api: Api<DynamicObject>,
    resource: ApiResource,
    /// All namespaces if `None`.
    namespace: Option<String>,
    /// What the commands call it: `strata NOUN list`.
    noun: &'static str,
}

impl Objects {
    pub fn releases(client: Client, namespace: Option<String>) -> Self {
        Self::new(client, namespace, ApiResource::erase::<HelmRelease>(&()), "release")
    }

    pub fn workspaces(client: Client, namespace: Option<String>) -> Self {
        Self::new(client, namespace, ApiResource::erase::<Workspace>(&()), "workspace")
    }

    pub fn new(client: Client, namespace: Option<String>, resource: ApiResource, noun: &'static str) -> Self {
        let api = match &namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        };
        Self { api, resource, namespace, noun }
    }

    pub fn noun(&self) -> &'static str {
        self.noun
    }

    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// `in namespace team-a`, or `in any namespace`.
    pub fn place(&self) -> String {
        self.namespace.as_ref().map_or_else(|| "in any namespace".to_owned(), |name| format!("in namespace {name}"))
    }

    /// The command that shows more of one object.
    pub fn status_command(&self, name: &str) -> String {
        let namespace = self.namespace.as_deref().unwrap_or_default();
        format!("`strata {} status {name} -n {namespace}`", self.noun)
    }

    pub async fn list(&self, selector: Option<&str>) -> Result<Vec<DynamicObject>, Failure> {
        self.try_list(selector).await.map_err(|error| self.failure(&error, "list", ""))
    }

    /// For callers that distinguish errors.
    pub async fn try_list(&self, selector: Option<&str>) -> kube::Result<Vec<DynamicObject>> {
        let params = ListParams { label_selector: selector.map(str::to_owned), ..ListParams::default() };
        Ok(self.api.list(&params).await?.items)
    }

    pub async fn get(&self, name: &str) -> Result<DynamicObject, Failure> {
        self.try_get(name).await.map_err(|error| self.failure(&error, "get", name))
    }

    /// For callers that distinguish errors.
    pub async fn try_get(&self, name: &str) -> kube::Result<DynamicObject> {
        self.api.get(name).await
    }

    pub async fn patch(&self, name: &str, patch: &Value) -> Result<DynamicObject, Failure> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patched = self.api.patch(name, &params, &Patch::Merge(patch)).await;
        patched.map_err(|error| self.failure(&error, "patch", name))
    }

    /// Asks for so many replicas, by the subresource that autoscalers use.
    pub async fn scale(&self, name: &str, replicas: i32) -> Result<(), Failure> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
        let scaled = self.api.patch_scale(name, &params, &patch).await;
        scaled.map(drop).map_err(|error| self.failure(&error, "scale", name))
    }

    pub async fn create(&self, object: &DynamicObject, dry_run: bool) -> Result<DynamicObject, Failure> {
        let params = PostParams { dry_run, field_manager: Some(FIELD_MANAGER.to_owned()) };
        let name = object.metadata.name.as_deref().unwrap_or_default();
        self.api.create(&params, object).await.map_err(|error| self.failure(&error, "create", name))
    }

    /// What failed, why, and the next step.
    pub fn failure(&self, error: &kube::Error, verb: &str, name: &str) -> Failure {
        let (kind, place) = (&self.resource.kind, self.place());
        let what = if name.is_empty() { format!("{verb} {kind}s") } else { format!("{verb} {kind} {name}") };
        let kube::Error::Api(status) = error else {
            return Failure::new(format!("cannot {what}: {}", explained(error)))
                .hint("is the cluster of this kubeconfig running? --kubeconfig and --context choose another");
        };
        let named = status.details.as_ref().filter(|details| !details.name.is_empty());
        match (status.code, named) {
            (404, Some(details)) if details.kind == "namespaces" => {
                let namespace = &details.name;
                Failure::new(format!("there is no namespace {namespace}"))
                    .hint(format!("create it with `kubectl create namespace {namespace}`, or name another with -n"))
            }
            (404, Some(_)) => Failure::new(format!("there is no {kind} {name} {place}"))
                .hint(format!("`strata {} list -A` shows which there are; -n names another namespace", self.noun)),
            // The path itself is unknown to the server: only then no object is named.
            (404, None) => Failure::new(format!("the cluster has no kind {kind} of {}", self.resource.api_version))
                .hint(installation(&self.resource.group)),
            (409, Some(_)) if verb == "create" => Failure::new(format!("there is a {kind} {name} {place} already"))
                .hint(format!("look at it with {}, or choose another name", self.status_command(name))),
            _ => self.refusal(status, verb, &what),
        }
    }

    fn refusal(&self, status: &Status, verb: &str, what: &str) -> Failure {
        let failure = Failure::new(format!("cannot {what}: {}", status.message));
        match status.code {
            401 => failure.hint("the kubeconfig's credentials are not accepted; renew them, or use --context"),
            403 => {
                let (verb, part) = if verb == "scale" { ("patch", "/scale") } else { (verb, "") };
                let (plural, group) = (&self.resource.plural, &self.resource.group);
                failure.hint(format!("request the right to {verb} {plural}.{group}{part} {}", self.place()))
            }
            400 | 422 => failure.hint("correct the field that the message names"),
            _ => failure,
        }
    }
}

/// How the kinds of an API group come into a cluster.
fn installation(group: &str) -> &'static str {
    if group == CLUSTER_API_GROUP {
        "install Cluster API with `clusterctl init`; its core components of 1.14 or later are enough"
    } else {
        "install the CRDs with `strata crd | kubectl apply -f -`, or the chart charts/strata"
    }
}

/// `helmrelease.workspaces.strata.dev/web`.
pub fn full_name(object: &DynamicObject) -> String {
    let types = object.types.clone().unwrap_or_default();
    let group = types.api_version.split('/').next().unwrap_or_default();
    format!("{}.{group}/{}", types.kind.to_lowercase(), name_of(object))
}

pub fn name_of(object: &DynamicObject) -> &str {
    object.metadata.name.as_deref().unwrap_or_default()
}

/// The object as its kind.
pub fn decode<T: DeserializeOwned>(object: &DynamicObject) -> Result<T, Failure> {
    let value = serde_json::to_value(object).and_then(serde_json::from_value);
    value.map_err(|error| {
        Failure::new(format!("{} does not match this version of strata: {error}", full_name(object)))
            .hint("the cluster may have the CRDs of another version of strata; -o yaml prints the object anyway")
    })
}
