//! The writes of a drain.

use plan::drain::{Cordon, DRAIN_ANNOTATION, Eviction, Outcome};
use runtime::{Class, Error, Key, Kind};
use serde_json::json;

use crate::view::{Bound, NodeView, PodView};

/// Exactly the node that was looked at.
pub async fn cordon(
    nodes: &Kind<NodeView, plan::drain::Node>,
    key: &Key,
    Cordon { uid, version, drain }: &Cordon,
) -> Result<(), Error> {
    let patch = json!({
        "metadata": {
            "uid": uid, "resourceVersion": version.to_string(), "annotations": { DRAIN_ANNOTATION: drain },
        },
        "spec": { "unschedulable": true },
    });
    nodes.patch(key, None, &patch).await.map(|_| ())
}

/// Takes back what a drain wrote to exactly the node that was looked at.
pub async fn uncordon(
    nodes: &Kind<NodeView, plan::drain::Node>,
    key: &Key,
    node: &plan::drain::Node,
) -> Result<(), Error> {
    let mut patch = json!({
        "metadata": {
            "uid": node.uid, "resourceVersion": node.version.to_string(), "annotations": { DRAIN_ANNOTATION: null },
        },
    });
    if node.is_cordoned_by_drain {
        patch["spec"] = json!({ "unschedulable": null });
    }
    nodes.patch(key, None, &patch).await.map(|_| ())
}

/// Exactly the pod that was looked at, in whatever version: its status may change at any time and does not speak against
/// the eviction, and the server itself judges its budget.
pub async fn evict(pods: &Kind<PodView, Bound>, eviction: &Eviction) -> Outcome {
    let key = Key::new(&*eviction.pod.namespace, &*eviction.pod.name);
    // After no answer the pod may be on its way already.
    if let Err(error) = pods.settle(&key).await {
        return failed(&error);
    }
    let is_there = pods.get(&key).is_some_and(|bound| {
        let pod = &bound.value.pod;
        pod.uid == eviction.uid && pod.ends_at.is_none()
    });
    if !is_there {
        return Outcome::Accepted;
    }
    let body = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": { "name": eviction.pod.name, "namespace": eviction.pod.namespace },
        "deleteOptions": { "preconditions": { "uid": eviction.uid } },
    });
    match pods.post(&key, "eviction", &body).await {
        Ok(()) => Outcome::Accepted,
        // It is gone, which is what was asked for.
        Err(error) if error.is_not_found() => Outcome::Accepted,
        Err(error) if is_budget(&error) => Outcome::Refused(words(&error)),
        Err(error) => failed(&error),
    }
}

fn failed(error: &Error) -> Outcome {
    // A namespace that goes takes its pods with it.
    let is_forbidden = error.class() == Class::Invalid && !error.is_namespace_terminating();
    Outcome::Failed { message: words(error), is_forbidden }
}

/// Whether a budget refused, and not an overloaded server, which answers with the same code.
fn is_budget(error: &Error) -> bool {
    let status = error.status().filter(|status| status.code == 429);
    let causes = status.and_then(|status| status.details.as_ref()).map(|details| &details.causes);
    causes.is_some_and(|causes| causes.iter().any(|cause| cause.reason == "DisruptionBudget"))
}

/// What the server said; of a budget its own words, which name it.
fn words(error: &Error) -> String {
    let Some(status) = error.status() else { return error.to_string() };
    let causes = status.details.iter().flat_map(|details| &details.causes).map(|cause| cause.message.as_str());
    let words: Vec<&str> = std::iter::once(status.message.as_str()).chain(causes).collect();
    words.join(" ")
}
