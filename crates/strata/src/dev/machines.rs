//! What the operator needs to know the zones: its configuration file, their authority's certificate, and a nonce.

use std::{collections::BTreeMap, time::Duration};

use kube::api::DynamicObject;
use serde_json::{Value, json};
use shard::{
    clock::Clock,
    identity::{ClusterKeys, NonceOrder},
    store::FileStore,
};

use super::{
    cluster::{Cluster, NAMESPACE},
    place::Place,
    shards::{CLUSTER, Endpoints},
};
use crate::{Failure, explained};

/// The tenant of everything in the environment.
const TENANT: &str = "default";
/// A start that builds programs first may take that long; the operator uses it within a second.
const NONCE_LIFETIME: Duration = Duration::from_hours(1);

/// Says where the zones serve. The operator follows the file, so it may change while it runs.
pub fn write_config(place: &Place, endpoints: &BTreeMap<String, Endpoints>) -> Result<(), Failure> {
    let address = |endpoints: &Endpoints| {
        json!({
            "registration_addr": endpoints.registration.to_string(),
            "operator_addr": endpoints.operator.to_string(),
        })
    };
    let shards: BTreeMap<&String, Value> = endpoints.iter().map(|(shard, found)| (shard, address(found))).collect();
    let config = json!({ "cluster_id": CLUSTER, "tenant": TENANT, "shards": shards });
    place.write_machines_config(&config)
}

/// Lets the operator register. One that is registered already removes the nonce unused.
pub async fn introduce(place: &Place, cluster: &Cluster) -> Result<(), Failure> {
    let cannot =
        |error: &dyn std::error::Error| Failure::new(format!("cannot use the zones' keys: {}", explained(error)));
    let store = FileStore::open(place.storage()).map_err(|error| cannot(&error))?;
    let keys = ClusterKeys::load(&store, CLUSTER, None).await.map_err(|error| cannot(&error))?;
    let order = NonceOrder { cluster: CLUSTER, tenant: TENANT, lifetime: NONCE_LIFETIME, agent: None };
    let nonce = keys.nonce(&order, Clock::default().now()).map_err(|error| cannot(&error))?;
    let object = |kind: &str, name: &str, field: &str, data: Value| -> DynamicObject {
        let metadata = json!({ "name": name, "namespace": NAMESPACE });
        let object = json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata, field: data });
        serde_json::from_value(object).expect("it has kind and metadata")
    };
    let authority = json!({ "ca.crt": keys.authority.certificate_pem() });
    cluster.apply(&object("ConfigMap", machines::config::CA_CONFIG_MAP, "data", authority)).await?;
    cluster
        .apply(&object("Secret", machines::config::NONCE_SECRET, "stringData", json!({ "nonce.jwt": nonce })))
        .await?;
    Ok(())
}
