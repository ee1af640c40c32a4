//! An OCI registry: the real program, over plain http.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::json;

use super::{Access, Archive, Error, credential};
use crate::{
    control_plane::{PORT_ATTEMPTS, READY_PATIENCE, free_port},
    helm::Helm,
    process::{Child, Program, RemovedAtEnd},
    tools,
};

/// [`USERNAME`](super::USERNAME) with [`PASSWORD`](super::PASSWORD); the registry takes bcrypt alone. The lowest cost, since it is checked with each request.
const HTPASSWD: &str = "reader:$2a$04$fiwcoIYbbKJvyIdFp07mK.5gXaSKAhs9iNKE0mcpWWrU16kD26zIi\n";

/// Listening has no event to wait for.
const READY_POLL: Duration = Duration::from_millis(20);

/// A running registry; it ends when dropped.
pub struct Registry {
    child: Child,
    address: SocketAddr,
    access: Access,
    _removed: Option<RemovedAtEnd>,
}

impl Registry {
    /// An empty one at a free port, kept in a temporary directory.
    pub async fn start(access: Access) -> Result<Self, Error> {
        let directory = tempfile::Builder::new().prefix("strata-registry-").tempdir()?.keep();
        let removed = RemovedAtEnd::new(&directory)?;
        Ok(Self { _removed: Some(removed), ..Self::start_in(&directory, None, access).await? })
    }

    /// What was kept in `directory`, at the preferred port where it is free.
    pub async fn start_in(directory: &Path, preferred: Option<u16>, access: Access) -> Result<Self, Error> {
        let program = tools::path("registry").await?;
        fs::create_dir_all(directory)?;
        let mut ports = preferred.into_iter().chain((0..PORT_ATTEMPTS).map(|_| free_port()));
        loop {
            let port = ports.next().ok_or(Error::NoPort("the registry"))?;
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let child = Child::start(described(program.clone(), directory, address, access)?)?;
            match listening(&child, address).await {
                Err(Error::Ended { tail, .. }) if tail.contains("address already in use") => {}
                result => return result.map(|()| Self { child, address, access, _removed: None }),
            }
        }
    }

    /// `127.0.0.1:PORT`.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// `oci://127.0.0.1:PORT/charts`; a chart's name follows. Clients need a flag for it: there is no TLS.
    pub fn url(&self) -> String {
        format!("oci://{}/charts", self.address)
    }

    /// To kill, pause or restart it.
    pub fn child(&self) -> &Child {
        &self.child
    }

    /// Stores a chart; the version is its tag. Returns the manifest's digest, `sha256:…`.
    pub async fn push(&self, archive: &Archive) -> Result<String, Error> {
        let helm = Helm::current().await?;
        if self.access == Access::Login {
            self.log_in(&helm)?;
        }
        let url = self.url();
        let arguments = ["push".as_ref(), archive.path.as_os_str(), url.as_ref(), "--plain-http".as_ref()];
        let said = helm.run(arguments).await?;
        let digest = said.lines().find_map(|line| line.strip_prefix("Digest: "));
        Ok(digest.expect("helm push tells the digest").trim().to_owned())
    }

    /// As `helm registry login` would, but without a password on a command line.
    pub fn log_in(&self, helm: &Helm) -> Result<(), Error> {
        let directory = helm.home().join("registry");
        fs::create_dir_all(&directory)?;
        let known = json!({ "auths": { self.host(): { "auth": credential() } } });
        Ok(fs::write(directory.join("config.json"), known.to_string())?)
    }
}

fn described(program: PathBuf, directory: &Path, address: SocketAddr, access: Access) -> Result<Program, Error> {
    let mut configuration = json!({
        "version": "0.1",
        "log": { "level": "info" },
        "storage": { "filesystem": { "rootdirectory": directory.join("storage") } },
        "http": { "addr": address.to_string() },
    });
    if access == Access::Login {
        let known = directory.join("htpasswd");
        fs::write(&known, HTPASSWD)?;
        configuration["auth"] = json!({ "htpasswd": { "realm": "charts", "path": known } });
    }
    let file = directory.join("configuration.yaml");
    // JSON is YAML.
    fs::write(&file, configuration.to_string())?;
    let log = directory.join("registry.log");
    // A failed start is explained by its own lines only.
    let _ = fs::remove_file(&log);
    // It would send traces to a collector that nobody runs.
    Ok(Program::new("registry", program, log)
        .args(["serve".as_ref(), file.as_os_str()])
        .env("OTEL_TRACES_EXPORTER", "none"))
}

async fn listening(child: &Child, address: SocketAddr) -> Result<(), Error> {
    let started = Instant::now();
    // By its own word: on the same port, a stranger may answer while ours is failing for that reason.
    let word = format!("listening on {address}");
    while !fs::read_to_string(&child.program().log).is_ok_and(|log| log.contains(&word)) {
        if !child.is_running() {
            return Err(Error::Ended { status: child.exited().await, tail: child.log_tail() });
        }
        if started.elapsed() > READY_PATIENCE {
            return Err(Error::NotReady(READY_PATIENCE));
        }
        tokio::time::sleep(READY_POLL).await;
    }
    Ok(())
}
