//! A control plane with a fault proxy before it, and operators behind the proxy.

use std::{fmt::Debug, ops::Deref, time::Duration};

use anyhow::{Context, Result};
use futures::{StreamExt, stream::BoxStream};
use kube::{
    Api, Client, Config as ClientConfig, Resource,
    config::{KubeConfigOptions, Kubeconfig},
    runtime::{WatchStreamExt, watcher},
};
use performers::Config;
use runtime::Settings;
use serde::de::DeserializeOwned;
use testbed::{
    ControlPlane, Lent, Looks, Options,
    audit::{Entry, Mark},
    fault::{FaultProxy, Seen, Verb},
};
use tokio::sync::{OnceCell, oneshot};

use crate::harness::{OPERATOR_USER, Running, Space, alone, hasty, install, operator_user, vacate};

/// Far above what anything here takes; it ends a test that would otherwise hang.
const PATIENCE: Duration = Duration::from_mins(3);

/// A request of the shared operator without answer is given up soon, so that faults of that kind cost little time.
pub const SHARED_TIMEOUT: Duration = Duration::from_secs(5);

/// The proxy acts as the chart's ServiceAccount: whoever goes through it has exactly the operator's rights.
pub struct Scene {
    // Dropped in this order: the next test has the control plane without this one's proxy.
    pub proxy: FaultProxy,
    pub control_plane: Place,
}

/// Whose control plane it is.
pub enum Place {
    Own(ControlPlane),
    Lent(Lent),
}

impl Deref for Place {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        match self {
            Self::Own(control_plane) => control_plane,
            Self::Lent(control_plane) => control_plane,
        }
    }
}

/// Shared by tests whose faults are bound to their namespace, or harmless to others.
pub struct Shared {
    pub scene: Scene,
    pub operator: Running,
}

static SHARED: OnceCell<Shared> = OnceCell::const_new();

impl Scene {
    /// For a test that breaks programs, or counts on a control plane without a past.
    pub async fn start(options: Options) -> Result<Self> {
        let control_plane = ControlPlane::start(Options { fsync: false, ..options }).await?;
        Self::on(Place::Own(control_plane)).await
    }

    /// For a test with operators of its own, where no other operator runs and nothing is left to act on.
    pub async fn lent() -> Result<Self> {
        let control_plane = ControlPlane::lent("performers").await?;
        vacate(&control_plane).await?;
        Self::on(Place::Lent(control_plane)).await
    }

    async fn on(control_plane: Place) -> Result<Self> {
        install(&control_plane).await?;
        Ok(Self { proxy: proxy(&control_plane).await?, control_plane })
    }

    /// One scene for all tests of this process, with short intervals, on a thread that outlives each of them.
    pub async fn shared() -> &'static Shared {
        let start = || async {
            let (sender, receiver) = oneshot::channel();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                runtime.block_on(async {
                    if sender.send(Shared::start().await).is_ok() {
                        std::future::pending::<()>().await;
                    }
                });
            });
            receiver.await.expect("the scene's thread lives").expect("the scene starts")
        };
        SHARED.get_or_init(start).await
    }

    pub async fn operator(&self, settings: Settings, config: Config) -> Result<Running> {
        Running::start(client(&self.proxy).await?, settings, config).await
    }

    pub async fn space(&self, prefix: &str) -> Result<Space> {
        Space::new(&self.control_plane, prefix).await
    }

    /// Writes for resources in a namespace that reached the proxy so far, without Events.
    pub fn writes(&self, namespace: &str) -> Vec<Seen> {
        let mut seen = self.proxy.requests();
        seen.retain(|seen| {
            let request = &seen.request;
            request.namespace.as_deref() == Some(namespace)
                && request.resource != "events"
                && Verb::WRITES.contains(&request.verb)
        });
        seen
    }

    /// What the operator asked the server for since `mark`, as the server saw it.
    #[allow(dead_code, reason = "for the whole-system tests, which take this file in by its path")]
    pub fn tried(&self, mark: Mark) -> Result<Vec<Entry>> {
        let mut entries = self.control_plane.audit().entries_after(mark)?;
        entries.retain(|entry| entry.user == OPERATOR_USER && entry.is_write());
        Ok(entries)
    }
}

impl Shared {
    /// Rounds of a namespace that ended so.
    pub fn rounds(&self, namespace: &str, result: &str) -> f64 {
        let labels = format!(r#"controller="performer",namespace="{namespace}",result="{result}""#);
        self.operator.metric(&format!("strata_reconcile_total{{{labels}}}"))
    }

    async fn start() -> Result<Self> {
        let scene = Scene::start(Options::default()).await?;
        let settings = Settings { request_timeout: SHARED_TIMEOUT, ..alone() };
        let operator = scene.operator(settings, hasty()).await?;
        Ok(Self { scene, operator })
    }
}

/// Waits for something that no watch tells of, like a counter.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
    let watched = async {
        let mut looks = Looks::default();
        while !holds() {
            looks.next().await;
        }
    };
    tokio::time::timeout(PATIENCE, watched).await.with_context(|| format!("{what} in time"))
}

/// Everything that is or becomes of a kind; interruptions of the watch are bridged.
pub fn changes<K>(api: Api<K>) -> BoxStream<'static, K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let changes = watcher(api, watcher::Config::default()).default_backoff().applied_objects();
    changes.filter_map(|change| std::future::ready(change.ok())).boxed()
}

/// A proxy of its own for one more operator.
pub async fn proxy(control_plane: &ControlPlane) -> Result<FaultProxy> {
    let upstream = Kubeconfig::read_from(control_plane.kubeconfig_as(&operator_user()).await?)?;
    Ok(FaultProxy::start(upstream, 7).await?)
}

/// A client as the binary makes it, without the retries that the client library would do by itself.
pub async fn client(proxy: &FaultProxy) -> Result<Client> {
    let config = ClientConfig::from_custom_kubeconfig(proxy.kubeconfig(), &KubeConfigOptions::default()).await?;
    Ok(runtime::connect(config)?)
}
