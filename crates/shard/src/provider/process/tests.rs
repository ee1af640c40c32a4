use std::{fs, time::Duration};

use plan::shard::instance::MachineStatus;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::*;
use crate::provider::conformance;

/// Ends by itself long after any test, should a test fail to end it.
const SLEEP: &str = "#!/bin/sh\nexec sleep 300\n";

fn order(userdata: &str) -> Order {
    let text = str::to_owned;
    Order {
        instance_id: text("web01"),
        cluster: text("dev"),
        shard: text("dev-1"),
        tenant: text("default"),
        group: text("web"),
        userdata: text(userdata),
        ..Order::default()
    }
}

fn open(directory: &Path) -> Process {
    Process::open(directory, Clock::default()).unwrap()
}

fn raw(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..3000 {
        if let Some(seen) = look() {
            return seen;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} did not happen");
}

#[tokio::test]
async fn a78_the_process_provider_conforms() {
    let directory = tempfile::tempdir().unwrap();
    let (one, next) = (open(directory.path()), open(directory.path()));
    conformance::check(&one, &next, &order(SLEEP), "web02").await.unwrap();
    // The call that was interrupted goes on: it may have begun anew what the other one had just removed.
    let left = || fs::read_dir(directory.path()).unwrap().count();
    eventually("that nothing is left", || (left() == 0).then_some(())).await;
}

#[tokio::test]
async fn a78_a_machine_runs_its_userdata_in_a_group_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let provider = open(directory.path());
    let userdata = "#!/usr/bin/env sh\necho \"$PATH in $PWD\"\nexec sleep 300\n";
    let made = provider.create(&order(userdata)).await.unwrap();
    let pid = eventually("its pid", || provider.pid("web01")).await;
    assert_eq!(rustix::process::getpgid(Some(raw(pid))).unwrap(), raw(pid));
    let folder = directory.path().canonicalize().unwrap().join("web01");
    let log = eventually("a line", || fs::read_to_string(folder.join("log")).ok().filter(|log| !log.is_empty())).await;
    assert_eq!(log, format!("{PATH} in {}\n", folder.display()), "nothing of the server's environment");
    assert_eq!(provider.node_provider_id("dev-1", &made), "process:///dev-1/web01");
    provider.delete("web01").await.unwrap();
    assert!(test_kill_process(raw(pid)).is_err() || is_zombie(pid));
}

/// Ended, and not collected yet.
fn is_zombie(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_none_or(|rest| rest.trim_start().starts_with('Z'))
}

#[tokio::test]
async fn a74_a_machine_whose_process_was_killed_is_stopped_and_is_not_made_again() {
    let directory = tempfile::tempdir().unwrap();
    let (provider, next) = (open(directory.path()), open(directory.path()));
    let made = provider.create(&order(SLEEP)).await.unwrap();
    let pid = eventually("its pid", || provider.pid("web01")).await;
    kill_process(raw(pid), Signal::KILL).unwrap();
    let folder = provider.folder("web01").unwrap();
    eventually("its end", || (!folder.is_alive().unwrap()).then_some(())).await;
    let found = next.status("web01").await.unwrap().unwrap();
    assert_eq!(found, MachineInfo { status: MachineStatus::Stopped, ..made });
    assert_eq!(next.create(&order(SLEEP)).await.unwrap().status, MachineStatus::Stopped);
    assert_eq!(next.pid("web01"), None);
    next.delete("web01").await.unwrap();
    assert_eq!(next.list("dev", "dev-1").await.unwrap(), []);
}

#[tokio::test]
async fn a_folder_that_cannot_be_read_is_a_machine_of_which_nothing_is_known_and_hides_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let provider = open(directory.path());
    for id in ["web01", "web02"] {
        provider.create(&Order { instance_id: id.to_owned(), ..order(SLEEP) }).await.unwrap();
    }
    fs::write(directory.path().join("web01/machine.json"), "{").unwrap();
    fs::write(directory.path().join("notes"), "no folder").unwrap();
    let mut all = provider.list("dev", "dev-1").await.unwrap();
    all.sort_by(|a, b| a.instance_id.cmp(&b.instance_id));
    let seen: Vec<_> = all.iter().map(|machine| (&*machine.instance_id, machine.status)).collect();
    let (unknown, running) = (MachineStatus::Unknown, MachineStatus::Running);
    assert_eq!(seen, [("web01", unknown), ("web02", running)]);
    assert!(all[0].created_at >= all[1].created_at, "it is no orphan by its age");
    assert_eq!(provider.status("web01").await.unwrap().unwrap().status, unknown);
    let pid = eventually("its pid", || provider.pid("web01")).await;
    for id in ["web01", "web02"] {
        provider.delete(id).await.unwrap();
    }
    assert!(test_kill_process(raw(pid)).is_err() || is_zombie(pid), "it is ended all the same");
}

#[tokio::test]
async fn a76_a_notice_is_known_after_the_machine_ended() {
    let directory = tempfile::tempdir().unwrap();
    let provider = open(directory.path());
    assert!(!provider.create(&order(SLEEP)).await.unwrap().noticed);
    let pid = eventually("its pid", || provider.pid("web01")).await;
    fs::write(directory.path().join("web01").join(folder::NOTICE), "").unwrap();
    assert!(provider.status("web01").await.unwrap().unwrap().noticed);
    kill_process(raw(pid), Signal::KILL).unwrap();
    let stopped = eventually("its end", || {
        provider.all("dev", "dev-1").unwrap().pop().filter(|machine| machine.status == MachineStatus::Stopped)
    });
    assert!(stopped.await.noticed);
    provider.delete("web01").await.unwrap();
}

/// One step of a creation.
type Left = fn(&Held<'_>, &Labels) -> io::Result<()>;

/// Whatever a server had done of a creation when it died.
#[tokio::test]
async fn a78_a_creation_that_was_cut_short_is_finished_or_removed() {
    let directory = tempfile::tempdir().unwrap();
    let provider = open(directory.path());
    let folder = provider.folder("web01").unwrap();
    let labels = Labels {
        instance_id: "web01".to_owned(),
        cluster: "dev".to_owned(),
        shard: "dev-1".to_owned(),
        tenant: String::new(),
        group: String::new(),
        on_demand: false,
        created_at: Clock::default().now(),
    };
    let steps: [Left; 4] = [
        |_, _| Ok(()),
        |held, _| held.write(USERDATA, b"#!/bin/sh\nexit 1\n"),
        |held, labels| held.write_labels(labels),
        |held, _| held.lock_alive().map(drop),
    ];
    for (count, finish) in (0..=steps.len()).flat_map(|count| [(count, true), (count, false)]) {
        for step in &steps[..count] {
            step(&folder.hold().unwrap(), &labels).unwrap();
        }
        assert_eq!(provider.status("web01").await.unwrap(), None, "no process began");
        assert_eq!(provider.list("dev", "dev-1").await.unwrap(), []);
        if finish {
            provider.create(&order(SLEEP)).await.unwrap();
            assert_eq!(provider.list("dev", "dev-1").await.unwrap().len(), 1);
        }
        provider.delete("web01").await.unwrap();
        assert!(!folder.is_there().unwrap());
    }
}

#[tokio::test]
async fn a_machine_that_does_not_end_when_asked_is_ended_with_all_it_started() {
    let directory = tempfile::tempdir().unwrap();
    let provider = open(directory.path());
    let userdata = "trap '' TERM\nsleep 300 &\necho $! >child\nwhile :; do wait; done\n";
    provider.create(&order(userdata)).await.unwrap();
    let folder = provider.folder("web01").unwrap();
    let child = eventually("its child", || fs::read_to_string(folder.path().join("child")).ok()?.trim().parse().ok());
    let child: u32 = child.await;
    provider.delete("web01").await.unwrap();
    eventually("the end of its child", || is_zombie(child).then_some(())).await;
}

#[tokio::test]
async fn names_that_lead_elsewhere_are_refused_and_leftovers_go() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("web01.removed")).unwrap();
    let provider = open(directory.path());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    for name in ["", "..", "a/b", "/tmp", "a.removed"] {
        assert!(provider.status(name).await.is_err(), "{name:?}");
        assert!(provider.create(&Order { instance_id: name.to_owned(), ..order(SLEEP) }).await.is_err(), "{name:?}");
        assert!(provider.delete(name).await.is_err(), "{name:?}");
    }
}

#[test]
fn the_first_line_chooses_the_interpreter() {
    assert_eq!(interpreter("echo"), ["/bin/sh"]);
    assert_eq!(interpreter(""), ["/bin/sh"]);
    assert_eq!(interpreter("#!\n"), ["/bin/sh"]);
    assert_eq!(interpreter("#!/bin/bash\nx"), ["/bin/bash"]);
    assert_eq!(interpreter("#! /usr/bin/env  bash -e \nx"), ["/usr/bin/env", "bash -e"]);
}

#[test]
fn settings_are_read_and_unknown_ones_are_named() {
    let provider = |text: &str| serde_json::from_str::<config::Provider>(text).unwrap();
    let settings = ProcessSettings::read(&provider(r#"{"kind": "process", "lock": "/l", "zone": "z"}"#)).unwrap();
    let variables = settings.variables("process", PathBuf::from("/strata"));
    let said = [&*variables.kind, &variables.program, &variables.lock, &variables.kubeconfig, &variables.zone];
    assert_eq!(said, ["process", "/strata", "/l", "", "z"]);
    let error = ProcessSettings::read(&provider(r#"{"kind": "process", "folder": "/x"}"#)).unwrap_err().to_string();
    assert!(error.contains("shard.provider") && error.contains("folder"), "{error}");
}
