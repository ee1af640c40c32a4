//! Parts of a layer beside its rounds, which live as long as the process.

use std::time::Duration;

use futures::future::{BoxFuture, join_all, select_all};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::health::{Health, Pulse};

pub struct Part {
    pub name: String,
    /// How long it may take to end when asked to.
    pub limit: Duration,
    pub start: Box<dyn FnOnce(CancellationToken, Pulse) -> BoxFuture<'static, ()> + Send>,
}

/// All parts, running.
pub struct Parts {
    running: Vec<Running>,
    stop: CancellationToken,
}

struct Running {
    name: String,
    limit: Duration,
    pulse: Pulse,
    task: JoinHandle<()>,
}

impl Parts {
    pub fn start(parts: Vec<Part>, health: &Health) -> Self {
        let stop = CancellationToken::new();
        let start = |part: Part| {
            let pulse = health.pulse(format!("part {}", part.name));
            let task = tokio::spawn((part.start)(stop.clone(), pulse.clone()));
            Running { name: part.name, limit: part.limit, pulse, task }
        };
        Self { running: parts.into_iter().map(start).collect(), stop }
    }

    /// The name of the first part that ended or panicked, unasked.
    pub async fn any_ended(&mut self) -> String {
        if self.running.is_empty() {
            return std::future::pending().await;
        }
        let (_, index, _) = select_all(self.running.iter_mut().map(|part| &mut part.task)).await;
        self.running.remove(index).name
    }

    /// Asks all to stop and waits for each within its limit.
    pub async fn drain(self) {
        self.stop.cancel();
        join_all(self.running.into_iter().map(Running::drain)).await;
    }
}

impl Running {
    async fn drain(mut self) {
        if tokio::time::timeout(self.limit, &mut self.task).await.is_err() {
            tracing::warn!(part = self.name, limit = ?self.limit, "did not end in time; abandoned");
            self.task.abort();
        }
        self.pulse.retire();
    }
}
