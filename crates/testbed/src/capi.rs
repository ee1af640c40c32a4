//! Cluster API's core controllers on a control plane of the testbed, with the real definitions, webhooks and rights.
//!
//! They run as the ServiceAccount `capi-manager` in `capi-system`, without Pods of their own. Their webhooks default and
//! refuse as in any cluster, and while the program is down every write to a kind of Cluster API that has one fails.

mod manifests;

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams},
};
use manifests::{DEFINITION_LABEL, Files, NAMESPACE, SERVICE_ACCOUNT};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    control_plane::{self, CLIENT_LIMITS, ControlPlane, PORT_ATTEMPTS, READY_PATIENCE, READY_POLL, free_ports},
    install, pki,
    process::{self, Child, Program},
    tools,
    users::User,
};

/// Why the controllers did not start or answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Tool(#[from] tools::Error),
    #[error(transparent)]
    Files(#[from] manifests::Error),
    #[error(transparent)]
    Process(#[from] process::Error),
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error(transparent)]
    ControlPlane(#[from] control_plane::Error),
    #[error("the API server refused what Cluster API is installed with")]
    Kube(#[from] kube::Error),
    #[error("capi ended with status {status} before it was ready; the end of {log}:\n{tail}")]
    Ended { status: i32, log: PathBuf, tail: String },
    #[error("capi is not ready after {} s: {what}; the end of {log}:\n{tail}", waited.as_secs())]
    NotReady { what: String, waited: Duration, log: PathBuf, tail: String },
}

/// How the controllers are to be started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Appended to their flags; the last of two equal flags wins.
    pub flags: Vec<String>,
}

/// One answer over loopback; longer means that the process hangs.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// What a manager needs to end its workers and close its connections; it is killed after that.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// One more than a machine has cores wastes nothing while the API server works; all of them, read at once on a busy
/// machine, kept connections waiting for so long that it closed them.
const DEFINITIONS_AT_ONCE: usize = 3;
/// A name for the program in logs, files and lists.
pub const NAME: &str = "capi";

/// Running core controllers. Dropping it ends them; what they are installed with stays.
pub struct ClusterApi {
    child: Child,
    ports: Ports,
}

#[derive(Clone, Copy)]
struct Ports {
    webhook: u16,
    health: u16,
}

impl ClusterApi {
    /// Installs definitions, rights and webhooks, starts the controllers and waits until they are ready. What is missing
    /// is built or fetched first, with plain progress on standard error; call [`tools::ensure`] before to show it
    /// differently.
    pub async fn start(control_plane: &ControlPlane, options: &Options) -> Result<Self, Error> {
        let path = tools::path(NAME).await?;
        let files = Files::new(tools::files(NAME).await?);
        let client = control_plane.client().await?;
        // The definitions take the longest, and the rights need none of them.
        let rights = async { Ok::<_, Error>(install::install(&client, &files.rights()?).await?) };
        tokio::try_join!(define(&client, &files), rights)?;
        let kubeconfig = control_plane.kubeconfig_as(&User::service_account(NAMESPACE, SERVICE_ACCOUNT)).await?;
        let mut attempt = 1;
        loop {
            match Self::try_start(control_plane, &path, &files, &kubeconfig, options).await {
                Err(Error::Ended { log, .. }) if attempt < PORT_ATTEMPTS && is_port_taken(&log) => attempt += 1,
                result => return result,
            }
        }
    }

    async fn try_start(
        control_plane: &ControlPlane,
        path: &Path,
        files: &Files,
        kubeconfig: &Path,
        options: &Options,
    ) -> Result<Self, Error> {
        let [webhook, health] = free_ports();
        let ports = Ports { webhook, health };
        let authority = control_plane.authority();
        let log = control_plane.fresh_log(NAME);
        let identity = authority.write("capi-webhook", &authority.server("capi-webhook", &["127.0.0.1"])?)?;
        let program = Program::new(NAME, path, log)
            .args(["--kubeconfig".as_ref(), kubeconfig.as_os_str()])
            .args(webhook_flags(&identity))
            .args([
                format!("--webhook-port={}", ports.webhook),
                format!("--health-addr=127.0.0.1:{}", ports.health),
                // Any free one: no test reads its metrics.
                "--diagnostics-address=127.0.0.1:0".to_owned(),
            ])
            .args(CLIENT_LIMITS)
            .args(&options.flags)
            .env("POD_NAMESPACE", NAMESPACE)
            // By these it asks a workload cluster whether it runs there itself: it never does.
            .env("POD_NAME", "capi-controller-manager")
            .env("POD_UID", "capi-controller-manager");
        let started = Self { child: Child::start(program)?, ports };
        install::install(&control_plane.client().await?, &files.webhooks(ports.webhook, authority.certificate())?)
            .await?;
        started.ready(control_plane).await?;
        Ok(started)
    }

    /// Waits until the controllers say that they are ready and the API server reaches their webhooks.
    pub async fn ready(&self, control_plane: &ControlPlane) -> Result<(), Error> {
        let client = control_plane.client().await?;
        let started = Instant::now();
        loop {
            let Err(what) = self.answers(&client).await else { return Ok(()) };
            let log = || self.child.program().log.clone();
            if !self.child.is_running() {
                let status = self.child.exited().await;
                return Err(Error::Ended { status, log: log(), tail: self.child.log_tail() });
            }
            if started.elapsed() > READY_PATIENCE {
                let (waited, tail) = (started.elapsed(), self.child.log_tail());
                return Err(Error::NotReady { what, waited, log: log(), tail });
            }
            tokio::time::sleep(READY_POLL).await;
        }
    }

    /// Starts the same program again, killing it where it still runs, and waits until it is ready.
    pub async fn restart(&self, control_plane: &ControlPlane) -> Result<(), Error> {
        self.child.restart().await?;
        self.ready(control_plane).await
    }

    /// Ends the controllers in order.
    pub async fn stop(self) -> Result<(), Error> {
        Ok(self.child.terminate(STOP_GRACE).await?)
    }

    /// To kill, pause, resume or restart it; wait with [`Self::ready`] afterwards.
    pub fn child(&self) -> &Child {
        &self.child
    }

    async fn answers(&self, client: &Client) -> Result<(), String> {
        is_ready(self.ports.health).await?;
        is_defaulted(client).await?;
        is_refused(client).await
    }
}

/// Anywhere in its log: its other parts, which end because of that, write to it as well.
fn is_port_taken(log: &Path) -> bool {
    fs::read_to_string(log).is_ok_and(|log| log.contains("address already in use"))
}

fn webhook_flags(identity: &pki::IdentityFiles) -> [String; 3] {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder = identity.certificate.parent().unwrap_or(Path::new("."));
    [
        format!("--webhook-cert-dir={}", folder.display()),
        format!("--webhook-cert-name={}", name(&identity.certificate)),
        format!("--webhook-key-name={}", name(&identity.key)),
    ]
}

/// Installs the definitions of Cluster API's kinds alone: objects can be stored, and no controller or webhook sees them.
pub async fn install_definitions(control_plane: &ControlPlane) -> Result<(), Error> {
    define(&control_plane.client().await?, &Files::new(tools::files(NAME).await?)).await
}

/// Installs the definitions, some at once, unless those of this version are there from an earlier start.
async fn define(client: &Client, files: &Files) -> Result<(), Error> {
    let wanted = files.definition_files()?;
    let label = format!("{DEFINITION_LABEL}={}", files.label());
    let there = Api::<CustomResourceDefinition>::all(client.clone())
        .list_metadata(&ListParams::default().labels(&label))
        .await?;
    if there.items.len() == wanted.len() {
        return Ok(());
    }
    let installing = wanted.into_iter().map(async |file| {
        let files = files.clone();
        // A megabyte of YAML in all.
        let read = tokio::task::spawn_blocking(move || files.definition(&file)).await;
        let definition = read.expect("reading a definition does not panic")?;
        Ok::<_, Error>(install::install(client, &[definition]).await?)
    });
    stream::iter(installing).buffer_unordered(DEFINITIONS_AT_ONCE).try_collect().await
}

/// Asks the health port `/readyz`; the error says what is not ready.
async fn is_ready(port: u16) -> Result<(), String> {
    let question = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, io::Error>(answer)
    };
    match tokio::time::timeout(ANSWER_PATIENCE, question).await {
        Ok(Ok(answer)) if answer.lines().next().is_some_and(|line| line.contains(" 200 ")) => Ok(()),
        Ok(Ok(answer)) => Err(format!("its health port answers {answer}")),
        Ok(Err(error)) => Err(format!("its health port does not answer: {error}")),
        Err(_) => Err("its health port does not answer".to_owned()),
    }
}

/// The defaulting webhook alone gives a pool replicas.
async fn is_defaulted(client: &Client) -> Result<(), String> {
    let pool = probe(client, "probe").await.map_err(|error| format!("a good MachinePool is refused: {error}"))?;
    let replicas = &pool.data["spec"]["replicas"];
    if replicas == 1 { Ok(()) } else { Err(format!("a MachinePool without replicas is given {replicas}")) }
}

/// The validating webhook alone compares these names.
async fn is_refused(client: &Client) -> Result<(), String> {
    match probe(client, "another").await {
        Err(kube::Error::Api(status)) if status.message.contains("must be set to the same value") => Ok(()),
        Err(error) => Err(format!("a bad MachinePool meets another error: {error}")),
        Ok(_) => Err("a bad MachinePool is accepted".to_owned()),
    }
}

/// What became of a MachinePool of the cluster `probe` whose template names `cluster`, had it been created.
async fn probe(client: &Client, cluster: &str) -> Result<DynamicObject, kube::Error> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", "MachinePool"));
    let mut pool = DynamicObject::new("probe", &resource).within(NAMESPACE);
    let infrastructure = json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "Probe", "name": "probe" });
    let template =
        json!({ "clusterName": cluster, "bootstrap": { "dataSecretName": "" }, "infrastructureRef": infrastructure });
    pool.data = json!({ "spec": { "clusterName": "probe", "template": { "spec": template } } });
    let parameters = PostParams { dry_run: true, ..PostParams::default() };
    Api::namespaced_with(client.clone(), NAMESPACE, &resource).create(&parameters, &pool).await
}
