//! A control plane, a chart repository and an operator of this layer alone, in this process.

use std::{future::Future, path::Path, sync::Arc, time::Duration};

use anyhow::Result;
use kube::{
    Config as ClientConfig,
    config::{KubeConfigOptions, Kubeconfig},
};
use process::Clock;
use runtime::{Fatal, LeaseConfig, Metrics, Operator, Settings};
use tempfile::TempDir;
use testbed::{
    ControlPlane, Lent,
    charts::{Access, ChartRepository},
};
use tokio::sync::{OnceCell, oneshot};
use tokio_util::sync::CancellationToken;
use workspaces::{Config, helm::Guard};

use crate::{
    capture::Logs,
    space::{self, HelmRole, OPERATOR_NAMESPACE, Space, lent, operator_user},
};

/// A running operator.
pub struct Running {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), Fatal>>,
    pub metrics: Arc<Metrics>,
}

impl Running {
    pub async fn start(config: Config, lease: Option<LeaseConfig>) -> Result<Self> {
        let stop = CancellationToken::new();
        let loopback = Some(([127, 0, 0, 1], 0).into());
        let settings = Settings {
            lease,
            health_address: loopback,
            metrics_address: loopback,
            grace: Duration::from_secs(5),
            request_timeout: Duration::from_secs(10),
            list_mode: None,
            instance: "test".into(),
        };
        let client = runtime::connect(config.client.clone())?;
        let mut operator = Operator::new(client, settings, Clock::default(), stop.clone());
        workspaces::install(&mut operator, config)?;
        let metrics = operator.metrics.clone();
        let (bound, addresses) = oneshot::channel();
        let task = tokio::spawn(operator.run(|addresses| {
            let _ = bound.send(addresses);
        }));
        addresses.await?;
        Ok(Self { stop, task, metrics })
    }

    /// An orderly end, as by SIGTERM.
    pub async fn stop(self) -> Result<()> {
        self.stop.cancel();
        Ok(self.task.await??)
    }

    /// The sum of all lines of the metrics that begin so and hold all of `labels`.
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let text = self.metrics.encode().expect("metrics encode");
        let fits = |line: &&str| line.starts_with(name) && labels.iter().all(|label| line.contains(label));
        text.lines().filter(fits).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Helm processes that have ended so far.
    pub fn helm_processes(&self) -> f64 {
        self.metric("strata_helm_operations_total", &[])
    }
}

/// Short intervals where a test would have to wait, and room for all that tests do at once. No resync in the time of a
/// test, so that what happens was not caused by it.
pub async fn config(control_plane: &ControlPlane, directory: &Path) -> Result<Config> {
    let kubeconfig = Kubeconfig::read_from(control_plane.kubeconfig_as(&operator_user()).await?)?;
    let client = ClientConfig::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let guard = Guard { program: env!("CARGO_BIN_EXE_helm-guard").into(), arguments: Vec::new() };
    let helm = testbed::tools::path("helm").await?;
    let mut config = Config::new(client, helm, guard, directory.join("private"), directory.join("cache"));
    config.resync = Duration::from_hours(1);
    config.policy.total_memory = 4 << 30;
    config.policy.lock_patience = Duration::from_secs(4);
    config.policy.fetch_retry = Duration::from_secs(1);
    config.policy.local_charts = true;
    config.grace = Duration::from_secs(5);
    config.charts.retry = Duration::from_secs(1);
    Ok(config)
}

/// So long that a busy machine does not cost the leader its lead; one that stops gives it up at once.
pub fn lease(identity: &str) -> LeaseConfig {
    LeaseConfig {
        namespace: OPERATOR_NAMESPACE.into(),
        name: "test".into(),
        identity: identity.into(),
        duration: Duration::from_mins(1),
    }
}

/// Everything that most tests share, each in a namespace of its own.
pub struct World {
    pub operator: Running,
    pub repository: ChartRepository,
    pub logs: Logs,
    pub directory: TempDir,
    pub control_plane: Lent,
}

static SHARED: OnceCell<World> = OnceCell::const_new();
static LENIENT: OnceCell<World> = OnceCell::const_new();

impl World {
    pub async fn shared() -> &'static Self {
        SHARED.get_or_init(|| on_own_thread(|logs| Self::with_logs(logs, |_| {}))).await
    }

    /// Releases may go to other namespaces, locks of others are respected for long, and indexes are soon read anew.
    pub async fn lenient() -> &'static Self {
        let adjust = |config: &mut Config| {
            config.policy.other_namespaces = true;
            config.policy.lock_patience = Duration::from_mins(5);
            config.charts.time_to_live = Duration::from_secs(1);
        };
        LENIENT.get_or_init(|| on_own_thread(move |logs| Self::with_logs(logs, adjust))).await
    }

    async fn with_logs(logs: Logs, adjust: impl FnOnce(&mut Config)) -> Result<Self> {
        Ok(Self { logs, ..Self::on(lent(space::SHARED, HelmRole::Bound).await?, adjust).await? })
    }

    /// A world for one test alone.
    pub async fn start(helm: HelmRole, adjust: impl FnOnce(&mut Config)) -> Result<Self> {
        Self::on(lent(space::OWN, helm).await?, adjust).await
    }

    async fn on(control_plane: Lent, adjust: impl FnOnce(&mut Config)) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let mut config = config(&control_plane, directory.path()).await?;
        adjust(&mut config);
        let operator = Running::start(config, None).await?;
        let repository = ChartRepository::start(Access::Anyone).await?;
        Ok(Self { operator, repository, logs: Logs::default(), directory, control_plane })
    }

    pub async fn space(&self, prefix: &str) -> Result<Space<'_>> {
        Space::new(&self.control_plane, self.repository.url(), prefix).await
    }
}

/// A control plane where a test starts and stops operators of its own.
pub struct Vacant {
    pub repository: ChartRepository,
    pub directory: TempDir,
    pub control_plane: Lent,
}

impl Vacant {
    pub async fn take() -> Result<Self> {
        let control_plane = lent(space::OWN, HelmRole::Bound).await?;
        let repository = ChartRepository::start(Access::Anyone).await?;
        Ok(Self { repository, directory: tempfile::tempdir()?, control_plane })
    }

    pub async fn config(&self) -> Result<Config> {
        config(&self.control_plane, self.directory.path()).await
    }

    pub async fn space(&self, prefix: &str) -> Result<Space<'_>> {
        Space::new(&self.control_plane, self.repository.url(), prefix).await
    }
}

/// On a thread and runtime of its own, because those of a test end with the test.
async fn on_own_thread<T: Send + 'static, F: Future<Output = Result<T>>>(
    start: impl FnOnce(Logs) -> F + Send + 'static,
) -> T {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let logs = Logs::default();
        let _captured = logs.capture();
        runtime.block_on(async {
            if sender.send(start(logs).await).is_ok() {
                std::future::pending::<()>().await;
            }
        });
    });
    receiver.await.expect("its thread lives").expect("it starts")
}
