//! Asks an API server again that cannot answer for a moment: on a busy machine its etcd may be late by seconds, and a
//! connection that it closed may look open still.

use std::time::Duration;

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

/// From the first refusal of a request on. The client's own retries end after few seconds, and know nothing of a late etcd.
const PATIENCE: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_secs(1);

/// Requests at once of the commands of `dev`.
const REQUESTS: usize = 64;

/// A cluster that cannot be reached at all is a failure at once.
pub fn client(mut config: Config) -> kube::Result<Client> {
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

    fn retry(&mut self, _: &mut Request<Body>, result: &mut Result<Response<B>, BoxError>) -> Option<Sleep> {
        let is_passing = match result {
            Ok(response) => matches!(
                response.status(),
                StatusCode::TOO_MANY_REQUESTS
                    | StatusCode::INTERNAL_SERVER_ERROR
                    | StatusCode::SERVICE_UNAVAILABLE
                    | StatusCode::GATEWAY_TIMEOUT
            ),
            Err(error) => testbed::is_cut(&**error),
        };
        let now = Instant::now();
        let until = *self.until.get_or_insert(now + PATIENCE);
        (is_passing && now < until).then(|| tokio::time::sleep(PAUSE))
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        Policy::<_, Response<B>, _>::clone_request(&mut RetryPolicy::default(), request)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_late_is_asked_again_for_a_minute_and_one_that_refuses_is_not() {
        let mut request = Request::new(Body::from(b"{}".to_vec()));
        let answer = |code: u16| Ok(Response::builder().status(code).body(()).unwrap());
        for refused in [400, 403, 404, 409, 422] {
            assert!(Patient::default().retry(&mut request, &mut answer(refused)).is_none(), "{refused}");
        }
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
}
