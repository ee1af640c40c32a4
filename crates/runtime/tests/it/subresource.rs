//! Requests to subresources, by a process that is no operator.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use k8s_openapi::api::{
    core::v1::{Node, ObjectReference, Pod},
    events::v1::Event,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use process::Clock;
use runtime::{Alone, Cluster, Key, Kind, Metadata, Occurrence, Recorder, Selection, alone};
use serde_json::{Value, json};
use testbed::kwok;

use crate::world::{World, until};

type Pods = Arc<Kind<Metadata<Pod>, String>>;

impl World {
    async fn alone<T>(&self, work: impl AsyncFnOnce(Cluster, Recorder) -> T) -> T {
        let identity = Alone { instance: "test".to_owned(), request_timeout: Duration::from_secs(10) };
        alone(self.operators.clone(), Clock::default(), identity, work).await
    }

    async fn pod(&self, name: &str) -> Result<(Key, String)> {
        let container = json!({ "name": "main", "image": kwok::Behaviour::Ready.image() });
        let spec = json!({ "containers": [container], "terminationGracePeriodSeconds": 0 });
        let pod = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec }))?;
        let pods = Api::<Pod>::namespaced(self.client.clone(), &self.namespace);
        let created = pods.create(&PostParams::default(), &pod).await?;
        Ok((Key::new(&*self.namespace, name), created.uid().context("a uid")?))
    }
}

fn followed(cluster: &Cluster, namespace: &str) -> (Pods, runtime::Following) {
    let pods = Kind::new("pods", cluster.writer("test"), |pod: Metadata<Pod>| pod.metadata.uid);
    let fields = Some(format!("metadata.namespace={namespace}"));
    let following = cluster.follow(&pods, Selection { fields, ..Selection::default() }, |_| {});
    (pods, following)
}

fn eviction(key: &Key, uid: &str) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": &*key.name, "namespace": &*key.namespace },
        "deleteOptions": { "preconditions": { "uid": uid } },
    })
}

#[tokio::test]
async fn a_pod_is_evicted_by_a_post_to_its_subresource() -> Result<()> {
    let world = World::new("subresource").await?;
    let (key, uid) = world.pod("one").await?;
    world
        .alone(async |cluster, _| {
            let (pods, _following) = followed(&cluster, &world.namespace);
            until("it is seen", || pods.get(&key).is_some()).await?;
            // A namesake of another uid stays, and what is there now is read.
            let refused = pods.post(&key, "eviction", &eviction(&key, "another")).await.unwrap_err();
            assert_eq!(refused.status().map(|status| status.code), Some(409), "{refused}");
            assert_eq!(pods.get(&key).map(|pod| pod.value.clone()), Some(uid.clone()));

            pods.post(&key, "eviction", &eviction(&key, &uid)).await?;
            until("the watch shows it", || pods.get(&key).is_none()).await
        })
        .await
}

#[tokio::test]
async fn a_post_to_an_object_that_is_gone_forgets_it() -> Result<()> {
    let world = World::new("subresource").await?;
    let (key, uid) = world.pod("gone").await?;
    world
        .alone(async |cluster, _| {
            let (pods, following) = followed(&cluster, &world.namespace);
            until("it is seen", || pods.get(&key).is_some()).await?;
            drop(following);
            let now = DeleteParams::default().grace_period(0);
            Api::<Pod>::namespaced(world.client.clone(), &world.namespace).delete("gone", &now).await?;
            let refused = pods.post(&key, "eviction", &eviction(&key, &uid)).await.unwrap_err();
            assert!(refused.is_not_found(), "{refused}");
            assert!(pods.get(&key).is_none());
            Ok(())
        })
        .await
}

#[tokio::test]
async fn what_a_command_recorded_is_stored_when_it_ends() -> Result<()> {
    let world = World::new("alone").await?;
    let node = Api::<Node>::all(world.client.clone()).list(&ListParams::default()).await?.items.remove(0);
    let regarding = ObjectReference {
        kind: Some("Node".to_owned()),
        name: node.metadata.name,
        uid: node.metadata.uid,
        ..ObjectReference::default()
    };
    world
        .alone(async |_, recorder| {
            recorder.record(Occurrence {
                regarding,
                is_warning: true,
                reason: "Tested".to_owned(),
                action: "Test".to_owned(),
                note: world.namespace.clone(),
                discriminator: String::new(),
            });
        })
        .await;
    let events = Api::<Event>::namespaced(world.client.clone(), "default").list(&ListParams::default()).await?;
    assert!(events.items.iter().any(|event| event.note.as_ref() == Some(&world.namespace)));
    Ok(())
}
