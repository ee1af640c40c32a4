//! The client all parts of the operator share.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{HeaderValue, Response, header::USER_AGENT};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use kube::{Client, Config, client::ClientBuilder};
use tower::util::MapResponseLayer;

/// What is read of a refusal. The API server's own take some hundred bytes; admission webhooks, proxies and other
/// clusters write what they like, and a condition shows 4 KiB of it.
const LONGEST_REFUSAL: usize = 64 << 10;

/// A client that tries once. Retries are the queue's: it backs off per object, counts them, and asks the lease first,
/// none of which a retry hidden in the client would do.
pub fn connect(mut config: Config) -> kube::Result<Client> {
    config.default_retry = false;
    config.headers.push((USER_AGENT, HeaderValue::from_static(concat!("strata/", env!("CARGO_PKG_VERSION")))));
    let builder = ClientBuilder::try_from(config)?;
    Ok(builder.with_layer(&MapResponseLayer::new(bounded)).build())
}

/// A refusal ends where [`LONGEST_REFUSAL`] is reached: what follows is never read.
pub(crate) fn bounded<B>(response: Response<B>) -> Response<Bounded<B>> {
    let status = response.status();
    let is_refusal = status.is_client_error() || status.is_server_error();
    let left = if is_refusal { LONGEST_REFUSAL } else { usize::MAX };
    response.map(|body| Bounded { body, left })
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
