//! Sends a request again whose connection was cut.
//!
//! The API server closes a connection half a minute after its start if nothing was sent on it, and later if it rests. On a
//! busy machine the process at the other end may see that after its next request.

use std::{error::Error, future, io, iter};

use http::{Request, Response};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, retry::RetryPolicy},
};
use tower::{
    BoxError,
    buffer::BufferLayer,
    retry::{Policy, RetryLayer},
};

/// A server that ends every connection is not asked without end.
const ATTEMPTS: usize = 3;
/// Requests of one client that wait to be sent.
const REQUESTS: usize = 64;

/// A client that sends again what it got no answer to. What such a request was to create may be there then.
pub fn client(config: Config) -> kube::Result<Client> {
    let builder = ClientBuilder::try_from(config)?;
    Ok(builder
        .with_layer(&BufferLayer::new(REQUESTS))
        .with_layer(&RetryLayer::new(Again { left: ATTEMPTS - 1 }))
        .build())
}

/// Whether a connection ended before the answer. One that never began is another matter.
pub fn is_cut(error: &(dyn Error + 'static)) -> bool {
    iter::successors(Some(error), |&error| error.source()).any(|error| {
        let is_incomplete = error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message);
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        let kinds = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe, io::ErrorKind::UnexpectedEof];
        is_incomplete || kind.is_some_and(|kind| kinds.contains(&kind))
    })
}

/// Of one request.
#[derive(Clone, Debug)]
struct Again {
    left: usize,
}

impl<B> Policy<Request<Body>, Response<B>, BoxError> for Again {
    type Future = future::Ready<()>;

    fn retry(&mut self, _: &mut Request<Body>, result: &mut Result<Response<B>, BoxError>) -> Option<Self::Future> {
        let error = result.as_ref().err()?;
        self.left = self.left.checked_sub(1)?;
        is_cut(&**error).then(|| future::ready(()))
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        Policy::<_, Response<B>, _>::clone_request(&mut RetryPolicy::default(), request)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// Asks for the version of a server that cuts so many connections after a request came. How often it was asked.
    async fn ask(cuts: usize) -> (Result<String, kube::Error>, usize) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let client = client(Config::new(address.parse().unwrap())).unwrap();
        let mut asked = 0;
        let serving = async {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                assert_ne!(stream.read(&mut [0; 1024]).await.unwrap(), 0);
                asked += 1;
                if asked > cuts {
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
                }
            }
        };
        let asking = client.request_text(Request::get("/version").body(Vec::new()).unwrap());
        let answer = tokio::select! {
            answer = asking => answer,
            () = serving => unreachable!("it serves without end"),
        };
        (answer, asked)
    }

    #[tokio::test]
    async fn a_request_whose_connection_is_cut_is_sent_again_and_not_without_end() {
        let (answer, asked) = ask(1).await;
        assert_eq!((answer.unwrap().as_str(), asked), ("{}", 2));
        let (answer, asked) = ask(usize::MAX).await;
        assert!(is_cut(&answer.unwrap_err()));
        assert_eq!(asked, ATTEMPTS);
    }
}
