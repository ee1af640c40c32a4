//! The control plane that everything is measured on, with the operator installed as its chart does.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::Client;
use runtime::rights;
use serde_json::json;
use testbed::{
    ControlPlane, Options, User, Workloads,
    audit::{Entry, Mark},
};

pub const OPERATOR_NAMESPACE: &str = "strata-system";
const OPERATOR_ACCOUNT: &str = "strata";
/// As the audit log names the operator.
pub const OPERATOR_USER: &str = "system:serviceaccount:strata-system:strata";

/// Requests the benchmark has in flight when it writes objects: the operator's own default concurrency.
pub const WRITERS: usize = 10;

/// Whoever writes in reaction to something does it within this time; controllers batch for up to a second.
const QUIET: Duration = Duration::from_secs(3);

pub struct Ground {
    pub control_plane: ControlPlane,
    pub client: Client,
    pub options: Options,
    pub count: usize,
}

impl Ground {
    pub async fn start(count: usize) -> Result<Self> {
        let options = Options { workloads: Some(Workloads::large()), ..Options::default() };
        let control_plane = ControlPlane::start(options.clone()).await?;
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": OPERATOR_NAMESPACE } });
        let mut objects = vec![namespace, json!(api::performer::crd())];
        let rbac = rights::rbac(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT, performers::rights::CLUSTER);
        objects.extend(rbac.objects());
        control_plane.install(&objects).await?;
        let client = control_plane.client().await?;
        Ok(Self { control_plane, client, options, count })
    }

    pub fn operator_user() -> User {
        User::service_account(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT)
    }

    /// Far above what handling all objects once has ever taken; it ends a benchmark that would hang.
    pub fn patience(&self) -> Duration {
        Duration::from_mins(2) + Duration::from_millis(500) * u32::try_from(self.count).unwrap_or(u32::MAX)
    }

    pub fn mark(&self) -> Result<Mark> {
        Ok(self.control_plane.audit().mark()?)
    }

    pub fn entries_after(&self, mark: Mark) -> Result<Vec<Entry>> {
        self.control_plane.audit().entries_after(mark).context("the audit log cannot be read")
    }

    /// Waits until nobody writes any more, heartbeats aside.
    pub async fn settled(&self) -> Result<()> {
        let deadline = Instant::now() + self.patience();
        loop {
            let mark = self.mark()?;
            tokio::time::sleep(QUIET).await;
            let entries = self.entries_after(mark)?;
            let Some(write) = entries.iter().find(|entry| entry.is_write() && !is_heartbeat(entry)) else {
                return Ok(());
            };
            if Instant::now() > deadline {
                bail!("the cluster does not settle: {} {} {} still goes on", write.user, write.verb, write.uri);
            }
        }
    }
}

/// Leases and node states are renewed for ever.
pub fn is_heartbeat(entry: &Entry) -> bool {
    matches!(entry.resource.as_str(), "leases" | "nodes")
}
