//! Helm's own records: Secrets that hold each revision as JSON, compressed and encoded twice.

use std::io::{Read, Write};

use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};

/// Helm refuses to store more than fits in a Secret; unpacked, no release of that size needs more.
const MAX_UNPACKED: u64 = 64 << 20;

/// Name of the Secret of a revision.
pub fn secret_name(release: &str, revision: u32) -> String {
    format!("sh.helm.release.v1.{release}.v{revision}")
}

/// The record in a storage Secret. `None` if it is not of the form that Helm writes.
pub fn decode(secret: &Secret) -> Option<Value> {
    let encoded = &secret.data.as_ref()?.get("release")?.0;
    let packed = STANDARD.decode(encoded).ok()?;
    let mut text = Vec::new();
    GzDecoder::new(packed.as_slice()).take(MAX_UNPACKED).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// The other way round, in the form of a Secret's `data`.
fn encode(record: &Value) -> String {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(record.to_string().as_bytes()).expect("memory takes it");
    // Once by Helm, once because it is a Secret.
    STANDARD.encode(STANDARD.encode(packed.finish().expect("memory takes it")))
}

/// The patch that turns an unfinished revision into a failed one, which the next upgrade starts from.
pub fn failed(mut record: Value, uid: &str, resource_version: &str) -> Value {
    record["info"]["status"] = json!("failed");
    record["info"]["description"] = json!("Left unfinished by a process that is gone; marked as failed by strata");
    json!({
        "metadata": { "uid": uid, "resourceVersion": resource_version, "labels": { "status": "failed" } },
        "data": { "release": encode(&record) },
    })
}

/// The objects of a record's manifest. Hooks are not among them.
pub fn manifest(record: &Value) -> Vec<Value> {
    let text = record["manifest"].as_str().unwrap_or_default();
    let documents = serde_saphyr::from_multiple::<Value>(text).unwrap_or_default();
    documents.into_iter().filter(|document| document["kind"].is_string()).collect()
}

/// Whether removing the release would remove data.
pub fn holds_data(objects: &[Value]) -> bool {
    objects.iter().any(|object| object["kind"] == "PersistentVolumeClaim")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    #[test]
    fn a_record_is_read_and_written_as_helm_does() {
        let record = json!({ "name": "web", "info": { "status": "pending-upgrade" }, "manifest": "---\nkind: A\n---\n\n---\nkind: PersistentVolumeClaim\n" });
        let data = STANDARD.decode(encode(&record)).unwrap();
        let secret = Secret { data: Some([("release".to_owned(), ByteString(data))].into()), ..Secret::default() };
        assert_eq!(decode(&secret), Some(record.clone()));
        assert!(holds_data(&manifest(&record)));
        let patch = failed(record, "u", "7");
        let data = STANDARD.decode(patch["data"]["release"].as_str().unwrap()).unwrap();
        let secret = Secret { data: Some([("release".to_owned(), ByteString(data))].into()), ..Secret::default() };
        assert_eq!(decode(&secret).unwrap()["info"]["status"], "failed");
    }

    #[test]
    fn what_is_not_a_record_is_none() {
        let secret =
            Secret { data: Some([("release".to_owned(), ByteString(b"x".to_vec()))].into()), ..Secret::default() };
        assert_eq!(decode(&secret), None);
        assert_eq!(decode(&Secret::default()), None);
    }
}
