//! The repository's examples, carried in the binary.

use std::time::Duration;

use api::performer::{Performer, Phase};
use kube::{Api, ResourceExt, api::DynamicObject};
use tokio::time::Instant;

use super::{
    cluster::{Cluster, POLL, named},
    event::Report,
};
use crate::Failure;

const FILES: [(&str, &str); 5] = [
    ("basic.yaml", include_str!("../../../../examples/performers/basic.yaml")),
    ("gpu.yaml", include_str!("../../../../examples/performers/gpu.yaml")),
    ("secret-environment.yaml", include_str!("../../../../examples/performers/secret-environment.yaml")),
    ("spread.yaml", include_str!("../../../../examples/performers/spread.yaml")),
    ("tee.yaml", include_str!("../../../../examples/performers/tee.yaml")),
];

/// All objects, each once, in the order of creation.
pub fn objects() -> Vec<DynamicObject> {
    let mut objects: Vec<DynamicObject> = Vec::new();
    for (_, text) in FILES {
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

/// One example Performer, and whether this run created it.
pub struct Applied {
    object: DynamicObject,
    is_new: bool,
}

/// A Performer that did not become ready in time.
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
    let mut performers = Vec::new();
    for object in objects {
        let is_new = cluster.create(&object).await?;
        if is_performer(&object) {
            report.step(named(&object), if is_new { "created" } else { "there from before" });
            performers.push(Applied { object, is_new });
        }
    }
    Ok(performers)
}

pub fn is_performer(object: &DynamicObject) -> bool {
    object.types.as_ref().is_some_and(|types| types.kind == api::performer::KIND)
}

/// Waits until every Performer runs and is ready; returns those that are not within `patience`.
pub async fn settle(
    cluster: &Cluster,
    mut performers: Vec<Applied>,
    patience: Duration,
    report: &Report,
) -> Result<Vec<Unsettled>, Failure> {
    let deadline = Instant::now() + patience;
    loop {
        let mut unsettled = Vec::new();
        let mut left = Vec::new();
        for performer in performers {
            let what = named(&performer.object);
            match progress(cluster, &performer.object).await? {
                Ok(endpoint) => report.done(what, format!("ready at {endpoint}")),
                Err(why) => {
                    report.step(&what, &why);
                    unsettled.push(Unsettled { what, why, is_new: performer.is_new });
                    left.push(performer);
                }
            }
        }
        if left.is_empty() || Instant::now() >= deadline {
            return Ok(unsettled);
        }
        performers = left;
        tokio::time::sleep(POLL).await;
    }
}

/// The endpoint of a Performer that is ready, else what it waits for.
async fn progress(cluster: &Cluster, object: &DynamicObject) -> Result<Result<String, String>, Failure> {
    let namespace = object.namespace().expect("Performers are namespaced");
    let api: Api<Performer> = Api::namespaced(cluster.client.clone(), &namespace);
    let Some(performer) = api.get_opt(&object.name_any()).await? else {
        return Ok(Err("deleted meanwhile".to_owned()));
    };
    let Some(status) = performer.status else {
        return Ok(Err("not seen by the operator yet".to_owned()));
    };
    if status.ready && status.phase == Some(Phase::Running) {
        return Ok(Ok(status.grpc_endpoint.unwrap_or_default()));
    }
    let phase = status.phase.map_or_else(|| "no phase yet".to_owned(), |phase| phase.to_string());
    // The last condition is `Available`, whose message is for people.
    let why = status.conditions.last().map(|condition| format!(", {}", condition.message)).unwrap_or_default();
    Ok(Err(format!("{phase}{why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_file_is_carried() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/performers");
        let mut present: Vec<_> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        present.sort();
        assert_eq!(FILES.map(|(name, _)| name.to_owned()).to_vec(), present);
    }

    #[test]
    fn objects_come_once_with_namespaces_before_their_content() {
        let objects = objects();
        let names: Vec<_> = objects.iter().map(named).collect();
        assert_eq!(names.iter().filter(|name| *name == "Namespace performers-demo").count(), 1);
        let created_before = |index: usize| &names[..index];
        for (index, object) in objects.iter().enumerate() {
            if let Some(namespace) = object.namespace() {
                assert!(created_before(index).contains(&format!("Namespace {namespace}")), "{}", names[index]);
            }
        }
        assert!(is_performer(&real()));
    }
}
