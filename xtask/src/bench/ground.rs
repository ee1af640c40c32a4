//! The control plane that everything is measured on, with the operator installed as its chart does.

use std::{
    ffi::OsString,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use kube::Client;
use runtime::rights;
use serde_json::json;
use testbed::{
    ControlPlane, Options, User, Workloads,
    audit::{Entry, Mark},
    capi::{self, ClusterApi},
};

use super::{machines::Zones, operator::LEASE};

pub const OPERATOR_NAMESPACE: &str = "strata-system";
const OPERATOR_ACCOUNT: &str = "strata";
/// As the audit log names the operator.
pub const OPERATOR_USER: &str = "system:serviceaccount:strata-system:strata";

/// Requests the benchmark has in flight when it writes objects: the operator's own default concurrency.
pub const WRITERS: usize = 10;

/// A controller that reacts to a write makes its own within this time; some batch for up to a second.
const QUIET: Duration = Duration::from_secs(3);

pub struct Ground {
    pub control_plane: ControlPlane,
    pub client: Client,
    pub options: Options,
    pub count: usize,
    /// What the operator is started with beside its addresses and its lease.
    pub operator_flags: Vec<OsString>,
    /// Programs of [`testbed::tools`] that take part beside the control plane's.
    pub tools: &'static [&'static str],
}

impl Ground {
    pub async fn performers(count: usize) -> Result<Self> {
        let options = Options { workloads: Some(Workloads::large()), ..Options::default() };
        let mut ground = Self::start(count, options).await?;
        let rbac = rights::rbac(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT, performers::rights::CLUSTER).with_lease(LEASE);
        ground.install([json!(api::performer::crd())].into_iter().chain(rbac.objects())).await?;
        ground.operator_flags = vec!["--layers=performers".into()];
        Ok(ground)
    }

    /// Releases of the benchmark have no pods, so the usual few nodes are plenty.
    pub async fn releases(count: usize) -> Result<Self> {
        let mut ground = Self::start(count, Options::default()).await?;
        let rbac = rights::rbac(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT, workspaces::rights::CLUSTER).with_lease(LEASE);
        let crds = api::workspace::crds().map(|crd| json!(crd));
        let helm = [
            json!(workspaces::rights::helm_role()),
            json!(workspaces::rights::helm_binding(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT)),
        ];
        ground.install(crds.into_iter().chain(rbac.objects()).chain(helm)).await?;
        ground.tools = &["helm"];
        let directory = ground.control_plane.directory().join("helm");
        ground.operator_flags = vec!["--layers=workspaces".into(), "--helm".into(), helm_program().await?.into()];
        ground.operator_flags.extend(["--helm-directory".into(), directory.into()]);
        Ok(ground)
    }

    /// With Cluster API, whose client limits are raised as those of the scheduler are.
    pub async fn machines(count: usize, zones: &Zones) -> Result<WithClusterApi> {
        let mut ground = Self::start(count, Options::default()).await?;
        let spec = machines::LAYER;
        let rbac = rights::rbac(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT, spec.rights).with_lease(LEASE);
        let (role, binding) = rights::layer_role(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT, spec.name, spec.own_namespace);
        let crds = (spec.crds)().into_iter().map(|crd| json!(crd));
        let roles = (spec.roles)().into_iter().map(|role| json!(role));
        let accounts = spec.accounts.iter().flat_map(|account| {
            let (account, binding) = account.objects(OPERATOR_NAMESPACE);
            [json!(account), json!(binding)]
        });
        let objects = crds.chain(rbac.objects()).chain([json!(role), json!(binding)]).chain(roles).chain(accounts);
        ground.install(objects.chain(zones.objects(OPERATOR_NAMESPACE)?)).await?;
        ground.tools = &["capi"];
        zones.write_config(|_, bound| bound.operator)?;
        ground.operator_flags =
            vec!["--layers=machines".into(), "--machines-config".into(), zones.config_file().into()];
        let cluster_api = ClusterApi::start(&ground.control_plane, &capi::Options::default()).await?;
        Ok(WithClusterApi { ground, cluster_api })
    }

    async fn start(count: usize, options: Options) -> Result<Self> {
        let control_plane = ControlPlane::start(options.clone()).await?;
        let client = control_plane.client().await?;
        Ok(Self { control_plane, client, options, count, operator_flags: Vec::new(), tools: &[] })
    }

    async fn install(&self, objects: impl Iterator<Item = serde_json::Value>) -> Result<()> {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": OPERATOR_NAMESPACE } });
        let objects: Vec<_> = [namespace].into_iter().chain(objects).collect();
        Ok(self.control_plane.install(&objects).await?)
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

    /// Waits until no client writes any more, heartbeats aside.
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

/// A control plane with Cluster API's controllers.
pub struct WithClusterApi {
    pub ground: Ground,
    cluster_api: ClusterApi,
}

impl WithClusterApi {
    pub async fn stop(self) -> Result<()> {
        self.cluster_api.stop().await?;
        Ok(self.ground.control_plane.stop().await?)
    }
}

pub async fn helm_program() -> Result<std::path::PathBuf> {
    Ok(testbed::tools::path("helm").await?)
}

/// Leases and node states are renewed for ever.
pub fn is_heartbeat(entry: &Entry) -> bool {
    matches!(entry.resource.as_str(), "leases" | "nodes")
}
