//! The client: one request, well counted, with its errors explained.

use std::{
    collections::HashMap,
    fmt::Write,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use http::Method;
use hyper::body::Bytes;
use serde_json::Value;

use crate::{
    budget::{Budget, Urgency},
    decode::decode_error,
    error::{Cause, Error},
    look::Looks,
    token::Token,
    transport::Transport,
    wait::Waiter,
};

/// Hetzner's own; `HCLOUD_ENDPOINT` names another.
pub const ENDPOINT: &str = "https://api.hetzner.cloud/v1";

/// Times that tests shorten.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// For one request and its whole answer. The API answers in seconds, a loaded one in tens.
    pub request_limit: Duration,
    /// How long a request waits for its turn in the budget before it says so.
    pub budget_patience: Duration,
    /// How soon the API is asked about a new action; older ones are asked about less often.
    pub poll_interval: Duration,
    /// Servers are created in half a minute; a snapshot takes minutes.
    pub action_limit: Duration,
    /// The first wait before a request is repeated; each further one is twice as long.
    pub first_retry: Duration,
    /// How often a request is sent in all before its error is returned.
    pub attempts: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            request_limit: Duration::from_secs(30),
            budget_patience: Duration::from_secs(30),
            poll_interval: Duration::from_millis(500),
            action_limit: Duration::from_mins(10),
            first_retry: Duration::from_secs(1),
            attempts: 5,
        }
    }
}

/// All who use the same token at the same endpoint share one client: its budget, its lists, its polls.
#[derive(Debug, Default)]
pub struct Clients {
    settings: Settings,
    known: Mutex<HashMap<(String, Token), Weak<Inner>>>,
}

impl Clients {
    pub fn new(settings: Settings) -> Self {
        Self { settings, known: Mutex::default() }
    }

    /// `endpoint` is what stock programs take as `HCLOUD_ENDPOINT`: `https://api.hetzner.cloud/v1`.
    pub fn get(&self, endpoint: &str, token: &Token) -> Result<Client, Error> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, client| client.strong_count() > 0);
        let key = (endpoint.to_owned(), token.clone());
        if let Some(inner) = known.get(&key).and_then(Weak::upgrade) {
            return Ok(Client { inner, urgency: Urgency::Routine });
        }
        let transport = Transport::new(endpoint, token, self.settings.request_limit);
        let transport = transport.map_err(|cause| Error::new("connect", cause))?;
        let inner = Arc::new(Inner {
            settings: self.settings,
            transport,
            budget: Budget::default(),
            looks: Looks::default(),
            waiter: Waiter::default(),
        });
        known.insert(key, Arc::downgrade(&inner));
        Ok(Client { inner, urgency: Urgency::Routine })
    }
}

/// A project, by its token.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
    pub(crate) urgency: Urgency,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub settings: Settings,
    transport: Transport,
    budget: Budget,
    pub looks: Looks,
    pub waiter: Waiter,
}

impl Client {
    /// The same client for requests that may use the reserve.
    #[must_use]
    pub fn urgent(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), urgency: Urgency::Urgent }
    }

    /// For what goes on by itself after a change.
    pub(crate) fn on(inner: Arc<Inner>) -> Self {
        Self { inner, urgency: Urgency::Urgent }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// One request, once.
    pub(crate) async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Bytes, Error> {
        let shown = path.split_once('?').map_or(path, |(path, _)| path);
        let failed = |cause| Error::new(format!("{method} {shown}"), cause);
        let permit = self.inner.budget.permit(self.urgency, self.settings().budget_patience).await;
        let permit = permit.map_err(|retry_after| failed(Cause::BudgetSpent { retry_after }))?;
        let body = body.map(|body| body.to_string().into_bytes());
        let answer = self.inner.transport.send(&method, path, body).await.map_err(&failed)?;
        let retry_after = permit.answered(answer.status, &answer.headers);
        tracing::debug!(%method, path = shown, status = answer.status.as_u16(), "hetzner answered");
        if answer.status.is_success() {
            return Ok(answer.body);
        }
        let status = answer.status.as_u16();
        let (code, message) = decode_error(status, &answer.body);
        Err(failed(Cause::Refused { status, code, message, retry_after }))
    }

    /// A request that changes nothing is repeated while its error may pass.
    pub(crate) async fn read<T>(&self, path: &str, decode: impl Fn(&[u8]) -> Result<T, Cause>) -> Result<T, Error> {
        let mut retry = self.retry();
        loop {
            let answer = self.send(Method::GET, path, None).await;
            let shown = || format!("GET {}", path.split_once('?').map_or(path, |(path, _)| path));
            let result = answer.and_then(|body| decode(&body).map_err(|cause| Error::new(shown(), cause)));
            match result {
                Err(error) if error.is_passing() => retry.wait(error).await?,
                other => return other,
            }
        }
    }
}

/// Text as a part of a query.
pub(crate) fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => encoded.push(byte.into()),
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_in_queries() {
        assert_eq!(encoded("a-b_1.c"), "a-b_1.c");
        assert_eq!(encoded("a b&c=ü"), "a%20b%26c%3D%C3%BC");
    }

    #[tokio::test]
    async fn one_token_has_one_client_and_a_bad_endpoint_is_explained() {
        let clients = Clients::default();
        let one = clients.get("http://127.0.0.1:1/v1", &Token::new("a")).unwrap();
        let same = clients.get("http://127.0.0.1:1/v1", &Token::new("a\n")).unwrap();
        let other = clients.get("http://127.0.0.1:1/v1", &Token::new("b")).unwrap();
        assert!(Arc::ptr_eq(&one.inner, &same.inner));
        assert!(!Arc::ptr_eq(&one.inner, &other.inner));
        assert!(!format!("{one:?}").contains("Bearer"), "{one:?}");
        let plain = ["http://api.hetzner.cloud/v1", "http://10.0.0.1/v1", "http://127.example.com/v1"];
        for endpoint in
            ["", "api.hetzner.cloud", "ftp://x/v1", "/v1", "https://x/v1?a", "httpx://x/v1"].iter().chain(&plain)
        {
            let error = clients.get(endpoint, &Token::new("a")).unwrap_err();
            assert!(error.to_string().contains("https://api.hetzner.cloud/v1"), "{error}");
        }
        for endpoint in ["https://api.hetzner.cloud/v1", "http://localhost:1/v1", "http://[::1]:1/v1"] {
            clients.get(endpoint, &Token::new("a")).unwrap();
        }
    }
}
