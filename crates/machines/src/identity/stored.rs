//! What the Secrets hold: read when they change, and kept because it is in use.

use std::collections::HashMap;

use plan::machines::identity::Part;
use process::explained;
use runtime::{Key, Writer};
use shard::identity::ClientKey;

use super::{CERTIFICATE, CERTIFICATE_KEY, Keys, PRIVATE_KEY};
use crate::secrets::{self, Data, Secrets};

/// The certificate's and the key's Secret, each with the version that was read.
#[derive(Default)]
pub(super) struct Stored {
    contents: HashMap<Key, (u64, Data)>,
    certificate: Option<(String, String)>,
    key: Option<String>,
}

impl Stored {
    /// Reads what changed since; the error says what could not be read.
    pub async fn refresh(&mut self, secrets: &Secrets, writer: &Writer, keys: &Keys) -> Result<(), String> {
        for key in [&keys.certificate, &keys.key] {
            let Some(version) = secrets.store().version(key) else {
                self.contents.remove(key);
                continue;
            };
            if self.contents.get(key).is_some_and(|(read, _)| *read == version) {
                continue;
            }
            match secrets::read(writer, key).await {
                // It may be newer than the version; then it is read once more.
                Ok(Some(data)) => self.contents.insert(key.clone(), (version, data)),
                Ok(None) => self.contents.remove(key),
                Err(error) => return Err(explained(&error)),
            };
        }
        let text = |key: &Key, entry: &str| {
            let bytes = self.contents.get(key)?.1.get(entry)?;
            String::from_utf8(bytes.clone()).ok().filter(|text| !text.is_empty())
        };
        let certificate = text(&keys.certificate, CERTIFICATE).zip(text(&keys.certificate, CERTIFICATE_KEY));
        let key = text(&keys.key, PRIVATE_KEY);
        (self.certificate, self.key) = (certificate, key);
        Ok(())
    }

    /// Certificate and key.
    pub fn certificate(&self) -> Option<(&str, &str)> {
        self.certificate.as_ref().map(|(certificate, key)| (certificate.as_str(), key.as_str()))
    }

    pub fn key(&self) -> Option<ClientKey> {
        self.key.as_deref().and_then(ClientKey::read)
    }

    pub fn key_part(&self) -> Part {
        match (&self.key, self.key()) {
            (None, _) => Part::Absent,
            (Some(_), Some(_)) => Part::Present,
            (Some(_), None) => Part::Unusable(format!("its entry {PRIVATE_KEY} is not an Ed25519 key in PEM")),
        }
    }
}
