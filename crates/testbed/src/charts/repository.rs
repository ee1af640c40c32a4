//! A chart repository over http.

use std::{
    collections::VecDeque,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::{
    Access, Archive, Error, credential,
    index::{Document, Offer},
    samples,
};
use crate::control_plane::{PORT_ATTEMPTS, free_port};

/// A dev session may last for weeks; tests make a few hundred requests and read them all.
const MOST_REQUESTS: usize = 10_000;

/// One request that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub path: String,
    pub status: u16,
    /// Whether an `Authorization` header came with it, right or wrong.
    pub had_credentials: bool,
}

/// Serves `index.yaml` and archives until it is dropped.
pub struct ChartRepository {
    shared: Arc<Shared>,
    address: SocketAddr,
    _server: AbortOnDropHandle<()>,
}

struct Shared {
    access: Access,
    state: Mutex<Content>,
}

#[derive(Default)]
struct Content {
    offer: Offer,
    requests: VecDeque<Request>,
    failures_left: usize,
    delay: Duration,
}

impl ChartRepository {
    /// Offers all sample charts at a free port.
    pub async fn start(access: Access) -> Result<Self, Error> {
        Self::start_at(None, access).await
    }

    /// The same, at the preferred port where it is free.
    pub async fn start_at(preferred: Option<u16>, access: Access) -> Result<Self, Error> {
        let mut content = Content::default();
        for archive in samples().await? {
            content.offer.publish(archive)?;
        }
        let shared = Arc::new(Shared { access, state: Mutex::new(content) });
        let listener = listen(preferred).await?;
        let address = listener.local_addr()?;
        let routes = Router::new().fallback(answer).with_state(shared.clone());
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, routes).await {
                tracing::warn!(%error, "the chart repository ended");
            }
        });
        Ok(Self { shared, address, _server: AbortOnDropHandle::new(server) })
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// From now on the index tells of this chart.
    pub fn publish(&self, archive: &Archive) -> Result<(), Error> {
        self.shared.content().offer.publish(archive)
    }

    /// From now on neither index nor archive is there; `false` if it was not before.
    pub fn withdraw(&self, name: &str, version: &str) -> bool {
        self.shared.content().offer.withdraw(name, version)
    }

    /// The latest requests in the order of their answers.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.content().requests.iter().cloned().collect()
    }

    /// The next requests are answered with 500.
    pub fn fail_next(&self, count: usize) {
        self.shared.content().failures_left = count;
    }

    /// From now on every answer takes this long; a very long time is a server that hangs.
    pub fn delay_answers(&self, delay: Duration) {
        self.shared.content().delay = delay;
    }

    /// Fills the index with charts that nobody wants, up to this size or a little more.
    pub fn enlarge_index(&self, bytes: usize) {
        self.shared.content().offer.enlarge(bytes);
    }
}

/// Not port 0: a port below those of outgoing connections can be had again after a restart.
async fn listen(preferred: Option<u16>) -> Result<TcpListener, Error> {
    for port in preferred.into_iter().chain((0..PORT_ATTEMPTS).map(|_| free_port())) {
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
            return Ok(listener);
        }
    }
    Err(Error::NoPort("the chart repository"))
}

async fn answer(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap) -> Response {
    let delay = shared.content().delay;
    // A hung server accepts requests that it never answers.
    tokio::time::sleep(delay).await;
    shared.answer(uri.path(), &headers)
}

impl Shared {
    fn answer(&self, path: &str, headers: &HeaderMap) -> Response {
        let mut content = self.content();
        let response = self.decide(&mut content, path, headers);
        if content.requests.len() == MOST_REQUESTS {
            content.requests.pop_front();
        }
        content.requests.push_back(Request {
            path: path.to_owned(),
            status: response.status().as_u16(),
            had_credentials: headers.contains_key(header::AUTHORIZATION),
        });
        response
    }

    fn decide(&self, content: &mut Content, path: &str, headers: &HeaderMap) -> Response {
        if let Some(left) = content.failures_left.checked_sub(1) {
            content.failures_left = left;
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
        if self.access == Access::Login && !is_allowed(headers) {
            let challenge = [(header::WWW_AUTHENTICATE, "Basic realm=\"charts\"")];
            return (StatusCode::UNAUTHORIZED, challenge).into_response();
        }
        match content.offer.find(path) {
            None => StatusCode::NOT_FOUND.into_response(),
            Some(document) => document.answer(headers),
        }
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        // Nothing that holds the lock can stop half way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Document {
    fn answer(self, headers: &HeaderMap) -> Response {
        let is_known = headers.get(header::IF_NONE_MATCH).is_some_and(|known| known == self.etag.as_str());
        let etag = HeaderValue::try_from(self.etag).expect("hexadecimal digits fit into a header");
        let etag = [(header::ETAG, etag)];
        if is_known { (StatusCode::NOT_MODIFIED, etag).into_response() } else { (etag, self.content).into_response() }
    }
}

fn is_allowed(headers: &HeaderMap) -> bool {
    headers.get(header::AUTHORIZATION).is_some_and(|sent| *sent == format!("Basic {}", credential()))
}
