//! One list and watch of a resource, for as long as anyone follows it.
//!
//! Not kube's `watcher`: that decodes every object for one reader, asks for streaming lists for ever where they are
//! refused, goes on from a version that the server answers with 410, and drops deletions within a streaming list.

mod error;
mod pages;

use std::{pin::pin, sync::Arc, time::Duration};

use http::header::ACCEPT_ENCODING;
use http_body_util::BodyExt;
use kube::{
    Client,
    api::{ListParams, Request, WatchParams},
    client::Body,
};
use process::Clock;
use tokio::time::{Instant, sleep_until, timeout};

pub(crate) use self::error::{WatchError, describe};
use self::error::{decode, refused};
use crate::{
    cluster::Cluster,
    error::refusal,
    followers::Followers,
    interruption::Cause,
    lines::Lines,
    metrics::Metrics,
    raw::{Bookmark, Line, Page, Raw},
    selection::Selection,
};

/// Whether the first list comes as a stream. Kubernetes 1.34 and newer can; older servers answer 422.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListMode {
    Streaming,
    Paged,
}

/// Delay between attempts to reach the server. It stays short, because every second of it is a second in which the
/// operator is blind after an API server came back.
#[derive(Debug)]
pub(crate) struct Reconnect {
    failures: u32,
    slowest: Duration,
}

impl Reconnect {
    pub(crate) fn at_least_every(slowest: Duration) -> Self {
        Self { failures: 0, slowest }
    }

    fn reset(&mut self) {
        self.failures = 0;
    }
}

const FIRST_RECONNECT: Duration = Duration::from_millis(100);
pub(crate) const SLOWEST_RECONNECT: Duration = Duration::from_secs(5);

impl Iterator for Reconnect {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let delay = FIRST_RECONNECT * (1 << self.failures.min(10));
        self.failures = self.failures.saturating_add(1);
        Some(delay.min(self.slowest))
    }
}

/// The server ends a watch after this long, and a connection that is silent for a little longer is given up. A network
/// that swallows packets thus blinds us for a minute at most, at the price of one request per kind and minute.
const WATCH: Duration = Duration::from_mins(1);
const WATCH_MARGIN: Duration = Duration::from_secs(5);
/// The server gives up a request after a minute; what has no answer a little later has been lost on the way.
const ANSWER: Duration = Duration::from_secs(75);
/// A list that streams may take longer than a watch, as long as it goes on. What takes ten minutes does not end.
const LONGEST_STREAM: Duration = Duration::from_mins(10);
/// A server that streams lists sends the next object or the end of the list within a second, also under load. One that
/// is silent for this long knows nothing of streaming lists, and is asked for pages.
const SILENT_STREAM: Duration = Duration::from_secs(20);
/// How long pages are asked for after a streaming list was refused. Servers are upgraded within the hour, and a list
/// is rare.
const STREAM_AGAIN: Duration = Duration::from_mins(10);
/// How much earlier than asked for a watch ends where nothing is wrong: clocks of two machines differ by less.
const EARLY: Duration = Duration::from_secs(1);
/// A watch that ends sooner without an event is a fault, however politely it ends.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);

/// What is watched: objects of one resource, in all namespaces or in one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Where those of all namespaces are, as in `/api/v1/pods`.
    pub path: String,
    /// Whether only metadata are asked for.
    pub is_metadata: bool,
    pub selection: Selection,
}

impl Target {
    /// Where the server is asked: in the namespace, where one is selected.
    pub(crate) fn place(&self) -> String {
        match (&self.selection.namespace, self.path.rsplit_once('/')) {
            (Some(namespace), Some((version, plural))) => format!("{version}/namespaces/{namespace}/{plural}"),
            _ => self.path.clone(),
        }
    }

    /// Whether all that `other` asks for is seen here as well.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.path == other.path
            && (other.is_metadata || !self.is_metadata)
            && other.selection.is_within(&self.selection)
    }
}

/// What the loop of one watch needs and remembers.
pub(crate) struct Watcher {
    pub cluster: Cluster,
    pub followers: Arc<Followers>,
    pub metrics: Arc<Metrics>,
    pub clock: Clock,
    /// The version that the watch has reached; `None` before the first list, and when the history is gone.
    position: Option<String>,
    stream_refused_at: Option<Instant>,
    /// The server may be another one than before: the last watch was interrupted, or did not last as long as asked for.
    is_doubtful: bool,
}

/// A watch that is open.
struct Open {
    lines: Lines,
    /// When the server ends it. It counts from when the request arrived, so not before this.
    ends_at: Instant,
}

/// How a watch ended without a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    AsAsked,
    /// The server ended it too early, or not at all: it may have been restarted, or restored from a backup.
    Oddly,
}

impl Watcher {
    pub(crate) fn new(cluster: Cluster, followers: Arc<Followers>, metrics: Arc<Metrics>) -> Self {
        let clock = followers.clock().clone();
        Self { cluster, followers, metrics, clock, position: None, stream_refused_at: None, is_doubtful: false }
    }

    /// Watches for ever.
    pub(crate) async fn run(mut self) {
        let mut delays = Reconnect::at_least_every(self.followers.slowest());
        loop {
            let mut exchanged = self.cluster.exchanged();
            let ended = tokio::select! {
                ended = self.session(&mut delays) => ended,
                _ = exchanged.changed() => {
                    self.exchanged();
                    continue;
                }
            };
            if let Err(error) = ended {
                delays.slowest = self.followers.slowest();
                let delay = delays.next().unwrap_or_default().max(error.retry_after());
                self.interrupted(&error);
                tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    _ = exchanged.changed() => self.exchanged(),
                }
            }
        }
    }

    /// Another server, perhaps: what was read so far says nothing about its history.
    fn exchanged(&mut self) {
        self.position = None;
        self.followers.restored();
        self.followers.exchanged();
    }

    fn interrupted(&mut self, error: &WatchError) {
        if error.is_expired() {
            self.position = None;
        }
        self.is_doubtful = true;
        self.cluster.count_interruption(&self.metrics, self.followers.resource);
        let (resource, cluster, why) = (self.followers.resource, self.cluster.name(), error.to_string());
        if self.followers.interrupted(&Cause { text: why.clone(), is_undefined: error.is_undefined() }) {
            tracing::warn!(resource, cluster, error = why, "watch interrupted; reconnecting");
        } else {
            tracing::debug!(resource, cluster, error = why, "watch still interrupted");
        }
    }

    /// Lists if there is nothing to go on from, and watches until the watch ends.
    async fn session(&mut self, delays: &mut Reconnect) -> Result<(), WatchError> {
        let client = self.cluster.client();
        self.check_position(&client).await?;
        let listed = match self.position {
            None => self.list(&client).await?,
            Some(_) => None,
        };
        let open = match (listed, &self.position) {
            (Some(open), _) => open,
            (None, Some(position)) => self.open(&client, position, WATCH, false).await?,
            (None, None) => return Err(WatchError::NoVersion),
        };
        self.followers.connected(self.clock.instant());
        let (began, reached) = (self.clock.instant(), self.position.clone());
        let ended = self.follow(open).await;
        let lasted = self.clock.instant().saturating_duration_since(began);
        if self.position == reached && lasted < SHORTEST_WATCH {
            return ended.and(Err(WatchError::EndedAtOnce));
        }
        delays.reset();
        self.is_doubtful = ended? == Ended::Oddly;
        Ok(())
    }

    /// A watch from a version that the server has not reached yet is answered with silence until it has. That is so
    /// after etcd was restored from a backup, so the server is asked how far it is where it may be another one.
    async fn check_position(&mut self, client: &Client) -> Result<(), WatchError> {
        if let Some(position) = self.position.as_ref().filter(|_| self.is_doubtful) {
            let body = self.page(client, &ListParams { limit: Some(1), ..ListParams::default() }).await?;
            let page = decode::<Page<'_>>("list", &body)?;
            let version = |text: &str| text.parse::<u64>().map_err(|_| WatchError::NoVersion);
            let (reached, wanted) = (version(&page.metadata.resource_version)?, version(position)?);
            if reached < wanted {
                tracing::warn!(
                    resource = self.followers.resource,
                    reached,
                    wanted,
                    "the server's resource versions went back; listing again"
                );
                self.followers.restored();
                self.position = None;
            }
        }
        self.is_doubtful = false;
        Ok(())
    }

    /// Reads everything there is; a stream goes on as the watch.
    async fn list(&mut self, client: &Client) -> Result<Option<Open>, WatchError> {
        if self.may_stream(client).await? {
            match self.stream(client).await {
                Ok(open) => return Ok(Some(open)),
                Err(error) if error.is_about_streaming() => {
                    let resource = self.followers.resource;
                    tracing::info!(resource, error = %error, "no streaming list; listing in pages");
                    self.stream_refused_at = Some(self.clock.instant());
                }
                Err(error) => return Err(error),
            }
        }
        self.pages(client).await?;
        Ok(None)
    }

    async fn may_stream(&self, client: &Client) -> Result<bool, WatchError> {
        let elapsed = |at| self.clock.instant().saturating_duration_since(at);
        if self.stream_refused_at.is_some_and(|at| elapsed(at) < STREAM_AGAIN) {
            return Ok(false);
        }
        let asked = timeout(ANSWER, self.cluster.list_mode(client)).await;
        let mode = asked.map_err(|_| WatchError::Silent { verb: "version", limit: ANSWER })?;
        Ok(mode.map_err(WatchError::lost("version"))? == ListMode::Streaming)
    }

    /// A watch that begins with all objects. Without a version to begin at, the server answers with what is true now,
    /// and not with what a lagging cache holds.
    async fn stream(&mut self, client: &Client) -> Result<Open, WatchError> {
        let Open { mut lines, ends_at } = self.open(client, "", LONGEST_STREAM, true).await?;
        self.followers.begin_list();
        loop {
            let Ok(line) = timeout(SILENT_STREAM, lines.next()).await else { return Err(WatchError::NoStream) };
            let line = line?.ok_or(WatchError::NoStream)?;
            let event = decode::<Line<'_>>("list", lines.line(line))?;
            self.followers.in_touch(self.clock.instant());
            match (&*event.kind, Raw::read(event.object.get())) {
                ("ADDED" | "MODIFIED", Some(object)) => self.followers.listed(&object),
                ("DELETED", Some(object)) => self.followers.deleted(&object),
                ("BOOKMARK", _) => {
                    let bookmark = decode::<Bookmark>("list", event.object.get().as_bytes())?;
                    if !bookmark.ends_list() {
                        return Err(WatchError::NoStream);
                    }
                    self.end_list(bookmark.version())?;
                    return Ok(Open { lines, ends_at });
                }
                ("ERROR", _) => return Err(refused("list", event.object.get().as_bytes())),
                _ => {}
            }
        }
    }

    fn end_list(&mut self, version: &str) -> Result<(), WatchError> {
        let number = version.parse().map_err(|_| WatchError::NoVersion)?;
        self.followers.end_list(number);
        self.position = Some(version.to_owned());
        Ok(())
    }

    /// Starts a watch at a version.
    async fn open(&self, client: &Client, version: &str, lasts: Duration, lists: bool) -> Result<Open, WatchError> {
        let target = &self.followers.target;
        let params = WatchParams {
            label_selector: target.selection.labels.clone(),
            field_selector: target.selection.fields.clone(),
            timeout: u32::try_from(lasts.as_secs()).ok(),
            bookmarks: true,
            send_initial_events: lists,
        };
        let request = Request::new(target.place());
        let request =
            if target.is_metadata { request.watch_metadata(&params, version) } else { request.watch(&params, version) };
        let mut request = request.map_err(|error| WatchError::lost("watch")(kube::Error::BuildRequest(error)))?;
        // A compressed stream holds events back until its buffers are full.
        request.headers_mut().insert(ACCEPT_ENCODING, http::HeaderValue::from_static("identity"));
        let ends_at = self.clock.instant() + lasts;
        let opened = timeout(ANSWER, self.send("watch", client, request)).await;
        let body = opened.map_err(|_| WatchError::Silent { verb: "watch", limit: ANSWER })??;
        Ok(Open { lines: Lines::new(body), ends_at })
    }

    /// Passes events on until the watch ends, or a list is wanted.
    async fn follow(&mut self, open: Open) -> Result<Ended, WatchError> {
        let Open { mut lines, ends_at } = open;
        let mut end = pin!(sleep_until(self.clock.instant() + WATCH + WATCH_MARGIN));
        let followers = self.followers.clone();
        let mut list = pin!(followers.want_list());
        loop {
            let line = tokio::select! {
                line = lines.next() => line?,
                () = &mut list => {
                    self.position = None;
                    return Ok(Ended::AsAsked);
                }
                // The stream that began with a list has a later end on the server's side. Any other should have ended.
                () = &mut end => {
                    let is_due = self.clock.instant() >= ends_at;
                    return Ok(if is_due { Ended::Oddly } else { Ended::AsAsked });
                }
            };
            let Some(line) = line else {
                let is_due = self.clock.instant() + EARLY >= ends_at;
                return Ok(if is_due { Ended::AsAsked } else { Ended::Oddly });
            };
            self.event(lines.line(line))?;
        }
    }

    fn event(&mut self, line: &[u8]) -> Result<(), WatchError> {
        let event = decode::<Line<'_>>("watch", line)?;
        self.followers.in_touch(self.clock.instant());
        match (&*event.kind, Raw::read(event.object.get())) {
            ("ADDED" | "MODIFIED", Some(object)) => {
                self.position = Some(object.version.to_string());
                self.followers.applied(&object);
            }
            ("DELETED", Some(object)) => {
                self.position = Some(object.version.to_string());
                self.followers.deleted(&object);
            }
            ("BOOKMARK", _) => {
                let bookmark = decode::<Bookmark>("watch", event.object.get().as_bytes())?;
                self.position = Some(bookmark.version().to_owned());
            }
            ("ERROR", _) => return Err(refused("watch", event.object.get().as_bytes())),
            _ => {}
        }
        Ok(())
    }

    /// Sends a request; the body of the answer if it is no refusal.
    async fn send(
        &self,
        verb: &'static str,
        client: &Client,
        request: http::Request<Vec<u8>>,
    ) -> Result<Body, WatchError> {
        let answer = client.send(request.map(Into::into)).await.map_err(WatchError::lost(verb))?;
        let (head, body) = answer.into_parts();
        self.cluster.server_clock().read(&head.headers);
        if !head.status.is_client_error() && !head.status.is_server_error() {
            return Ok(body);
        }
        let body = body.collect().await.map_err(|error| WatchError::lost(verb)(kube::Error::Service(error.into())))?;
        let (status, retry_after) = refusal(&head, &body.to_bytes());
        Err(WatchError::Refused { verb, status, retry_after })
    }
}

#[cfg(test)]
mod tests;
