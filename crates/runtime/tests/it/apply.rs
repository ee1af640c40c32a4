//! Server-side apply: what it creates, changes and leaves alone.

use std::sync::Arc;

use anyhow::Result;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use runtime::{Class, Json, Key, Kind, Live};
use serde_json::{Value, json};

use crate::world::World;

struct Maps {
    kind: Arc<Kind<Json<ConfigMap>, Live>>,
    api: Api<ConfigMap>,
    key: Key,
}

impl Maps {
    async fn new(prefix: &str) -> Result<Self> {
        let world = World::new(prefix).await?;
        let kind = Kind::new("configmaps", world.operator().writer("strata-test"), |object: Json<ConfigMap>| {
            Some(object.live())
        });
        Ok(Self { kind, api: Api::namespaced(world.client, &world.namespace), key: Key::new(world.namespace, "a") })
    }

    fn body(&self, data: Value) -> Value {
        let metadata = json!({"name": &*self.key.name, "namespace": &*self.key.namespace});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    }

    /// The body of an apply to the object that the cache holds.
    fn onto_cached(&self, data: Value) -> Value {
        let live = self.kind.get(&self.key).expect("it is in the cache").value.value();
        let mut body = self.body(data);
        for field in ["uid", "resourceVersion"] {
            body["metadata"][field] = live["metadata"][field].clone();
        }
        body
    }

    async fn data(&self) -> Result<Value> {
        Ok(json!(self.api.get(&self.key.name).await?.data))
    }
}

#[tokio::test]
async fn an_apply_creates_and_later_ones_drop_what_is_no_longer_wanted() -> Result<()> {
    let maps = Maps::new("apply").await?;
    let version = maps.kind.apply(&maps.key, &maps.body(json!({"a": "1", "b": "1"}))).await?;
    assert_eq!(maps.kind.get(&maps.key).unwrap().version, version, "the answer is in the cache");

    let others = Patch::Merge(json!({"data": {"theirs": "x"}}));
    maps.api.patch(&maps.key.name, &PatchParams::default(), &others).await?;
    maps.kind.refresh(&maps.key).await?;
    maps.kind.apply(&maps.key, &maps.onto_cached(json!({"a": "2"}))).await?;
    assert_eq!(maps.data().await?, json!({"a": "2", "theirs": "x"}));

    let before = maps.kind.get(&maps.key).unwrap().version;
    let after = maps.kind.apply(&maps.key, &maps.onto_cached(json!({"a": "2"}))).await?;
    assert_eq!(after, before, "the same again changes nothing");
    Ok(())
}

#[tokio::test]
async fn what_another_manager_applied_is_taken_back_by_force() -> Result<()> {
    let maps = Maps::new("apply-force").await?;
    maps.kind.apply(&maps.key, &maps.body(json!({"a": "1"}))).await?;
    let other = PatchParams::apply("other").force();
    maps.api.patch(&maps.key.name, &other, &Patch::Apply(maps.body(json!({"a": "theirs", "b": "theirs"})))).await?;
    maps.kind.refresh(&maps.key).await?;
    maps.kind.apply(&maps.key, &maps.onto_cached(json!({"a": "1"}))).await?;
    assert_eq!(maps.data().await?, json!({"a": "1", "b": "theirs"}));
    Ok(())
}

#[tokio::test]
async fn a_foreign_object_is_never_adopted_whatever_its_name() -> Result<()> {
    let maps = Maps::new("apply-foreign").await?;
    let foreign: ConfigMap = serde_json::from_value(maps.body(json!({"a": "theirs"})))?;
    maps.api.create(&PostParams::default(), &foreign).await?;
    let error = maps.kind.apply(&maps.key, &maps.body(json!({"b": "1"}))).await.unwrap_err();
    assert_eq!(error.class(), Class::Conflict, "{error}");
    assert_eq!(maps.data().await?, json!({"a": "theirs"}));
    assert!(maps.kind.get(&maps.key).is_some(), "the next round sees it");
    Ok(())
}

#[tokio::test]
async fn an_apply_reaches_only_the_object_that_was_looked_at() -> Result<()> {
    let maps = Maps::new("apply-stale").await?;
    maps.kind.apply(&maps.key, &maps.body(json!({"a": "1"}))).await?;
    let stale = maps.onto_cached(json!({"a": "2"}));
    let others = Patch::Merge(json!({"data": {"theirs": "x"}}));
    maps.api.patch(&maps.key.name, &PatchParams::default(), &others).await?;
    let error = maps.kind.apply(&maps.key, &stale).await.unwrap_err();
    assert_eq!(error.class(), Class::Conflict, "{error}");
    assert_eq!(maps.data().await?, json!({"a": "1", "theirs": "x"}));

    // Nor does it bring back an object that is gone, or change the namesake of one.
    let old = maps.onto_cached(json!({"a": "3"}));
    maps.api.delete(&maps.key.name, &DeleteParams::default()).await?;
    let error = maps.kind.apply(&maps.key, &old).await.unwrap_err();
    assert_eq!(error.class(), Class::Conflict, "{error}");
    assert!(maps.api.get_opt(&maps.key.name).await?.is_none());
    assert!(maps.kind.get(&maps.key).is_none(), "the next round sees that it is gone");
    let namesake: ConfigMap = serde_json::from_value(maps.body(json!({"a": "namesake"})))?;
    maps.api.create(&PostParams::default(), &namesake).await?;
    let error = maps.kind.apply(&maps.key, &old).await.unwrap_err();
    assert_eq!(error.class(), Class::Conflict, "{error}");
    assert_eq!(maps.data().await?, json!({"a": "namesake"}));
    Ok(())
}
