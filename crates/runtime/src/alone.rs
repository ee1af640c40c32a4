//! A cluster for a command that acts as its user: no operator, no leader, nothing that lasts.

use std::{sync::Arc, time::Duration};

use kube::Client;
use process::{Clock, Health};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    cluster::{Cluster, Common},
    event::Recorder,
    followers::WatchMetrics,
    hub::Context,
    lease::Leadership,
    metrics::Metrics,
};

/// Who acts, and how long one request may take.
#[derive(Clone, Debug)]
pub struct Alone {
    /// Who records events.
    pub instance: String,
    pub request_timeout: Duration,
}

/// What the last events may take once the work is done: a handful of writes, and a person waits for the end.
const LAST_EVENTS: Duration = Duration::from_secs(5);

/// Does some work in a cluster whose watches and events run meanwhile. Nothing of them is left when this returns or is
/// dropped. The events are those that `work` records: they are written when it has dropped its recorder.
pub async fn alone<T>(
    client: Client,
    clock: Clock,
    Alone { instance, request_timeout }: Alone,
    work: impl AsyncFnOnce(Cluster, Recorder) -> T,
) -> T {
    let leadership = Leadership::always(clock.clone());
    let common = Common {
        clock: clock.clone(),
        leadership: leadership.clone(),
        timeout: request_timeout,
        list_mode: None,
        watches: WatchMetrics::default(),
    };
    let (health, metrics) = (Health::new(clock.clone()), Arc::<Metrics>::default());
    let cluster = Cluster::new("", client.clone(), &common);
    let (recorder, publisher) = Recorder::new(client, clock, leadership, instance, metrics.clone());
    let publishing = AbortOnDropHandle::new(tokio::spawn(publisher.run(health.pulse("events"))));
    let pulse = health.pulse("watches");
    let watches = cluster.clone().run(Context { health, metrics }, pulse);
    let done = tokio::select! {
        done = work(cluster, recorder) => done,
        () = watches => unreachable!("watches run until they are dropped"),
    };
    // What is not stored by then is dropped, as an event may be at any time.
    let _ = tokio::time::timeout(LAST_EVENTS, publishing).await;
    done
}
