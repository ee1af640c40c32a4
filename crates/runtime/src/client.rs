//! The client all parts of the operator share.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{HeaderValue, Request, Response, StatusCode, header::USER_AGENT};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use kube::{
    Client, Config,
    client::{self, ClientBuilder, retry::RetryPolicy},
};
use tokio::time::Sleep;
use tower::{
    BoxError,
    buffer::BufferLayer,
    retry::{Policy, RetryLayer},
    util::MapResponseLayer,
};

use crate::error::retry_after;

/// What is read of a refusal. The API server's own take some hundred bytes; admission webhooks, proxies and other
/// clusters write what they like, and a condition shows 4 KiB of it.
const LONGEST_REFUSAL: usize = 64 << 10;

/// What a request of a command waits in all. A person sits before it.
const COMMAND_PATIENCE: Duration = Duration::from_secs(30);

/// Requests of a command that wait to be sent.
const COMMAND_REQUESTS: usize = 64;

/// A client that tries once. Retries are the queue's: it backs off per object, counts them, and asks the lease first,
/// none of which a retry hidden in the client would do.
pub fn connect(config: Config) -> kube::Result<Client> {
    let builder = ClientBuilder::try_from(of_strata(config))?;
    Ok(builder.with_layer(&MapResponseLayer::new(bounded)).build())
}

/// A client for a command, which has no queue: it sends again what the API server asks it to, as kubectl does. A server
/// asks so while it reads in a kind that was just installed, while it is asked too much, and while it stops.
pub fn connect_command(config: Config) -> kube::Result<Client> {
    let patient = ClientBuilder::try_from(of_strata(config))?
        .with_layer(&MapResponseLayer::new(bounded))
        .with_layer(&BufferLayer::new(COMMAND_REQUESTS))
        .with_layer(&RetryLayer::new(AsAsked::default()));
    Ok(patient.build())
}

fn of_strata(mut config: Config) -> Config {
    config.default_retry = false;
    config.headers.push((USER_AGENT, HeaderValue::from_static(concat!("strata/", env!("CARGO_PKG_VERSION")))));
    config
}

/// Of one request: for how long it has waited. The client's own retries do not look for the header, without which a
/// request may have been carried out, and have no bound of time.
#[derive(Clone, Default)]
struct AsAsked(Duration);

impl<B> Policy<Request<client::Body>, Response<B>, BoxError> for AsAsked {
    type Future = Sleep;

    fn retry(
        &mut self,
        _: &mut Request<client::Body>,
        result: &mut Result<Response<B>, BoxError>,
    ) -> Option<Self::Future> {
        let refusal = result.as_ref().ok().filter(|response| is_refusal(response.status()))?;
        // A zero must not become a loop without a pause.
        let asked = retry_after(refusal.headers())?.max(Duration::from_secs(1));
        self.0 = self.0.checked_add(asked).filter(|&waited| waited <= COMMAND_PATIENCE)?;
        Some(tokio::time::sleep(asked))
    }

    fn clone_request(&mut self, request: &Request<client::Body>) -> Option<Request<client::Body>> {
        Policy::<_, Response<B>, _>::clone_request(&mut RetryPolicy::default(), request)
    }
}

/// A refusal ends where [`LONGEST_REFUSAL`] is reached: what follows is never read.
pub(crate) fn bounded<B>(response: Response<B>) -> Response<Bounded<B>> {
    let left = if is_refusal(response.status()) { LONGEST_REFUSAL } else { usize::MAX };
    response.map(|body| Bounded { body, left })
}

fn is_refusal(status: StatusCode) -> bool {
    status.is_client_error() || status.is_server_error()
}

/// A body that ends after so many bytes.
pub(crate) struct Bounded<B> {
    body: B,
    left: usize,
}

impl<B: Body<Data = Bytes> + Unpin> Body for Bounded<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let mut cut = |mut data: Bytes| {
            data.truncate(self.left);
            self.left -= data.len();
            data
        };
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(&mut cut))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0 || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // What a refusal announces may be longer than what is read of it.
        if self.left == usize::MAX { self.body.size_hint() } else { SizeHint::default() }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_command_waits_as_long_as_it_is_asked_to_and_half_a_minute_in_all() {
        let mut request = Request::new(client::Body::empty());
        for (asked, waited) in [("0", 30), ("1", 30), ("7", 28), ("30", 30), ("31", 0), (&u64::MAX.to_string(), 0)] {
            let mut answer = Ok(Response::builder().status(429).header("retry-after", asked).body(()).unwrap());
            let (mut policy, began) = (AsAsked::default(), Instant::now());
            while let Some(pause) = policy.retry(&mut request, &mut answer) {
                pause.await;
            }
            assert_eq!(began.elapsed(), Duration::from_secs(waited), "{asked}");
        }
        for (status, header) in [(429, "x-other"), (503, "x-other"), (504, "x-other"), (201, "retry-after")] {
            let mut answer = Ok(Response::builder().status(status).header(header, "1").body(()).unwrap());
            assert!(AsAsked::default().retry(&mut request, &mut answer).is_none(), "{status}");
        }
    }
}
