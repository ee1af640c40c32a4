//! Values as users write them: durations, addresses, and the file that holds them.

use std::{net::SocketAddr, path::Path, time::Duration};

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::Failure;

/// A duration like `2m`, `90s` or `1h30m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let advice = "write it like 2m, 90s or 1h30m";
    let signed: SignedDuration = text.parse().map_err(|_| format!("{text:?} is not a duration: {advice}"))?;
    let duration = Duration::try_from(signed).map_err(|_| format!("{text:?} is negative: {advice}"))?;
    if duration.is_zero() { Err(format!("{text:?} is zero: {advice}")) } else { Ok(duration) }
}

/// Where to listen: `:8080` (all addresses), `127.0.0.1:8080`, or `0` for nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen(pub Option<SocketAddr>);

pub fn listen(text: &str) -> Result<Listen, String> {
    if text == "0" {
        return Ok(Listen(None));
    }
    // Go's habit, which existing deployments rely on: no host means every address.
    let full = if text.starts_with(':') { format!("[::]{text}") } else { text.to_owned() };
    full.parse().map(|address| Listen(Some(address))).map_err(|_| {
        format!("{text:?} is not an address to listen on: write :8080, 127.0.0.1:8080, or 0 to switch it off")
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Json,
    Pretty,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamingLists {
    /// Where the server offers them (Kubernetes 1.34 and newer)
    Auto,
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LayerName {
    Performers,
}

/// The configuration file. Every key has the name of its flag in camel case.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct File {
    pub layers: Option<Vec<LayerName>>,
    #[serde(deserialize_with = "read_listen")]
    pub metrics_bind_address: Option<Listen>,
    #[serde(deserialize_with = "read_listen")]
    pub health_probe_bind_address: Option<Listen>,
    pub leader_elect: Option<bool>,
    pub lease_name: Option<String>,
    pub lease_namespace: Option<String>,
    #[serde(deserialize_with = "read_duration")]
    pub lease_duration: Option<Duration>,
    pub log_format: Option<LogFormat>,
    pub log_level: Option<String>,
    #[serde(deserialize_with = "read_duration")]
    pub resync: Option<Duration>,
    pub concurrency: Option<usize>,
    #[serde(deserialize_with = "read_duration")]
    pub request_timeout: Option<Duration>,
    #[serde(deserialize_with = "read_duration")]
    pub grace_period: Option<Duration>,
    pub streaming_lists: Option<StreamingLists>,
    #[serde(deserialize_with = "read_duration")]
    pub pending_limit: Option<Duration>,
    #[serde(deserialize_with = "read_duration")]
    pub failure_delay: Option<Duration>,
    #[serde(deserialize_with = "read_duration")]
    pub deletion_margin: Option<Duration>,
}

impl File {
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::new(format!("cannot read the configuration file {shown}: {error}")))?;
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        serde_saphyr::from_str(&text).map_err(|error| {
            Failure::new(format!("configuration file {shown}: {error}"))
                .hint("keys are the long flags in camel case, for example leaseDuration: 6s")
        })
    }
}

fn read_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    Option::<String>::deserialize(deserializer)?.map(|text| duration(&text).map_err(D::Error::custom)).transpose()
}

fn read_listen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Listen>, D::Error> {
    Option::<String>::deserialize(deserializer)?.map(|text| listen(&text).map_err(D::Error::custom)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_name_the_remedy() {
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        for wrong in ["", "5", "-3s", "0s", "soon"] {
            assert!(duration(wrong).unwrap_err().contains("write it like 2m"), "{wrong}");
        }
    }

    #[test]
    fn addresses_follow_the_habit_of_existing_deployments() {
        assert_eq!(listen(":8080").unwrap().0.unwrap().port(), 8080);
        assert_eq!(listen("127.0.0.1:0").unwrap().0.unwrap().to_string(), "127.0.0.1:0");
        assert_eq!(listen("0"), Ok(Listen(None)));
        assert!(listen("8080").unwrap_err().contains("write :8080"));
    }

    #[test]
    fn an_unknown_key_is_refused_by_name() {
        let error = serde_saphyr::from_str::<File>("leaseDuratoin: 6s\n").unwrap_err().to_string();
        assert!(error.contains("leaseDuratoin"), "{error}");
    }
}
