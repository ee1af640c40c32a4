//! Certificates that were uploaded.

use http::StatusCode;
use jiff::{Timestamp, ToSpan};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    action::seconds,
    query::Query,
    refusal::Refusal,
    selector::Labels,
    state::{Base, Call, Outcome, Project, Record, Reply, World, in_table},
};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Certificate {
    base: Base,
    pem: String,
    fingerprint: String,
}

#[derive(Default, Deserialize)]
struct Input {
    name: Option<String>,
    r#type: Option<String>,
    certificate: Option<String>,
    private_key: Option<String>,
    labels: Option<Labels>,
}

/// The chain's first certificate.
fn fingerprint(pem: &str) -> Option<String> {
    let first = CertificateDer::pem_slice_iter(pem.as_bytes()).next()?.ok()?;
    let pairs: Vec<String> = Sha256::digest(&first).iter().map(|byte| format!("{byte:02x}")).collect();
    Some(pairs.join(":"))
}

impl Record for Certificate {
    in_table!("certificates", "certificate", certificates);

    fn view(&self, _: &Project) -> Value {
        // Its real validity would need a parser; nothing here goes by it.
        let until = self.base.created.checked_add((24 * 3650).hours()).unwrap_or(Timestamp::MAX);
        self.base.view(json!({
            "type": "uploaded", "certificate": self.pem, "not_valid_before": seconds(self.base.created),
            "not_valid_after": seconds(until), "domain_names": [], "fingerprint": self.fingerprint,
            "status": null, "used_by": [],
        }))
    }

    fn is_wanted(&self, query: &Query) -> bool {
        query.admits("type", "uploaded")
    }

    fn create(world: &mut World<'_>, call: &Call) -> Outcome {
        let input: Input = call.read()?;
        let name = world.name::<Self>(input.name, None)?;
        match input.r#type.as_deref() {
            None | Some("uploaded") => {}
            Some("managed") => {
                let message = "managed certificates are not simulated";
                return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "unsupported_error", message));
            }
            Some(_) => return Err(Refusal::invalid("type", "must be uploaded or managed")),
        }
        let certificate = input.certificate.unwrap_or_default();
        let fingerprint =
            fingerprint(&certificate).ok_or_else(|| Refusal::invalid("certificate", "is not a PEM certificate"))?;
        let key = input.private_key.unwrap_or_default();
        if PrivateKeyDer::from_pem_slice(key.as_bytes()).is_err() {
            return Err(Refusal::invalid("private_key", "is not a PEM private key"));
        }
        let record = Self { base: world.base(name, input.labels)?, pem: certificate, fingerprint };
        let view = record.view(world.project);
        world.project.certificates.insert(record.base.id, record);
        Ok(Reply::created(json!({ "certificate": view, "action": null })))
    }

    fn delete(world: &mut World<'_>, id: i64) -> Outcome {
        world.project.certificates.remove(&id);
        Ok(Reply::empty())
    }

    fn act(_: &mut World<'_>, _: &Call, _: i64, _: &str) -> Outcome {
        Err(Refusal::no_route())
    }
}
