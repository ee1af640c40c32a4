//! What makes pods run: controller-manager, scheduler, simulated nodes, storage.

use std::{path::PathBuf, sync::Arc};

use futures::future::{select_all, try_join_all};
use k8s_openapi::api::core::v1::{ConfigMap, Node, ServiceAccount};
use kube::{
    Api, Client,
    runtime::wait::{await_condition, conditions::Condition},
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    ControlPlane, Error, READY_PATIENCE,
    launch::{flags, fresh_log, text},
};
use crate::{
    kwok::{self, Played},
    pki::write_private,
    process::{Child, Program},
    storage,
    users::User,
};

/// How many simulated nodes there are and what each holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workloads {
    pub nodes: usize,
    pub pods_per_node: u32,
    /// Whether pods are played on nodes that agents keep, too.
    pub agent_nodes: bool,
}

impl Default for Workloads {
    fn default() -> Self {
        // A few: enough to spread over, quick to become ready.
        Self { nodes: 4, pods_per_node: 500, agent_nodes: false }
    }
}

impl Workloads {
    /// 20 nodes of 500 pods: room for 6000 pods and for the unevenness of the scheduler.
    pub fn large() -> Self {
        Self { nodes: 20, pods_per_node: 500, agent_nodes: false }
    }
}

/// The scheduler's own limit of 50 requests per second would bind 500 pods in no less than 8 s.
pub const CLIENT_LIMITS: [&str; 4] = ["--kube-api-qps", "500", "--kube-api-burst", "1000"];

pub(super) struct Running {
    _provisioner: AbortOnDropHandle<()>,
    programs: Vec<Arc<Child>>,
}

impl Running {
    pub(super) fn programs(&self) -> impl Iterator<Item = &Child> {
        self.programs.iter().map(Arc::as_ref)
    }
}

pub(super) async fn start(
    control_plane: &ControlPlane,
    programs: &[PathBuf],
    workloads: &Workloads,
    keep: bool,
) -> Result<Running, Error> {
    let [controller_manager, scheduler, kwok] = programs else { unreachable!("three programs were asked for") };
    let mut programs = vec![
        start_controller_manager(control_plane, controller_manager).await?,
        start_scheduler(control_plane, scheduler).await?,
        start_kwok(control_plane, kwok, "kwok", Played::Nodes).await?,
    ];
    if workloads.agent_nodes {
        programs.push(start_kwok(control_plane, kwok, "kwok-agents", Played::AgentNodes).await?);
    }
    let client = control_plane.client().await?;
    storage::install(&client).await?;
    let provisioner = AbortOnDropHandle::new(tokio::spawn(storage::provision(client.clone())));
    let ends = programs.iter().map(|program| Box::pin(async move { (program, program.exited().await) }));
    tokio::select! {
        ready = ready(&client, workloads) => ready?,
        (end, ..) = select_all(ends) => return Err(Error::ended(end.0, end.1)),
    }
    let programs: Vec<_> = programs.into_iter().map(Arc::new).collect();
    if keep {
        programs.iter().for_each(Child::keep);
    }
    Ok(Running { _provisioner: provisioner, programs })
}

async fn ready(client: &Client, workloads: &Workloads) -> Result<(), Error> {
    let nodes = kwok::create_nodes(client, workloads).await?;
    let api = Api::<Node>::all(client.clone());
    try_join_all(nodes.iter().map(|name| settled(api.clone(), name, kwok::is_node_ready))).await?;
    namespace_ready(client, "default").await
}

/// Pods are refused before the first and do not start before the second is there.
pub(super) async fn namespace_ready(client: &Client, namespace: &str) -> Result<(), Error> {
    let is_there = |account: Option<&ServiceAccount>| account.is_some();
    settled(Api::namespaced(client.clone(), namespace), "default", is_there).await?;
    let is_there = |map: Option<&ConfigMap>| map.is_some();
    settled(Api::namespaced(client.clone(), namespace), "kube-root-ca.crt", is_there).await
}

async fn settled<K>(api: Api<K>, name: &str, condition: impl Condition<K>) -> Result<(), Error>
where
    K: kube::Resource + Clone + std::fmt::Debug + Send + serde::de::DeserializeOwned + 'static,
{
    let what = || format!("{} {name}", std::any::type_name::<K>().rsplit("::").next().unwrap_or("object"));
    let not_ready = |reason: String| Error::NotReady { what: format!("{}: {reason}", what()), waited: READY_PATIENCE };
    match tokio::time::timeout(READY_PATIENCE, await_condition(api, name, condition)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(not_ready(error.to_string())),
        Err(_) => Err(not_ready("timed out".to_owned())),
    }
}

async fn start_controller_manager(control_plane: &ControlPlane, path: &PathBuf) -> Result<Child, Error> {
    // Its controllers act under this one name, which alone has too few rights for them.
    let user = User::in_group("system:kube-controller-manager", "system:masters");
    let kubeconfig = text(&control_plane.kubeconfig_as(&user).await?);
    let authority = control_plane.authority();
    let program =
        Program::new("kube-controller-manager", path, fresh_log(control_plane.directory(), "kube-controller-manager"))
            .args(flags([
                ("kubeconfig", kubeconfig),
                ("service-account-private-key-file", text(&authority.service_account_key_file())),
                ("root-ca-file", text(&authority.certificate_file())),
                ("leader-elect", "false".to_owned()),
                ("secure-port", "0".to_owned()),
            ]))
            .args(CLIENT_LIMITS);
    Ok(Child::start(program)?)
}

async fn start_scheduler(control_plane: &ControlPlane, path: &PathBuf) -> Result<Child, Error> {
    let kubeconfig = text(&control_plane.kubeconfig_as(&User::named("system:kube-scheduler")).await?);
    let program = Program::new("kube-scheduler", path, fresh_log(control_plane.directory(), "kube-scheduler"))
        .args(flags([
            ("kubeconfig", kubeconfig),
            ("leader-elect", "false".to_owned()),
            ("secure-port", "0".to_owned()),
        ]))
        .args(CLIENT_LIMITS);
    Ok(Child::start(program)?)
}

async fn start_kwok(control_plane: &ControlPlane, path: &PathBuf, name: &str, played: Played) -> Result<Child, Error> {
    let kubeconfig = text(&control_plane.kubeconfig_as(&User::in_group(name, "system:masters")).await?);
    let stages = control_plane.directory().join(format!("{name}-stages.yaml"));
    write_private(&stages, &kwok::configuration(played))?;
    let program = Program::new(name, path, fresh_log(control_plane.directory(), name))
        .args(flags([("kubeconfig", kubeconfig), ("config", text(&stages))]));
    Ok(Child::start(program)?)
}
