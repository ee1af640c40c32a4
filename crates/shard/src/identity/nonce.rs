//! Nonces: signed tokens that let a client register once.

use std::time::Duration;

use jiff::Timestamp;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use rcgen::KeyPair;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// Clocks of issuer and server differ by less.
const LEEWAY: i64 = 60;

/// Longer than any nonce we issue by far; a token is parsed before its signature is known.
const TOKEN_LIMIT: usize = 8 * 1024;

/// For which kind of client a nonce is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Operator,
    Agent,
}

/// What a nonce says. Fields that only agents need are empty for operators, as the original writes them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// The cluster's id for an operator, the instance's for an agent.
    pub sub: String,
    pub kind: Kind,
    pub cluster_id: String,
    pub tenant: String,
    pub exp: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbf: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iat: Option<i64>,
    #[serde(default)]
    pub config_hash: String,
    #[serde(default)]
    pub shard: String,
    #[serde(default)]
    pub group: String,
    #[serde(default)]
    pub on_demand: bool,
    /// Tells an operator's nonces apart that were issued in the same second: each can be used once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jti: Option<String>,
}

impl Claims {
    /// An operator's, for one tenant of the cluster.
    pub fn operator(cluster: &str, tenant: &str, now: Timestamp, lifetime: Duration) -> Self {
        let jti = Some(Uuid::new_v4().to_string());
        Self { jti, ..Self::new(Kind::Operator, cluster, cluster, tenant, now, lifetime) }
    }

    /// An agent's, for one instance.
    pub fn agent(cluster: &str, tenant: &str, instance: &str, now: Timestamp, lifetime: Duration) -> Self {
        Self::new(Kind::Agent, instance, cluster, tenant, now, lifetime)
    }

    fn new(kind: Kind, sub: &str, cluster: &str, tenant: &str, now: Timestamp, lifetime: Duration) -> Self {
        let lifetime = i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX);
        Self {
            sub: sub.to_owned(),
            kind,
            cluster_id: cluster.to_owned(),
            tenant: tenant.to_owned(),
            exp: now.as_second().saturating_add(lifetime),
            nbf: None,
            iat: Some(now.as_second()),
            config_hash: String::new(),
            shard: String::new(),
            group: String::new(),
            on_demand: false,
            jti: None,
        }
    }
}

/// Why a nonce is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NonceError {
    #[error("registration_nonce_jwt: not a nonce of this cluster")]
    Forged,
    #[error("registration_nonce_jwt: expired or not valid yet; issue a new nonce")]
    Expired,
    #[error("registration_nonce_jwt: for another kind of client")]
    Kind,
    /// The signature is good and the content is not.
    #[error("registration_nonce_jwt: {0}")]
    Claims(&'static str),
}

/// Signs and verifies the nonces of one cluster.
pub struct Nonces {
    sign: EncodingKey,
    verify: DecodingKey,
}

impl Nonces {
    pub fn load(key_pem: &str) -> Result<Self, rcgen::Error> {
        let key = KeyPair::from_pem(key_pem)?;
        let verify = DecodingKey::from_ed_der(key.public_key_raw());
        Ok(Self { sign: EncodingKey::from_ed_der(&key.serialize_der()), verify })
    }

    pub fn issue(&self, claims: &Claims) -> Result<String, jsonwebtoken::errors::Error> {
        encode(&Header::new(Algorithm::EdDSA), claims, &self.sign)
    }

    /// Checks signature, time, kind and cluster.
    pub fn verify(&self, token: &str, kind: Kind, cluster: &str, now: Timestamp) -> Result<Claims, NonceError> {
        if token.len() > TOKEN_LIMIT {
            return Err(NonceError::Forged);
        }
        let mut rules = Validation::new(Algorithm::EdDSA);
        // Time is checked below, against this server's clock and not the library's.
        rules.validate_exp = false;
        rules.validate_nbf = false;
        rules.validate_aud = false;
        rules.set_required_spec_claims(&["sub", "exp"]);
        let claims: Claims = decode(token, &self.verify, &rules).map_err(|_| NonceError::Forged)?.claims;
        let now = now.as_second();
        let early = [claims.nbf, claims.iat].into_iter().flatten().any(|from| from > now.saturating_add(LEEWAY));
        if early || claims.exp <= now {
            return Err(NonceError::Expired);
        }
        if claims.kind != kind {
            return Err(NonceError::Kind);
        }
        if claims.sub.is_empty() || claims.tenant.is_empty() {
            return Err(NonceError::Claims("sub and tenant must not be empty"));
        }
        if claims.cluster_id != cluster {
            return Err(NonceError::Claims("cluster_id is another cluster's"));
        }
        if kind == Kind::Operator && claims.sub != cluster {
            return Err(NonceError::Claims("sub must be the cluster's id"));
        }
        Ok(claims)
    }
}

/// Under this name the key is stored that used the nonce.
pub fn digest(token: &str) -> String {
    Sha256::digest(token.as_bytes()).iter().fold(String::with_capacity(64), |text, byte| text + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::key_pair;

    const HOUR: Duration = Duration::from_hours(1);

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn check(change: impl FnOnce(&mut Claims), expected: Option<NonceError>) {
        let nonces = Nonces::load(&key_pair().serialize_pem()).unwrap();
        let mut claims = Claims::operator("dev", "default", now(), HOUR);
        change(&mut claims);
        let token = nonces.issue(&claims).unwrap();
        assert_eq!(nonces.verify(&token, Kind::Operator, "dev", now()).err(), expected, "{claims:?}");
    }

    #[test]
    fn a_nonce_is_accepted_for_its_kind_cluster_and_time_only() {
        let at = now().as_second();
        check(|_| {}, None);
        check(|claims| claims.exp = at, Some(NonceError::Expired));
        check(|claims| claims.exp = at + 1, None);
        check(|claims| claims.nbf = Some(at + 61), Some(NonceError::Expired));
        check(|claims| claims.nbf = Some(at + 60), None);
        check(|claims| claims.iat = Some(at + 3600), Some(NonceError::Expired));
        check(|claims| claims.kind = Kind::Agent, Some(NonceError::Kind));
        check(|claims| claims.tenant.clear(), Some(NonceError::Claims("sub and tenant must not be empty")));
        check(|claims| claims.cluster_id = "x".into(), Some(NonceError::Claims("cluster_id is another cluster's")));
        check(|claims| claims.sub = "x".into(), Some(NonceError::Claims("sub must be the cluster's id")));
    }

    #[test]
    fn two_nonces_of_one_second_are_two() {
        let nonces = Nonces::load(&key_pair().serialize_pem()).unwrap();
        let issue = || nonces.issue(&Claims::operator("dev", "default", now(), HOUR)).unwrap();
        assert_ne!(issue(), issue());
    }

    #[test]
    fn what_another_key_or_no_key_signed_is_forged() {
        let nonces = Nonces::load(&key_pair().serialize_pem()).unwrap();
        let other = Nonces::load(&key_pair().serialize_pem()).unwrap();
        let claims = Claims::operator("dev", "default", now(), HOUR);
        let foreign = other.issue(&claims).unwrap();
        let unsigned = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJkZXYifQ.";
        let shared = encode(&Header::new(Algorithm::HS256), &claims, &EncodingKey::from_secret(b"x")).unwrap();
        for token in [&*foreign, unsigned, &shared, "", "a.b.c", &"x".repeat(100_000)] {
            assert_eq!(nonces.verify(token, Kind::Operator, "dev", now()), Err(NonceError::Forged));
        }
    }

    #[test]
    fn the_claims_have_the_names_of_the_protocol() {
        let claims = Claims { nbf: Some(1), ..Claims::agent("dev", "default", "web01", now(), HOUR) };
        insta::assert_json_snapshot!(claims, @r#"
        {
          "sub": "web01",
          "kind": "agent",
          "cluster_id": "dev",
          "tenant": "default",
          "exp": 1767229200,
          "nbf": 1,
          "iat": 1767225600,
          "config_hash": "",
          "shard": "",
          "group": "",
          "on_demand": false
        }
        "#);
    }
}
