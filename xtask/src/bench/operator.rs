//! The operator as a process of its own, under the chart's ServiceAccount, and what the kernel says about it.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use serde::Serialize;
use testbed::{
    control_plane::free_ports,
    process::{Child, Program},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::ground::{Ground, OPERATOR_NAMESPACE};

pub const LEASE: &str = "strata-bench";
/// The default, stated because the take-over is measured against it.
pub const LEASE_DURATION: Duration = Duration::from_secs(6);
/// Far above any start that was seen.
const START_PATIENCE: Duration = Duration::from_mins(2);
/// Readiness has no event; this is the resolution of start times.
const LOOK: Duration = Duration::from_millis(5);
/// The operator's own grace period and time to exit.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

pub struct Operator {
    child: Child,
    health: SocketAddr,
    metrics: SocketAddr,
    started: Instant,
}

/// CPU time since the start and memory now.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    pub cpu_ms: f64,
    pub rss_mb: f64,
    /// Of the resident memory, the part that is the program file itself.
    pub rss_file_mb: f64,
    /// What the operator itself has allocated, stacks included.
    pub anonymous_mb: f64,
    pub peak_mb: f64,
}

impl Operator {
    /// Starts it and waits until its caches are filled.
    pub async fn start(ground: &Ground, program: &Path, name: &str) -> Result<Self> {
        let kubeconfig = ground.control_plane.kubeconfig_as(&Ground::operator_user()).await?;
        let [health, metrics] = free_ports().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let log = ground.control_plane.directory().join(format!("{name}.log"));
        let program = Program::new(name, program, log)
            .args(["operator", "--leader-elect=true", "--lease-name", LEASE, "--lease-namespace", OPERATOR_NAMESPACE])
            .args(["--lease-duration", &format!("{}s", LEASE_DURATION.as_secs())])
            .args(["--health-probe-bind-address", &health.to_string()])
            .args(["--metrics-bind-address", &metrics.to_string()])
            .args(&ground.operator_flags)
            .args([Path::new("--kubeconfig"), &kubeconfig]);
        let started = Instant::now();
        let operator = Self { child: Child::start(program)?, health, metrics, started };
        while !operator.answers_ready().await {
            if !operator.child.is_running() || started.elapsed() > START_PATIENCE {
                bail!("the operator did not get ready; the end of its log:\n{}", operator.child.log_tail());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(operator)
    }

    /// Waits until it holds the lease.
    pub async fn leads(&self, ground: &Ground) -> Result<()> {
        let leases: Api<Lease> = Api::namespaced(ground.client.clone(), OPERATOR_NAMESPACE);
        let deadline = Instant::now() + START_PATIENCE;
        while !leases.get_opt(LEASE).await?.is_some_and(|lease| self.is_holder(&lease)) {
            if Instant::now() > deadline {
                bail!("the operator does not become leader; the end of its log:\n{}", self.child.log_tail());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Its identity is HOST_PID_START.
    pub fn is_holder(&self, lease: &Lease) -> bool {
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        holder.contains(&format!("_{}_", self.child.pid()))
    }

    pub fn started(&self) -> Instant {
        self.started
    }

    pub fn child(&self) -> &Child {
        &self.child
    }

    pub async fn stop(self) -> Result<()> {
        Ok(self.child.terminate(STOP_PATIENCE).await?)
    }

    pub fn usage(&self) -> Result<Usage> {
        usage(self.child.pid()).context("the operator's process is gone")
    }

    /// The sum of all lines of a metric that begin so.
    pub async fn metric(&self, line: &str) -> Result<f64> {
        let text = get(self.metrics, "/metrics").await?;
        let values =
            text.lines().filter(|l| l.starts_with(line)).filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok());
        Ok(values.sum())
    }

    async fn answers_ready(&self) -> bool {
        get(self.health, "/readyz").await.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 "))
    }
}

async fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Of any process of this user.
pub fn usage(pid: u32) -> Result<Usage> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let mb = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
        number.map(|kib| kib * 1024.0 / 1e6).with_context(|| format!("no {name} in the process's status"))
    };
    Ok(Usage {
        cpu_ms: cpu_ms(pid)?,
        rss_mb: mb("VmRSS:")?,
        rss_file_mb: mb("RssFile:")?,
        anonymous_mb: mb("RssAnon:")?,
        peak_mb: mb("VmHWM:")?,
    })
}

/// On a CPU, summed over the threads.
fn cpu_ms(pid: u32) -> Result<f64> {
    let mut sum = 0.0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between the listing and the reading.
        sum += thread_cpu_ms(&thread?.path()).unwrap_or(0.0);
    }
    Ok(sum)
}

/// Of the thread with this folder in `/proc`. Its `schedstat` counts nanoseconds; `stat` counts in steps of 10 ms, which
/// is coarse for a minute at rest.
pub fn thread_cpu_ms(thread: &Path) -> Result<f64> {
    let text = std::fs::read_to_string(thread.join("schedstat"))?;
    let nanoseconds = text.split(' ').next().and_then(|nanoseconds| nanoseconds.parse::<f64>().ok());
    Ok(nanoseconds.context("no time in schedstat")? / 1e6)
}
