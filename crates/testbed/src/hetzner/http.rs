//! The API's outside: connections, tokens, rate limit, faults, log.

use std::{sync::Arc, time::Duration};

use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE, LINK},
};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    body::{Bytes, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::{net::TcpListener, time::sleep};

use super::{
    Access, Shared,
    balancer::Balancer,
    catalogue,
    certificate::Certificate,
    fault::{Kind, Taken},
    firewall::Firewall,
    image,
    life::Fate,
    limit::{Allowance, Bucket},
    network::Network,
    placement_group::PlacementGroup,
    query::{Query, links},
    refusal::Refusal,
    server::Server,
    ssh_key::SshKey,
    state::{Call, Outcome, Reply, World, actions, route},
    volume::Volume,
};

/// User data has 32 KiB, a certificate chain less: a longer body is no request of this API.
const LONGEST_REQUEST: usize = 1 << 20;
/// Accepting fails while the machine has no file descriptors left; it may have some again soon.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

type Answer = Response<Full<Bytes>>;

/// The connection is closed without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the connection was closed on purpose")]
struct Cut;

pub(super) async fn serve(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // Else the end of a long answer waits until the client has acknowledged its beginning, some 40 ms.
        let _ = stream.set_nodelay(true);
        let on = Arc::clone(&shared);
        shared.spawn(async move {
            let service = service_fn(|request| {
                let on = Arc::clone(&on);
                async move {
                    let asked = read(request).await?;
                    // On its own: a client that no longer waits does not undo what it asked for.
                    let answer = Arc::clone(&on).answer(asked);
                    let ends = on.ends.clone();
                    let answer = on.tasks.spawn(async move {
                        tokio::select! {
                            () = ends.cancelled() => Err(Cut),
                            answer = answer => answer,
                        }
                    });
                    answer.await.unwrap_or(Err(Cut))
                }
            });
            let connection = hyper::server::conn::http1::Builder::new();
            // A client that leaves, or a cut on purpose, ends the connection with an error.
            let _ = connection.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// One request, read.
struct Asked {
    method: Method,
    /// Below `/v1`.
    is_api: bool,
    /// Without `/v1` and the query.
    path: String,
    query: String,
    token: Option<String>,
    body: Bytes,
}

async fn read(request: Request<Incoming>) -> Result<Asked, Cut> {
    let (parts, body) = request.into_parts();
    let body = Limited::new(body, LONGEST_REQUEST).collect().await.map_err(|_| Cut)?.to_bytes();
    let token = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let path = parts.uri.path();
    let in_api = path.strip_prefix("/v1").filter(|path| path.is_empty() || path.starts_with('/'));
    Ok(Asked {
        token: token.and_then(|value| value.strip_prefix("Bearer ")).map(str::to_owned),
        is_api: in_api.is_some(),
        path: in_api.unwrap_or(path).to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        method: parts.method,
        body,
    })
}

impl Shared {
    async fn answer(self: Arc<Self>, asked: Asked) -> Result<Answer, Cut> {
        let access = self.options.access.iter().find(|access| Some(&access.token) == asked.token.as_ref());
        let Some(access) = access else {
            let refused = Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", "unable to authenticate");
            return Ok(self.finish(&asked, Err(refused), None));
        };
        let is_free = self.bucket(&access.project, Bucket::take);
        let mut outcome = self.decide(&asked, access, is_free).await?;
        let allowance = self.bucket(&access.project, Bucket::allowance);
        let is_lost = outcome.is_lost && outcome.reply.is_ok();
        if let (true, false, Some(taken)) = (outcome.is_lost, is_lost, outcome.taken.take()) {
            // What is lost is the answer to a success: this fault is still to come.
            self.faults.restore(taken);
        }
        let answer = self.finish(&asked, outcome.reply, Some(allowance));
        if is_lost { Err(Cut) } else { Ok(answer) }
    }

    fn bucket<T>(&self, project: &str, with: impl FnOnce(&mut Bucket) -> T) -> T {
        let mut buckets = self.buckets.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let limit = self.options.requests_per_hour;
        with(buckets.entry(project.to_owned()).or_insert_with(|| Bucket::new(limit)))
    }

    pub(super) fn spend_all_but(&self, project: &str, left: u32) {
        self.bucket(project, |bucket| bucket.spend_all_but(left));
    }

    async fn decide(self: &Arc<Self>, asked: &Asked, access: &Access, is_free: bool) -> Result<Decided, Cut> {
        let plain = |reply| Ok(Decided { reply, is_lost: false, taken: None });
        if !is_free {
            return plain(Err(spent()));
        }
        if !asked.is_api {
            return plain(Err(Refusal::no_route()));
        }
        if access.is_read_only && asked.method != Method::GET {
            let message = "the token is only allowed to perform GET requests";
            return plain(Err(Refusal::new(StatusCode::FORBIDDEN, "token_readonly", message)));
        }
        let text: &[u8] = if asked.body.is_empty() { b"null" } else { &asked.body };
        let body: Value = match serde_json::from_slice(text) {
            Ok(body) => body,
            Err(error) => {
                let message = format!("invalid JSON: {error}");
                return plain(Err(Refusal::new(StatusCode::BAD_REQUEST, "json_error", message)));
            }
        };
        let taken = self.faults.take(&asked.method, &asked.path, &body);
        let fault = taken.as_ref().map(|taken| &taken.kind);
        match fault {
            Some(Kind::Cut) => return Err(Cut),
            Some(Kind::Slow(time)) => sleep(*time).await,
            Some(Kind::RateLimit) => {
                self.spend_all_but(&access.project, 0);
                return plain(Err(spent()));
            }
            _ => {}
        }
        if let Some(refusal) = fault.and_then(Kind::refusal) {
            return plain(Err(refusal));
        }
        let call = Call { method: asked.method.clone(), query: Query::parse(&asked.query), body };
        let reply = self.apply(&access.project, &asked.path, &call, fault);
        Ok(Decided { reply, is_lost: fault == Some(&Kind::LostResponse), taken })
    }

    fn apply(self: &Arc<Self>, project: &str, path: &str, call: &Call, fault: Option<&Kind>) -> Outcome {
        let mut state = self.state();
        if path.starts_with("/load_balancers") {
            self.refresh_health(&mut state);
        }
        let mut world = state.world(project);
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        let reply = dispatch(&mut world, call, &segments);
        let begun = std::mem::take(&mut world.chain);
        if reply.is_err() {
            // A request that is refused after it began something began nothing.
            world.project.actions.retain(|id, _| !begun.contains(id));
            return reply;
        }
        if fault == Some(&Kind::VanishedAction) {
            let hidden = world.project.actions.values_mut().filter(|action| begun.contains(&action.id));
            hidden.for_each(|action| action.is_hidden = true);
        }
        if call.method != Method::GET {
            self.changed(&mut state);
        }
        drop(state);
        self.carry_out(project, begun, Fate::of(self, fault));
        reply
    }

    fn finish(&self, asked: &Asked, outcome: Outcome, allowance: Option<Allowance>) -> Answer {
        let Reply { status, body, pagination } = outcome.unwrap_or_else(|refusal| Reply {
            status: refusal.status,
            body: refusal.body().to_string(),
            pagination: None,
        });
        self.log.write(asked.method.as_str(), &asked.path, status.as_u16());
        let link = pagination.map(|pagination| links(&self.base, &asked.path, &pagination));
        let is_json = !body.is_empty();
        let mut answer = Response::new(Full::from(body));
        *answer.status_mut() = status;
        let headers = answer.headers_mut();
        if is_json {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(link) = link.and_then(|link| HeaderValue::try_from(link).ok()) {
            headers.insert(LINK, link);
        }
        if let Some(Allowance { limit, remaining, full_in }) = allowance {
            let reset = Timestamp::now().as_second().saturating_add_unsigned(full_in.as_secs());
            headers.insert("ratelimit-limit", limit.into());
            headers.insert("ratelimit-remaining", remaining.into());
            headers.insert("ratelimit-reset", reset.into());
        }
        answer
    }
}

struct Decided {
    reply: Outcome,
    /// The answer is not to arrive, if it is a success.
    is_lost: bool,
    taken: Option<Taken>,
}

fn spent() -> Refusal {
    Refusal::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", "limit of requests per hour reached")
}

fn dispatch(world: &mut World<'_>, call: &Call, segments: &[&str]) -> Outcome {
    match segments {
        ["servers", rest @ ..] => route::<Server>(world, call, rest),
        ["networks", id, "members"] if call.method == Method::GET => Network::members(world.project, call, id),
        ["networks", rest @ ..] => route::<Network>(world, call, rest),
        ["load_balancers", rest @ ..] => route::<Balancer>(world, call, rest),
        ["firewalls", rest @ ..] => route::<Firewall>(world, call, rest),
        ["placement_groups", rest @ ..] => route::<PlacementGroup>(world, call, rest),
        ["ssh_keys", rest @ ..] => route::<SshKey>(world, call, rest),
        ["certificates", rest @ ..] => route::<Certificate>(world, call, rest),
        ["volumes", rest @ ..] => route::<Volume>(world, call, rest),
        ["images", rest @ ..] => image::route(world, call, rest),
        _ if call.method != Method::GET => Err(Refusal::no_route()),
        ["actions", rest @ ..] => actions(world.project, &call.query, rest, |_| true),
        ["pricing"] => Ok(Reply::ok(catalogue::pricing())),
        ["primary_ips", rest @ ..] => {
            let all = world.project.servers.values().flat_map(Server::primary_ips).collect();
            fixed(call, "primary_ips", "primary_ip", all, rest)
        }
        [kind, rest @ ..] => {
            let (one, all) = catalogue::fixed(kind).ok_or_else(Refusal::no_route)?;
            fixed(call, kind, one, all, rest)
        }
        [] => Err(Refusal::no_route()),
    }
}

/// Lists that no request changes.
fn fixed(call: &Call, many: &str, one: &str, all: Vec<Value>, rest: &[&str]) -> Outcome {
    match rest {
        [] => {
            let name = |item: &Value| call.query.admits("name", item["name"].as_str().unwrap_or_default());
            let wanted = all.into_iter().filter(name).collect();
            Reply::page(many, &call.query.page(wanted, &["id", "name"])?)
        }
        [id] => {
            let found = all.into_iter().find(|item| item["id"].as_i64() == id.parse().ok());
            let found = found.ok_or_else(|| Refusal::not_found(one, id))?;
            Ok(Reply::ok(json!({ one: found })))
        }
        _ => Err(Refusal::no_route()),
    }
}
