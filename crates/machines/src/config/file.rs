//! The configuration file, in the original's form.

use std::{collections::BTreeMap, path::Path};

use serde_json::Value;
use shard::client::Addresses;

use super::{ConfigError, ShardAddress, Shards, check_id};

/// A file of a thousand shards is a tenth of this.
const LARGEST: usize = 1 << 20;

/// What a configuration file says; what it does not say is `None`.
#[derive(Debug, Default)]
pub struct File {
    pub cluster_id: Option<String>,
    pub tenant: Option<String>,
    pub shards: Option<Shards>,
}

pub fn read(path: &Path) -> Result<File, ConfigError> {
    let key = path.display().to_string();
    let remedy = "write a configuration file there, or name another with --machines-config";
    let text = std::fs::read_to_string(path).map_err(|error| ConfigError::new(&key, error.to_string(), remedy))?;
    parse(&text).map_err(|error| ConfigError { key: format!("{key}: {}", error.key), ..error })
}

pub fn parse(text: &str) -> Result<File, ConfigError> {
    let unreadable = |why: String| {
        ConfigError::new("the configuration", why, "write YAML with the keys cluster_id, tenant and shards")
    };
    if text.len() > LARGEST {
        return Err(unreadable(format!("it is larger than {LARGEST} bytes")));
    }
    if text.trim().is_empty() {
        return Ok(File::default());
    }
    let document: Value = serde_saphyr::from_str(text).map_err(|error| unreadable(error.to_string()))?;
    let Value::Object(entries) = document else { return Err(unreadable("it is not a map".to_owned())) };
    let mut file = File::default();
    for (key, value) in &entries {
        match key.as_str() {
            "cluster_id" => file.cluster_id = word(key, value)?,
            "tenant" => file.tenant = word(key, value)?,
            "shards" => file.shards = Some(shards(value)?),
            "sleep" => note_sleep(value),
            _ => {
                let remedy = "remove it; the keys are cluster_id, tenant, shards and sleep";
                return Err(ConfigError::new(key, "the key is unknown", remedy));
            }
        }
    }
    Ok(file)
}

/// The shards of a configuration file, or of a ConfigMap's data: its key `config.yaml` where there is one, else a key per
/// shard.
pub fn parse_shards(data: &BTreeMap<String, String>) -> Result<Shards, ConfigError> {
    let shards = match data.get("config.yaml") {
        Some(text) => parse(text)?.shards.ok_or_else(no_shards)?,
        None => shards(&data.iter().map(|(shard, address)| (shard.clone(), Value::from(address.clone()))).collect())?,
    };
    Ok(shards)
}

pub fn no_shards() -> ConfigError {
    ConfigError::new(
        "shards",
        "there is none",
        "list each shard with its address, as in `shards: {eu-1: \"10.0.0.1:8993\"}`",
    )
}

fn shards(value: &Value) -> Result<Shards, ConfigError> {
    let Value::Object(entries) = value else {
        return Err(match value {
            Value::Null => no_shards(),
            _ => ConfigError::new("shards", "it is not a map", no_shards().remedy),
        });
    };
    if entries.is_empty() {
        return Err(no_shards());
    }
    let shards: Shards = entries.iter().map(|(shard, value)| one(shard, value)).collect::<Result<_, _>>()?;
    let mut owners = BTreeMap::new();
    for (shard, at) in &shards {
        for address in at.operator.as_slice() {
            if let Some(other) = owners.insert(address.to_string(), shard).filter(|other| *other != shard) {
                let why = format!("its address {address} is that of the shard {other} too");
                let remedy = "give each shard its own: what one of them has would count as gone from the other";
                return Err(ConfigError::new(format!("shards.{shard}"), why, remedy));
            }
        }
    }
    Ok(shards)
}

fn one(shard: &str, value: &Value) -> Result<(String, ShardAddress), ConfigError> {
    let key = format!("shards.{shard}");
    check_id(&key, shard)?;
    let address = match value {
        Value::String(operator) => bare(&key, operator)?,
        Value::Object(fields) => {
            if let Some(unknown) =
                fields.keys().find(|key| !["registration_addr", "operator_addr"].contains(&key.as_str()))
            {
                let remedy = "remove it; the keys of a shard are registration_addr and operator_addr";
                return Err(ConfigError::new(format!("{key}.{unknown}"), "the key is unknown", remedy));
            }
            let field = |name: &str| addresses(&format!("{key}.{name}"), fields.get(name));
            ShardAddress { registration: field("registration_addr")?, operator: field("operator_addr")? }
        }
        _ => return Err(ConfigError::new(key, "it is no address", ADDRESS)),
    };
    Ok((shard.to_owned(), address))
}

const ADDRESS: &str = "write host:port of the operator port, host:port,host:port for several servers, or registration_addr and operator_addr";

/// The operator address alone: registration is at the port before it.
fn bare(key: &str, text: &str) -> Result<ShardAddress, ConfigError> {
    let operator = address(key, text)?;
    let registration = operator.neighbours(-1).ok_or_else(|| {
        ConfigError::new(
            key,
            "there is no port before it for registration",
            "write registration_addr and operator_addr",
        )
    })?;
    Ok(ShardAddress { operator, registration })
}

fn addresses(key: &str, value: Option<&Value>) -> Result<Addresses, ConfigError> {
    match value.and_then(Value::as_str).filter(|text| !text.is_empty()) {
        Some(text) => address(key, text),
        None => {
            Err(ConfigError::new(key, "it is missing", "write host:port, or host:port,host:port for several servers"))
        }
    }
}

fn address(key: &str, text: &str) -> Result<Addresses, ConfigError> {
    text.parse().map_err(|error: shard::client::AddressError| {
        let (why, remedy) = error.parts();
        ConfigError::new(key, why, remedy)
    })
}

/// A word; YAML reads some as numbers.
fn word(key: &str, value: &Value) -> Result<Option<String>, ConfigError> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        Value::Number(number) => Ok(Some(number.to_string())),
        _ => Err(ConfigError::new(key, "it is not a word", "write a name in lower-case letters, digits and hyphens")),
    }
}

/// Sleep is not offered; a file that asks for it still serves.
fn note_sleep(value: &Value) {
    if value["enabled"] == true {
        tracing::warn!(
            "sleep.enabled of the configuration file has no effect: this operator does not put tenants to sleep"
        );
    }
}
