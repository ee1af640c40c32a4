//! The operator as a process of its own: how it stops, and how it ends when it can no longer work.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context, Result};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, api::ListParams};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, mknodat, open},
    io::write,
    process::Signal,
};
use serde_json::Value;
use testbed::{
    fault::{Calls, Fault, FaultProxy, Verb},
    process::{Child, Program},
};

use crate::{
    handover::LEASE,
    harness::{OPERATOR_NAMESPACE, spec},
    scene::{Scene, eventually},
};

/// `strata operator` through a proxy, as the chart starts it but for its ports, with its log beside the others.
pub fn operator(scene: &Scene, proxy: &FaultProxy, flags: &[&str]) -> Result<Child> {
    static STARTED: AtomicU32 = AtomicU32::new(0);
    let number = STARTED.fetch_add(1, Ordering::Relaxed);
    let log = scene.control_plane.directory().join(format!("operator-{number}.log"));
    Ok(Child::start(program(&proxy.kubeconfig_path(), log, flags))?)
}

fn program(kubeconfig: &Path, log: PathBuf, flags: &[&str]) -> Program {
    Program::new("strata operator", env!("CARGO_BIN_EXE_strata"), log)
        .args(["operator", "--layers=performers", "--metrics-bind-address=0", "--health-probe-bind-address=0"])
        .args(["--kubeconfig"])
        .args([kubeconfig])
        .args(flags)
        .env("POD_NAMESPACE", OPERATOR_NAMESPACE)
}

/// When the process logged this for the first time, by its own clock.
fn logged_at(process: &Child, message: &str) -> Result<Timestamp> {
    let log = std::fs::read_to_string(&process.program().log)?;
    let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let line = lines.find(|line| line["message"] == message).with_context(|| format!("{message:?} in\n{log}"))?;
    Ok(line["timestamp"].as_str().context("a line has its time")?.parse()?)
}

#[tokio::test]
async fn p52_a_stop_finishes_or_safely_abandons_its_rounds_within_the_grace_period() -> Result<()> {
    const GRACE: Duration = Duration::from_secs(3);
    /// For a round that ends by itself, and soon.
    const AMPLE: Duration = Duration::from_secs(30);
    /// A timer on a busy machine, and after it the release of the lease, which is one request.
    const SLACK: Duration = Duration::from_secs(20);
    const ABANDONED: &str = "rounds did not finish in the grace period; the next start repeats them";
    let scene = Scene::lent().await?;
    let space = scene.space("stop").await?;
    // A request is given up by its own limit or, if that is sooner, before the lease lapses: here long after GRACE and
    // SLACK, so that only a stop that does not wait for it ends in time.
    let flags = |grace: &'static str| [grace, "--request-timeout=1m", "--lease-duration=1m", "--log-format=json"];
    let (short, ample) = (flags("--grace-period=3s"), flags("--grace-period=30s"));
    let creates = |name| Calls::of(Verb::Create, "pods").in_namespace(&space.namespace).named(name);
    let leases: Api<Lease> = Api::namespaced(space.client.clone(), OPERATOR_NAMESPACE);
    let holder = async || -> Result<String> {
        Ok(leases.get(LEASE).await?.spec.and_then(|spec| spec.holder_identity).unwrap_or_default())
    };
    let took = |process: &Child, message: &str| -> Result<Duration> {
        Ok(logged_at(process, message)?.duration_since(logged_at(process, "stopping")?).unsigned_abs())
    };

    // More than run at once: those that finish leave others waiting, to which a status may otherwise give way.
    for number in 0..20 {
        space.create(&format!("a{number}"), spec()).await?;
    }
    let all = Calls::of(Verb::Create, "pods").in_namespace(&space.namespace);
    let held = scene.proxy.inject(all, Fault::HoldBeforeCommit);
    let first = operator(&scene, &scene.proxy, &ample)?;
    held.reached().await?;
    first.signal(Signal::TERM)?;
    eventually("it says that it stops", || logged_at(&first, "stopping").is_ok()).await?;
    held.end();
    let code = tokio::time::timeout(AMPLE, first.exited()).await.context("it ends as soon as its rounds have ended")?;
    assert_eq!(code, 0, "{}", first.log_tail());
    // The rounds were finished, not cut off: what follows the pod is there too, and no other operator was there to do it.
    let begun = space.pods.list(&ListParams::default()).await?.items;
    assert!(!begun.is_empty());
    for pod in begun {
        let pod = pod.metadata.name.context("a name")?;
        let name = pod.strip_prefix("performer-").context("a performer's pod")?;
        space.service(name).await?;
        assert!(space.performers.get(name).await?.status.is_some(), "{name}");
    }
    assert!(took(&first, "strata operator ends")? < AMPLE);
    assert_eq!(holder().await?, "", "a standby need not wait");

    let second = operator(&scene, &scene.proxy, &short)?;
    space.until_ready("a0").await?;
    let held = scene.proxy.inject(creates("performer-b"), Fault::HoldBeforeCommit);
    space.create("b", spec()).await?;
    held.reached().await?;
    second.signal(Signal::TERM)?;
    let ended = tokio::time::timeout(AMPLE, second.exited()).await;
    assert_eq!(ended.context("it does not wait for ever")?, 0, "{}", second.log_tail());
    let abandoned = took(&second, ABANDONED)?;
    assert!(abandoned >= GRACE && abandoned < GRACE + SLACK, "abandoned after {abandoned:?}");
    let ended = took(&second, "strata operator ends")?;
    assert!(ended < GRACE + SLACK, "ended after {ended:?}");
    assert_eq!(holder().await?, "", "nor for rounds that were abandoned");
    held.cut();
    held.end();
    assert!(space.pods.get_opt("performer-b").await?.is_none());

    let _third = operator(&scene, &scene.proxy, &short)?;
    space.until_ready("b").await?;
    let creates = scene.writes(&space.namespace).into_iter().filter(|seen| seen.request.is_for("pods"));
    assert_eq!(creates.filter(|seen| seen.request.name.as_deref() == Some("performer-b")).count(), 2);
    Ok(())
}

#[tokio::test]
async fn an_unread_log_stalls_nothing() -> Result<()> {
    let scene = Scene::lent().await?;
    let space = scene.space("unread").await?;
    let log = scene.control_plane.directory().join("unread");
    mknodat(CWD, &log, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    let unread = open(&log, OFlags::RDWR | OFlags::NONBLOCK, Mode::empty())?;
    let operator = Child::start(program(&scene.proxy.kubeconfig_path(), log, &["--leader-elect=false"]))?;
    space.create("a", spec()).await?;
    space.until_pod("a", "there", |_| true).await?;
    // Writing to a full pipe waits until it is read.
    while write(&unread, &[b'\n'; 1024]).is_ok() {}
    space.create("b", spec()).await?;
    space.until_pod("b", "there", |_| true).await?;
    assert!(operator.is_running());
    Ok(())
}
