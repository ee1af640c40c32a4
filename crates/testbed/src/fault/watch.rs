//! Watch streams on their way to the client: passed on event by event, and open to cuts, holds and replays.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
};

use futures::{Stream, stream};
use http_body_util::BodyExt;
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use tokio::sync::{mpsc, watch};

use super::{ApiRequest, Cut, rule::lock};

/// Replays reach back a handful of changes; 256 events of one watch are at most a few megabytes.
const RECORDED_EVENTS: usize = 256;

/// Objects are at most 1.5 MB in etcd; an event that is ten times as long is no event.
const LONGEST_EVENT: usize = 16 << 20;

/// A test gives a stream a few commands at a time, and the stream takes each at once.
const COMMANDS: usize = 16;

/// What the server says in the stream when the history that the client asks for is gone.
const EXPIRED: &str = concat!(
    r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","#,
    r#""message":"too old resource version (injected)","reason":"Expired","code":410}}"#,
    "\n"
);

pub(super) enum Command {
    Cut,
    Expire,
    Replay(Vec<Bytes>),
}

/// Which watches show the same events in the same form, so that one's past can be replayed into another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct View {
    pub(super) path: String,
    pub(super) selectors: Vec<String>,
    pub(super) accept: String,
}

struct Live {
    request: ApiRequest,
    view: View,
    commands: mpsc::Sender<Command>,
}

/// All watches of one proxy.
pub(super) struct Watches {
    next_id: Mutex<u64>,
    live: Mutex<HashMap<u64, Live>>,
    held: watch::Sender<Vec<String>>,
    recorded: Mutex<HashMap<View, VecDeque<Bytes>>>,
}

impl Watches {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            next_id: Mutex::default(),
            live: Mutex::default(),
            held: watch::Sender::new(Vec::new()),
            recorded: Mutex::default(),
        })
    }

    /// Gives a command to every live watch of the resource; returns how many took it.
    pub(super) fn command(&self, pattern: &str, command: impl Fn(&View) -> Command) -> usize {
        lock(&self.live)
            .values()
            .filter(|live| live.request.is_for(pattern))
            .filter(|live| live.commands.try_send(command(&live.view)).is_ok())
            .count()
    }

    /// The recorded events of a view, oldest first, each once however many watches saw it.
    pub(super) fn past(&self, view: &View) -> Vec<Bytes> {
        let mut past: Vec<Bytes> = Vec::new();
        for event in lock(&self.recorded).get(view).into_iter().flatten() {
            if !past.contains(event) {
                past.push(event.clone());
            }
        }
        past
    }

    pub(super) fn hold(self: &Arc<Self>, pattern: &str) -> HeldEvents {
        self.held.send_modify(|held| held.push(pattern.to_owned()));
        HeldEvents { watches: self.clone(), pattern: pattern.to_owned() }
    }

    pub(super) fn release_all(&self) {
        self.held.send_modify(Vec::clear);
    }

    fn record(&self, view: &View, event: &Bytes) {
        let mut recorded = lock(&self.recorded);
        let events = recorded.entry(view.clone()).or_default();
        if events.len() == RECORDED_EVENTS {
            events.pop_front();
        }
        events.push_back(event.clone());
    }

    /// The body of a watch for the client, fed from the server's.
    pub(super) fn relay(self: &Arc<Self>, request: ApiRequest, view: View, upstream: Body, by_line: bool) -> Relay {
        let (commands, inbox) = mpsc::channel(COMMANDS);
        let id = {
            let mut next_id = lock(&self.next_id);
            *next_id += 1;
            *next_id
        };
        lock(&self.live).insert(id, Live { request: request.clone(), view: view.clone(), commands });
        Relay {
            held: self.held.subscribe(),
            watches: self.clone(),
            id,
            request,
            view,
            upstream,
            by_line,
            inbox,
            partial: Vec::new(),
            arrived: VecDeque::new(),
            injected: VecDeque::new(),
            events_left: None,
            ends: false,
        }
    }
}

/// Events of a resource are held back until this is released or dropped. They stay on the server's side of the
/// connection, so nothing is buffered here.
pub struct HeldEvents {
    watches: Arc<Watches>,
    pattern: String,
}

impl HeldEvents {
    pub fn release(self) {}
}

impl Drop for HeldEvents {
    fn drop(&mut self) {
        self.watches.held.send_modify(|held| {
            if let Some(index) = held.iter().position(|pattern| *pattern == self.pattern) {
                held.swap_remove(index);
            }
        });
    }
}

/// One watch between server and client. It reads the server only as fast as the client reads it.
pub(super) struct Relay {
    watches: Arc<Watches>,
    id: u64,
    request: ApiRequest,
    view: View,
    upstream: Body,
    by_line: bool,
    inbox: mpsc::Receiver<Command>,
    held: watch::Receiver<Vec<String>>,
    partial: Vec<u8>,
    arrived: VecDeque<Bytes>,
    injected: VecDeque<Bytes>,
    events_left: Option<u64>,
    ends: bool,
}

impl Relay {
    pub(super) fn cut_after(mut self, events: u64) -> Self {
        self.events_left = Some(events);
        self
    }

    pub(super) fn expire(&mut self) {
        self.injected.push_back(Bytes::from_static(EXPIRED.as_bytes()));
        self.ends = true;
    }

    pub(super) fn into_stream(self) -> impl Stream<Item = Result<Frame<Bytes>, Cut>> {
        stream::unfold(self, |mut relay| async move {
            let next = relay.next().await?;
            Some((next.map(Frame::data), relay))
        })
    }

    async fn next(&mut self) -> Option<Result<Bytes, Cut>> {
        loop {
            if let Some(event) = self.injected.pop_front() {
                return Some(Ok(event));
            }
            if self.ends {
                return None;
            }
            if self.events_left == Some(0) {
                // The connection is flushed only when its body is not ready: the events before the cut arrive.
                tokio::task::yield_now().await;
                return Some(Err(Cut));
            }
            let arrival = async {
                let held_back = |held: &Vec<String>| held.iter().any(|pattern| self.request.is_for(pattern));
                // The sender lives in `watches`, so this fails never.
                let _ = self.held.wait_for(|held| !held_back(held)).await;
                if self.arrived.is_empty() { Some(self.upstream.frame().await) } else { None }
            };
            tokio::select! {
                biased;
                Some(command) = self.inbox.recv() => match command {
                    Command::Cut => return Some(Err(Cut)),
                    Command::Expire => self.expire(),
                    Command::Replay(events) => self.injected.extend(events),
                },
                read = arrival => match read {
                    // Held or not is asked again for what was just read: it may have happened after the hold began.
                    Some(Some(Ok(frame))) => {
                        if let Ok(data) = frame.into_data() {
                            self.split(data)?;
                        }
                    }
                    Some(Some(Err(_))) => return Some(Err(Cut)),
                    Some(None) => return None,
                    None => {
                        let event = self.arrived.pop_front()?;
                        self.events_left = self.events_left.map(|left| left - 1);
                        if self.by_line {
                            self.watches.record(&self.view, &event);
                        }
                        return Some(Ok(event));
                    }
                },
            }
        }
    }

    /// Takes a piece of the stream apart into whole events; what is left over waits for the next piece.
    fn split(&mut self, mut data: Bytes) -> Option<()> {
        if !self.by_line {
            self.arrived.push_back(data);
            return Some(());
        }
        while let Some(end) = data.iter().position(|byte| *byte == b'\n') {
            let line = data.split_to(end + 1);
            if self.partial.is_empty() {
                self.arrived.push_back(line);
            } else {
                self.partial.extend_from_slice(&line);
                self.arrived.push_back(std::mem::take(&mut self.partial).into());
            }
        }
        self.partial.extend_from_slice(&data);
        (self.partial.len() <= LONGEST_EVENT).then_some(())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        lock(&self.watches.live).remove(&self.id);
    }
}
