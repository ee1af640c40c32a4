//! A real control plane on loopback: etcd and kube-apiserver, and on request controller-manager, scheduler
//! and simulated nodes, with its own certificates, RBAC on, and an audit log of every request.

mod backup;
mod launch;
mod port;
mod process_wide;
mod workloads;

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

pub use backup::Backup;
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::{Namespace, ServiceAccount},
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
pub(crate) use port::PORT_ATTEMPTS;
pub use port::{free_port, free_port_beside, free_ports};
pub use process_wide::Lent;
use rustix::fs::{FlockOperation, flock};
pub use workloads::{CLIENT_LIMITS, Workloads};

use crate::{
    audit::AuditLog,
    install,
    patience::patient,
    pki::{self, Authority, write_private},
    process::{self, Child, RemovedAtEnd},
    tools,
    users::{self, Proof, User},
};

/// Why a control plane did not start or answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Tool(#[from] tools::Error),
    #[error(transparent)]
    Process(#[from] process::Error),
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error("cannot use the directory {path}")]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("another control plane runs in {path}; end it or choose another directory")]
    InUse { path: PathBuf },
    #[error("{program} ended with status {status} before it was ready; the end of its log:\n{tail}")]
    Ended { program: String, status: i32, tail: String },
    #[error("not ready after {} s: {what}", waited.as_secs())]
    NotReady { what: String, waited: Duration },
    #[error("the API server refused what the testbed asked for")]
    Kube(#[from] kube::Error),
    #[error("the shared control plane did not start: {0}")]
    Shared(String),
}

impl Error {
    fn ended(child: &Child, status: i32) -> Self {
        Self::Ended { program: child.program().name.clone(), status, tail: child.log_tail() }
    }
}

/// How a control plane is to be made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where everything is kept between runs; a temporary directory, removed at the end, if `None`.
    pub directory: Option<PathBuf>,
    /// Controller-manager, scheduler and simulated nodes; the bare API if `None`.
    pub workloads: Option<Workloads>,
    /// Appended to the flags of kube-apiserver; the last of two equal flags wins.
    pub apiserver_flags: Vec<String>,
    /// Whether etcd waits for the disk. Tests that measure nothing are quicker without.
    pub fsync: bool,
    /// Whether workloads' programs that end are started again. kube-scheduler ends itself when, after a restart of the API
    /// server, it meets another pod under a name it knew. `strata dev` does it itself, by [`children`], and tells the user.
    ///
    /// [`children`]: ControlPlane::children
    pub keep: bool,
}

impl Default for Options {
    fn default() -> Self {
        let workloads = Some(Workloads::default());
        Self { directory: None, workloads, apiserver_flags: Vec::new(), fsync: true, keep: true }
    }
}

impl Options {
    /// Only etcd and kube-apiserver.
    pub fn bare() -> Self {
        Self { workloads: None, ..Self::default() }
    }

    /// Names of the programs this control plane needs, for [`tools::ensure`].
    pub fn programs(&self) -> &'static [&'static str] {
        const ALL: [&str; 5] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"];
        if self.workloads.is_some() { &ALL } else { &ALL[..2] }
    }
}

/// How long a program may take until it serves; one that ends is noticed at once. A control plane takes 5 s on an idle
/// two-core machine, anything else less; a loaded CI machine was seen to need ten times that.
pub const READY_PATIENCE: Duration = Duration::from_mins(5);
/// Readiness has no event to wait for; this often is invisible beside the start itself.
pub(crate) const READY_POLL: Duration = Duration::from_millis(50);
/// What etcd needs to close its files; it is killed after that, which it survives as well.
const ETCD_GRACE: Duration = Duration::from_secs(5);
/// Longer than any dev session; the token dies with the control plane's directory anyway.
const TOKEN_SECONDS: i64 = 365 * 24 * 3600;

/// A running control plane. Dropping it ends all its programs.
pub struct ControlPlane {
    // Fields are dropped in this order: users of the API server first, the directory last.
    workloads: Option<workloads::Running>,
    apiserver: Child,
    etcd: Child,
    server: String,
    authority: Authority,
    audit: AuditLog,
    directory: Directory,
}

/// One running program, for people and scripts.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ProgramInfo {
    pub name: String,
    pub pid: u32,
    pub log: PathBuf,
}

impl ControlPlane {
    /// Starts everything and waits until it is ready. Missing programs are built first, with plain
    /// progress on standard error; call [`tools::ensure`] before to show it differently.
    pub async fn start(options: Options) -> Result<Self, Error> {
        let programs = tools::ensure(options.programs(), &tools::Plain::default()).await?;
        let directory = Directory::open(options.directory.as_deref())?;
        let authority = Authority::open(&directory.path.join("pki"))?;
        let launched = launch::start(&programs[0], &programs[1], &options, &directory.path, &authority).await?;
        let mut control_plane = Self {
            workloads: None,
            apiserver: launched.apiserver,
            etcd: launched.etcd,
            server: launched.server,
            audit: AuditLog::new(directory.path.join("audit.log")),
            authority,
            directory,
        };
        control_plane.kubeconfig_as(&User::admin()).await?;
        if let Some(workloads) = &options.workloads {
            let running = workloads::start(&control_plane, &programs[2..], workloads, options.keep).await?;
            control_plane.workloads = Some(running);
        }
        Ok(control_plane)
    }

    /// Ends everything in order, so that etcd closes its files.
    pub async fn stop(self) -> Result<(), Error> {
        let Self { workloads, apiserver, etcd, .. } = self;
        drop(workloads);
        drop(apiserver);
        Ok(etcd.terminate(ETCD_GRACE).await?)
    }

    /// Waits until the API server says that it is ready.
    pub async fn ready(&self) -> Result<(), Error> {
        let config = self.config_as(&User::admin()).await?;
        launch::ready(&Client::try_from(config)?, [&self.apiserver, &self.etcd]).await
    }

    /// To kill, pause, resume or restart it; wait with [`Self::ready`] afterwards.
    pub fn apiserver(&self) -> &Child {
        &self.apiserver
    }

    /// To kill, pause, resume or restart it; wait with [`Self::ready`] afterwards.
    pub fn etcd(&self) -> &Child {
        &self.etcd
    }

    /// All its programs.
    pub fn children(&self) -> impl Iterator<Item = &Child> {
        let workloads = self.workloads.iter().flat_map(workloads::Running::programs);
        [&self.etcd, &self.apiserver].into_iter().chain(workloads)
    }

    pub fn programs(&self) -> Vec<ProgramInfo> {
        let info = |child: &Child| ProgramInfo {
            name: child.program().name.clone(),
            pid: child.pid(),
            log: child.program().log.clone(),
        };
        self.children().map(info).collect()
    }

    /// `https://127.0.0.1:PORT`.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Signs further certificates that this control plane trusts.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    pub fn audit(&self) -> &AuditLog {
        &self.audit
    }

    pub fn directory(&self) -> &Path {
        &self.directory.path
    }

    /// Path of the admin's kubeconfig, with embedded certificates.
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig_path(&User::admin())
    }

    /// A new client of the admin, for use on the present runtime: its connections must not outlive that.
    pub async fn client(&self) -> Result<Client, Error> {
        self.client_as(&User::admin()).await
    }

    /// A new client of anyone, for use on the present runtime.
    pub async fn client_as(&self, user: &User) -> Result<Client, Error> {
        Ok(patient(self.config_as(user).await?)?)
    }

    /// For a client that tries once, as that of an operator under test.
    pub async fn config_as(&self, user: &User) -> Result<kube::Config, Error> {
        Ok(users::own_config(self.kubeconfig_value(user).await?).await)
    }

    /// Path of a kubeconfig for anyone, with everything embedded.
    pub async fn kubeconfig_as(&self, user: &User) -> Result<PathBuf, Error> {
        let path = self.kubeconfig_path(user);
        let value = self.kubeconfig_value(user).await?;
        let text = serde_saphyr::to_string(&value).expect("a JSON value has a YAML form");
        write_private(&path, &text)?;
        Ok(path)
    }

    /// Applies objects of any kind in order, as the admin; what a chart installs. CRDs are served when this returns.
    pub async fn install(&self, objects: &[serde_json::Value]) -> Result<(), Error> {
        install::install(&self.client().await?, objects).await
    }

    /// Creates a namespace with a unique name in which pods can be created at once.
    pub async fn namespace(&self, prefix: &str) -> Result<String, Error> {
        let client = self.client().await?;
        let metadata = ObjectMeta { generate_name: Some(format!("{prefix}-")), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        let created = Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
        let name = created.metadata.name.expect("the server names what it creates");
        if self.workloads.is_some() {
            workloads::namespace_ready(&client, &name).await?;
        } else {
            // Nobody else makes it, and pods without it are refused.
            let metadata = ObjectMeta { name: Some("default".to_owned()), ..ObjectMeta::default() };
            let account = ServiceAccount { metadata, ..ServiceAccount::default() };
            Api::namespaced(client, &name).create(&PostParams::default(), &account).await?;
        }
        Ok(name)
    }

    /// Path of a program's log in the directory, emptied: a failed start is explained by its own lines only.
    pub(crate) fn fresh_log(&self, name: &str) -> PathBuf {
        launch::fresh_log(self.directory(), name)
    }

    fn kubeconfig_path(&self, user: &User) -> PathBuf {
        let name = match user {
            User::Named { name, group: None } => name.clone(),
            User::Named { name, group: Some(group) } => format!("{name}.{group}"),
            User::ServiceAccount { namespace, name } => format!("system:serviceaccount:{namespace}:{name}"),
        };
        let name = name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '.', "-");
        self.directory.path.join(format!("{name}.kubeconfig"))
    }

    async fn kubeconfig_value(&self, user: &User) -> Result<serde_json::Value, Error> {
        let proof = match user {
            User::Named { name, group } => Proof::Certificate(self.authority.client(name, group.as_deref())?),
            User::ServiceAccount { namespace, name } => Proof::Token(self.token(namespace, name).await?),
        };
        Ok(users::kubeconfig(&self.server, self.authority.certificate(), &proof))
    }

    async fn token(&self, namespace: &str, name: &str) -> Result<String, Error> {
        let client = Box::pin(self.client()).await?;
        let spec = TokenRequestSpec { expiration_seconds: Some(TOKEN_SECONDS), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let answer = Api::<ServiceAccount>::namespaced(client, namespace)
            .create_token_request(name, &PostParams::default(), &request)
            .await?;
        Ok(answer.status.expect("a granted token request has a status").token)
    }
}

/// Where a control plane keeps its files, locked against a second one.
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    _lock: File,
    _removed_at_end: Option<RemovedAtEnd>,
}

impl Directory {
    pub(crate) fn open(fixed: Option<&Path>) -> Result<Self, Error> {
        let fail = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Directory { path, source }
        };
        let (path, removed_at_end) = match fixed {
            Some(path) => (path.to_owned(), None),
            None => temporary().map_err(fail(&std::env::temp_dir()))?,
        };
        fs::create_dir_all(&path).map_err(fail(&path))?;
        let path = path.canonicalize().map_err(fail(&path))?;
        let lock = File::create(path.join("lock")).map_err(fail(&path))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(Error::InUse { path });
        }
        Ok(Self { path, _lock: lock, _removed_at_end: removed_at_end })
    }
}

/// Removed by a process of its own, since a test binary ends without dropping its statics; kept, for a
/// look at the logs, when `STRATA_TESTBED_KEEP` is set.
fn temporary() -> io::Result<(PathBuf, Option<RemovedAtEnd>)> {
    let path = tempfile::Builder::new().prefix("strata-testbed-").tempdir()?.keep();
    if std::env::var_os("STRATA_TESTBED_KEEP").is_some() {
        eprintln!("keeping {}", path.display());
        return Ok((path, None));
    }
    let remover = RemovedAtEnd::new(&path)?;
    Ok((path, Some(remover)))
}
