//! Health reports: one stream, opened anew as often as it ends.

use std::time::Duration;

use shard::{
    client::AgentClient,
    clock::Clock,
    wire::{self, HealthReportRequest},
};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_stream::wrappers::ReceiverStream;

use crate::{Options, backoff, identity::Certificate, notice::Notice};

/// A stream that lasted longer than the longest wait before it was a good one: the next is opened soon.
const GOOD: Duration = Duration::from_secs(30);

/// What an agent counts of itself.
struct Life {
    began: Instant,
    count: i64,
}

/// Reports for as long as the agent lives.
pub async fn run(
    options: &Options,
    clock: &Clock,
    link: &AgentClient,
    mut certificates: watch::Receiver<Certificate>,
    mut notices: watch::Receiver<Option<Notice>>,
) {
    let (mut life, mut backoff) = (Life { began: Instant::now(), count: 0 }, backoff());
    loop {
        let opened = Instant::now();
        // One report waits at most: an older one says nothing more.
        let (sender, receiver) = mpsc::channel(1);
        let ended = tokio::select! {
            ended = link.report(ReceiverStream::new(receiver)) => ended,
            () = feed(options, clock, &mut life, &sender, &mut notices) => Ok(()),
            // The next stream shows the new certificate.
            _ = certificates.changed() => continue,
        };
        if opened.elapsed() >= GOOD {
            backoff.reset();
        }
        let wait = backoff.wait();
        match ended {
            Ok(()) => tracing::info!(?wait, "the server ended the reports; again"),
            Err(error) => tracing::warn!(%error, ?wait, "reports do not reach the server"),
        }
        tokio::time::sleep(wait).await;
    }
}

/// Sends a report now, at every interval and at once after a notice. Returns when the stream takes no more.
async fn feed(
    options: &Options,
    clock: &Clock,
    life: &mut Life,
    stream: &mpsc::Sender<HealthReportRequest>,
    notices: &mut watch::Receiver<Option<Notice>>,
) {
    loop {
        let notice = notices.borrow_and_update().clone();
        life.count += 1;
        let report = HealthReportRequest {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instance_id: options.instance_id.clone(),
            timestamp: Some(wire::timestamp(clock.now())),
            count: life.count,
            uptime: uptime(life.began.elapsed()),
            termination_notice: notice.map(|notice| wire::TerminationNotice {
                action: notice.action,
                deadline: notice.deadline.map(wire::timestamp),
            }),
            ..HealthReportRequest::default()
        };
        if stream.send(report).await.is_err() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(options.report_interval) => {}
            // The sender lives as long as we do.
            _ = notices.changed() => {}
        }
    }
}

/// As Go writes durations: `1h2m3s`.
fn uptime(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptime_is_written_as_go_writes_it() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (61, "1m1s"), (3600, "1h0m0s"), (90_061, "25h1m1s")] {
            assert_eq!(uptime(Duration::from_secs(seconds)), text);
        }
    }
}
