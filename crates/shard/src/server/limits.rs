//! What one client may hold of a port: connections, calls, the bytes of requests that are not answered, and time.

use std::{
    collections::HashMap,
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Status, body::Body};
use tower::{Service, ServiceExt};

/// The limits of a port.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How often the server pings, so that a client that vanished is noticed, and how long it waits for the answer.
    pub ping: (Duration, Duration),
    /// Of one client, known by its certificate or, without one, its address; of IPv6, its network.
    pub connections: usize,
    /// Calls at once on one connection.
    pub calls: u32,
    /// Until a call is answered, or its stream of answers begins; `None` where a call is a stream of requests.
    pub unary: Option<Unary>,
}

/// For calls that are one request.
#[derive(Clone, Copy, Debug)]
pub struct Unary {
    /// A slow client holds its call no longer.
    pub deadline: Duration,
    /// Of all requests of one client that are not answered.
    pub bytes: usize,
    /// Of all answers that one client was sent and has not taken.
    pub answers: usize,
    /// Calls whose names begin so are answered by a stream, which has limits of its own.
    pub streams: &'static str,
    /// Such streams of one client, over all its connections: each holds what was written to it and not read.
    pub watches: usize,
}

type StdError = Box<dyn std::error::Error + Send + Sync>;

/// Counts connections and bytes by client.
pub struct Clients {
    limits: Limits,
    known: Mutex<HashMap<String, Known>>,
}

struct Known {
    connections: usize,
    budget: Budget,
}

/// Bytes and streams that a client may hold.
#[derive(Clone)]
struct Budget {
    requests: Arc<Semaphore>,
    answers: Arc<Semaphore>,
    watches: Arc<Semaphore>,
}

impl Budget {
    fn new(unary: Option<Unary>) -> Self {
        let most = |most: fn(&Unary) -> usize| Arc::new(Semaphore::new(unary.as_ref().map_or(0, most)));
        Self {
            requests: most(|unary| unary.bytes),
            answers: most(|unary| unary.answers),
            watches: most(|unary| unary.watches),
        }
    }
}

impl Clients {
    pub fn new(limits: Limits) -> Self {
        Self { limits, known: Mutex::default() }
    }

    /// `None` if the client has all its connections.
    pub fn admit(self: &Arc<Self>, client: String) -> Option<Place> {
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = || Known { connections: 0, budget: Budget::new(self.limits.unary) };
        let known = all.entry(client.clone()).or_insert_with(fresh);
        if known.connections >= self.limits.connections {
            return None;
        }
        known.connections += 1;
        Some(Place { budget: known.budget.clone(), clients: Arc::clone(self), client })
    }
}

/// One connection of a client.
pub struct Place {
    clients: Arc<Clients>,
    client: String,
    budget: Budget,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.clients.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get_mut(&self.client) {
            known.connections -= 1;
            if known.connections == 0 {
                all.remove(&self.client);
            }
        }
    }
}

impl Place {
    /// Calls the service within the limits.
    pub fn call<S, B>(
        &self,
        service: S,
        request: http::Request<B>,
    ) -> impl Future<Output = Result<http::Response<Body>, Infallible>> + use<S, B>
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<StdError>,
    {
        let (unary, budget) = (self.clients.limits.unary, self.budget.clone());
        async move {
            let Some(unary) = unary else { return service.oneshot(request.map(Body::new)).await };
            let name = request.uri().path().rsplit('/').next().unwrap_or_default();
            let is_stream = name.starts_with(unary.streams);
            let watch = is_stream.then(|| Arc::clone(&budget.watches).try_acquire_owned());
            let Ok(watch) = watch.transpose() else {
                let text = "the client watches too often at once; end the streams that it does not read";
                return Ok(Status::resource_exhausted(text).into_http());
            };
            let held = Held::default();
            let metered = request.map(|inner| Body::new(Metered { inner, bytes: budget.requests, held: held.clone() }));
            let answer = async {
                let Ok(answer) = service.oneshot(metered).await;
                match watch {
                    Some(place) => answer.map(|inner| Body::new(Streamed { inner, _place: place })),
                    None => whole(answer, budget.answers).await,
                }
            };
            let late =
                |_| Status::deadline_exceeded("the call took too long; send the whole request at once").into_http();
            let answer = tokio::time::timeout(unary.deadline, answer).await.unwrap_or_else(late);
            drop(held);
            Ok(answer)
        }
    }
}

/// The answer as bytes that its client holds until it has taken them.
async fn whole(answer: http::Response<Body>, budget: Arc<Semaphore>) -> http::Response<Body> {
    let (head, body) = answer.into_parts();
    let collected = match body.collect().await {
        Ok(collected) => collected,
        Err(status) => return status.into_http(),
    };
    let trailers = collected.trailers().cloned();
    let data = collected.to_bytes();
    let drawn = u32::try_from(data.len()).ok().and_then(|size| budget.try_acquire_many_owned(size).ok());
    let Some(held) = drawn else {
        let text = "the client has too many answers that it did not read; read them, or ask less often";
        return Status::resource_exhausted(text).into_http();
    };
    http::Response::from_parts(head, Body::new(Whole { data: Some(data), trailers, _held: held }))
}

/// A stream of answers that has its place until it ends.
struct Streamed {
    inner: Body,
    _place: OwnedSemaphorePermit,
}

impl HttpBody for Streamed {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }
}

/// An answer that is ready.
struct Whole {
    data: Option<Bytes>,
    trailers: Option<http::HeaderMap>,
    _held: OwnedSemaphorePermit,
}

impl HttpBody for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = self.data.take().filter(|data| !data.is_empty()).map(Frame::data);
        Poll::Ready(data.or_else(|| self.trailers.take().map(Frame::trailers)).map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.data.as_ref().is_none_or(Bytes::is_empty) && self.trailers.is_none()
    }
}

/// Bytes that a call holds until it is answered.
type Held = Arc<Mutex<Option<OwnedSemaphorePermit>>>;

/// A request's body that draws from its client's bytes.
struct Metered<B> {
    inner: B,
    bytes: Arc<Semaphore>,
    held: Held,
}

impl<B> HttpBody for Metered<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<StdError>,
{
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let Some(frame) = ready!(Pin::new(&mut self.inner).poll_frame(context)) else { return Poll::Ready(None) };
        let frame = frame.map_err(Into::into)?;
        let size = frame.data_ref().map_or(0, Buf::remaining);
        let drawn = u32::try_from(size).ok().and_then(|size| Arc::clone(&self.bytes).try_acquire_many_owned(size).ok());
        let Some(drawn) = drawn else {
            // tonic finds the status behind the error and answers with its code.
            let text = "the client's unanswered requests are too large together; wait for answers";
            return Poll::Ready(Some(Err(Status::resource_exhausted(text).into())));
        };
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *held {
            Some(held) => held.merge(drawn),
            none => *none = Some(drawn),
        }
        drop(held);
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use tokio::sync::Notify;

    use super::*;

    const LIMITS: Limits = Limits {
        ping: (Duration::from_mins(1), Duration::from_secs(20)),
        connections: 2,
        calls: 8,
        unary: Some(Unary { deadline: Duration::from_secs(30), bytes: 10, answers: 10, streams: "Watch", watches: 2 }),
    };

    fn request(size: usize) -> http::Request<Full<Bytes>> {
        http::Request::new(Full::new(vec![0; size].into()))
    }

    #[tokio::test(start_paused = true)]
    async fn requests_hold_their_bytes_until_they_are_answered_and_never_longer_than_the_deadline() {
        let clients = Arc::new(Clients::new(LIMITS));
        let (one, other) = (clients.admit("a".into()).unwrap(), clients.admit("b".into()).unwrap());
        let go = Arc::new(Notify::new());
        let reads = |go: Option<Arc<Notify>>| {
            tower::service_fn(move |request: http::Request<Body>| {
                let go = go.clone();
                async move {
                    let answer = match request.into_body().collect().await {
                        Ok(_) => http::Response::new(Body::empty()),
                        Err(status) => status.into_http(),
                    };
                    if let Some(go) = go {
                        go.notified().await;
                    }
                    Ok::<_, Infallible>(answer)
                }
            })
        };
        let code = |answer: Result<http::Response<Body>, Infallible>| {
            let Ok(answer) = answer;
            answer.headers().get("grpc-status").map(|code| code.to_str().unwrap().to_owned())
        };
        let slow = tokio::spawn(one.call(reads(Some(Arc::clone(&go))), request(6)));
        tokio::task::yield_now().await;
        assert_eq!(code(one.call(reads(None), request(6)).await).as_deref(), Some("8"), "resource exhausted");
        assert_eq!(code(other.call(reads(None), request(6)).await), None, "another client is not disturbed");
        assert_eq!(code(one.call(reads(None), request(4)).await), None, "what is left");
        go.notify_one();
        assert_eq!(code(slow.await.unwrap()), None);
        assert_eq!(code(one.call(reads(None), request(10)).await), None, "all of it again");
        let hangs = one.call(reads(Some(go)), request(1)).await;
        assert_eq!(code(hangs).as_deref(), Some("4"), "deadline exceeded");
        assert!(clients.admit("a".into()).is_some());
    }

    #[tokio::test]
    async fn answers_hold_their_bytes_until_they_are_taken_and_streams_do_not() {
        let clients = Arc::new(Clients::new(LIMITS));
        let place = clients.admit("a".into()).unwrap();
        let answers = |size: usize| {
            tower::service_fn(move |_: http::Request<Body>| async move {
                Ok::<_, Infallible>(http::Response::new(Body::new(Full::new(Bytes::from(vec![1; size])))))
            })
        };
        let ask = async |name: &str, size: usize| {
            let request = http::Request::post(format!("/service/{name}")).body(Full::new(Bytes::new())).unwrap();
            let Ok(answer) = place.call(answers(size), request).await;
            answer
        };
        let code = |answer: &http::Response<Body>| answer.headers().get("grpc-status").cloned();
        let held = ask("List", 6).await;
        assert_eq!(code(&held), None);
        assert_eq!(code(&ask("List", 6).await).unwrap(), "8", "resource exhausted");
        assert_eq!(code(&ask("WatchAll", 600).await), None, "a stream is taken as it comes");
        assert_eq!(held.into_body().collect().await.unwrap().to_bytes().len(), 6);
        assert_eq!(ask("List", 10).await.into_body().collect().await.unwrap().to_bytes().len(), 10, "all of it again");
    }

    #[tokio::test]
    async fn streams_of_one_client_are_limited_over_all_its_connections() {
        let clients = Arc::new(Clients::new(LIMITS));
        let places = [clients.admit("a".into()).unwrap(), clients.admit("a".into()).unwrap()];
        let other = clients.admit("b".into()).unwrap();
        let watch = async |place: &Place| {
            let service = tower::service_fn(|_: http::Request<Body>| async {
                Ok::<_, Infallible>(http::Response::new(Body::new(Full::new(Bytes::from_static(b"event")))))
            });
            let request = http::Request::post("/service/WatchAll").body(Full::new(Bytes::new())).unwrap();
            let Ok(answer) = place.call(service, request).await;
            answer
        };
        let code = |answer: &http::Response<Body>| answer.headers().get("grpc-status").cloned();
        let held = [watch(&places[0]).await, watch(&places[1]).await];
        assert!(held.iter().all(|answer| code(answer).is_none()));
        assert_eq!(code(&watch(&places[0]).await).unwrap(), "8", "resource exhausted");
        assert_eq!(code(&watch(&other).await), None, "another client is not disturbed");
        drop(held);
        let again = watch(&places[0]).await;
        assert_eq!(again.into_body().collect().await.unwrap().to_bytes(), "event");
    }

    #[test]
    fn a_client_has_so_many_connections_and_is_forgotten_with_the_last() {
        let clients = Arc::new(Clients::new(LIMITS));
        let places = [clients.admit("a".into()), clients.admit("a".into())];
        assert!(places.iter().all(Option::is_some) && clients.admit("a".into()).is_none());
        drop(places);
        assert!(clients.known.lock().unwrap().is_empty());
    }
}
