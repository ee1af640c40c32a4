//! The content of Secrets: named by digests here, read and checked by the executor.

use std::collections::BTreeMap;

use api::workspace::Config;
use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::object::digest;

/// Key of the password in its Secret.
pub const PASSWORD: &str = "password";

/// The data of a Secret in base64, as the API server has it. Executors alone have it.
pub type Data = BTreeMap<String, String>;

/// Where the content of a derived Secret comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// All data of another Secret of the namespace, provided that its digest still is this one.
    FromSecret { name: String, digest: String },
    /// The data of an entry of the owner's spec.configs.
    FromConfig { name: String },
    /// A new password, provided that there is no Secret of this name.
    NewPassword,
}

/// What planning knows of the data of a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digested {
    pub digest: String,
    /// Of keys and base64.
    pub bytes: usize,
}

impl Digested {
    pub fn of(data: &Data) -> Self {
        Self { digest: digest(&json!(data)), bytes: data.iter().map(|(key, value)| key.len() + value.len()).sum() }
    }
}

/// The data of a config that is a Secret.
pub fn data_of_config(config: &Config) -> Data {
    config.data.iter().map(|(key, text)| (key.clone(), encoded(text.clone().into_bytes()))).collect()
}

pub fn data_of_password(password: String) -> Data {
    Data::from([(PASSWORD.to_owned(), encoded(password.into_bytes()))])
}

/// In base64.
pub fn encoded(bytes: Vec<u8>) -> String {
    json!(ByteString(bytes)).as_str().unwrap_or_default().to_owned()
}
