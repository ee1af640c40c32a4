//! A gate before the operator port of a shard: it counts the calls that pass, and cuts or refuses what it is asked to.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use anyhow::Result;
use futures::StreamExt;
use http_body_util::{BodyStream, StreamBody};
use serde_json::{Value, json};
use shard::{
    client::Client,
    clock::Clock,
    identity::ServerTls,
    server::{Limits, Listener},
};
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body};
use tower::{ServiceExt, util::BoxCloneSyncService};

use crate::zones::Zones;

/// As the servers' own ports have them; a call has no limit of its own.
const LIMITS: Limits =
    Limits { ping: (Duration::from_mins(1), Duration::from_secs(20)), connections: 16, calls: 64, unary: None };
const DAY: Duration = Duration::from_hours(24);

/// What an operator has open on every shard that it follows.
pub const STREAMS: [&str; 3] = ["WatchErrors", "WatchGroups", "WatchInstances"];

pub struct Gate {
    shard: String,
    listener: Listener,
    book: Arc<Book>,
}

#[derive(Default)]
struct Book(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    /// Names of all calls that came, in order.
    calls: Vec<String>,
    refused: BTreeSet<&'static str>,
    /// Streams that are open.
    open: BTreeMap<usize, (String, CancellationToken)>,
}

/// A stream that is open; dropped, it is not.
struct Place {
    book: Arc<Book>,
    number: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.book.lock().open.remove(&self.number);
    }
}

impl Gate {
    /// Before a shard that runs; it passes everything.
    pub async fn before(zones: &Zones, shard: &str) -> Result<Self> {
        let clock = Clock::default();
        let identity = zones.authority.issue_server(&["127.0.0.1".to_owned()], clock.now(), DAY)?;
        let tls = ServerTls::new(zones.authority.certificate_pem(), &identity, Arc::new(clock))?.mutual()?;
        let (book, client) = (Arc::<Book>::default(), zones.client(shard)?);
        let passing = book.clone();
        let service = tower::service_fn(move |request| pass(passing.clone(), client.clone(), request));
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = Listener::bind(any, tls, LIMITS, BoxCloneSyncService::new(service)).await?;
        Ok(Self { shard: shard.to_owned(), listener, book })
    }

    /// As the operator's configuration has the shards, with this gate before its own.
    pub fn addresses(&self, zones: &Zones) -> BTreeMap<String, Value> {
        let mut all = zones.addresses();
        if let Some(address) = all.get_mut(&self.shard) {
            address["operator_addr"] = json!(self.listener.address.to_string());
        }
        all
    }

    /// The names of all calls so far, in order.
    pub fn calls(&self) -> Vec<String> {
        self.book.lock().calls.clone()
    }

    pub fn count(&self, name: &str) -> usize {
        self.book.lock().calls.iter().filter(|call| *call == name).count()
    }

    /// The names of the streams that are open, in the order of the alphabet.
    pub fn open(&self) -> Vec<String> {
        let mut names: Vec<_> = self.book.lock().open.values().map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }

    /// Ends every open stream of this name, as a server that stops in order does.
    pub fn cut(&self, name: &str) {
        self.book.lock().open.values().filter(|(open, _)| open == name).for_each(|(_, token)| token.cancel());
    }

    /// Answers calls of this name as a shard that is away.
    pub fn refuse(&self, name: &'static str) {
        self.book.lock().refused.insert(name);
        self.cut(name);
    }

    pub fn admit(&self, name: &str) {
        self.book.lock().refused.remove(name);
    }
}

async fn pass(
    book: Arc<Book>,
    client: Client,
    request: http::Request<Body>,
) -> Result<http::Response<Body>, Infallible> {
    let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    if !book.enter(&name) {
        return Ok(Status::unavailable("the gate is shut").into_http());
    }
    let answer = match client.channel().oneshot(request).await {
        Ok(answer) => answer,
        Err(error) => return Ok(Status::unavailable(error.to_string()).into_http()),
    };
    let is_stream = STREAMS.contains(&name.as_str());
    Ok(if is_stream { answer.map(|body| book.follow(name, body)) } else { answer })
}

impl Book {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap()
    }

    /// Notes a call; false if it may not pass.
    fn enter(&self, name: &str) -> bool {
        let mut entries = self.lock();
        entries.calls.push(name.to_owned());
        !entries.refused.contains(name)
    }

    /// The answers of a stream, until it is cut.
    fn follow(self: &Arc<Self>, name: String, body: Body) -> Body {
        let token = CancellationToken::new();
        let place = {
            let mut entries = self.lock();
            // A call has one stream at most.
            let number = entries.open.last_key_value().map_or(0, |(last, _)| last + 1);
            entries.open.insert(number, (name, token.clone()));
            Place { book: self.clone(), number }
        };
        let frames = BodyStream::new(body).take_until(token.cancelled_owned()).map(move |frame| {
            let _held = &place;
            frame
        });
        Body::new(StreamBody::new(frames))
    }
}
