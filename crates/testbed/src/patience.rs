//! Asks an API server again that cannot answer for a moment.
//!
//! On a busy machine its etcd may be late by seconds. It closes a connection half a minute after its start if nothing was
//! sent on it, and later if it rests: the process at the other end may see that after its next request.

use std::{error::Error, io, iter, mem, time::Duration};

use futures::FutureExt;
use http::{Method, Request, Response, StatusCode, Uri};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, retry::RetryPolicy},
    core::PartialObjectMeta,
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

/// For the commands of `dev` and for what a test asks by itself: the operator under test hides no failure behind it. A
/// request may be carried out although its answer is lost. So where one that is sent again was to create a named object that
/// is there, that object is the answer, also if another client made it; and one that was to delete what is gone has done so.
/// A cluster that cannot be reached at all is a failure at once.
pub fn patient(mut config: Config) -> kube::Result<Client> {
    config.default_retry = false;
    let builder = ClientBuilder::try_from(config)?;
    Ok(builder.with_layer(&BufferLayer::new(REQUESTS)).with_layer(&RetryLayer::new(Patient::default())).build())
}

/// Of one request.
#[derive(Clone, Debug, Default)]
struct Patient {
    until: Option<Instant>,
    may_be_done: bool,
}

impl<B> Policy<Request<Body>, Response<B>, BoxError> for Patient {
    type Future = Sleep;

    fn retry(&mut self, request: &mut Request<Body>, result: &mut Result<Response<B>, BoxError>) -> Option<Sleep> {
        // What would happen at this moment: a webhook that does not answer is an answer.
        if request.uri().query().is_some_and(|query| query.contains("dryRun=")) {
            return None;
        }
        if self.may_be_done
            && let Ok(response) = result
        {
            let is = |method, status| *request.method() == method && response.status() == status;
            if is(Method::DELETE, StatusCode::NOT_FOUND) {
                *response.status_mut() = StatusCode::OK;
            } else if is(Method::POST, StatusCode::CONFLICT)
                && let Some(read) = read(request)
            {
                *request = read;
                return Some(tokio::time::sleep(Duration::ZERO));
            }
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
        (is_passing && now < until).then(|| {
            // What comes too early is not carried out.
            let is_early = result.as_ref().is_ok_and(|response| response.status() == StatusCode::TOO_MANY_REQUESTS);
            self.may_be_done |= !is_early;
            tokio::time::sleep(PAUSE)
        })
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        Policy::<_, Response<B>, _>::clone_request(&mut RetryPolicy::default(), request)
    }
}

/// Asks for what a request creates, if it names it.
fn read(create: &mut Request<Body>) -> Option<Request<Body>> {
    let body = mem::replace(create.body_mut(), Body::empty()).collect_bytes().now_or_never()?.ok()?;
    let object: PartialObjectMeta = serde_json::from_slice(&body).ok()?;
    let mut parts = create.uri().clone().into_parts();
    parts.path_and_query = format!("{}/{}", create.uri().path(), object.metadata.name?).parse().ok();
    Request::get(Uri::from_parts(parts).ok()?).body(Body::empty()).ok()
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
        // Only what may have been carried out before.
        for (mut request, refused) in [
            (Request::post("/pods").body(Body::from(br#"{"metadata": {"name": "a"}}"#.to_vec())).unwrap(), 409),
            (Request::delete("/pods/a").body(Body::empty()).unwrap(), 404),
        ] {
            let (mut patient, mut early, mut refusal) = (Patient::default(), answer(429), answer(refused));
            assert!(patient.retry(&mut request, &mut early).is_some());
            assert!(patient.retry(&mut request, &mut refusal).is_none());
            assert_eq!(refusal.unwrap().status(), refused);
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

    /// A server that does what each connection asks for, cuts the first before it answers, and then gives these answers.
    #[tokio::test]
    async fn a_request_whose_connection_is_cut_is_sent_again_and_may_have_been_carried_out() {
        let get = |path: &str| Request::get(path).body(Vec::new()).unwrap();
        let post = |body: &str| Request::post("/pods?fieldManager=x").body(body.into()).unwrap();
        let delete = Request::delete("/pods/a").body(Vec::new()).unwrap();
        let named = r#"{"metadata": {"name": "a"}}"#;
        for (request, answers, asked, code) in [
            (get("/version"), vec![200], vec!["GET /version", "GET /version"], None),
            (get("/pods/a"), vec![404], vec!["GET /pods/a", "GET /pods/a"], Some(404)),
            (post(named), vec![409, 200], vec!["POST /pods?", "POST /pods?", "GET /pods/a"], None),
            (post("{}"), vec![409], vec!["POST /pods?", "POST /pods?"], Some(409)),
            (delete, vec![404], vec!["DELETE /pods/a", "DELETE /pods/a"], None),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = format!("http://{}", listener.local_addr().unwrap());
            let client = patient(Config::new(address.parse().unwrap())).unwrap();
            let (mut answers, mut seen) = (answers.into_iter(), Vec::new());
            let serving = async {
                loop {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    let mut buffer = [0; 1024];
                    let length = stream.read(&mut buffer).await.unwrap();
                    seen.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
                    if seen.len() > 1 {
                        let code: u16 = answers.next().unwrap();
                        let head = format!("HTTP/1.1 {code} X\r\nconnection: close\r\ncontent-length: 13");
                        let answer = format!("{head}\r\n\r\n{{\"code\": {code}}}");
                        stream.write_all(answer.as_bytes()).await.unwrap();
                    }
                }
            };
            let answer = tokio::select! {
                answer = client.request_text(request) => answer,
                () = serving => unreachable!("it serves without end"),
            };
            let refused = match answer {
                Ok(_) => None,
                Err(kube::Error::Api(status)) => Some(status.code),
                Err(error) => panic!("{asked:?}: {error}"),
            };
            assert_eq!(refused, code, "{asked:?}");
            let is_asked = seen.iter().zip(&asked).all(|(seen, asked)| seen.starts_with(asked));
            assert!(seen.len() == asked.len() && is_asked, "{asked:?}: {seen:?}");
        }
    }
}
