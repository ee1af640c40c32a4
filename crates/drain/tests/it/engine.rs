//! A process that drains, as far as the cluster can see: it goes through a fault proxy and may be killed.

use std::time::Duration;

use anyhow::{Context, Result};
use drain::{Drains, Progress, Request};
use kube::{Config, config::KubeConfigOptions};
use plan::drain::{Order, Plan};
use process::Clock;
use runtime::{Alone, alone};
use testbed::fault::FaultProxy;
use tokio::sync::{oneshot, watch as signal};
use tokio_util::task::AbortOnDropHandle;

/// Far above what anything here takes; it ends a test that would otherwise hang.
pub const PATIENCE: Duration = Duration::from_mins(3);

pub struct Engine {
    pub drains: Drains,
    /// Ends with the sender: the recorder is dropped, and its last events are written.
    stop: oneshot::Sender<()>,
    task: AbortOnDropHandle<()>,
}

impl Engine {
    pub async fn start(proxy: &FaultProxy) -> Result<Self> {
        Self::with(proxy, Duration::from_secs(30)).await
    }

    /// A request without answer is given up soon, so that faults of that kind cost little time; but not while a busy
    /// server still carries it out, which would be asked for it twice.
    pub async fn hasty(proxy: &FaultProxy) -> Result<Self> {
        Self::with(proxy, Duration::from_secs(10)).await
    }

    pub async fn with(proxy: &FaultProxy, request_timeout: Duration) -> Result<Self> {
        let config = Config::from_custom_kubeconfig(proxy.kubeconfig(), &KubeConfigOptions::default()).await?;
        let client = runtime::connect(config)?;
        let (sender, receiver) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let identity = Alone { instance: "test".to_owned(), request_timeout };
        let clock = Clock::default();
        let work = alone(client, clock.clone(), identity, async move |cluster, recorder| {
            if sender.send(Drains::new(cluster, recorder, clock)).is_ok() {
                let _ = stopped.await;
            }
        });
        let task = AbortOnDropHandle::new(tokio::spawn(work));
        Ok(Self { drains: receiver.await?, stop, task })
    }

    /// Drains a node, until `limit` has passed.
    pub fn begin(&self, node: &str, order: Order, limit: Option<Duration>) -> signal::Receiver<Progress> {
        let deadline = limit.map(|limit| Clock::default().instant() + limit);
        self.drains.ensure(node, Request { order, deadline }, || {})
    }

    /// Lets the last events out.
    pub async fn stop(self) -> Result<()> {
        let Self { drains, stop, task } = self;
        drop((drains, stop));
        Ok(task.await?)
    }
}

pub fn order(id: &str) -> Order {
    Order { id: id.to_owned(), ..Order::default() }
}

/// The first plan that is so.
pub async fn until(
    progress: &mut signal::Receiver<Progress>,
    what: &str,
    is_so: impl Fn(&Plan) -> bool,
) -> Result<Plan> {
    let found = tokio::time::timeout(PATIENCE, progress.wait_for(|progress| is_so(&progress.plan))).await;
    let found = found.ok().and_then(Result::ok).map(|progress| progress.plan.clone());
    found.with_context(|| format!("{what} in time; at last: {:?}", progress.borrow()))
}

/// The last plan.
pub async fn ended(progress: &mut signal::Receiver<Progress>) -> Result<Plan> {
    until(progress, "the end", |plan| plan.end.is_some()).await
}

/// Until the drain's task has ended, which is no end of the drain.
pub async fn gone(progress: &mut signal::Receiver<Progress>) -> Result<()> {
    let gone = async { while progress.changed().await.is_ok() {} };
    tokio::time::timeout(PATIENCE, gone).await.context("the drain goes on without its process")
}
