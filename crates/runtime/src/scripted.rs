//! An API server that answers by a script, for tests under paused time.
#![allow(clippy::needless_pass_by_value, reason = "tests hand over JSON literals")]

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    http::{Request, Response, StatusCode},
};
use futures::{StreamExt, stream};
use process::{Clock, Health};
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::sleep};
use tower::util::MapResponseLayer;

use crate::{
    client::bounded,
    cluster::{Cluster, Common},
    followers::WatchMetrics,
    hub::Context,
    lease::Leadership,
    metrics::Metrics,
    watch::ListMode,
};

/// What the server says to one request.
pub(crate) enum Answer {
    /// A refusal, with the patience it asks for.
    Refusal(u16, Option<u32>),
    /// A refusal in plain text of this many bytes.
    LongRefusal(u16, usize),
    /// A whole answer, after some time.
    Object(Duration, Value),
    /// An answer of this many bytes.
    Blank(usize),
    /// A watch: lines, each after some time, and how it ends.
    Lines(Vec<(Duration, Value)>, End),
}

pub(crate) enum End {
    Closed,
    Broken,
    /// The server says nothing more.
    Silent,
}

/// Shared by the test and the server. What is not in the script is never answered.
#[derive(Clone, Default)]
pub(crate) struct Script {
    answers: Arc<Mutex<VecDeque<Answer>>>,
    requests: Arc<Mutex<Vec<String>>>,
    /// Whether a read of one object is never answered, so that the script is about lists and watches alone.
    reads_hang: bool,
}

impl Script {
    pub(crate) fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        let script = Self::default();
        script.then(answers);
        script
    }

    #[must_use]
    pub(crate) fn with_hanging_reads(self) -> Self {
        Self { reads_hang: true, ..self }
    }

    pub(crate) fn then(&self, answers: impl IntoIterator<Item = Answer>) {
        self.answers.lock().unwrap().extend(answers);
    }

    /// Method, path and query of every request so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// How many requests hold this text.
    pub(crate) fn count(&self, part: &str) -> usize {
        self.requests().iter().filter(|request| request.contains(part)).count()
    }

    pub(crate) fn client(&self) -> kube::Client {
        let script = self.clone();
        let answer = move |request: Request<Body>| script.clone().answer(request);
        let service = Router::new().fallback(answer);
        let builder = kube::client::ClientBuilder::new(service, "default");
        builder.with_layer(&MapResponseLayer::new(bounded)).build()
    }

    async fn answer(self, request: Request<Body>) -> Response<Body> {
        self.requests.lock().unwrap().push(format!("{} {}", request.method(), request.uri()));
        // `/api/v1/namespaces/n/configmaps/a`
        let is_read = request.method() == axum::http::Method::GET && request.uri().path().split('/').count() == 7;
        if is_read && self.reads_hang {
            return std::future::pending().await;
        }
        let answer = self.answers.lock().unwrap().pop_front();
        match answer {
            None => std::future::pending().await,
            Some(Answer::Refusal(code, retry_after)) => {
                let reason = if code == 404 { "NotFound" } else { "" };
                let text = json!({
                    "kind": "Status", "status": "Failure", "message": "scripted", "reason": reason, "code": code,
                });
                let mut answer = Response::new(Body::from(text.to_string()));
                *answer.status_mut() = StatusCode::from_u16(code).unwrap();
                if let Some(seconds) = retry_after {
                    answer.headers_mut().insert("retry-after", seconds.into());
                }
                answer
            }
            Some(Answer::LongRefusal(code, bytes)) => {
                let mut answer = Response::new(Body::from(vec![b'x'; bytes]));
                *answer.status_mut() = StatusCode::from_u16(code).unwrap();
                answer
            }
            Some(Answer::Object(after, object)) => {
                sleep(after).await;
                Response::new(Body::from(object.to_string()))
            }
            Some(Answer::Blank(bytes)) => Response::new(Body::from(vec![b' '; bytes])),
            Some(Answer::Lines(lines, end)) => {
                let lines = stream::iter(lines).then(|(after, line)| async move {
                    sleep(after).await;
                    Ok::<_, std::io::Error>(Bytes::from(format!("{line}\n")))
                });
                let end = stream::iter([end]).filter_map(|end| async move {
                    match end {
                        End::Closed => None,
                        End::Broken => Some(Err(std::io::Error::other("scripted"))),
                        End::Silent => std::future::pending().await,
                    }
                });
                Response::new(Body::from_stream(lines.chain(end)))
            }
        }
    }

    /// A cluster with this server, whose watches run when `run` is called.
    pub(crate) fn world(&self, list_mode: Option<ListMode>) -> World {
        let (clock, watches) = (Clock::default(), WatchMetrics::default());
        let metrics = Arc::<Metrics>::default();
        metrics.collect(Box::new(watches.clone()));
        let leadership = Leadership::always(clock.clone());
        let common = Common { clock, leadership, timeout: Duration::from_secs(10), list_mode, watches };
        let context = Context { health: Health::default(), metrics };
        World { cluster: Cluster::new("", self.client(), &common), context }
    }
}

pub(crate) struct World {
    pub cluster: Cluster,
    pub context: Context,
}

impl World {
    pub(crate) fn run(&self) -> JoinHandle<()> {
        tokio::spawn(self.cluster.clone().run(self.context.clone(), self.context.health.pulse("watches")))
    }
}

/// A ConfigMap.
pub(crate) fn map(name: &str, version: u64) -> Value {
    json!({"kind": "ConfigMap", "metadata": {"name": name, "namespace": "n", "resourceVersion": version.to_string()}})
}

pub(crate) fn labelled(name: &str, version: u64, labels: Value) -> Value {
    let mut map = map(name, version);
    map["metadata"]["labels"] = labels;
    map
}

pub(crate) fn page(version: u64, next: &str, items: impl IntoIterator<Item = Value>) -> Answer {
    slow_page(Duration::ZERO, version, next, items)
}

pub(crate) fn slow_page(after: Duration, version: u64, next: &str, items: impl IntoIterator<Item = Value>) -> Answer {
    let items: Vec<Value> = items.into_iter().collect();
    Answer::Object(
        after,
        json!({"metadata": {"resourceVersion": version.to_string(), "continue": next}, "items": items}),
    )
}

pub(crate) fn event(kind: &str, object: Value) -> (Duration, Value) {
    (Duration::ZERO, json!({"type": kind, "object": object}))
}

pub(crate) fn bookmark(version: u64, ends_list: bool) -> (Duration, Value) {
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if ends_list {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    event("BOOKMARK", json!({"kind": "ConfigMap", "metadata": metadata}))
}

/// A watch without news.
pub(crate) fn quiet() -> Answer {
    Answer::Lines(vec![], End::Silent)
}
