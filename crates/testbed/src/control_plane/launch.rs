//! Starting etcd and kube-apiserver.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use kube::Client;

use super::{Error, Options, PORT_ATTEMPTS, READY_PATIENCE, READY_POLL, free_port, port::kept_port};
use crate::{
    audit::POLICY,
    pki::{Authority, IdentityFiles, write_private},
    process::{Child, Program},
    users::{self, Proof, User},
};

pub(super) struct Launched {
    pub etcd: Child,
    pub apiserver: Child,
    pub server: String,
}

/// Starts both at once, since the API server waits for etcd by itself, and until both are ready; with
/// other ports when one was taken in the meantime.
pub(super) async fn start(
    etcd: &Path,
    apiserver: &Path,
    options: &Options,
    directory: &Path,
    authority: &Authority,
) -> Result<Launched, Error> {
    write_private(&directory.join("audit-policy.json"), POLICY)?;
    let mut attempt = 1;
    loop {
        match try_start(etcd, apiserver, options, directory, authority).await {
            Err(Error::Ended { tail, .. }) if attempt < PORT_ATTEMPTS && tail.contains("address already in use") => {
                attempt += 1;
            }
            result => return result,
        }
    }
}

async fn try_start(
    etcd: &Path,
    apiserver: &Path,
    options: &Options,
    directory: &Path,
    authority: &Authority,
) -> Result<Launched, Error> {
    let (port, etcd_port) = (kept_port(&directory.join("port"))?, free_port());
    let etcd_server = format!("https://127.0.0.1:{etcd_port}");
    let server = format!("https://127.0.0.1:{port}");
    let identity = authority.server("etcd", &["127.0.0.1", "localhost"])?;
    let files = authority.write("etcd", &identity)?;
    let etcd = Program::new("etcd", etcd, fresh_log(directory, "etcd"))
        .args(etcd_flags(&etcd_server, directory, authority, &files))
        .args((!options.fsync).then_some("--unsafe-no-fsync"));
    let apiserver = Program::new("kube-apiserver", apiserver, fresh_log(directory, "kube-apiserver"))
        .args(apiserver_flags(&etcd_server, port, directory, authority, &files)?)
        .args(&options.apiserver_flags);
    let launched = Launched { etcd: Child::start(etcd)?, apiserver: Child::start(apiserver)?, server };
    let User::Named { name, group } = User::admin() else { unreachable!("the admin has a certificate") };
    let proof = Proof::Certificate(authority.client(&name, group.as_deref())?);
    let config = users::own_config(users::kubeconfig(&launched.server, authority.certificate(), &proof)).await;
    ready(&Client::try_from(config)?, [&launched.apiserver, &launched.etcd]).await?;
    Ok(launched)
}

/// Waits until the API server says that it is ready, or one of the programs it needs has ended.
pub(super) async fn ready(client: &Client, needed: [&Child; 2]) -> Result<(), Error> {
    let started = Instant::now();
    loop {
        let request = http::Request::get("/readyz").body(Vec::new()).expect("a constant request is well-formed");
        let answer = tokio::time::timeout(READY_PATIENCE, client.request_text(request)).await;
        if let Ok(Ok(_)) = answer {
            return Ok(());
        }
        for program in needed {
            if !program.is_running() {
                return Err(Error::ended(program, program.exited().await));
            }
        }
        if started.elapsed() > READY_PATIENCE {
            let said = match answer {
                Ok(Err(error)) => unready(&error),
                _ => "no answer".to_owned(),
            };
            let [apiserver, _] = needed;
            let log = apiserver.program().log.display();
            let what = format!("kube-apiserver: {said}; try again when the machine is less busy, or look into {log}");
            return Err(Error::NotReady { what, waited: started.elapsed() });
        }
        tokio::time::sleep(READY_POLL).await;
    }
}

/// Of all its checks, those that have not succeeded.
fn unready(error: &kube::Error) -> String {
    let kube::Error::Api(status) = error else { return error.to_string() };
    let failed: Vec<_> = status.message.lines().filter_map(|line| line.strip_prefix("[-]")).collect();
    if failed.is_empty() { status.message.clone() } else { failed.join(", ") }
}

/// Path of a program's log, emptied: a failed start is explained by its own lines only.
pub(super) fn fresh_log(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(format!("{name}.log"));
    let _ = fs::remove_file(&path);
    path
}

fn etcd_flags(server: &str, directory: &Path, authority: &Authority, files: &IdentityFiles) -> Vec<String> {
    flags([
        ("name", "strata".to_owned()),
        ("data-dir", text(&directory.join("etcd"))),
        ("listen-client-urls", server.to_owned()),
        ("advertise-client-urls", server.to_owned()),
        // The only member talks to no peer; port 0 is any free one.
        ("listen-peer-urls", "http://127.0.0.1:0".to_owned()),
        ("cert-file", text(&files.certificate)),
        ("key-file", text(&files.key)),
        ("client-cert-auth", "true".to_owned()),
        ("trusted-ca-file", text(&authority.certificate_file())),
        ("log-level", "warn".to_owned()),
    ])
}

fn apiserver_flags(
    etcd: &str,
    port: u16,
    directory: &Path,
    authority: &Authority,
    etcd_client: &IdentityFiles,
) -> Result<Vec<String>, Error> {
    let hosts = ["127.0.0.1", "localhost", "10.96.0.1", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    let serving = authority.write("kube-apiserver", &authority.server("kube-apiserver", &hosts)?)?;
    let kubelet_client = authority.client("kube-apiserver-kubelet-client", Some("system:masters"))?;
    let kubelet_client = authority.write("kubelet-client", &kubelet_client)?;
    Ok(flags([
        ("bind-address", "127.0.0.1".to_owned()),
        ("advertise-address", "127.0.0.1".to_owned()),
        ("secure-port", port.to_string()),
        // A loopback address is refused as an endpoint of the `kubernetes` Service.
        ("endpoint-reconciler-type", "none".to_owned()),
        ("service-cluster-ip-range", "10.96.0.0/12".to_owned()),
        ("etcd-servers", etcd.to_owned()),
        ("etcd-cafile", text(&authority.certificate_file())),
        ("etcd-certfile", text(&etcd_client.certificate)),
        ("etcd-keyfile", text(&etcd_client.key)),
        ("tls-cert-file", text(&serving.certificate)),
        ("tls-private-key-file", text(&serving.key)),
        ("client-ca-file", text(&authority.certificate_file())),
        ("kubelet-client-certificate", text(&kubelet_client.certificate)),
        ("kubelet-client-key", text(&kubelet_client.key)),
        // Nobody resolves the names of our nodes.
        ("kubelet-preferred-address-types", "InternalIP".to_owned()),
        ("service-account-issuer", "https://kubernetes.default.svc".to_owned()),
        ("service-account-key-file", text(&authority.service_account_public_key_file())),
        ("service-account-signing-key-file", text(&authority.service_account_key_file())),
        ("authorization-mode", "Node,RBAC".to_owned()),
        ("enable-admission-plugins", "NodeRestriction,OwnerReferencesPermissionEnforcement".to_owned()),
        ("allow-privileged", "true".to_owned()),
        ("audit-policy-file", text(&directory.join("audit-policy.json"))),
        ("audit-log-path", text(&directory.join("audit.log"))),
        ("audit-log-format", "json".to_owned()),
        ("audit-log-mode", "blocking".to_owned()),
        // In megabytes; never rotated, so that the whole history can be read from one file.
        ("audit-log-maxsize", "1000000".to_owned()),
    ]))
}

pub(super) fn flags<const N: usize>(flags: [(&str, String); N]) -> Vec<String> {
    flags.into_iter().map(|(name, value)| format!("--{name}={value}")).collect()
}

pub(super) fn text(path: &Path) -> String {
    path.to_str().expect("temporary and dev directories are valid UTF-8").to_owned()
}
