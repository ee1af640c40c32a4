//! What a real API server makes of the machines kinds: what it refuses, in which words, and what it takes.

use anyhow::{Context, Result};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::ControlPlane;
use tokio::sync::OnceCell;

static INSTALLED: OnceCell<()> = OnceCell::const_new();

/// A namespace of a server that has the definitions.
struct Space {
    client: Client,
    namespace: String,
}

impl Space {
    async fn new(name: &str) -> Result<Self> {
        let control_plane = ControlPlane::shared().await?;
        let install = async || {
            let crds: Vec<Value> = api::machine::crds().iter().map(|crd| json!(crd)).collect();
            control_plane.install(&crds).await
        };
        INSTALLED.get_or_try_init(install).await?;
        let namespace = control_plane.namespace(name).await?;
        Ok(Self { client: control_plane.client().await?, namespace })
    }

    fn kind(kind: &str) -> ApiResource {
        ApiResource::from_gvk(&GroupVersionKind::gvk(api::machine::GROUP, api::machine::VERSION, kind))
    }

    fn api(&self, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &Self::kind(kind))
    }

    async fn create(&self, kind: &str, name: &str, spec: &Value) -> Result<DynamicObject, kube::Error> {
        let object = DynamicObject::new(name, &Self::kind(kind)).data(json!({ "spec": spec }));
        self.api(kind).create(&PostParams::default(), &object).await
    }

    async fn patch(&self, kind: &str, name: &str, patch: Value) -> Result<DynamicObject, kube::Error> {
        self.api(kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await
    }

    /// Of a status that the operator would have written.
    async fn patch_status(&self, kind: &str, name: &str, status: Value) -> Result<DynamicObject, kube::Error> {
        let patch = Patch::Merge(json!({ "status": status }));
        self.api(kind).patch_status(name, &PatchParams::default(), &patch).await
    }
}

/// Refused, in words that hold all of these.
fn check_refused(what: &str, answer: Result<DynamicObject, kube::Error>, words: &[&str]) {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 422 => {
            for word in words {
                assert!(status.message.contains(word), "{what}: {word:?} is not in {:?}", status.message);
            }
        }
        other => panic!("{what}: {other:?}"),
    }
}

fn pool(fields: &Value) -> Value {
    let mut spec = json!({ "group": "web", "shards": ["dev-1", "dev-2"] });
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    spec
}

#[tokio::test]
async fn a32_bad_input_is_refused_with_field_and_remedy() -> Result<()> {
    let space = Space::new("machines-refused").await?;
    let shard_group = json!({ "group": "web", "shard": "dev-1", "size": 1, "subnets": ["a", "b"] });
    let both = json!({ "group": "web", "groupRef": "web" });
    let many: Vec<_> = (0..65).map(|number| format!("shard-{number}")).collect();
    for (kind, spec, words) in [
        ("NstanceMachinePool", json!({ "shards": ["a"] }), &["spec.group", "Required"][..]),
        ("NstanceMachinePool", json!({ "group": "web", "shards": [] }), &["spec.shards", "at least 1"]),
        ("NstanceMachinePool", pool(&json!({ "shards": many })), &["spec.shards", "at most 64"]),
        ("NstanceMachinePool", pool(&json!({ "shards": ["a", "b", "a"] })), &["spec.shards", "remove the duplicate"]),
        ("NstanceMachinePool", pool(&json!({ "subnets": ["a", "b"] })), &["spec.subnets", "keep one entry"]),
        (
            "NstanceMachinePool",
            pool(&json!({ "subnets": ["a"], "subnetPool": "a" })),
            &["spec.subnetPool and spec.subnets", "keep one of them"],
        ),
        ("NstanceShardGroup", shard_group, &["spec.subnets", "keep one entry"]),
        ("NstanceShardGroup", json!({ "group": "web", "shard": "a", "size": -1 }), &["spec.size"]),
        ("NstanceMachine", both.clone(), &["spec.group", "spec.groupRef", "exactly one"]),
        ("NstanceMachine", json!({}), &["spec.group", "spec.groupRef", "exactly one"]),
        ("NstanceMachineTemplate", json!({ "template": { "spec": both } }), &["spec.template.spec", "exactly one"]),
        ("NstanceMachineTemplate", json!({ "template": { "spec": {} } }), &["spec.template.spec", "exactly one"]),
        ("NstanceShardGroup", json!({ "group": "web", "shard": "a" }), &["spec.size", "Required"]),
        ("NstanceCluster", json!({ "controlPlaneEndpoint": { "host": "a" } }), &["spec.controlPlaneEndpoint.port"]),
    ] {
        let answer = space.create(kind, "bad", &spec).await;
        check_refused(&format!("{kind} {spec}"), answer, words);
    }
    Ok(())
}

#[tokio::test]
async fn a32_what_is_right_is_taken() -> Result<()> {
    let space = Space::new("machines-taken").await?;
    let longest = "x".repeat(2000);
    let many: Vec<_> = (0..64).map(|number| format!("{longest}-{number}")).collect();
    for (number, (kind, spec)) in [
        ("NstanceMachinePool", pool(&json!({}))),
        ("NstanceMachinePool", pool(&json!({ "subnets": ["private"] }))),
        ("NstanceMachinePool", pool(&json!({ "subnetPool": "private", "subnets": [] }))),
        ("NstanceMachinePool", pool(&json!({ "shards": many, "vars": { "a": longest }, "template": longest }))),
        ("NstanceMachine", json!({ "group": "web" })),
        ("NstanceMachine", json!({ "groupRef": "web", "instanceType": "small", "providerID": "process:///a/b" })),
        ("NstanceMachineTemplate", json!({ "template": { "spec": { "group": "web" } } })),
        (
            "NstanceMachineTemplate",
            json!({ "template": { "metadata": { "labels": { "a": "b" } }, "spec": { "groupRef": "web" } } }),
        ),
        ("NstanceShardGroup", json!({ "group": "web", "shard": "dev-1", "size": 0, "subnets": ["private"] })),
        ("NstanceCluster", json!({ "controlPlaneEndpoint": { "host": "a", "port": 443 } })),
        ("NstanceCluster", json!({})),
        ("NstanceControlPlane", json!({})),
    ]
    .into_iter()
    .enumerate()
    {
        let taken = space.create(kind, &format!("good-{number}"), &spec).await;
        let stored = taken.with_context(|| format!("{kind} {number}"))?;
        assert_eq!(stored.data["spec"], spec, "nothing is dropped or filled in");
    }
    Ok(())
}

#[tokio::test]
async fn a30_a_static_pool_keeps_what_its_shards_decide() -> Result<()> {
    const KIND: &str = "NstanceMachinePool";
    let space = Space::new("machines-static").await?;
    space.create(KIND, "web", &pool(&json!({ "template": "old", "subnetPool": "old" }))).await?;
    let edit = |spec: Value| space.patch(KIND, "web", json!({ "spec": spec }));

    // A dynamic group is its user's.
    edit(json!({ "template": "new", "shards": ["dev-1"] })).await?;
    edit(json!({ "template": "old", "shards": ["dev-1", "dev-2"] })).await?;
    check_refused("group", edit(json!({ "group": "other" })).await, &["spec.group", "create another pool"]);
    let status = json!({ "isStatic": true, "replicas": 0, "reportedShards": ["dev-1", "dev-2", "dev-3"] });
    space.patch_status(KIND, "web", status.clone()).await?;

    let decides = "the shards' own configuration";
    for (spec, words) in [
        (json!({ "template": "new" }), ["spec.template", decides]),
        (json!({ "subnetPool": "new" }), ["spec.subnetPool", decides]),
        (json!({ "subnetPool": null, "subnets": ["new"] }), ["spec.subnets", decides]),
        (json!({ "shards": ["dev-1"] }), ["spec.shards", "no shard can be removed"]),
        (json!({ "shards": ["dev-1", "dev-2", "dev-4"] }), ["spec.shards", "status.reportedShards"]),
    ] {
        check_refused(&spec.to_string(), edit(spec.clone()).await, &words);
    }
    for spec in [
        json!({ "shards": ["dev-2", "dev-1"] }),
        json!({ "shards": ["dev-2", "dev-1", "dev-3"] }),
        json!({ "instanceType": "small", "vars": { "a": "b" }, "providerIDList": ["i-1"] }),
        json!({ "template": null, "subnetPool": null }),
    ] {
        edit(spec.clone()).await.with_context(|| spec.to_string())?;
    }
    // Whatever the spec is by now, status, metadata and deletion stay free.
    let again = json!({ "isStatic": true, "replicas": 1, "reportedShards": ["dev-1"] });
    space.patch_status(KIND, "web", again).await?;
    space.patch(KIND, "web", json!({ "metadata": { "finalizers": ["strata.dev/test"] } })).await?;
    space.patch(KIND, "web", json!({ "metadata": { "finalizers": null } })).await?;

    // The group left the shards' configuration.
    space.patch_status(KIND, "web", json!({ "isStatic": false })).await?;
    edit(json!({ "template": "new", "shards": ["dev-1"] })).await?;
    Ok(())
}

#[tokio::test]
async fn a92_a_template_cannot_change() -> Result<()> {
    const KIND: &str = "NstanceMachineTemplate";
    let space = Space::new("machines-template").await?;
    space.create(KIND, "web", &json!({ "template": { "spec": { "group": "web", "vars": { "a": "b" } } } })).await?;
    for spec in [
        json!({ "template": { "spec": { "group": "other" } } }),
        json!({ "template": { "spec": { "vars": { "a": "c" } } } }),
        json!({ "template": { "spec": { "instanceType": "small" } } }),
    ] {
        let answer = space.patch(KIND, "web", json!({ "spec": spec })).await;
        check_refused(&spec.to_string(), answer, &["spec.template cannot change", "create another"]);
    }
    space.patch(KIND, "web", json!({ "metadata": { "labels": { "a": "b" } } })).await?;
    let status = space.patch_status(KIND, "web", json!({ "capacity": {} })).await;
    assert!(matches!(&status, Err(kube::Error::Api(status)) if status.code == 404), "it has no status: {status:?}");
    Ok(())
}

#[tokio::test]
async fn a55_reasons_of_a_shard_are_accepted() -> Result<()> {
    const KIND: &str = "NstanceMachine";
    let space = Space::new("machines-reasons").await?;
    space.create(KIND, "web", &json!({ "group": "web" })).await?;
    for word in ["spot-terminating", "", "2nd chance", "größe", &"x-".repeat(5000)] {
        let condition = json!({
            "type": "ServerDeleted", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z",
            "reason": api::machine::MachineReason::of_deletion(word), "message": "",
        });
        space.patch_status(KIND, "web", json!({ "conditions": [condition] })).await.with_context(|| word.to_owned())?;
    }
    Ok(())
}
