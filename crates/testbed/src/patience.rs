//! Asks an API server again that cannot answer for a moment.
//!
//! On a busy machine its etcd may be late by seconds. It closes a connection half a minute after its start if nothing was
//! sent on it, and later if it rests: the process at the other end may see that after its next request.

use std::{error::Error, io, iter, time::Duration};

use http::{Request, Response, StatusCode};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, retry::RetryPolicy},
};
use tokio::time::{Instant, Sleep};
use tower::{
    BoxError,
    buffer::BufferLayer,
    retry::{Policy, RetryLayer},
};

/// From the first refusal of a request on. The client's own retries know neither a late etcd nor a cut connection.
const PATIENCE: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_secs(1);

/// Requests of one client that wait to be sent.
const REQUESTS: usize = 64;

/// For the commands of `dev` and for what a test asks by itself: the operator under test hides no failure behind it. What a
/// request was to create may be there when it is sent again. A cluster that cannot be reached at all is a failure at once.
pub fn patient(mut config: Config) -> kube::Result<Client> {
    config.default_retry = false;
    let builder = ClientBuilder::try_from(config)?;
    Ok(builder.with_layer(&BufferLayer::new(REQUESTS)).with_layer(&RetryLayer::new(Patient::default())).build())
}

/// Of one request.
#[derive(Clone, Debug, Default)]
struct Patient {
    until: Option<Instant>,
}

impl<B> Policy<Request<Body>, Response<B>, BoxError> for Patient {
    type Future = Sleep;

    fn retry(&mut self, request: &mut Request<Body>, result: &mut Result<Response<B>, BoxError>) -> Option<Sleep> {
        // What would happen at this moment: a webhook that does not answer is an answer.
        if request.uri().query().is_some_and(|query| query.contains("dryRun=")) {
            return None;
        }
        let is_passing = match result {
            Ok(response) => matches!(
                response.status(),
                StatusCode::TOO_MANY_REQUESTS
                    | StatusCode::INTERNAL_SERVER_ERROR
                    | StatusCode::SERVICE_UNAVAILABLE
                    | StatusCode::GATEWAY_TIMEOUT
            ),
            Err(error) => is_cut(&**error),
        };
        let now = Instant::now();
        let until = *self.until.get_or_insert(now + PATIENCE);
        (is_passing && now < until).then(|| tokio::time::sleep(PAUSE))
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        Policy::<_, Response<B>, _>::clone_request(&mut RetryPolicy::default(), request)
    }
}

/// Whether a connection ended before the answer. One that never began is another matter.
fn is_cut(error: &(dyn Error + 'static)) -> bool {
    iter::successors(Some(error), |&error| error.source()).any(|error| {
        let is_incomplete = error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message);
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        let kinds = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe, io::ErrorKind::UnexpectedEof];
        is_incomplete || kind.is_some_and(|kind| kinds.contains(&kind))
    })
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_late_is_asked_again_for_a_minute_and_one_that_refuses_is_not() {
        let mut request = Request::new(Body::from(b"{}".to_vec()));
        let answer = |code: u16| Ok(Response::builder().status(code).body(()).unwrap());
        for refused in [400, 403, 404, 409, 422] {
            assert!(Patient::default().retry(&mut request, &mut answer(refused)).is_none(), "{refused}");
        }
        let mut trial = Request::post("/api/v1/pods?&dryRun=All").body(Body::empty()).unwrap();
        assert!(Patient::default().retry(&mut trial, &mut answer(500)).is_none());
        let broken = |kind: ErrorKind| Err(io::Error::from(kind).into());
        assert!(Patient::default().retry(&mut request, &mut broken(ErrorKind::ConnectionRefused)).is_none());
        let late = [429, 500, 503, 504].map(answer);
        for mut late in late.into_iter().chain([broken(ErrorKind::ConnectionReset)]) {
            let (mut patient, began) = (Patient::default(), Instant::now());
            while let Some(pause) = patient.retry(&mut request, &mut late) {
                pause.await;
            }
            assert_eq!(began.elapsed(), PATIENCE, "{late:?}");
        }
    }

    /// A server that cuts the first connection after a request came, asked for its version.
    #[tokio::test]
    async fn a_request_whose_connection_is_cut_is_sent_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let client = patient(Config::new(address.parse().unwrap())).unwrap();
        let mut asked = 0;
        let serving = async {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                assert_ne!(stream.read(&mut [0; 1024]).await.unwrap(), 0);
                asked += 1;
                if asked > 1 {
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
                }
            }
        };
        let asking = client.request_text(Request::get("/version").body(Vec::new()).unwrap());
        let answer = tokio::select! {
            answer = asking => answer,
            () = serving => unreachable!("it serves without end"),
        };
        assert_eq!((answer.unwrap().as_str(), asked), ("{}", 2));
    }
}
