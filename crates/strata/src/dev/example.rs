//! The repository's examples, carried in the binary.

use std::time::Duration;

use api::performer::{Performer, Phase};
use kube::{ResourceExt, api::DynamicObject};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    cluster::{Cluster, POLL, named},
    event::Report,
};
use crate::{Failure, layers};

const FILES: [(&str, &str); 8] = [
    ("machines/pool.yaml", include_str!("../../../../examples/machines/pool.yaml")),
    ("performers/basic.yaml", include_str!("../../../../examples/performers/basic.yaml")),
    ("performers/gpu.yaml", include_str!("../../../../examples/performers/gpu.yaml")),
    ("performers/secret-environment.yaml", include_str!("../../../../examples/performers/secret-environment.yaml")),
    ("performers/spread.yaml", include_str!("../../../../examples/performers/spread.yaml")),
    ("performers/tee.yaml", include_str!("../../../../examples/performers/tee.yaml")),
    ("workspaces/release.yaml", include_str!("../../../../examples/workspaces/release.yaml")),
    ("workspaces/workspace.yaml", include_str!("../../../../examples/workspaces/workspace.yaml")),
];

/// All objects, each once, in the order of creation.
pub fn objects() -> Vec<DynamicObject> {
    objects_of(|_| true)
}

/// Those that need neither helm nor charts.
pub fn without_charts() -> Vec<DynamicObject> {
    objects_of(|file| file.starts_with("performers/"))
}

/// Those that need Cluster API.
pub fn with_cluster_api() -> Vec<DynamicObject> {
    objects_of(|file| file.starts_with("machines/"))
}

/// All others.
pub fn with_charts() -> Vec<DynamicObject> {
    let elsewhere: Vec<String> = without_charts().iter().chain(&with_cluster_api()).map(named).collect();
    objects().into_iter().filter(|object| !elsewhere.contains(&named(object))).collect()
}

fn objects_of(is_wanted: impl Fn(&str) -> bool) -> Vec<DynamicObject> {
    let mut objects: Vec<DynamicObject> = Vec::new();
    for (_, text) in FILES.into_iter().filter(|(file, _)| is_wanted(file)) {
        for object in parsed(text) {
            if !objects.iter().any(|earlier| named(earlier) == named(&object)) {
                objects.push(object);
            }
        }
    }
    objects
}

/// A Performer whose container really runs, on the real node.
pub fn real() -> DynamicObject {
    let objects = parsed(include_str!("real-node.yaml"));
    objects.into_iter().next().expect("the file holds one object")
}

fn parsed(text: &str) -> Vec<DynamicObject> {
    let values: Vec<serde_json::Value> = serde_saphyr::from_multiple(text).expect("our examples are YAML");
    let object = |value| serde_json::from_value(value).expect("our examples are Kubernetes objects");
    values.into_iter().map(object).collect()
}

/// One example of a kind of ours, and whether this run created it.
pub struct Applied {
    object: DynamicObject,
    is_new: bool,
}

/// An example that did not become ready in time.
pub struct Unsettled {
    pub what: String,
    pub why: String,
    /// One from an earlier run may have been changed by the user since.
    pub is_new: bool,
}

/// Creates what is missing. What is there keeps the user's changes.
pub async fn apply(
    cluster: &Cluster,
    objects: impl IntoIterator<Item = DynamicObject>,
    report: &Report,
) -> Result<Vec<Applied>, Failure> {
    let mut ours = Vec::new();
    for object in objects {
        let is_new = cluster.create(&object).await?;
        if is_served(&object) {
            report.step(named(&object), if is_new { "created" } else { "there from before" });
            ours.push(Applied { object, is_new });
        }
    }
    Ok(ours)
}

fn kind(object: &DynamicObject) -> &str {
    object.types.as_ref().map_or("", |types| types.kind.as_str())
}

/// Whether it is of a kind that the operator tends and holds by a finalizer.
pub fn is_served(object: &DynamicObject) -> bool {
    let group =
        object.types.as_ref().and_then(|types| types.api_version.split_once('/')).map_or("", |(group, _)| group);
    layers::crds().iter().any(|crd| crd.spec.group == group && crd.spec.names.kind == kind(object))
}

/// Waits until every example is ready; returns those that are not within `patience`.
pub async fn settle(
    cluster: &Cluster,
    mut waiting: Vec<Applied>,
    patience: Duration,
    report: &Report,
) -> Result<Vec<Unsettled>, Failure> {
    let deadline = Instant::now() + patience;
    loop {
        let mut unsettled = Vec::new();
        let mut left = Vec::new();
        for example in waiting {
            let what = named(&example.object);
            match progress(cluster, &example.object).await? {
                Ok(how) => report.done(what, how),
                Err(why) => {
                    report.step(&what, &why);
                    unsettled.push(Unsettled { what, why, is_new: example.is_new });
                    left.push(example);
                }
            }
        }
        if left.is_empty() || Instant::now() >= deadline {
            return Ok(unsettled);
        }
        waiting = left;
        tokio::time::sleep(POLL).await;
    }
}

/// How an example that is ready is reached, else what it waits for.
async fn progress(cluster: &Cluster, object: &DynamicObject) -> Result<Result<String, String>, Failure> {
    let Some(object) = cluster.api(object).get_opt(&object.name_any()).await? else {
        return Ok(Err("deleted meanwhile".to_owned()));
    };
    let status = &object.data["status"];
    if status.is_null() {
        return Ok(Err("not seen by the operator yet".to_owned()));
    }
    if kind(&object) == Performer::KIND {
        return Ok(performer_progress(status));
    }
    let conditions = status["conditions"].as_array();
    let of_type = |kind: &str| conditions.and_then(|all| all.iter().find(|condition| condition["type"] == kind));
    // The user asked for this: nothing would come of waiting.
    if of_type("Paused").is_some_and(|paused| paused["status"] == "True") {
        return Ok(Ok("paused, and left as it is".to_owned()));
    }
    let ready = of_type("Ready");
    let message = ready.and_then(|ready| ready["message"].as_str()).unwrap_or("no condition yet").to_owned();
    let is_current = ready.is_some_and(|ready| ready["observedGeneration"] == json!(object.metadata.generation));
    let is_ready = is_current && ready.is_some_and(|ready| ready["status"] == "True");
    Ok(if is_ready { Ok(message) } else { Err(message) })
}

fn performer_progress(status: &Value) -> Result<String, String> {
    let phase = status["phase"].as_str().unwrap_or("no phase yet");
    if status["ready"] == true && phase == Phase::Running.as_str() {
        return Ok(format!("ready at {}", status["grpcEndpoint"].as_str().unwrap_or_default()));
    }
    // The last condition is `Available`, whose message is for people.
    let last = status["conditions"].as_array().and_then(|all| all.last()?["message"].as_str());
    Err(format!("{phase}{}", last.map(|message| format!(", {message}")).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::{super::cluster::NAMESPACE, *};

    #[test]
    fn every_example_file_is_carried() {
        let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"));
        let mut present = Vec::new();
        for folder in layers::all().map(|spec| spec.name) {
            let files = std::fs::read_dir(root.join(folder)).unwrap();
            present.extend(files.map(|file| format!("{folder}/{}", file.unwrap().file_name().to_str().unwrap())));
        }
        present.sort();
        assert_eq!(FILES.map(|(name, _)| name.to_owned()).to_vec(), present);
    }

    #[test]
    fn examples_that_need_charts_are_apart_and_none_is_lost() {
        let (early, late) = (without_charts(), with_charts());
        let kinds =
            |objects: &[DynamicObject]| -> Vec<String> { objects.iter().map(|one| kind(one).to_owned()).collect() };
        let needs_charts = |kind: &String| ["HelmRelease", "Workspace", "User"].contains(&kind.as_str());
        assert!(!kinds(&early).iter().any(needs_charts));
        assert!(kinds(&early).contains(&Performer::KIND.to_owned()) && kinds(&late).iter().any(needs_charts));
        let mut together: Vec<_> = with_cluster_api().iter().chain(&early).chain(&late).map(named).collect();
        together.dedup();
        assert_eq!(together, objects().iter().map(named).collect::<Vec<_>>());
    }

    #[test]
    fn objects_come_once_with_namespaces_before_their_content() {
        let objects = objects();
        let names: Vec<_> = objects.iter().map(named).collect();
        assert_eq!(names.iter().filter(|name| *name == "Namespace performers-demo").count(), 1);
        let created_before = |index: usize| &names[..index];
        for (index, object) in objects.iter().enumerate() {
            // That of the operator is there before any example.
            if let Some(namespace) = object.namespace().filter(|namespace| namespace != NAMESPACE) {
                assert!(created_before(index).contains(&format!("Namespace {namespace}")), "{}", names[index]);
            }
        }
        assert!(is_served(&real()));
    }
}
