//! The services of a load balancer: where it listens, and how it checks its targets.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::refusal::Refusal;

/// A port that a load balancer forwards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Service {
    pub protocol: String,
    pub listen_port: u16,
    pub destination_port: u16,
    pub proxyprotocol: bool,
    pub(super) http: Value,
    pub health_check: HealthCheck,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HealthCheck {
    pub protocol: String,
    pub port: u16,
    /// Seconds.
    pub interval: u32,
    /// Seconds.
    pub timeout: u32,
    /// So many results of the other sort change a target's health.
    pub retries: u32,
    pub http: Option<HttpCheck>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HttpCheck {
    pub domain: String,
    pub path: String,
    pub response: String,
    /// `?` stands for any digit.
    pub status_codes: Vec<String>,
    pub tls: bool,
}

impl Default for HttpCheck {
    fn default() -> Self {
        let status_codes = vec!["2??".to_owned(), "3??".to_owned()];
        Self { domain: String::new(), path: "/".to_owned(), response: String::new(), status_codes, tls: false }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct ServiceInput {
    protocol: Option<String>,
    pub listen_port: Option<u16>,
    destination_port: Option<u16>,
    proxyprotocol: Option<bool>,
    http: Option<Value>,
    health_check: Option<CheckInput>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct CheckInput {
    protocol: Option<String>,
    port: Option<u16>,
    interval: Option<u32>,
    timeout: Option<u32>,
    retries: Option<u32>,
    http: Option<HttpCheck>,
}

impl ServiceInput {
    /// A new service.
    pub fn service(self) -> Result<Service, Refusal> {
        let protocol = self.protocol.clone().unwrap_or_default();
        let default = match protocol.as_str() {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        };
        let port = |port: Option<u16>, field: &str| {
            let port = port.or(default).filter(|port| *port > 0);
            port.ok_or_else(|| Refusal::invalid(field, "must be a port number"))
        };
        let listen_port = port(self.listen_port, "listen_port")?;
        let destination_port = port(self.destination_port.or(self.listen_port), "destination_port")?;
        let health_check = HealthCheck {
            protocol: "tcp".to_owned(),
            port: destination_port,
            interval: 15,
            timeout: 10,
            retries: 3,
            http: None,
        };
        let http = self.http.clone().unwrap_or_default();
        let fresh = Service { protocol, listen_port, destination_port, proxyprotocol: false, http, health_check };
        self.over(&fresh)
    }

    /// `service` with what this changes.
    pub fn over(self, service: &Service) -> Result<Service, Refusal> {
        let check = self.health_check.unwrap_or_default();
        let known = &service.health_check;
        let health_check = HealthCheck {
            protocol: check.protocol.unwrap_or_else(|| known.protocol.clone()),
            port: check.port.unwrap_or(known.port),
            interval: check.interval.unwrap_or(known.interval),
            timeout: check.timeout.unwrap_or(known.timeout),
            retries: check.retries.unwrap_or(known.retries),
            http: check.http.or_else(|| known.http.clone()),
        };
        let service = Service {
            protocol: self.protocol.unwrap_or_else(|| service.protocol.clone()),
            listen_port: service.listen_port,
            destination_port: self.destination_port.unwrap_or(service.destination_port),
            proxyprotocol: self.proxyprotocol.unwrap_or(service.proxyprotocol),
            http: self.http.unwrap_or_else(|| service.http.clone()),
            health_check,
        };
        service.checked()
    }
}

impl Service {
    fn checked(self) -> Result<Self, Refusal> {
        if !["tcp", "http", "https"].contains(&self.protocol.as_str()) {
            return Err(Refusal::invalid("protocol", "must be tcp, http or https"));
        }
        let check = &self.health_check;
        if !["tcp", "http", "https"].contains(&check.protocol.as_str()) {
            return Err(Refusal::invalid("health_check.protocol", "must be tcp or http"));
        }
        let limits = [("interval", check.interval, 3..=60), ("timeout", check.timeout, 1..=60)];
        for (name, value, limits) in limits.into_iter().chain([("retries", check.retries, 1..=5)]) {
            if !limits.contains(&value) {
                let message = format!("must be between {} and {}", limits.start(), limits.end());
                return Err(Refusal::invalid(&format!("health_check.{name}"), message));
            }
        }
        Ok(self)
    }
}
