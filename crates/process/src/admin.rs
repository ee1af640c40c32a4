//! `/livez`, `/healthz`, `/readyz` and `/metrics`, for clients that need not be well-meaning.
//!
//! A connection serves one request, within a limit of time and size, and there is a limit of connections. Beyond it the
//! oldest one ends: a probe takes milliseconds, so what is old is slow or idle, and a new probe is served at once however
//! many such connections there are.

use std::{
    collections::VecDeque,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use crate::{health::Health, metrics::Registry};

/// From accepting a connection to the last byte of the answer. Prometheus gives a scrape ten seconds, kubelet a probe
/// one; more is of no use.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(10);
/// Probes and scrapes send a few hundred bytes. The least that hyper takes, so what it holds of all connections stays
/// below a megabyte.
const REQUEST_LIMIT: usize = 8192;
/// Kubelet, a pair of Prometheus servers and a few people with curl, ten times over.
const MOST_CONNECTIONS: usize = 64;
/// No connection can be accepted while the process has no file descriptor left; asking at once again would spin.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Answers health questions.
pub fn health_routes(health: Health) -> Router {
    let live = {
        let health = health.clone();
        move || async move {
            let stalled = health.stalled();
            if stalled.is_empty() {
                (StatusCode::OK, "ok\n".to_owned())
            } else {
                (StatusCode::SERVICE_UNAVAILABLE, format!("stalled: {}\n", stalled.join(", ")))
            }
        }
    };
    let ready = move || async move { readiness(&health) };
    Router::new().route("/livez", get(live.clone())).route("/healthz", get(live)).route("/readyz", get(ready))
}

fn readiness(health: &Health) -> (StatusCode, String) {
    let checks = health.readiness();
    let is_ready = checks.values().all(Result::is_ok);
    let mut text: String = checks
        .iter()
        .map(|(name, verdict)| match verdict {
            Ok(()) => format!("[+]{name} ok\n"),
            Err(why) => format!("[-]{name}: {why}\n"),
        })
        .collect();
    text.extend(health.notes().iter().map(|(name, note)| format!("[!]{name}: {note}\n")));
    text.push_str(if is_ready { "ready\n" } else { "not ready\n" });
    (if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, text)
}

/// Answers `ok` on these paths while `check` holds, and 503 with the reason while it does not.
pub fn probe_routes(paths: &[&str], check: impl Fn() -> Result<(), String> + Clone + Send + Sync + 'static) -> Router {
    paths.iter().fold(Router::new(), |routes, path| {
        let check = check.clone();
        let answer = move || async move {
            match check() {
                Ok(()) => (StatusCode::OK, "ok".to_owned()),
                Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
            }
        };
        routes.route(path, get(answer))
    })
}

pub fn metrics_routes(metrics: Arc<Registry>) -> Router {
    let answer = move || async move {
        match metrics.encode() {
            Ok(text) => {
                let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                ([(header::CONTENT_TYPE, kind)], text).into_response()
            }
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    };
    Router::new().route("/metrics", get(answer))
}

/// Listens on `address`; on all IPv4 addresses where all addresses are asked for and there is no IPv6.
pub async fn bind(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = bind_with(address, TcpListener::bind).await?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

async fn bind_with<T>(address: SocketAddr, bind: impl AsyncFn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    match bind(address).await {
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && is_without_ipv6(&error) => {
            bind((Ipv4Addr::UNSPECIFIED, address.port()).into()).await
        }
        result => result,
    }
}

/// A kernel without IPv6 knows no such sockets; one in which it was switched off has no such addresses.
fn is_without_ipv6(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL))
}

/// Answers until the process ends.
pub async fn serve(listener: TcpListener, routes: Router) {
    let mut connections = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        connections.retain(|connection: &AbortOnDropHandle<()>| !connection.is_finished());
        if connections.len() == MOST_CONNECTIONS {
            connections.pop_front();
        }
        connections.push_back(AbortOnDropHandle::new(tokio::spawn(answer(stream, routes.clone()))));
    }
}

/// One request and its answer. How it ends is the client's affair.
async fn answer(stream: TcpStream, routes: Router) {
    let exchange = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(REQUEST_LIMIT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    let _ = tokio::time::timeout(EXCHANGE_LIMIT, exchange).await;
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A server that answers health questions, and where.
    async fn server() -> (AbortOnDropHandle<()>, SocketAddr) {
        let (listener, address) = bind((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
        let serving = tokio::spawn(serve(listener, health_routes(Health::default())));
        (AbortOnDropHandle::new(serving), address)
    }

    /// A connection over which `text` was sent.
    async fn sent(address: SocketAddr, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    /// What the server says until it ends the connection.
    async fn said(mut stream: TcpStream) -> String {
        let mut said = String::new();
        // A reset is an end too.
        let _ = stream.read_to_string(&mut said).await;
        said
    }

    #[tokio::test]
    async fn a_connection_serves_one_request_of_reasonable_size() {
        let (_serving, address) = server().await;
        let request = "GET /livez HTTP/1.1\r\nhost: x\r\n";
        let answer = said(sent(address, &format!("{request}\r\n")).await).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{answer}");
        let padding = "x".repeat(REQUEST_LIMIT);
        let answer = said(sent(address, &format!("{request}padding: {padding}\r\n\r\n")).await).await;
        assert!(answer.starts_with("HTTP/1.1 431") || answer.is_empty(), "{answer}");
    }

    #[tokio::test]
    async fn a_probe_gives_its_reason_until_its_check_holds() {
        let (listener, address) = bind((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
        let holds = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let checked = holds.clone();
        let check = move || {
            if checked.load(std::sync::atomic::Ordering::Relaxed) { Ok(()) } else { Err("not yet".to_owned()) }
        };
        let serving = tokio::spawn(serve(listener, probe_routes(&["/", "/health"], check)));
        let _serving = AbortOnDropHandle::new(serving);
        let ask = async || said(sent(address, "GET /health HTTP/1.0\r\n\r\n").await).await;
        let answer = ask().await;
        assert!(answer.starts_with("HTTP/1.0 503") && answer.ends_with("not yet\n"), "{answer}");
        holds.store(true, std::sync::atomic::Ordering::Relaxed);
        let answer = ask().await;
        assert!(answer.starts_with("HTTP/1.0 200") && answer.ends_with("\r\n\r\nok"), "{answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_never_ends_is_given_up() {
        let (_serving, address) = server().await;
        let started = tokio::time::Instant::now();
        assert_eq!(said(sent(address, "GET /livez HTTP/1.1\r\nhost: x\r\n").await).await, "");
        assert_eq!(started.elapsed(), EXCHANGE_LIMIT);
    }

    #[tokio::test]
    async fn idle_connections_beyond_the_limit_end_and_keep_nobody_waiting() {
        let (_serving, address) = server().await;
        let oldest = sent(address, "").await;
        let mut idle = Vec::new();
        for _ in 0..MOST_CONNECTIONS {
            idle.push(sent(address, "").await);
        }
        assert_eq!(said(oldest).await, "");
        let answer = said(sent(address, "GET /livez HTTP/1.0\r\n\r\n").await).await;
        assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    }

    /// The addresses that are tried on a machine which answers `errno` to IPv6.
    async fn tried(address: &str, errno: Errno) -> (Vec<String>, bool) {
        let tried = Mutex::new(Vec::new());
        let bound = bind_with(address.parse().unwrap(), async |address: SocketAddr| {
            tried.lock().unwrap().push(address.to_string());
            if address.is_ipv6() { Err(errno.into()) } else { Ok(()) }
        })
        .await;
        (tried.into_inner().unwrap(), bound.is_ok())
    }

    #[tokio::test]
    async fn without_ipv6_all_addresses_are_those_of_ipv4() {
        for errno in [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL] {
            let both = vec!["[::]:8080".to_owned(), "0.0.0.0:8080".to_owned()];
            assert_eq!(tried("[::]:8080", errno).await, (both, true));
            assert_eq!(
                tried("[::1]:8080", errno).await,
                (vec!["[::1]:8080".to_owned()], false),
                "one address is meant"
            );
        }
        let only = vec!["[::]:8080".to_owned()];
        assert_eq!(tried("[::]:8080", Errno::ADDRINUSE).await, (only, false), "another's port is not taken");
    }
}
