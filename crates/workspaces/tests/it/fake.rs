//! Load and misbehaviour, with a shell script in the place of helm.

use std::{
    collections::BTreeSet,
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use plan::releases::LEAST_MEMORY;
use runtime::Key;
use workspaces::helm::{
    Class, Contents, Failure, First, Operation, OperationKind, Private, Reading, Refused, Request, State, Unread,
};

use crate::{
    harness::{Scene, deploy, install, is_alive, request, uninstall, with},
    memory::own_memory,
};

/// Tells that it runs, and ends when the test opens the gate.
const GATED: &str = r#"echo "$1 $2" >>"$SCENE/log"; until [ -e "$SCENE/gate" ]; do sleep 0.02; done"#;

fn open_gate(scene: &Scene) -> Result<()> {
    Ok(fs::write(scene.path("gate"), "")?)
}

#[tokio::test]
async fn w20_one_at_a_time_and_the_newest_wins() -> Result<()> {
    let scene = Scene::fake(GATED, |_| {})?;
    let key = Key::new("a", "web");
    assert!(matches!(scene.runner.state(&key), State::Idle));
    scene.runner.submit(install(&key))?;
    assert!(matches!(scene.runner.state(&key), State::Running { operation: OperationKind::Install, .. }));
    scene.until("not started", || (scene.lines("log") == ["install web"]).then_some(())).await?;
    scene.runner.submit(request(&key, Operation::Test))?;
    scene.runner.submit(uninstall(&key))?;
    assert_eq!((scene.runner.snapshot().waiting, scene.runner.snapshot().running), (1, 1));
    open_gate(&scene)?;
    scene.idle().await?;
    assert_eq!(scene.lines("log"), ["install web", "uninstall web"]);
    let finished = scene.finished(&key).await?;
    assert_eq!((finished.operation, &finished.result), (OperationKind::Uninstall, &Ok(())));
    assert!(scene.runner.take(&key).is_none(), "a result is given once");
    Ok(())
}

#[tokio::test]
async fn w20_what_changed_while_it_waited_is_handed_back_and_what_waits_is_not_read() -> Result<()> {
    let scene = Scene::fake(GATED, |config| config.total_memory = config.operation_memory)?;
    let (first, late) = (Key::new("a", "first"), Key::new("a", "late"));
    scene.runner.submit(install(&first))?;
    let is_read = Arc::new(AtomicBool::new(false));
    let reading = is_read.clone();
    let contents: Reading = Box::new(move || {
        reading.store(true, Ordering::Relaxed);
        Box::pin(async { Err(Unread::Outdated("its values changed".to_owned())) })
    });
    scene.runner.submit(Request { contents, ..install(&late) })?;
    scene.until("not started", || (scene.lines("log") == ["install first"]).then_some(())).await?;
    assert!(matches!(scene.runner.state(&late), State::Waiting) && !is_read.load(Ordering::Relaxed));
    open_gate(&scene)?;
    let failure = scene.finished(&late).await?.result.clone().unwrap_err();
    assert_eq!((failure.class, failure.message.as_str()), (Class::NotBegun, "not begun: its values changed"));
    assert!(is_read.load(Ordering::Relaxed));
    scene.run(install(&late)).await?.result.clone()?;
    assert_eq!(scene.lines("log"), ["install first", "install late"]);
    Ok(())
}

#[tokio::test]
async fn what_must_come_before_helm_comes_first_and_its_failure_is_the_operations() -> Result<()> {
    let scene = Scene::fake(r#"ls "$SCENE" >"$SCENE/seen""#, |_| {})?;
    let key = Key::new("a", "web");
    let prepared = |done: Result<(), Failure>| {
        let marker = scene.path("first");
        let first: First = Box::new(move || {
            let written = fs::write(marker, "");
            let failed = |error: std::io::Error| Failure { class: Class::Other, message: error.to_string() };
            Box::pin(async move { written.map_err(failed).and(done) })
        });
        let contents = Contents::new(Operation::Install(deploy("/none.tgz".into())));
        let secrets = vec![Private::new("canary")];
        with(&key, Contents { first: Some(first), secrets, ..contents })
    };
    let refused = Failure { class: Class::Forbidden, message: "not with canary".to_owned() };
    let failure = scene.run(prepared(Err(refused))).await?.result.unwrap_err();
    assert_eq!((failure.class, failure.message.as_str()), (Class::Forbidden, "not with [redacted]"));
    assert!(!scene.path("seen").exists());
    scene.run(prepared(Ok(()))).await?.result?;
    assert!(scene.lines("seen").contains(&"first".to_owned()));
    Ok(())
}

/// One of two namespaces, for one alone does not get all of the budget.
fn spread(name: usize) -> Key {
    Key::new(["a", "b"][name % 2], name.to_string())
}

#[tokio::test]
async fn w21_the_budget_holds_and_oversize_is_refused() -> Result<()> {
    let count = r#"mkdir -p "$SCENE/now"; : >"$SCENE/now/$$"; set -- "$SCENE"/now/*; echo $# >>"$SCENE/counts"
                   until [ -e "$SCENE/gate" ]; do sleep 0.02; done; rm "$SCENE/now/$$""#;
    let scene = Scene::fake(count, |_| {})?;
    for name in 0..12 {
        scene.runner.submit(install(&spread(name)))?;
    }
    scene.until("four never ran", || scene.lines("counts").contains(&"4".to_owned()).then_some(())).await?;
    let snapshot = scene.runner.snapshot();
    assert_eq!((snapshot.running, snapshot.waiting, snapshot.bytes_in_use), (4, 8, 1 << 30));
    let asked = |memory| scene.runner.submit(Request { memory: Some(memory), ..install(&Key::new("a", "x")) });
    let too_large = asked(1 << 30).unwrap_err();
    assert_eq!(too_large, Refused::TooLarge { asked: 1 << 30, most: 768 << 20 }, "room is left for another namespace");
    assert!(too_large.to_string().contains("1073741824") && too_large.to_string().contains("805306368"));
    assert_eq!(asked(1), Err(Refused::TooSmall { asked: 1, least: LEAST_MEMORY }));
    open_gate(&scene)?;
    scene.idle().await?;
    let counts = scene.lines("counts");
    assert!(counts.len() == 12 && counts.iter().all(|count| count.parse::<u32>().unwrap() <= 4), "{counts:?}");
    let mut registry = prometheus_client::registry::Registry::default();
    registry.register_collector(Box::new(scene.runner.clone()));
    let mut metrics = String::new();
    prometheus_client::encoding::text::encode(&mut metrics, &registry)?;
    for line in [
        "strata_helm_operations_total{operation=\"install\",result=\"success\"} 12",
        "strata_helm_waiting 0",
        "strata_helm_memory_bytes 0",
        "strata_helm_memory_budget_bytes 1073741824",
    ] {
        assert!(metrics.contains(line), "{line} is missing in\n{metrics}");
    }
    Ok(())
}

#[tokio::test]
async fn w22_a_busy_namespace_does_not_keep_another_waiting() -> Result<()> {
    let scene = Scene::fake(GATED, |config| config.total_memory = config.operation_memory)?;
    for name in 0..20 {
        scene.runner.submit(install(&Key::new("busy", format!("busy-{name}"))))?;
    }
    for name in 0..2 {
        scene.runner.submit(uninstall(&Key::new("calm", format!("calm-{name}"))))?;
    }
    open_gate(&scene)?;
    scene.idle().await?;
    let log = scene.lines("log");
    let last = log.iter().rposition(|line| line.contains("calm")).unwrap();
    assert!(log.len() == 22 && last <= 4, "{log:?}");
    Ok(())
}

#[tokio::test]
async fn w22_whatever_one_namespace_asks_for_another_is_served() -> Result<()> {
    // What the greedy run never ends by itself.
    let greedy = r#"echo "$2" >>"$SCENE/log"; case $2 in greedy-*) while :; do sleep 1000; done;; esac"#;
    let scene = Scene::fake(greedy, |_| {})?;
    let ask = |name: &str, mebibytes: u64| {
        let memory = Some(mebibytes << 20);
        scene.runner.submit(Request { memory, ..install(&Key::new("greedy", format!("greedy-{name}"))) })
    };
    let calm = async |name: &str| {
        scene.run(install(&Key::new("calm", name))).await?.result?;
        anyhow::Ok(())
    };
    // All it may have at once, then as much again and more in all sizes, which then wait.
    for (name, mebibytes) in [("all", 768), ("again", 768), ("some", 512), ("least", 128)] {
        ask(name, mebibytes)?;
        calm(name).await?;
    }
    assert_eq!((scene.runner.snapshot().running, scene.runner.snapshot().waiting), (1, 3));
    // In small parts it gets no more of it.
    scene.runner.cancel(&Key::new("greedy", "greedy-all"));
    for number in 0..10 {
        ask(&format!("part-{number}"), 128)?;
        calm(&format!("later-{number}")).await?;
    }
    let snapshot = scene.runner.snapshot();
    assert!(snapshot.bytes_in_use <= 768 << 20, "{snapshot:?}");
    scene.runner.drain(Duration::ZERO).await;
    Ok(())
}

#[tokio::test]
async fn w22_a_large_request_starts_although_small_ones_keep_coming() -> Result<()> {
    let scene = Scene::fake(r#"echo "$2" >>"$SCENE/log"; sleep 0.05"#, |_| {})?;
    let small = |number: usize| {
        let key = Key::new(["a", "b", "c"][number % 3], format!("small-{number}"));
        scene.runner.submit(install(&key))
    };
    for number in 0..6 {
        small(number)?;
    }
    let large = Key::new("large", "large");
    scene.runner.submit(Request { memory: Some(768 << 20), ..install(&large) })?;
    let mut next = 6;
    let is_served = || {
        // As fast as they end, others come.
        while scene.runner.snapshot().waiting < 4 {
            small(next).unwrap();
            next += 1;
        }
        scene.runner.take(&large)
    };
    let served = scene.until("the large one starves", is_served).await?;
    assert_eq!(served.result, Ok(()));
    scene.idle().await
}

#[tokio::test]
async fn w23_a_thousand_requests_cost_neither_a_thread_nor_their_contents() -> Result<()> {
    let threads = || fs::read_dir("/proc/self/task").map(Iterator::count);
    let scene = Scene::fake(GATED, |_| {})?;
    let (before, memory) = (threads()?, own_memory("VmRSS"));
    for name in 0..1000 {
        let contents: Reading = Box::new(|| {
            let values = vec![Private::new(vec![b' '; 2 << 20])];
            let install = Operation::Install(deploy("/none.tgz".into()));
            Box::pin(async { Ok(Contents { values, ..Contents::new(install) }) })
        });
        scene.runner.submit(Request { contents, ..install(&spread(name)) })?;
    }
    scene.until("four never ran", || (scene.lines("log").len() == 4).then_some(())).await?;
    assert_eq!(scene.runner.snapshot().waiting, 996);
    // Other tests of this process start threads and take memory as well, but neither hundreds nor 2 GiB.
    assert!(threads()? < before + 100, "{before} threads became {}", threads()?);
    let grown = own_memory("VmRSS").saturating_sub(memory);
    assert!(grown < 512 << 20, "they take {grown} bytes");
    scene.runner.drain(Duration::ZERO).await;
    Ok(())
}

#[tokio::test]
async fn w24_values_are_private_and_always_removed() -> Result<()> {
    let look = r#"stat -c '%a %n' . values-0.yaml values-1.yaml kubeconfig >"$SCENE/modes"; pwd >"$SCENE/where"
                  cat values-0.yaml values-1.yaml kubeconfig >"$SCENE/content"; echo "$@" >"$SCENE/line"; env >"$SCENE/env"
                  case $2 in fails) echo "Error: password is canary-2" >&2; exit 1;; hangs) sleep 1000;; esac"#;
    let scene = Scene::fake(look, |_| {})?;
    let mut places = BTreeSet::new();
    for (name, class) in [("works", None), ("fails", Some(Class::Other)), ("hangs", Some(Class::Cancelled))] {
        let key = Key::new("a", name);
        let contents = Contents {
            values: ["canary-1\n", "canary-2\n"].map(Private::new).into(),
            kubeconfig: Some(Private::new("canary-3\n")),
            secrets: vec![Private::new("canary-2")],
            ..Contents::new(Operation::Install(deploy("/none.tgz".into())))
        };
        assert!(!format!("{contents:?}").contains("canary"));
        scene.runner.submit(with(&key, contents))?;
        if name == "hangs" {
            let line = || scene.lines("line").iter().any(|line| line.contains("hangs")).then_some(());
            scene.until("not started", line).await?;
            scene.runner.cancel(&key);
        }
        let finished = scene.finished(&key).await?;
        assert_eq!(finished.result.as_ref().err().map(|failure| failure.class), class);
        let written = format!("{finished:?}{}{}", scene.lines("line").concat(), scene.lines("env").concat());
        assert!(!written.contains("canary"), "{written}");
        assert_eq!(scene.lines("content"), ["canary-1", "canary-2", "canary-3"]);
        assert_eq!(scene.lines("modes"), ["700 .", "600 values-0.yaml", "600 values-1.yaml", "600 kubeconfig"]);
        assert_eq!(scene.operation_directories(), [""; 0].map(std::path::PathBuf::from));
        assert!(places.insert(scene.lines("where")), "each operation has a place of its own: {places:?}");
    }
    Ok(())
}

/// Enough for a shell to begin on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn w25_timeout_ends_the_whole_group() -> Result<()> {
    let deaf = r#"trap '' TERM; sh -c 'trap "" TERM; sleep 1000; true' & echo "$! $$" >"$SCENE/pids"
                  while :; do sleep 1000; done"#;
    let scene = Scene::fake(deaf, |_| {})?;
    let key = Key::new("a", "web");
    let mut short = install(&key);
    short.timeout = TIMEOUT;
    let finished = scene.run(short).await?;
    assert_eq!(finished.result.as_ref().unwrap_err().class, Class::Timeout, "{finished:?}");
    let pids = scene.lines("pids").concat();
    scene.until("somebody lives on", || (!pids.split(' ').any(is_alive)).then_some(())).await?;
    assert_eq!(pids.split(' ').count(), 2);
    Ok(())
}

#[tokio::test]
async fn w25_what_takes_too_long_is_asked_to_end_before_it_is_killed() -> Result<()> {
    // It needs a moment for its end, and leaves a child behind.
    let gentle = r#"sleep 1000 & echo $! >"$SCENE/child"
                    trap 'sleep 0.2; echo "gentle $2" >>"$SCENE/log"; exit 1' TERM; while :; do sleep 0.02; done"#;
    let scene = Scene::fake(gentle, |config| config.grace = Duration::from_mins(1))?;
    let mut short = install(&Key::new("a", "web"));
    short.timeout = TIMEOUT;
    let finished = scene.run(short).await?;
    assert_eq!(finished.result.as_ref().unwrap_err().class, Class::Timeout, "{finished:?}");
    assert_eq!(scene.lines("log"), ["gentle web"]);
    let child = scene.lines("child").concat();
    scene.until("its child lives on", || (!is_alive(&child)).then_some(())).await
}

#[tokio::test]
async fn w26_drain_ends_all_gently_and_starts_nothing() -> Result<()> {
    let gentle = r#"trap 'echo "gentle $2" >>"$SCENE/log"; exit 1' TERM; echo "start $2" >>"$SCENE/log"
                    while :; do sleep 0.02; done"#;
    let scene = Scene::fake(gentle, |_| {})?;
    for name in 1..=5 {
        scene.runner.submit(install(&spread(name)))?;
    }
    scene.until("four never ran", || (scene.lines("log").len() == 4).then_some(())).await?;
    scene.runner.drain(Duration::from_mins(1)).await;
    let log = scene.lines("log");
    assert_eq!(log.iter().filter(|line| line.starts_with("gentle")).count(), 4, "{log:?}");
    assert!(!log.contains(&"start 5".to_owned()), "{log:?}");
    assert_eq!(scene.runner.submit(install(&Key::new("a", "6"))), Err(Refused::Draining));
    Ok(())
}

#[tokio::test]
async fn a_rollback_gets_the_grace_to_end_by_itself() -> Result<()> {
    let scene = Scene::fake(GATED, |_| {})?;
    let key = Key::new("a", "web");
    let rollback = Operation::Rollback { revision: 1, wait: false, history_max: 5, force_conflicts: false };
    scene.runner.submit(request(&key, rollback))?;
    scene.until("not started", || (scene.lines("log").len() == 1).then_some(())).await?;
    let draining = scene.runner.drain(Duration::from_mins(1));
    tokio::pin!(draining);
    // It is polled once, so that it has asked for the end before the gate opens.
    assert!(futures::poll!(&mut draining).is_pending());
    open_gate(&scene)?;
    draining.await;
    assert_eq!(scene.finished(&key).await?.result, Ok(()));
    Ok(())
}

#[tokio::test]
async fn huge_output_is_bounded_and_garbage_is_a_failure() -> Result<()> {
    let noisy = r"head -c 20000000 /dev/urandom >&2; head -c 20000000 /dev/zero; exit 3";
    let scene = Scene::fake(noisy, |_| {})?;
    let finished = scene.run(install(&Key::new("a", "web"))).await?;
    let failure = finished.result.as_ref().unwrap_err();
    assert_eq!((finished.exit, failure.class), (Some(3), Class::Other));
    assert!(failure.message.len() <= 4096 && finished.stdout.len() <= 64 * 1024);
    assert!(finished.peak_bytes > 100_000);
    Ok(())
}

#[tokio::test]
async fn a_helm_that_cannot_start_is_a_failure() -> Result<()> {
    let scene = Scene::fake("", |config| config.helm = "/no/helm".into())?;
    let failure = scene.run(install(&Key::new("a", "web"))).await?.result.clone().unwrap_err();
    assert!(failure.message.contains("cannot start helm"), "{failure}");
    Ok(())
}

#[tokio::test]
async fn nothing_lives_on_when_its_guard_is_killed() -> Result<()> {
    let scene =
        Scene::fake(r#"echo "$$ $PPID" >"$SCENE/pids.new"; mv "$SCENE/pids.new" "$SCENE/pids"; sleep 1000"#, |_| {})?;
    let key = Key::new("a", "web");
    scene.runner.submit(install(&key))?;
    let pids = scene.until("not started", || scene.lines("pids").pop()).await?;
    let (helm, guard) = pids.split_once(' ').unwrap();
    let guard = rustix::process::Pid::from_raw(guard.parse()?).unwrap();
    rustix::process::kill_process(guard, rustix::process::Signal::KILL)?;
    let finished = scene.finished(&key).await?;
    assert_eq!(finished.result.as_ref().unwrap_err().class, Class::Killed);
    scene.until("helm lives on", || (!is_alive(helm)).then_some(())).await
}
