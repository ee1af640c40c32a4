//! A default StorageClass and its provisioner: one volume per claim, on the node that the scheduler chose.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use futures::StreamExt;
use k8s_openapi::{
    api::{
        core::v1::{
            HostPathVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference,
            PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
        },
        storage::v1::StorageClass,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ObjectMeta, PostParams},
    runtime::{WatchStreamExt, watcher},
};

const CLASS: &str = "standard";
const PROVISIONER: &str = "testbed.strata/provisioner";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// A write that failed because the API server was down is tried again this often, for as long as a test
/// may keep it down.
const RETRY: Duration = Duration::from_millis(250);
const RETRIES: u32 = 240;

/// Creates the StorageClass where it is not there yet.
pub(crate) async fn install(client: &Client) -> Result<(), kube::Error> {
    let default = [("storageclass.kubernetes.io/is-default-class".to_owned(), "true".to_owned())];
    let class = StorageClass {
        metadata: ObjectMeta {
            name: Some(CLASS.to_owned()),
            annotations: Some(default.into()),
            ..ObjectMeta::default()
        },
        provisioner: PROVISIONER.to_owned(),
        volume_binding_mode: Some("WaitForFirstConsumer".to_owned()),
        reclaim_policy: Some("Delete".to_owned()),
        ..StorageClass::default()
    };
    match Api::all(client.clone()).create(&PostParams::default(), &class).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        result => result.map(drop),
    }
}

/// Runs until it is dropped: makes volumes for claims and removes those whose claim is gone.
pub(crate) async fn provision(client: Client) {
    tokio::join!(provide_claims(client.clone()), remove_released(client));
}

async fn provide_claims(client: Client) {
    let volumes = Api::<PersistentVolume>::all(client.clone());
    let params = PostParams::default();
    let claims = watcher(Api::<PersistentVolumeClaim>::all(client), watcher::Config::default());
    let mut claims = pin!(claims.default_backoff().applied_objects());
    while let Some(claim) = claims.next().await {
        // The watcher comes back by itself after an error.
        let Some(volume) = claim.ok().as_ref().and_then(volume_for) else {
            continue;
        };
        persist(|| volumes.create(&params, &volume)).await;
    }
}

async fn remove_released(client: Client) {
    let api = Api::<PersistentVolume>::all(client);
    let mut volumes = pin!(watcher(api.clone(), watcher::Config::default()).default_backoff().applied_objects());
    while let Some(volume) = volumes.next().await {
        let Some(volume) = volume.ok().filter(is_released) else {
            continue;
        };
        let (name, params) = (volume.name_any(), DeleteParams::default());
        persist(|| api.delete(&name, &params)).await;
    }
}

fn is_released(volume: &PersistentVolume) -> bool {
    let is_ours = volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()) == Some(CLASS);
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    is_ours && phase == Some("Released") && volume.metadata.deletion_timestamp.is_none()
}

/// The volume a claim needs, if it is ours, unbound, and its pod has been given a node.
fn volume_for(claim: &PersistentVolumeClaim) -> Option<PersistentVolume> {
    let spec = claim.spec.as_ref()?;
    if spec.storage_class_name.as_deref() != Some(CLASS) || spec.volume_name.is_some() {
        return None;
    }
    let node = claim.annotations().get(SELECTED_NODE)?;
    let name = format!("pvc-{}", claim.uid()?);
    let capacity = spec.resources.as_ref()?.requests.as_ref()?.get("storage")?.clone();
    Some(PersistentVolume {
        metadata: ObjectMeta {
            annotations: Some([("pv.kubernetes.io/provisioned-by".to_owned(), PROVISIONER.to_owned())].into()),
            name: Some(name.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes.clone(),
            capacity: Some(BTreeMap::<String, Quantity>::from([("storage".to_owned(), capacity)])),
            claim_ref: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("PersistentVolumeClaim".to_owned()),
                name: claim.metadata.name.clone(),
                namespace: claim.metadata.namespace.clone(),
                uid: claim.metadata.uid.clone(),
                ..ObjectReference::default()
            }),
            host_path: Some(HostPathVolumeSource {
                path: format!("/var/tmp/strata-volumes/{name}"),
                type_: Some("DirectoryOrCreate".to_owned()),
            }),
            node_affinity: Some(only_on(node)),
            persistent_volume_reclaim_policy: Some("Delete".to_owned()),
            storage_class_name: Some(CLASS.to_owned()),
            volume_mode: spec.volume_mode.clone(),
            ..PersistentVolumeSpec::default()
        }),
        ..PersistentVolume::default()
    })
}

fn only_on(node: &str) -> VolumeNodeAffinity {
    let is_node = NodeSelectorRequirement {
        key: "kubernetes.io/hostname".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_expressions: Some(vec![is_node]), ..NodeSelectorTerm::default() };
    VolumeNodeAffinity { required: Some(NodeSelector { node_selector_terms: vec![term] }) }
}

/// Writes until the API server has answered. A refusal is final: what is refused because it is already
/// done (or undone) needs nothing more, and for the rest the claim's pod says what it waits for.
async fn persist<T, F: Future<Output = Result<T, kube::Error>>>(write: impl Fn() -> F) {
    for _ in 0..RETRIES {
        match write().await {
            Ok(_) => return,
            Err(kube::Error::Api(status)) if status.code < 500 && status.code != 429 => return,
            Err(error) => tracing::warn!(%error, "volume not written yet"),
        }
        tokio::time::sleep(RETRY).await;
    }
}
