//! One bounded GET to a file, by the HTTP client that is in the tree anyway: reqwest would bring 25 packages and a
//! second tower-http for this one request.

use std::{
    error::Error,
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderMap, Request, Response, StatusCode, Uri, header, uri::Scheme};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector};
use hyper_util::client::{
    legacy::connect::{HttpConnector, proxy::Tunnel},
    proxy::matcher::{Intercept, Matcher},
};
use runtime::{
    child::Private,
    jobs::{Ended, Executor, NotBegun, Stops},
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::{fs::File, io::AsyncWriteExt};
use tower::ServiceExt;

use super::{
    super::output::{Class, Failure, redact},
    ChartRef, archive,
};

/// A repository behind a content network redirects once or twice.
const REDIRECTS: usize = 5;
/// The largest public index has some 30 MB; a minute is 4 Mbit/s.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);

/// An ETag is a digest or a time, and is kept beside the index. One that is longer is passed over, and the next request
/// is not conditional.
const LONGEST_VALIDATOR: usize = 1024;

/// The budget that downloads draw from: bytes on disk, for as long as they are under way.
pub(super) const BYTES: &str = "chart downloads";

/// One download, as a job.
#[derive(Clone, Debug)]
pub(super) struct Download {
    pub url: String,
    pub chart: ChartRef,
    pub known: Validators,
    pub to: PathBuf,
}

impl Executor for Downloader {
    type Task = Download;
    type Contents = Download;
    type Output = Result<Answer, Failure>;

    async fn prepare(&self, task: Download) -> Result<Download, NotBegun<Self::Output>> {
        Ok(task)
    }

    async fn execute(&self, task: Download, mut stops: Stops) -> Result<Answer, Failure> {
        tokio::select! {
            answer = self.get(&task) => answer,
            _ = stops.asked() => Err(Failure::new(Class::Cancelled, "the download was ended")),
        }
    }

    fn result(ended: &Ended<Self::Output>) -> &'static str {
        match ended {
            Ended::Done(Ok(_)) => "success",
            Ended::Done(Err(failure)) => failure.class.as_str(),
            _ => Class::Other.as_str(),
        }
    }
}

/// What makes the next request a conditional one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Validators {
    etag: Option<String>,
    last_modified: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) enum Answer {
    Unchanged,
    Saved { digest: String, validators: Validators },
}

#[derive(Debug)]
pub(super) struct Downloader {
    proxies: Matcher,
    /// More than this is refused.
    limit: u64,
}

impl Downloader {
    /// Proxies come from the variables that helm gets as well.
    pub fn new(environment: &[(OsString, OsString)], limit: u64) -> Self {
        let value = |name: &str| {
            let found = environment.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.and_then(|(_, value)| value.to_str()).unwrap_or_default().to_owned()
        };
        let proxies = Matcher::builder().http(value("HTTP_PROXY")).https(value("HTTPS_PROXY")).no(value("NO_PROXY"));
        Self { proxies: proxies.build(), limit }
    }

    /// The most that one download takes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Saves what is at a URL unless it is what the validators stand for. The chart gives credentials and authority.
    async fn get(&self, Download { url, chart, known, to }: &Download) -> Result<Answer, Failure> {
        let secrets = chart.secrets();
        let fetched = tokio::time::timeout(PATIENCE, self.follow(url, chart, known, to)).await;
        let late = || Failure::new(Class::Unreachable, format_args!("no answer within {} s", PATIENCE.as_secs()));
        fetched.unwrap_or_else(|_| Err(late())).map_err(|Failure { class, message }| {
            Failure::new(class, redact(&format!("cannot read {url}: {message}"), &secrets))
        })
    }

    async fn follow(&self, url: &str, chart: &ChartRef, known: &Validators, to: &Path) -> Result<Answer, Failure> {
        let mut uri = parse(url)?;
        let mut credentials = chart.credentials.as_ref();
        for _ in 0..=REDIRECTS {
            let mut headers = HeaderMap::new();
            if let Some(credentials) = credentials {
                let mut pair = format!("{}:", credentials.username).into_bytes();
                pair.extend_from_slice(credentials.password.expose());
                insert(&mut headers, header::AUTHORIZATION, format!("Basic {}", BASE64_STANDARD.encode(pair)));
            }
            known.etag.iter().for_each(|etag| insert(&mut headers, header::IF_NONE_MATCH, etag.clone()));
            known.last_modified.iter().for_each(|at| insert(&mut headers, header::IF_MODIFIED_SINCE, at.clone()));
            let response = self.send(&uri, headers, chart.ca.as_ref()).await?;
            let status = response.status();
            let location = response.headers().get(header::LOCATION).filter(|_| status.is_redirection());
            if let Some(location) = location.and_then(|location| location.to_str().ok()) {
                let next = parse(&resolve(&uri, location))?;
                // Credentials are for one server, and never for the open wire after the closed one.
                let is_same = next.authority() == uri.authority() && next.scheme() == uri.scheme();
                credentials = credentials.filter(|_| is_same);
                uri = next;
                continue;
            }
            return match status {
                StatusCode::NOT_MODIFIED => Ok(Answer::Unchanged),
                StatusCode::OK => self.save(response, to).await,
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(Failure::new(Class::Unauthorised, status)),
                StatusCode::NOT_FOUND => Err(Failure::new(Class::ChartNotFound, status)),
                _ => Err(Failure::new(Class::Unreachable, status)),
            };
        }
        Err(Failure::new(Class::Unreachable, format_args!("more than {REDIRECTS} redirections")))
    }

    async fn send(
        &self,
        uri: &Uri,
        mut headers: HeaderMap,
        ca: Option<&Private>,
    ) -> Result<Response<Incoming>, Failure> {
        let proxy = self.proxies.intercept(uri);
        let is_tls = uri.scheme() == Some(&Scheme::HTTPS);
        let tls = tls(ca)?;
        let stream = match &proxy {
            Some(proxy) if is_tls => HttpsConnector::from((tunnel(proxy), tls)).oneshot(uri.clone()).await,
            Some(proxy) => HttpsConnector::from((plain(), tls)).oneshot(proxy.uri().clone()).await,
            None => HttpsConnector::from((plain(), tls)).oneshot(uri.clone()).await,
        };
        let stream = stream.map_err(unreachable)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.map_err(unreachable)?;
        tokio::spawn(connection);
        let host = uri.authority().map(|authority| authority.as_str().to_owned()).unwrap_or_default();
        insert(&mut headers, header::HOST, host);
        insert(&mut headers, header::USER_AGENT, concat!("strata/", env!("CARGO_PKG_VERSION")).to_owned());
        let target = match proxy.filter(|_| !is_tls) {
            Some(proxy) => {
                if let Some(auth) = proxy.basic_auth() {
                    headers.insert(header::PROXY_AUTHORIZATION, auth.clone());
                }
                uri.to_string()
            }
            None => uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        };
        let mut request = Request::get(target).body(Empty::<Bytes>::new()).map_err(unreachable)?;
        *request.headers_mut() = headers;
        sender.send_request(request).await.map_err(unreachable)
    }

    async fn save(&self, response: Response<Incoming>, to: &Path) -> Result<Answer, Failure> {
        let text = |name| {
            let value = response.headers().get(name).and_then(|value| value.to_str().ok());
            value.filter(|value| value.len() <= LONGEST_VALIDATOR).map(str::to_owned)
        };
        let validators = Validators { etag: text(header::ETAG), last_modified: text(header::LAST_MODIFIED) };
        let mut file = File::create(to).await.map_err(|error| super::index::on_disk(&error))?;
        let mut hash = Sha256::new();
        let mut left = self.limit;
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(unreachable)?.into_data() else { continue };
            let too_large = || Failure::new(Class::TooLarge, format_args!("it is larger than {} bytes", self.limit));
            left = left.checked_sub(data.len() as u64).ok_or_else(too_large)?;
            hash.update(&data);
            file.write_all(&data).await.map_err(|error| super::index::on_disk(&error))?;
        }
        file.flush().await.map_err(|error| super::index::on_disk(&error))?;
        Ok(Answer::Saved { digest: archive::hex(hash), validators })
    }
}

fn insert(headers: &mut HeaderMap, name: header::HeaderName, value: String) {
    // What cannot be a header is not sent; the server then says what it misses.
    if let Ok(mut value) = header::HeaderValue::try_from(value) {
        value.set_sensitive(name == header::AUTHORIZATION);
        headers.insert(name, value);
    }
}

fn plain() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector
}

fn tunnel(proxy: &Intercept) -> Tunnel<HttpConnector> {
    let tunnel = Tunnel::new(proxy.uri().clone(), plain());
    match proxy.basic_auth() {
        Some(auth) => tunnel.with_auth(auth.clone()),
        None => tunnel,
    }
}

/// With an authority of its own a repository is trusted by that one alone, as helm does it.
fn tls(ca: Option<&Private>) -> Result<Arc<ClientConfig>, Failure> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider knows the default versions");
    let Some(ca) = ca else {
        let builder = builder.with_native_roots().map_err(unreachable)?;
        return Ok(Arc::new(builder.with_no_client_auth()));
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca.expose()) {
        let added = certificate.map_err(|error| error.to_string());
        let added = added.and_then(|certificate| roots.add(certificate).map_err(|error| error.to_string()));
        added.map_err(|error| Failure::new(Class::Other, format_args!("its authority cannot be used: {error}")))?;
    }
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

/// With its causes: the outer error alone often says no more than "connection error".
fn unreachable(error: impl Into<Box<dyn Error + Send + Sync>>) -> Failure {
    let error: Box<dyn Error + Send + Sync> = error.into();
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message = format!("{message}: {error}");
        cause = error.source();
    }
    Failure::new(Class::Unreachable, message)
}

fn parse(url: &str) -> Result<Uri, Failure> {
    let uri = url.parse::<Uri>().ok().filter(|uri| uri.authority().is_some() && uri.scheme().is_some());
    uri.ok_or_else(|| Failure::new(Class::Other, "it is not a URL"))
}

/// What a `Location` means, seen from `from`.
fn resolve(from: &Uri, location: &str) -> String {
    let scheme = from.scheme_str().unwrap_or("https");
    let authority = from.authority().map_or("", |authority| authority.as_str());
    if location.contains("://") {
        location.to_owned()
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        let parent = from.path().rsplit_once('/').map_or("", |(parent, _)| parent);
        format!("{scheme}://{authority}{parent}/{location}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_may_be_whole_or_a_part() {
        let from = "https://charts.example/a/index.yaml".parse().unwrap();
        let resolved = ["http://b/c", "//b/c", "/c", "c"].map(|location| resolve(&from, location));
        let expected = ["http://b/c", "https://b/c", "https://charts.example/c", "https://charts.example/a/c"];
        assert_eq!(resolved, expected);
    }

    #[test]
    fn proxies_are_those_that_helm_gets() {
        let environment = [("https_proxy", "http://proxy:3128"), ("NO_PROXY", "inside.example")]
            .map(|(name, value)| (name.into(), value.into()));
        let downloader = Downloader::new(&environment, 1);
        let via = |url: &str| downloader.proxies.intercept(&url.parse().unwrap()).map(|proxy| proxy.uri().to_string());
        assert_eq!(via("https://charts.example/"), Some("http://proxy:3128/".into()));
        assert_eq!(via("https://inside.example/"), None);
        assert_eq!(via("http://charts.example/"), None);
    }
}
