//! The effects: keys and certificates asked for and stored.

use std::{future::Future, sync::Arc};

use futures::{StreamExt, stream::FuturesUnordered};
use plan::machines::identity::Action;
use process::explained;
use runtime::{Error, Key};
use serde_json::json;
use shard::{
    client::{self, CallError, Client, Code, Registrant},
    identity::{ClientKey, client_tls},
    wire,
};

use super::{CERTIFICATE, CERTIFICATE_KEY, Identity, NONCE, PRIVATE_KEY, PUBLIC_KEY};
use crate::secrets;

/// What a Secret of ours is: no schema of Kubernetes fits all of them.
const OPAQUE: &str = "Opaque";

/// Why an action did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// The same again would be refused again.
    pub is_refused: bool,
    pub message: String,
}

impl Failure {
    fn passing(message: impl Into<String>) -> Self {
        Self { is_refused: false, message: message.into() }
    }

    fn refused(message: impl Into<String>) -> Self {
        Self { is_refused: true, message: message.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::passing(explained(&error))
    }
}

impl Identity {
    pub(super) async fn execute(&self, action: Action) -> Result<(), Failure> {
        match action {
            Action::MakeKey => self.make_key().await,
            Action::Register => self.register().await,
            Action::Renew => self.renew().await,
            Action::DeleteNonce => self.delete_nonce().await,
        }
    }

    async fn make_key(&self) -> Result<(), Failure> {
        let key = ClientKey::make();
        let entries = json!({ PRIVATE_KEY: key.private_pem, PUBLIC_KEY: key.public_pem });
        Ok(secrets::store(&self.secrets, &self.keys.key, OPAQUE, json!({}), entries).await?)
    }

    /// Only the cluster's leader registers, and any shard may have it.
    async fn register(&self) -> Result<(), Failure> {
        let gone = |what: &str| Failure::passing(format!("{what} is gone"));
        let key = self.stored.key().ok_or_else(|| gone("the key"))?;
        let ca = self.authority().ok_or_else(|| gone("the CA"))?;
        let nonce = secrets::read(&self.writer, &self.keys.nonce).await?.ok_or_else(|| gone("the nonce"))?;
        let nonce = nonce.get(NONCE).and_then(|bytes| std::str::from_utf8(bytes).ok()).map(str::trim);
        let Some(nonce) = nonce.filter(|nonce| !nonce.is_empty()) else {
            return Err(Failure::refused(format!("Secret {} has no entry {NONCE}", self.keys.nonce)));
        };
        let tls =
            client_tls(&ca, None, Arc::new(self.clock.clone())).map_err(|error| Failure::refused(explained(&error)))?;
        let shards = self.shards.borrow().clone();
        let answer = any(shards.iter().map(|(shard, address)| {
            let request = wire::RegisterClientRequest {
                registration_nonce_jwt: nonce.to_owned(),
                public_key_pem: key.public_pem.clone().into_bytes(),
                ..wire::RegisterClientRequest::default()
            };
            let call = client::register(address.registration.clone(), tls.clone(), Registrant::Operator, request);
            (shard.as_str(), call)
        }))
        .await?;
        self.store_certificate(answer.client_certificate_pem, &key.private_pem, &ca).await
    }

    /// For the same key: a holder of it could renew before, too.
    async fn renew(&self) -> Result<(), Failure> {
        let gone = || Failure::passing("the certificate is gone");
        let ((certificate, key), ca) = self.stored.certificate().zip(self.authority()).ok_or_else(gone)?;
        let refuse = |why: String| Failure::refused(why);
        let public = ClientKey::read(key).ok_or_else(|| refuse("the certificate's key cannot be read".to_owned()))?;
        let tls = client_tls(&ca, Some((certificate, key)), Arc::new(self.clock.clone()))
            .map_err(|error| refuse(explained(&error)))?;
        let shards = self.shards.borrow().clone();
        let answer = any(shards.iter().map(|(shard, address)| {
            let client = Client::new(address.operator.clone(), tls.clone());
            let public = public.public_pem.clone().into_bytes();
            (shard.as_str(), async move { client.renew_certificate(public).await })
        }))
        .await?;
        self.store_certificate(answer.client_certificate_pem, key, &ca).await
    }

    /// Nothing is stored that could not be used.
    async fn store_certificate(&self, pem: Vec<u8>, key: &str, ca: &str) -> Result<(), Failure> {
        let unusable = |why: String| Failure::refused(format!("what the shard issued cannot be used: {why}"));
        let pem = String::from_utf8(pem).map_err(|_| unusable("it is not PEM".to_owned()))?;
        self.judge(&pem, key, ca).map_err(unusable)?;
        let entries = json!({ CERTIFICATE: pem, CERTIFICATE_KEY: key });
        Ok(secrets::store(&self.secrets, &self.keys.certificate, OPAQUE, json!({}), entries).await?)
    }

    async fn delete_nonce(&self) -> Result<(), Failure> {
        let key: &Key = &self.keys.nonce;
        if let Some(found) = self.secrets.get(key) {
            self.secrets.delete(key, &found.value.uid, &found.version.to_string()).await?;
        }
        Ok(())
    }
}

/// The first answer. All are asked at once: one that is silent delays none, and the same question twice is harmless.
async fn any<'a, T, F>(calls: impl Iterator<Item = (&'a str, F)>) -> Result<T, Failure>
where
    F: Future<Output = Result<T, CallError>>,
{
    let mut calls: FuturesUnordered<_> = calls.map(async |(shard, call)| (shard, call.await)).collect();
    let mut failures = Vec::new();
    while let Some((shard, answer)) = calls.next().await {
        match answer {
            Ok(answer) => return Ok(answer),
            Err(error) => failures.push((shard, error)),
        }
    }
    failures.sort_by_key(|(shard, _)| *shard);
    // Another than the cluster's leader says only that it is not.
    let refuses = |error: &CallError| {
        matches!(error.code(), Code::Unauthenticated | Code::PermissionDenied | Code::InvalidArgument)
    };
    let message = |(shard, error): &(&str, CallError)| format!("{shard}: {error}");
    match failures.iter().find(|(_, error)| refuses(error)) {
        Some(refusal) => Err(Failure::refused(message(refusal))),
        None => Err(Failure::passing(failures.iter().map(message).collect::<Vec<_>>().join("; "))),
    }
}
