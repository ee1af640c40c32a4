//! `/livez`, `/healthz`, `/readyz` and `/metrics`.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Router,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use tokio::net::TcpListener;

use crate::{health::Health, metrics::Metrics};

/// Answers health questions.
pub(crate) fn health_routes(health: Health) -> Router {
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

pub(crate) fn metrics_routes(metrics: Arc<Metrics>) -> Router {
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

pub(crate) async fn bind(address: SocketAddr) -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}
