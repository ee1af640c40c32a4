//! Leaving a cluster that was there before us as it was, apart from what the user made.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Discovery, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PartialObjectMeta},
    discovery::{ApiGroup, Scope, verbs},
};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    cluster::{Cluster, NAMESPACE, POLL, installed, is_ours, named},
    credentials,
    event::Report,
    example,
    operator::Operator,
    place::Place,
    session::Guest,
};
use crate::Failure;

/// A pod's grace period of 30 s, the operator's margin beyond it, and a busy machine.
const GONE_PATIENCE: Duration = Duration::from_mins(5);

/// Nothing of this stays; safe to repeat after a failure half way.
pub async fn run(place: &Place, guest: &Guest, report: &Report) -> Result<(), Failure> {
    let unreachable = "it is left as it is; run `strata dev down` again when it can be reached";
    let cluster = Cluster::connect(&guest.kubeconfig, guest.context.as_deref()).await;
    let cluster = cluster.map_err(|failure| failure.hint(unreachable))?;
    report.step("leaving the cluster", "removing the examples");
    remove_served(place, &cluster, report).await?;
    let (namespaces, others): (Vec<_>, Vec<_>) =
        example::objects().into_iter().filter(|object| !example::is_served(object)).partition(is_namespace);
    for object in others.iter().chain(&namespaces) {
        remove(&cluster, object, report).await?;
    }
    report.step("leaving the cluster", "removing the operator's rights and CRDs");
    if !guest.had_lease {
        let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), NAMESPACE);
        absent_is_fine(leases.delete(runtime::rights::DEFAULT_LEASE, &DeleteParams::default()).await)?;
    }
    for object in installed().iter().rev() {
        remove(&cluster, object, report).await?;
    }
    place.forget_guest();
    report.done("leaving the cluster", "what `dev up` put there is gone");
    Ok(())
}

/// Deletes what the operator tends while one runs, because only an operator lets go of the finalizers.
async fn remove_served(place: &Place, cluster: &Cluster, report: &Report) -> Result<(), Failure> {
    let mut ours = Vec::new();
    for object in example::objects().into_iter().filter(example::is_served) {
        if is_present_and_ours(cluster, &object).await? {
            ours.push(object);
        }
    }
    if ours.is_empty() {
        return Ok(());
    }
    cluster.install(report).await?;
    let credentials = credentials::issue(cluster, place).await?;
    let operator = Operator::start(place, &credentials.kubeconfig).await?;
    for object in &ours {
        delete(cluster, object).await?;
    }
    let deadline = Instant::now() + GONE_PATIENCE;
    for object in &ours {
        gone(cluster, object, deadline).await?;
    }
    operator.stop().await
}

/// Removes an object that we created, unless it holds something of the user's.
async fn remove(cluster: &Cluster, object: &DynamicObject, report: &Report) -> Result<(), Failure> {
    if !is_present_and_ours(cluster, object).await? {
        return Ok(());
    }
    let kind = object.types.as_ref().map(|types| types.kind.as_str());
    let kept_for = match kind {
        Some("Namespace") => lasting_content(cluster, &object.name_any()).await,
        Some("CustomResourceDefinition") => defined(cluster, object).await?,
        _ => Vec::new(),
    };
    if !kept_for.is_empty() {
        report.note(format!("{} stays, because of {}", named(object), kept_for.join(", ")));
        return Ok(());
    }
    delete(cluster, object).await?;
    gone(cluster, object, Instant::now() + GONE_PATIENCE).await
}

fn is_namespace(object: &DynamicObject) -> bool {
    object.types.as_ref().is_some_and(|types| types.kind == "Namespace")
}

async fn is_present_and_ours(cluster: &Cluster, object: &DynamicObject) -> Result<bool, Failure> {
    let present = match cluster.api(object).get_opt(&object.name_any()).await {
        // The kind itself may be gone.
        Err(kube::Error::Api(status)) if status.code == 404 => None,
        result => result?,
    };
    Ok(present.is_some_and(|present| is_ours(&present.metadata)))
}

async fn delete(cluster: &Cluster, object: &DynamicObject) -> Result<(), Failure> {
    absent_is_fine(cluster.api(object).delete(&object.name_any(), &DeleteParams::default()).await)
}

async fn gone(cluster: &Cluster, object: &DynamicObject, deadline: Instant) -> Result<(), Failure> {
    while cluster.api(object).get_opt(&object.name_any()).await?.is_some() {
        if Instant::now() > deadline {
            let text = format!("{} is still being deleted after {} s", named(object), GONE_PATIENCE.as_secs());
            return Err(Failure::new(text).hint("find the finalizer that holds it, then run `strata dev down` again"));
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

fn absent_is_fine<T>(result: Result<T, kube::Error>) -> Result<(), Failure> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => Ok(result.map(drop)?),
    }
}

/// Objects of the user's, of the kind that a definition of ours defines.
async fn defined(cluster: &Cluster, definition: &DynamicObject) -> Result<Vec<String>, Failure> {
    let spec = &definition.data["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kind = GroupVersionKind::gvk(
        &text(&spec["group"]),
        &text(&spec["versions"][0]["name"]),
        &text(&spec["names"]["kind"]),
    );
    let resource = ApiResource::from_gvk_with_plural(&kind, &text(&spec["names"]["plural"]));
    let api = Api::<DynamicObject>::all_with(cluster.client.clone(), &resource);
    let all = match api.list_metadata(&ListParams::default()).await {
        // Not served any more.
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Vec::new()),
        result => result?,
    };
    let name = |one: &PartialObjectMeta<_>| {
        format!("{} {}/{}", kind.kind, one.namespace().unwrap_or_default(), one.name_any())
    };
    Ok(all.iter().map(name).collect())
}

/// The content of a namespace that does not go by itself: what our objects left behind is collected in the background.
async fn lasting_content(cluster: &Cluster, namespace: &str) -> Vec<String> {
    const COLLECTED: Duration = Duration::from_secs(5);
    let deadline = Instant::now() + COLLECTED;
    loop {
        // Content that cannot be listed, as with a broken aggregated API, is not absent.
        let content = content(cluster, namespace).await.unwrap_or_else(|failure| vec![failure.message]);
        if content.is_empty() || Instant::now() > deadline {
            return content;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Everything in a namespace that neither we nor Kubernetes itself put there.
async fn content(cluster: &Cluster, namespace: &str) -> Result<Vec<String>, Failure> {
    let discovery = Discovery::new(cluster.client.clone()).run().await?;
    let mut content = Vec::new();
    for (resource, capabilities) in discovery.groups().flat_map(ApiGroup::recommended_resources) {
        let is_object = capabilities.scope == Scope::Namespaced
            && capabilities.supports_operation(verbs::LIST)
            && capabilities.supports_operation(verbs::DELETE);
        if !is_object {
            continue;
        }
        let api: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), namespace, &resource);
        for object in api.list_metadata(&ListParams::default()).await? {
            if !is_ours(&object.metadata)
                && !is_made_by_kubernetes(&resource.kind, &object.name_any(), &object.metadata)
            {
                content.push(format!("{} {namespace}/{}", resource.kind, object.name_any()));
            }
        }
    }
    Ok(content)
}

/// What every namespace gets, and what goes with its owner.
fn is_made_by_kubernetes(
    kind: &str,
    name: &str,
    metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
) -> bool {
    let has_owner = metadata.owner_references.as_ref().is_some_and(|owners| !owners.is_empty());
    has_owner
        || metadata.deletion_timestamp.is_some()
        || matches!(
            (kind, name),
            ("Event" | "Endpoints", _) | ("ServiceAccount", "default") | ("ConfigMap", "kube-root-ca.crt")
        )
}
