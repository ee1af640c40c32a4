//! One request over the HTTP client that is in the tree anyway.

use std::{net::IpAddr, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header, uri::Scheme};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{ClientConfig, RootCertStore};
use tokio::time::timeout;

use crate::{error::Cause, token::Token};

/// A page of 50 load balancers with all their targets has some 2 MB.
pub(crate) const LONGEST_ANSWER: usize = 16 << 20;
/// Idle connections are closed before the API's own limit of a minute and a half closes them under a request.
const IDLE: Duration = Duration::from_secs(45);

#[derive(Debug)]
pub(crate) struct Transport {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// `http://127.0.0.1:4000/v1`, without a slash at the end.
    endpoint: String,
    token: Option<HeaderValue>,
    limit: Duration,
}

/// A whole answer, whatever its status.
pub(crate) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Transport {
    pub fn new(endpoint: &str, token: &Token, limit: Duration) -> Result<Self, Cause> {
        let bad = || Cause::BadEndpoint { endpoint: endpoint.to_owned() };
        let uri: Uri = endpoint.parse().map_err(|_| bad())?;
        let host = uri.host().ok_or_else(bad)?;
        // The token can delete the whole project: it crosses no network in the clear.
        let is_fine = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => is_local(host),
            _ => false,
        };
        if !is_fine || uri.query().is_some() {
            return Err(bad());
        }
        let mut plain = HttpConnector::new();
        plain.enforce_http(false);
        plain.set_connect_timeout(Some(limit));
        // A request is written at once: nothing is gained by holding its last part back.
        plain.set_nodelay(true);
        let connector = HttpsConnector::from((plain, tls(&uri).map_err(|why| Cause::Unreachable { why })?));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        Ok(Self { client, endpoint: endpoint.trim_end_matches('/').to_owned(), token: token.header(), limit })
    }

    pub async fn send(&self, method: &Method, path: &str, body: Option<Vec<u8>>) -> Result<Answer, Cause> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.endpoint));
        request = request
            .header(header::AUTHORIZATION, self.token.clone().ok_or(Cause::BadToken)?)
            .header(header::USER_AGENT, concat!("strata/", env!("CARGO_PKG_VERSION")))
            .header(header::ACCEPT, "application/json");
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::from(body.unwrap_or_default()));
        let request = request.map_err(|error| Cause::Unreachable { why: error.to_string() })?;
        let late = |_| Cause::Late { limit: self.limit };
        timeout(self.limit, self.exchange(request)).await.map_err(late)?
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Answer, Cause> {
        let answer = self.client.request(request).await.map_err(|error| unreachable(&error))?;
        let (parts, body) = answer.into_parts();
        let body = Limited::new(body, LONGEST_ANSWER).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                return Cause::TooLong { limit: LONGEST_ANSWER };
            }
            unreachable(error.as_ref())
        })?;
        Ok(Answer { status: parts.status, headers: parts.headers, body: body.to_bytes() })
    }
}

fn is_local(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// With its causes: the outer error alone often says no more than "connection error".
fn unreachable(error: &(dyn std::error::Error + 'static)) -> Cause {
    let mut why = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        why = format!("{why}: {error}");
        cause = error.source();
    }
    Cause::Unreachable { why }
}

fn tls(endpoint: &Uri) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider knows the default versions");
    if endpoint.scheme() != Some(&Scheme::HTTPS) {
        // A machine without certificates can still use an endpoint that has none.
        return Ok(Arc::new(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth()));
    }
    let builder = builder.with_native_roots().map_err(|error| format!("no certificates to trust: {error}"))?;
    Ok(Arc::new(builder.with_no_client_auth()))
}
