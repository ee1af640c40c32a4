//! The Secrets of the layer's namespace: which there are, and their content where it is needed.

use std::{collections::BTreeMap, sync::Arc};

use api::machine::CLUSTER_LABEL;
use k8s_openapi::api::core::v1::Secret;
use runtime::{Change, Error, Key, Kind, Metadata, Operator, Selection, Writer};
use serde_json::{Value, json};

use crate::MANAGER;

/// When the token in a kubeconfig expires; the original's.
pub(crate) const EXPIRY_ANNOTATION: &str = "nstance.dev/token-expiry";

/// A digest of how a kubeconfig of ours reaches the API server.
pub(crate) const API_SERVER_ANNOTATION: &str = "strata.dev/api-server";

/// Their metadata alone is watched: no content is held but what is in use.
pub(crate) type Secrets = Kind<Metadata<Secret>, SecretFacts>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SecretFacts {
    pub uid: String,
    /// The Cluster that it belongs to.
    pub cluster: Option<String>,
    pub token_expiry: Option<String>,
    pub api_server: Option<String>,
    pub is_deleting: bool,
}

/// The content of a Secret.
pub(crate) type Data = BTreeMap<String, Vec<u8>>;

pub(crate) fn watch(
    operator: &mut Operator,
    namespace: &str,
    notify: impl Fn(&Change<'_, SecretFacts>) + Send + Sync + 'static,
) -> Arc<Secrets> {
    let secrets = Kind::new("secrets", operator.writer(MANAGER), facts);
    operator.watch_selected(&secrets, Selection::in_namespace(namespace), notify);
    secrets
}

#[expect(clippy::unnecessary_wraps, reason = "the form that every kind's filter has")]
fn facts(secret: Metadata<Secret>) -> Option<SecretFacts> {
    let metadata = secret.metadata;
    let mut annotations = metadata.annotations.unwrap_or_default();
    Some(SecretFacts {
        is_deleting: metadata.deletion_timestamp.is_some(),
        uid: metadata.uid.unwrap_or_default(),
        cluster: metadata.labels.and_then(|mut labels| labels.remove(CLUSTER_LABEL)),
        token_expiry: annotations.remove(EXPIRY_ANNOTATION),
        api_server: annotations.remove(API_SERVER_ANNOTATION),
    })
}

/// As the server has it now. `None`: there is none.
pub(crate) async fn read(writer: &Writer, key: &Key) -> Result<Option<Data>, Error> {
    let secret: Option<Secret> = writer.read("secrets", key).await?;
    Ok(secret.map(|secret| {
        let data = secret.data.unwrap_or_default();
        data.into_iter().map(|(key, bytes)| (key, bytes.0)).collect()
    }))
}

/// Gives a Secret these entries, and makes it where there is none; its other entries stay. `metadata` are labels,
/// annotations and owners.
pub(crate) async fn store(
    secrets: &Secrets,
    key: &Key,
    kind: &str,
    metadata: Value,
    entries: Value,
) -> Result<(), Error> {
    let mut body = json!({ "metadata": metadata, "stringData": entries });
    if let Some(found) = secrets.get(key) {
        body["metadata"]["uid"] = json!(found.value.uid);
        body["metadata"]["resourceVersion"] = json!(found.version.to_string());
        secrets.patch(key, None, &body).await.map_err(unquoted)?;
        return Ok(());
    }
    body["apiVersion"] = json!("v1");
    body["kind"] = json!("Secret");
    body["type"] = json!(kind);
    body["metadata"]["name"] = json!(*key.name);
    body["metadata"]["namespace"] = json!(*key.namespace);
    secrets.create(key, &body).await.map_err(unquoted)?;
    Ok(())
}

/// The server may quote what it refuses, and a Secret's content must reach neither a status nor a log.
fn unquoted(error: Error) -> Error {
    match error.status().map(|status| status.code) {
        Some(400 | 422) => error.with_message("the API server refuses the Secret".to_owned()),
        _ => error,
    }
}
