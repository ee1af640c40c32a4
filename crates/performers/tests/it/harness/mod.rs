//! A control plane with the operator on it, and the few verbs that tests are written in.
//!
//! The whole-system tests of `strata` are written in them too and take this folder in by its path: as a crate it would
//! need an arrow from testbed to the layers.

pub mod capture;
pub mod observe;
pub mod scene;

use std::{fmt::Debug, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use api::performer::{Performer, Phase};
use futures::future::try_join_all;
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Namespace, Pod, Service},
        events::v1::Event,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    runtime::wait::{await_condition, conditions::is_deleted},
};
use performers::Config;
use plan::performers::Policy;
use process::Clock;
use runtime::{Addresses, Fatal, Metrics, Operator, Settings, rights};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use testbed::{ControlPlane, Lent, User};
use tokio::sync::{OnceCell, oneshot};
use tokio_util::sync::CancellationToken;

use self::capture::Logs;

/// Far above what anything here takes (the most is 45 s, until real probes give a server up); it ends a test that would
/// otherwise hang.
pub const PATIENCE: Duration = Duration::from_mins(3);

pub const OPERATOR_NAMESPACE: &str = "strata-system";
pub const OPERATOR_ACCOUNT: &str = "strata";

/// The operator as the chart runs it.
pub fn operator_user() -> User {
    User::service_account(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT)
}

/// As the audit log names it.
pub const OPERATOR_USER: &str = "system:serviceaccount:strata-system:strata";

/// Installs what the chart installs: namespace, CRD, account, roles.
pub async fn install(control_plane: &ControlPlane) -> Result<()> {
    control_plane.install(&[json!(api::performer::crd())]).await?;
    install_account(control_plane).await
}

/// Namespace, account and roles alone, for tests that bring another CRD or none.
pub async fn install_account(control_plane: &ControlPlane) -> Result<()> {
    let rbac = rights::rbac(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT, performers::rights::CLUSTER);
    let mut objects = vec![json!(namespace(OPERATOR_NAMESPACE))];
    objects.extend(rbac.objects());
    Ok(control_plane.install(&objects).await?)
}

/// Removes what an earlier test left for operators to act on: its Performers, and leases without a holder.
pub async fn vacate(control_plane: &ControlPlane) -> Result<()> {
    let client = control_plane.client().await?;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    if crds.get_opt(&format!("performers.{}", api::performer::GROUP)).await?.is_none() {
        return Ok(());
    }
    let left = Api::<Performer>::all(client.clone()).list(&ListParams::default()).await?;
    try_join_all(left.into_iter().map(async |performer| {
        let namespace = performer.metadata.namespace.context("a Performer has a namespace")?;
        let name = performer.metadata.name.context("a Performer has a name")?;
        let performers: Api<Performer> = Api::namespaced(client.clone(), &namespace);
        let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        match performers.patch_metadata(&name, &PatchParams::default(), &free).await {
            // One that was being deleted goes with its finalizer.
            Ok(_) => drop(performers.delete(&name, &DeleteParams::default()).await),
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error.into()),
        }
        anyhow::Ok(())
    }))
    .await?;
    let leases: Api<Lease> = Api::namespaced(client, OPERATOR_NAMESPACE);
    leases.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    Ok(())
}

pub fn namespace(name: &str) -> Namespace {
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(name.to_owned());
    namespace
}

pub async fn apply<K>(api: &Api<K>, name: &str, object: &K) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + Debug,
{
    api.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(object)).await?;
    Ok(())
}

/// Installs a Performer CRD and waits until it is served.
pub async fn install_crd(client: &Client, crd: &CustomResourceDefinition) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = crd.metadata.name.as_deref().context("a CRD has a name")?;
    apply(&crds, name, crd).await?;
    until(&crds, name, "established", |crd: &CustomResourceDefinition| {
        let conditions = crd.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        conditions.iter().any(|condition| condition.type_ == "Established" && condition.status == "True")
    })
    .await?;
    Ok(())
}

/// Waits, by watch, until an object is as `holds` wants it.
pub async fn until<K>(api: &Api<K>, name: &str, what: &str, holds: impl Fn(&K) -> bool) -> Result<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Serialize + 'static,
{
    let condition = |object: Option<&K>| object.is_some_and(&holds);
    if let Ok(found) = tokio::time::timeout(PATIENCE, await_condition(api.clone(), name, condition)).await {
        return found?.with_context(|| format!("{name} vanished"));
    }
    let last = api.get_opt(name).await?;
    bail!("{name} did not become {what}; it is\n{}", serde_json::to_string_pretty(&last)?)
}

/// A running operator in this process.
pub struct Running {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), Fatal>>,
    pub addresses: Addresses,
    pub metrics: Arc<Metrics>,
    pub clock: Clock,
}

impl Running {
    /// Starts an operator with a client of its own on the present runtime.
    pub async fn start(client: Client, settings: Settings, config: Config) -> Result<Self> {
        let (stop, clock) = (CancellationToken::new(), Clock::default());
        let mut operator = Operator::new(client, settings, clock.clone(), stop.clone());
        performers::install(&mut operator, config);
        let metrics = operator.metrics.clone();
        let (bound, addresses) = oneshot::channel();
        let task = tokio::spawn(operator.run(|addresses| {
            let _ = bound.send(addresses);
        }));
        Ok(Self { stop, task, addresses: addresses.await?, metrics, clock })
    }

    /// An orderly end, as by SIGTERM.
    pub async fn stop(self) -> Result<()> {
        self.stop.cancel();
        Ok(self.task.await??)
    }

    /// The value of a metric line that starts with `line`.
    pub fn metric(&self, line: &str) -> f64 {
        let text = self.metrics.encode().expect("metrics encode");
        let found = text.lines().find_map(|l| l.strip_prefix(line)?.trim().parse().ok());
        found.unwrap_or(0.0)
    }
}

/// Settings for an operator alone on its control plane.
pub fn alone() -> Settings {
    let loopback = Some(([127, 0, 0, 1], 0).into());
    Settings {
        lease: None,
        health_address: loopback,
        metrics_address: loopback,
        grace: Duration::from_secs(5),
        request_timeout: Duration::from_secs(10),
        list_mode: None,
        instance: "test".into(),
    }
}

/// Short intervals, for tests of what takes minutes with the defaults. Not for pods that are slow to start: on a busy
/// machine any is, and one replaced for that is one more than a test counts.
pub fn hasty() -> Config {
    Config {
        resync: Duration::from_millis(500),
        policy: Policy {
            failure_delay: Duration::from_millis(500),
            failure_delay_cap: Duration::from_secs(4),
            deletion_margin: Duration::from_secs(2),
            problem_delay: Duration::from_millis(500),
            ..Policy::default()
        },
        ..Config::default()
    }
}

/// A control plane and an operator that all tests of this process share, each in a namespace of its own.
pub struct World {
    pub operator: Running,
    pub control_plane: Lent,
    /// What the operator of a shared world logged.
    pub logs: Logs,
}

static CALM: OnceCell<World> = OnceCell::const_new();
static HASTY: OnceCell<World> = OnceCell::const_new();

impl World {
    /// The default intervals, but for a resync that no test lives to see: what happens here, an event has caused.
    pub async fn calm() -> &'static Self {
        let config = Config { resync: PATIENCE * 20, ..Config::default() };
        CALM.get_or_init(|| Self::on_own_thread(config)).await
    }

    /// Short intervals.
    pub async fn hasty() -> &'static Self {
        HASTY.get_or_init(|| Self::on_own_thread(hasty())).await
    }

    /// On a thread and runtime of its own, because those of a test end with the test.
    async fn on_own_thread(config: Config) -> Self {
        let (sender, receiver) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let logs = Logs::default();
            let _captured = logs.capture();
            runtime.block_on(async {
                let world = Self::start(config).await.map(|world| Self { logs, ..world });
                if sender.send(world).is_ok() {
                    std::future::pending::<()>().await;
                }
            });
        });
        receiver.await.expect("the world's thread lives").expect("the world starts")
    }

    /// A world for one test alone.
    pub async fn start(config: Config) -> Result<Self> {
        let control_plane = ControlPlane::lent("performers").await?;
        vacate(&control_plane).await?;
        install(&control_plane).await?;
        let client = runtime::connect(control_plane.config_as(&operator_user()).await?)?;
        // Nothing is given up because a busy server is late: many tests count what is asked.
        let settings = Settings { request_timeout: Duration::from_mins(1), ..alone() };
        let operator = Running::start(client, settings, config).await?;
        Ok(Self { control_plane, operator, logs: Logs::default() })
    }

    pub async fn space(&self, prefix: &str) -> Space {
        Space::new(&self.control_plane, prefix).await.expect("a namespace")
    }
}

/// One test's namespace.
#[derive(Clone)]
pub struct Space {
    pub client: Client,
    pub namespace: String,
    pub performers: Api<Performer>,
    pub pods: Api<Pod>,
    pub services: Api<Service>,
    pub events: Api<Event>,
}

/// The least that a Performer needs; tests add to it.
pub fn spec() -> Value {
    json!({ "avsAddress": "0x1234567890abcdef1234567890abcdef12345678", "image": "registry.test/performer:v1" })
}

/// `spec()` with other fields put over it.
pub fn spec_with(fields: Value) -> Value {
    let mut spec = spec();
    for (name, value) in fields.as_object().expect("an object of fields") {
        spec[name] = value.clone();
    }
    spec
}

impl Space {
    pub async fn new(control_plane: &ControlPlane, prefix: &str) -> Result<Self> {
        let namespace = control_plane.namespace(prefix).await?;
        let client = control_plane.client().await?;
        Ok(Self {
            performers: Api::namespaced(client.clone(), &namespace),
            pods: Api::namespaced(client.clone(), &namespace),
            services: Api::namespaced(client.clone(), &namespace),
            events: Api::namespaced(client.clone(), &namespace),
            namespace,
            client,
        })
    }

    pub fn performer(&self, name: &str, spec: &Value) -> Performer {
        let object = json!({ "metadata": { "name": name, "namespace": self.namespace }, "spec": spec });
        serde_json::from_value(object).expect("a performer")
    }

    pub async fn create(&self, name: &str, spec: Value) -> Result<Performer> {
        Ok(self.performers.create(&PostParams::default(), &self.performer(name, &spec)).await?)
    }

    /// Creates and waits until ready.
    pub async fn create_ready(&self, name: &str, spec: Value) -> Result<Performer> {
        self.create(name, spec).await?;
        self.until_ready(name).await
    }

    pub async fn patch(&self, name: &str, patch: Value) -> Result<Performer> {
        Ok(self.performers.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?)
    }

    pub async fn until(&self, name: &str, what: &str, holds: impl Fn(&Performer) -> bool) -> Result<Performer> {
        let waited = until(&self.performers, name, what, holds).await;
        let Err(error) = waited else { return waited };
        // Whether the operator or the node is to blame.
        let pod = match self.pods.get_opt(&format!("performer-{name}")).await {
            Ok(pod) => serde_json::to_string_pretty(&pod)?,
            Err(unread) => unread.to_string(),
        };
        Err(error.context(format!("its pod is\n{pod}")))
    }

    pub async fn until_ready(&self, name: &str) -> Result<Performer> {
        self.until(name, "ready", |p| p.status.as_ref().is_some_and(|s| s.ready && s.phase == Some(Phase::Running)))
            .await
    }

    /// Waits until the condition `kind` has this reason and status.
    pub async fn until_condition(&self, name: &str, kind: &str, status: &str, reason: &str) -> Result<Performer> {
        let what = format!("{kind}={status} {reason}");
        self.until(name, &what, |p| {
            let found = condition(p, kind);
            found["status"] == status && found["reason"] == reason
        })
        .await
    }

    /// Waits until the status speaks of the present spec and says ready.
    pub async fn until_settled(&self, name: &str) -> Result<Performer> {
        self.until(name, "settled", |p| {
            let is_ready = p.status.as_ref().is_some_and(|s| s.ready && s.phase == Some(Phase::Running));
            is_ready && condition(p, "Available")["observedGeneration"] == json!(p.metadata.generation)
        })
        .await
    }

    pub async fn pod(&self, name: &str) -> Result<Pod> {
        Ok(self.pods.get(&format!("performer-{name}")).await?)
    }

    pub async fn service(&self, name: &str) -> Result<Service> {
        Ok(self.services.get(&format!("performer-{name}")).await?)
    }

    pub async fn until_pod(&self, name: &str, what: &str, holds: impl Fn(&Pod) -> bool) -> Result<Pod> {
        until(&self.pods, &format!("performer-{name}"), what, holds).await
    }

    /// Waits for another pod than `former`.
    pub async fn until_replaced(&self, name: &str, former: &Pod) -> Result<Pod> {
        let uid = former.metadata.uid.clone();
        self.until_pod(name, "replaced", |pod| pod.metadata.uid != uid).await
    }

    pub async fn delete(&self, name: &str) -> Result<()> {
        self.performers.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    pub async fn until_gone<K>(&self, api: &Api<K>, name: &str, uid: &str) -> Result<()>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let gone = await_condition(api.clone(), name, is_deleted(uid));
        tokio::time::timeout(PATIENCE, gone).await.with_context(|| format!("{name} did not go"))??;
        Ok(())
    }

    /// Deletes a Performer and waits until it is gone.
    pub async fn delete_and_wait(&self, name: &str) -> Result<()> {
        let uid = self.performers.get(name).await?.metadata.uid.context("it has a uid")?;
        self.delete(name).await?;
        self.until_gone(&self.performers, name, &uid).await
    }

    /// Reasons of the events about a Performer, oldest first.
    pub async fn event_reasons(&self, name: &str) -> Result<Vec<String>> {
        let mut events = self.events.list(&ListParams::default()).await?.items;
        events.retain(|event| {
            event
                .regarding
                .as_ref()
                .is_some_and(|r| r.name.as_deref() == Some(name) && r.kind.as_deref() == Some("Performer"))
        });
        events.sort_by_key(|event| event.event_time.as_ref().map(|time| time.0));
        Ok(events.into_iter().filter_map(|event| event.reason).collect())
    }
}

/// A condition as JSON; null when absent.
pub fn condition(performer: &Performer, kind: &str) -> Value {
    let status = serde_json::to_value(&performer.status).expect("a status is JSON");
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or(Value::Null)
}
