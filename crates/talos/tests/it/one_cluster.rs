//! One cluster of one control plane for all tests that change nothing in it. The reply to its first `Bootstrap` is lost.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, anyhow};
use testbed::talos::{CallFault, Cluster, Machine, World, WorldOptions};
use tokio::sync::{Mutex, OnceCell, oneshot};

static SHARED: OnceCell<Arc<Cluster>> = OnceCell::const_new();

/// Held while the control plane is asked for a kubeconfig: one test makes such a call fail.
pub static KUBECONFIG: Mutex<()> = Mutex::const_new(());

/// Lives on a thread and runtime of its own, because those of a test end with the test.
pub async fn running() -> Result<Arc<Cluster>> {
    SHARED.get_or_try_init(start).await.cloned()
}

async fn start() -> Result<Arc<Cluster>> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime starts").block_on(async {
            let started = async {
                // Often enough for controllers that are shortened to seconds.
                let lease_interval = Duration::from_millis(500);
                let world = World::start(WorldOptions { lease_interval, ..WorldOptions::default() }).await?;
                let lose_a_reply = |first: &Machine| first.fail("Bootstrap", CallFault::LostReply, 1);
                anyhow::Ok(Arc::new(Cluster::start_with(world, "one", 1, lose_a_reply).await?))
            };
            let is_wanted = sender.send(started.await).is_ok();
            if is_wanted {
                std::future::pending::<()>().await;
            }
        });
    });
    receiver.await.map_err(|_| anyhow!("the thread of the cluster panicked"))?
}
