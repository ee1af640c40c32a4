//! talosconfig: where a cluster's machine API is and the certificate to use it with.

use std::{collections::BTreeMap, fmt};

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::certificate::{self, Authority, CertificateError, Facts, Pair, Subject, standard_label};

/// Talos' own lifetime of a client certificate: one year.
pub const LIFETIME: SignedDuration = SignedDuration::from_hours(365 * 24);

/// A certificate is renewed when less than a third of its life is left: of a year that is four months, in which any
/// outage of the renewing operator ends.
const RENEW_BELOW: i32 = 3;

/// Roles that a client certificate can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Admin,
    Operator,
    Reader,
    EtcdBackup,
}

impl Role {
    /// The organization in the certificate.
    pub fn name(self) -> &'static str {
        match self {
            Self::Admin => "os:admin",
            Self::Operator => "os:operator",
            Self::Reader => "os:reader",
            Self::EtcdBackup => "os:etcd:backup",
        }
    }
}

/// Why a talosconfig cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TalosconfigError {
    #[error("the talosconfig is not a YAML document of Talos' form: {0}")]
    Yaml(String),
    #[error("the talosconfig has no context {name:?}; it has {known}")]
    NoContext { name: String, known: String },
    #[error("the talosconfig's context {context:?} lacks {part}")]
    Missing { context: String, part: &'static str },
    #[error("{part} of the talosconfig's context {context:?} is not base64 of PEM")]
    Encoding { context: String, part: &'static str },
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

/// The file that `talosctl` reads from `TALOSCONFIG`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Talosconfig {
    /// The context in use.
    #[serde(default)]
    pub context: String,
    #[serde(default)]
    pub contexts: BTreeMap<String, Context>,
}

/// One cluster. Certificates and key are base64 of PEM.
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct Context {
    #[serde(default)]
    pub endpoints: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    #[serde(default)]
    pub ca: String,
    #[serde(default)]
    pub crt: String,
    #[serde(default)]
    pub key: String,
}

/// Never prints the key.
impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoints, nodes, .. } = self;
        f.debug_struct("Context").field("endpoints", endpoints).field("nodes", nodes).finish_non_exhaustive()
    }
}

impl Talosconfig {
    /// A talosconfig for one cluster with a new certificate.
    pub fn issue(
        cluster: &str,
        os: &Authority,
        role: Role,
        endpoints: Vec<String>,
        now: Timestamp,
    ) -> Result<Self, TalosconfigError> {
        let context =
            Context { endpoints, nodes: Vec::new(), ca: STANDARD.encode(os.certificate()), ..Context::empty() };
        let context = context.signed(os, role.name(), now, LIFETIME)?;
        Ok(Self { context: cluster.to_owned(), contexts: BTreeMap::from([(cluster.to_owned(), context)]) })
    }

    pub fn from_yaml(text: &str) -> Result<Self, TalosconfigError> {
        serde_saphyr::from_str(text)
            .map_err(|error| TalosconfigError::Yaml(error.to_string().lines().next().unwrap_or_default().to_owned()))
    }

    pub fn to_yaml(&self) -> String {
        serde_saphyr::to_string(self).expect("strings have a YAML form")
    }

    /// The context in use.
    pub fn current(&self) -> Result<&Context, TalosconfigError> {
        self.contexts.get(&self.context).ok_or_else(|| TalosconfigError::NoContext {
            name: self.context.clone(),
            known: self.contexts.keys().map(String::as_str).collect::<Vec<_>>().join(", "),
        })
    }

    /// What the certificate in use says; among others when it ends.
    pub fn certificate(&self) -> Result<Facts, TalosconfigError> {
        let pair = self.current()?.pair(&self.context)?;
        Ok(certificate::facts(&pair.certificate)?)
    }

    /// The same talosconfig with a new certificate of the same role and lifetime, where less than a third of the
    /// present one's life is left, or a clock that was ahead dated it into the future; `None` while it is good.
    pub fn renewed(&self, os: &Authority, now: Timestamp) -> Result<Option<Self>, TalosconfigError> {
        let facts = self.certificate()?;
        let lifetime = facts.not_after.duration_since(facts.not_before);
        let left = facts.not_after.duration_since(now);
        if left >= lifetime / RENEW_BELOW && facts.not_before <= now {
            return Ok(None);
        }
        let role = facts.organizations.first().map_or(Role::Admin.name(), String::as_str);
        let context = self.current()?.clone().signed(os, role, now, lifetime)?;
        let mut renewed = self.clone();
        renewed.contexts.insert(self.context.clone(), context);
        Ok(Some(renewed))
    }
}

impl Context {
    fn empty() -> Self {
        Self { endpoints: Vec::new(), nodes: Vec::new(), ca: String::new(), crt: String::new(), key: String::new() }
    }

    /// With a certificate of `lifetime` from this authority, and the authority's own certificate to trust.
    fn signed(
        mut self,
        os: &Authority,
        role: &str,
        now: Timestamp,
        lifetime: SignedDuration,
    ) -> Result<Self, TalosconfigError> {
        let pair = os.sign(&Subject { organization: Some(role), ..Subject::default() }, now, lifetime)?;
        self.ca = STANDARD.encode(os.certificate());
        self.crt = STANDARD.encode(&pair.certificate);
        self.key = STANDARD.encode(&pair.key);
        Ok(self)
    }

    /// PEM of the cluster's authority.
    pub fn authority(&self, context: &str) -> Result<String, TalosconfigError> {
        decode(&self.ca, context, "ca")
    }

    /// The client's certificate and key, the key under the label that TLS libraries read.
    pub fn pair(&self, context: &str) -> Result<Pair, TalosconfigError> {
        let key = decode(&self.key, context, "key")?;
        Ok(Pair { certificate: decode(&self.crt, context, "crt")?, key: standard_label(&key) })
    }
}

fn decode(text: &str, context: &str, part: &'static str) -> Result<String, TalosconfigError> {
    if text.is_empty() {
        return Err(TalosconfigError::Missing { context: context.to_owned(), part });
    }
    let encoding = || TalosconfigError::Encoding { context: context.to_owned(), part };
    let bytes = STANDARD.decode(text.trim()).map_err(|_| encoding())?;
    String::from_utf8(bytes).map_err(|_| encoding())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Secrets;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn issued() -> (Authority, Talosconfig) {
        let secrets = Secrets::generate(at("2026-01-01T00:00:00Z")).unwrap();
        let os = secrets.os_authority().unwrap();
        let endpoints = vec!["192.0.2.1".to_owned()];
        let config = Talosconfig::issue("prod", &os, Role::Reader, endpoints, at("2026-01-01T00:00:00Z")).unwrap();
        (os, config)
    }

    #[test]
    fn a_talosconfig_survives_its_yaml_form() {
        let (_, config) = issued();
        assert_eq!(Talosconfig::from_yaml(&config.to_yaml()).unwrap(), config);
        assert_eq!(config.certificate().unwrap().organizations, ["os:reader"]);
    }

    #[test]
    fn k51_it_is_renewed_before_it_expires_and_not_earlier() {
        let (os, config) = issued();
        assert_eq!(config.renewed(&os, at("2026-08-31T00:00:00Z")).unwrap(), None, "four months are left");
        let renewed = config.renewed(&os, at("2026-09-03T00:00:00Z")).unwrap().expect("a third of the year is left");
        let facts = renewed.certificate().unwrap();
        assert_eq!(facts.organizations, ["os:reader"], "the role stays");
        assert!(facts.not_after > at("2027-09-01T00:00:00Z"), "{facts:?}");
        assert_eq!(renewed.contexts["prod"].endpoints, config.contexts["prod"].endpoints);
        assert_eq!(renewed.renewed(&os, at("2026-09-03T00:00:00Z")).unwrap(), None, "renewing again changes nothing");
    }

    #[test]
    fn an_expired_one_is_renewed_as_well() {
        let (os, config) = issued();
        assert!(config.renewed(&os, at("2030-01-01T00:00:00Z")).unwrap().is_some());
    }

    #[test]
    fn one_that_begins_in_the_future_is_renewed_as_well() {
        let (os, config) = issued();
        let now = at("2025-06-01T00:00:00Z");
        let renewed = config.renewed(&os, now).unwrap().expect("no node accepts it before the next year");
        assert!(renewed.certificate().unwrap().not_before <= now);
        assert_eq!(renewed.renewed(&os, now).unwrap(), None);
    }

    #[test]
    fn what_is_missing_is_named() {
        let (_, mut config) = issued();
        config.context = "other".to_owned();
        assert_eq!(config.current().unwrap_err().to_string(), "the talosconfig has no context \"other\"; it has prod");
        config.context = "prod".to_owned();
        config.contexts.get_mut("prod").unwrap().crt.clear();
        let error = config.certificate().unwrap_err().to_string();
        assert_eq!(error, "the talosconfig's context \"prod\" lacks crt");
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in ".{0,200}", crt in ".{0,60}") {
            let _ = Talosconfig::from_yaml(&text).map(|config| config.certificate());
            let context = Context { crt, ..Context::empty() };
            let _ = context.pair("x");
        }
    }
}
