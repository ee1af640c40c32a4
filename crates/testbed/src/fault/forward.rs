//! One call through the proxy: read, meet a fault or not, forward, answer.

use std::{convert::Infallible, sync::Arc};

use futures::stream;
use http::{
    HeaderMap, HeaderValue, Request, Response, StatusCode, Version,
    header::{ACCEPT, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, RETRY_AFTER, TRANSFER_ENCODING},
    request,
};
use http_body_util::{BodyExt, Full, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame, Incoming};
use kube::client::Body;

use super::{
    ApiRequest, Cut, Fault, Shared, Verb,
    rule::{Gate, Rule},
    watch::View,
};

/// The API server refuses bodies above 3 MB; anything longer than this would be refused there too.
const LONGEST_REQUEST: usize = 8 << 20;

pub(super) type Answer = Response<UnsyncBoxBody<Bytes, Cut>>;

impl Shared {
    /// `Err` breaks the connection (in HTTP/2 the stream) without an answer.
    pub(super) async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Answer, Cut> {
        let (mut parts, body) = request.into_parts();
        let body = Limited::new(body, LONGEST_REQUEST).collect().await.map_err(|_| Cut)?.to_bytes();
        for hop in [HOST, CONNECTION, TRANSFER_ENCODING] {
            parts.headers.remove(hop);
        }
        // Upstream negotiates its own version.
        parts.version = Version::default();
        let Some(request) = ApiRequest::parse(&parts.method, &parts.uri, &body) else {
            return Ok(passed_on(self.forward(parts, body).await?));
        };
        let rule = self.rule_for(&request);
        let seen = self.log.arrived(&request, rule.as_ref().map(|rule| rule.fault));
        // Such a fault is about what the server has done: it does it although the client may give up before.
        let is_carried_out = rule.as_ref().is_some_and(|rule| rule.fault.is_after_commit());
        let call = async move {
            let answer = self.answer_call(parts, body, &request, rule.as_deref()).await;
            if let Ok(answer) = &answer {
                self.log.answered(seen, answer.status());
            }
            answer
        };
        if is_carried_out { tokio::spawn(call).await.unwrap_or(Err(Cut)) } else { call.await }
    }

    async fn answer_call(
        &self,
        parts: request::Parts,
        body: Bytes,
        request: &ApiRequest,
        rule: Option<&Rule>,
    ) -> Result<Answer, Cut> {
        if let Some(rule) = rule
            && let Some(answer) = before_commit(rule, request).await?
        {
            return Ok(answer);
        }
        let view = (request.verb == Verb::Watch).then(|| view(&parts));
        let answer = self.forward(parts, body).await?;
        if let Some(rule) = rule {
            after_commit(rule, request).await?;
            if rule.fault == Fault::CutInBody {
                return half(answer).await;
            }
        }
        Ok(match view {
            Some(view) if answer.status().is_success() => {
                self.watched(answer, request, view, rule.map(|rule| rule.fault))
            }
            _ => passed_on(answer),
        })
    }

    /// A server that cannot be reached looks to the client as it would without the proxy: no answer.
    async fn forward(&self, parts: request::Parts, body: Bytes) -> Result<Response<Body>, Cut> {
        self.upstream.send(Request::from_parts(parts, Body::from(body))).await.map_err(|error| {
            tracing::debug!(%error, "the API server gave no answer");
            Cut
        })
    }

    fn watched(&self, answer: Response<Body>, request: &ApiRequest, view: View, fault: Option<Fault>) -> Answer {
        let (parts, body) = answer.into_parts();
        let by_line =
            parts.headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
        let mut relay = self.watches.relay(request.clone(), view, body, by_line);
        match fault {
            Some(Fault::WatchExpired) => relay.expire(),
            Some(Fault::WatchCutAfter(events)) => relay = relay.cut_after(events),
            _ => {}
        }
        let body = BodyExt::boxed_unsync(StreamBody::new(relay.into_stream()));
        Response::from_parts(without_hops(parts), body)
    }
}

/// What happens to a call on its way to the server: an answer of ours, a cut, or nothing.
async fn before_commit(rule: &Rule, request: &ApiRequest) -> Result<Option<Answer>, Cut> {
    match rule.fault {
        Fault::Latency(latency) => {
            rule.hit(request);
            tokio::time::sleep(latency).await;
            Ok(None)
        }
        Fault::Status(code) => {
            rule.hit(request);
            Ok(Some(refusal(code)))
        }
        Fault::Text(code, text) => {
            rule.hit(request);
            let status = StatusCode::from_u16(code).expect("tests inject codes of HTTP");
            Ok(Some(answer(status, "text/plain; charset=utf-8", text.to_owned())))
        }
        Fault::Endless => {
            rule.hit(request);
            Ok(Some(endless()))
        }
        Fault::TooManyRequests { retry_after_seconds } => {
            rule.hit(request);
            Ok(Some(overload(retry_after_seconds)))
        }
        Fault::CutBeforeCommit => {
            rule.hit(request);
            Err(Cut)
        }
        Fault::HoldBeforeCommit => held(rule, request).await.map(|()| None),
        Fault::CarriedOut
        | Fault::CutAfterCommit
        | Fault::CutInBody
        | Fault::HoldAfterCommit
        | Fault::WatchExpired
        | Fault::WatchCutAfter(_) => Ok(None),
    }
}

/// What happens to a call after the server has answered it, which it does when it has committed.
async fn after_commit(rule: &Rule, request: &ApiRequest) -> Result<(), Cut> {
    match rule.fault {
        Fault::CutAfterCommit => {
            rule.hit(request);
            Err(Cut)
        }
        Fault::HoldAfterCommit => held(rule, request).await,
        Fault::CarriedOut | Fault::CutInBody | Fault::WatchExpired | Fault::WatchCutAfter(_) => {
            rule.hit(request);
            Ok(())
        }
        _ => Ok(()),
    }
}

async fn held(rule: &Rule, request: &ApiRequest) -> Result<(), Cut> {
    match rule.held(request).await {
        Gate::Released => Ok(()),
        Gate::Cut | Gate::Closed => Err(Cut),
    }
}

fn passed_on(answer: Response<Body>) -> Answer {
    let (parts, body) = answer.into_parts();
    Response::from_parts(without_hops(parts), BodyExt::boxed_unsync(body.map_err(|_| Cut)))
}

/// The first half of an answer, with the length that the whole would have had. Of a watch it is the first piece.
async fn half(answer: Response<Body>) -> Result<Answer, Cut> {
    let (parts, mut body) = answer.into_parts();
    let is_whole = parts.headers.contains_key(CONTENT_LENGTH);
    let bytes = if is_whole {
        body.collect().await.map_err(|_| Cut)?.to_bytes()
    } else {
        let frame = body.frame().await.ok_or(Cut)?.map_err(|_| Cut)?;
        frame.into_data().map_err(|_| Cut)?
    };
    let frames = [Ok(Frame::data(bytes.slice(..bytes.len() / 2))), Err(Cut)];
    let body = BodyExt::boxed_unsync(StreamBody::new(stream::iter(frames)));
    Ok(Response::from_parts(without_hops(parts), body))
}

/// Blanks, as fast as the client takes them: they may stand before any JSON.
fn endless() -> Answer {
    const BLANKS: &[u8] = &[b' '; 64 << 10];
    let frames = stream::repeat_with(|| Ok(Frame::data(Bytes::from_static(BLANKS))));
    let mut answer = Response::new(BodyExt::boxed_unsync(StreamBody::new(frames)));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

fn without_hops(mut parts: http::response::Parts) -> http::response::Parts {
    parts.headers.remove(CONNECTION);
    parts.headers.remove(TRANSFER_ENCODING);
    parts
}

/// A refusal as the API server's handlers write it.
fn refusal(code: u16) -> Answer {
    let text = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "injected fault", "reason": reason(code), "code": code,
    });
    let status = StatusCode::from_u16(code).expect("tests inject codes of HTTP");
    answer(status, "application/json", text.to_string())
}

/// A refusal as the filter for priority and fairness writes it: plain text, and a header for the patience.
fn overload(retry_after_seconds: u32) -> Answer {
    let text = "Too many requests, please try again later.\n".to_owned();
    let mut answer = answer(StatusCode::TOO_MANY_REQUESTS, "text/plain; charset=utf-8", text);
    answer.headers_mut().insert(RETRY_AFTER, retry_after_seconds.into());
    answer
}

fn answer(status: StatusCode, kind: &'static str, text: String) -> Answer {
    let body = Full::new(Bytes::from(text)).map_err(|never: Infallible| match never {});
    let mut answer = Response::new(BodyExt::boxed_unsync(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// The reason the API server gives with a code.
fn reason(code: u16) -> &'static str {
    match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "",
    }
}

fn view(parts: &request::Parts) -> View {
    let query = parts.uri.query().unwrap_or_default();
    let mut selectors: Vec<String> = query
        .split('&')
        .filter(|pair| pair.starts_with("labelSelector=") || pair.starts_with("fieldSelector="))
        .map(str::to_owned)
        .collect();
    selectors.sort();
    View { path: parts.uri.path().to_owned(), selectors, accept: accept(&parts.headers) }
}

fn accept(headers: &HeaderMap) -> String {
    headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}
