//! The one real client, step by step: it polls, it never watches.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::performer::Performer;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use testbed::{User, until_allowed};

use crate::{
    harness::{Space, World, until},
    observe::create,
};

/// The executor asks every five seconds for five minutes; a test has less time.
const POLL: Duration = Duration::from_millis(500);
const ATTEMPTS: u32 = 120;

struct Executor {
    performers: Api<Performer>,
    namespace: String,
}

const AVS: &str = "0x71c7656ec7ab88b098defb751b7401b5f6d8976f";

impl Executor {
    /// With the rights of its published template Role, in its namespace only.
    async fn new(space: &Space) -> Result<Self> {
        let rules = json!([
            { "apiGroups": ["hourglass.eigenlayer.io"], "resources": ["performers"], "verbs": ["*"] },
            { "apiGroups": ["hourglass.eigenlayer.io"], "resources": ["performers/status"], "verbs": ["get", "patch", "update"] },
            { "apiGroups": [""], "resources": ["services", "pods", "events"], "verbs": ["get", "list", "watch"] },
        ]);
        let here = Api::namespaced(space.client.clone(), &space.namespace);
        create::<Role>(&here, json!({ "metadata": { "name": "executor" }, "rules": rules })).await?;
        let user = format!("executor-{}", space.namespace);
        let binding = json!({
            "metadata": { "name": "executor" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "executor" },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
        });
        create::<RoleBinding>(&Api::namespaced(space.client.clone(), &space.namespace), binding).await?;
        let user = User::named(user);
        until_allowed(&space.client, &user, "create", "hourglass.eigenlayer.io", "performers", &space.namespace)
            .await?;
        let client: Client = World::calm().await.control_plane.client_as(&user).await?;
        Ok(Self { performers: Api::namespaced(client, &space.namespace), namespace: space.namespace.clone() })
    }

    /// Creates one as the executor writes it.
    async fn create(&self, name: &str, tag: &str) -> Result<()> {
        let object = json!({
            "metadata": { "name": name, "labels": {
                "app": "hourglass-performer",
                "hourglass.eigenlayer.io/avs": AVS,
                "hourglass.eigenlayer.io/performer": name,
            } },
            "spec": {
                "avsAddress": AVS,
                "image": format!("registry.test/avs:{tag}"),
                "version": tag,
                "imagePullPolicy": "Never",
                "config": {
                    "grpcPort": 8080,
                    "environment": { "AVS_ADDRESS": AVS, "GRPC_PORT": "8080", "USER_SET": "yes" },
                    "environmentFrom": [
                        { "name": "KEY", "valueFrom": { "secretKeyRef": { "name": "keys", "key": "key" } } },
                    ],
                    "serviceAccountName": "default",
                },
            },
        });
        self.performers.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        Ok(())
    }

    async fn poll_ready(&self, name: &str) -> Result<Performer> {
        for _ in 0..ATTEMPTS {
            let performer = self.performers.get(name).await?;
            if performer.status.as_ref().is_some_and(|status| status.ready) {
                return Ok(performer);
            }
            tokio::time::sleep(POLL).await;
        }
        bail!("{name} is not ready; the executor gives up")
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.performers.delete(name, &DeleteParams::default()).await?;
        for _ in 0..ATTEMPTS {
            if self.performers.get_opt(name).await?.is_none() {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
        bail!("{name} did not go")
    }

    /// It computes this itself and connects there.
    fn endpoint(&self, name: &str) -> String {
        format!("performer-{name}.{}.svc.cluster.local:8080", self.namespace)
    }
}

#[tokio::test]
async fn p48_the_executors_flow_passes() -> Result<()> {
    let space = World::calm().await.space("executor").await;
    let executor = Executor::new(&space).await?;
    let (blue, green) = ("performer-1f2e3d-0a0b0c0d", "performer-1f2e3d-11223344");
    executor.create(blue, "v1").await?;
    let first = executor.poll_ready(blue).await?;
    assert_eq!(first.status.context("status")?.grpc_endpoint, Some(executor.endpoint(blue)));
    let pod = space.pod(blue).await?;
    let env = serde_json::to_value(&pod.spec.as_ref().context("spec")?.containers[0].env)?;
    assert_eq!(
        env,
        json!([
            { "name": "AVS_ADDRESS", "value": AVS },
            { "name": "GRPC_PORT", "value": "8080" },
            { "name": "USER_SET", "value": "yes" },
            { "name": "KEY", "valueFrom": { "secretKeyRef": { "name": "keys", "key": "key" } } },
        ])
    );
    // Blue and green: both serve until the first is drained.
    executor.create(green, "v2").await?;
    executor.poll_ready(green).await?;
    executor.poll_ready(blue).await?;
    executor.delete(blue).await?;
    assert!(space.pods.get_opt(&format!("performer-{blue}")).await?.is_none());
    assert!(space.services.get_opt(&format!("performer-{blue}")).await?.is_none());
    let second = executor.performers.get(green).await?;
    assert!(second.status.context("status")?.ready, "green never noticed");
    executor.delete(green).await
}

#[tokio::test]
async fn p48_the_executors_update_call_passes() -> Result<()> {
    let space = World::calm().await.space("executor-update").await;
    let executor = Executor::new(&space).await?;
    executor.create("a", "v1").await?;
    let mut performer = executor.poll_ready("a").await?;
    let spec = performer.spec.as_mut().context("spec")?;
    (spec.image, spec.version) = ("registry.test/avs:v2".to_owned(), Some("v2".to_owned()));
    executor.performers.replace("a", &PostParams::default(), &performer).await?;
    until(&space.pods, "performer-a", "on the new image", |pod: &k8s_openapi::api::core::v1::Pod| {
        pod.spec.as_ref().is_some_and(|spec| spec.containers[0].image.as_deref() == Some("registry.test/avs:v2"))
    })
    .await?;
    executor.poll_ready("a").await?;
    executor.delete("a").await
}
