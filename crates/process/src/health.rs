//! Whether the process does its work: readiness with detail, and a watchdog that ends a process which no longer does.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::clock::Clock;

/// How often a waiting task shows that it is still being run. Each beat wakes a process that is at rest otherwise.
const BEAT: Duration = Duration::from_secs(3);
/// A task without a beat for this long is stuck: three missed beats are no scheduling hiccup.
const STALLED: Duration = Duration::from_secs(10);

/// Not a time: no process runs for half a billion years.
const RETIRED: u64 = u64::MAX;

/// The heartbeat of one long-running task.
#[derive(Clone, Debug)]
pub struct Pulse {
    last_millis: Arc<AtomicU64>,
    started: tokio::time::Instant,
    clock: Clock,
}

impl Pulse {
    fn beat(&self) {
        let elapsed = self.clock.instant().saturating_duration_since(self.started);
        self.last_millis.store(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Waits for the next beat and notes it; to be raced against what the task really waits for. All tasks beat at the
    /// same moments, so that a process at rest wakes once for all of them.
    ///
    /// Beginning to wait is a sign of life too, even if the wait is never polled: a task that is woken by its work each
    /// time would otherwise show none.
    pub fn tick(&self) -> impl Future<Output = ()> + use<'_> {
        self.beat();
        let elapsed = self.clock.instant().saturating_duration_since(self.started);
        let beats = u32::try_from(elapsed.as_nanos() / BEAT.as_nanos()).unwrap_or(u32::MAX);
        let wait = tokio::time::sleep_until(self.started + BEAT * beats.saturating_add(1));
        async {
            wait.await;
            self.beat();
        }
    }

    /// Waits for `future`, beating meanwhile.
    pub async fn while_waiting<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        loop {
            tokio::select! {
                value = &mut future => return value,
                () = self.tick() => {}
            }
        }
    }

    /// The task ended as it should: no more beats are expected.
    pub fn retire(&self) {
        self.last_millis.store(RETIRED, Ordering::Relaxed);
    }

    fn is_stalled(&self) -> bool {
        let last = self.last_millis.load(Ordering::Relaxed);
        if last == RETIRED {
            return false;
        }
        let last = Duration::from_millis(last);
        self.clock.instant().saturating_duration_since(self.started + last) > STALLED
    }
}

/// Nothing is expected of the task any more once this is dropped, however the task ended.
pub struct PassingPulse {
    pub pulse: Pulse,
    task: String,
    health: Health,
}

impl Drop for PassingPulse {
    fn drop(&mut self) {
        let mut inner = self.health.lock();
        // A successor of the same name may have begun.
        let is_own = |pulse: &Pulse| Arc::ptr_eq(&pulse.last_millis, &self.pulse.last_millis);
        if inner.pulses.get(&self.task).is_some_and(is_own) {
            inner.pulses.remove(&self.task);
        }
    }
}

type Check = Box<dyn Fn() -> Result<(), String> + Send + Sync>;
type Note = Box<dyn Fn() -> Option<String> + Send + Sync>;

#[derive(Default)]
struct Inner {
    pulses: BTreeMap<String, Pulse>,
    checks: BTreeMap<String, Check>,
    notes: BTreeMap<String, Note>,
}

/// What `/readyz` and `/livez` answer from.
#[derive(Clone)]
pub struct Health {
    inner: Arc<Mutex<Inner>>,
    clock: Clock,
    started: tokio::time::Instant,
}

impl Default for Health {
    fn default() -> Self {
        Self::new(Clock::default())
    }
}

impl Health {
    pub fn new(clock: Clock) -> Self {
        Self { inner: Arc::default(), started: clock.instant(), clock }
    }

    pub fn pulse(&self, task: impl Into<String>) -> Pulse {
        let pulse = Pulse { last_millis: Arc::default(), started: self.started, clock: self.clock.clone() };
        pulse.beat();
        self.lock().pulses.insert(task.into(), pulse.clone());
        pulse
    }

    /// Adds a condition of readiness; it answers with the reason when it does not hold.
    pub fn require(&self, name: impl Into<String>, check: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        self.lock().checks.insert(name.into(), Box::new(check));
    }

    /// Adds something that people should see beside the checks and that readiness does not depend on.
    pub fn inform(&self, name: impl Into<String>, note: impl Fn() -> Option<String> + Send + Sync + 'static) {
        self.lock().notes.insert(name.into(), Box::new(note));
    }

    /// What there is to see now.
    pub fn notes(&self) -> BTreeMap<String, String> {
        self.lock().notes.iter().filter_map(|(name, note)| Some((name.clone(), note()?))).collect()
    }

    /// The pulse of a task that comes and goes.
    pub fn passing_pulse(&self, task: String) -> PassingPulse {
        PassingPulse { pulse: self.pulse(task.as_str()), task, health: self.clone() }
    }

    /// Tasks that no longer make progress.
    pub fn stalled(&self) -> Vec<String> {
        self.lock().pulses.iter().filter(|(_, pulse)| pulse.is_stalled()).map(|(name, _)| name.clone()).collect()
    }

    /// Every readiness check with its verdict.
    pub fn readiness(&self) -> BTreeMap<String, Result<(), String>> {
        let inner = self.lock();
        let tasks = inner.pulses.iter().map(|(name, pulse)| {
            let verdict = if pulse.is_stalled() { Err(format!("no sign of life for {STALLED:?}")) } else { Ok(()) };
            (format!("task {name}"), verdict)
        });
        tasks.chain(inner.checks.iter().map(|(name, check)| (name.clone(), check()))).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the process when a task stalls. A thread of its own, because a blocked async runtime could not run it.
pub fn spawn_watchdog(health: Health) -> std::io::Result<()> {
    std::thread::Builder::new().name("watchdog".into()).spawn(move || {
        loop {
            std::thread::sleep(BEAT);
            if health.stalled().is_empty() {
                continue;
            }
            let stalled = still_stalled(&health, Work::now, BEAT);
            if !stalled.is_empty() {
                tell_within(BEAT, stalled);
                std::process::exit(70);
            }
        }
    })?;
    Ok(())
}

/// All look stalled after the whole process was stopped and continued, and where the machine has no time for it, until
/// they have run again: so they are waited for as long as the process wants to run and has not run for a beat. To end one
/// that only waits for a processor would make the machine busier.
fn still_stalled(health: &Health, work: impl Fn() -> Work, beat: Duration) -> Vec<String> {
    let before = work();
    loop {
        std::thread::sleep(beat);
        let now = work();
        let stalled = health.stalled();
        if stalled.is_empty() || !now.wants_to_run || now.ran.saturating_sub(before.ran) >= beat {
            return stalled;
        }
    }
}

/// What the process does, but for this thread, as the kernel accounts for it; nothing where it does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Work {
    /// A thread runs, or is ready to.
    wants_to_run: bool,
    /// How long its threads have run.
    ran: Duration,
}

impl Work {
    fn now() -> Self {
        let own = std::fs::read_link("/proc/thread-self").ok();
        let own = own.as_deref().and_then(Path::file_name);
        let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return Self::default() };
        let others = threads.flatten().filter(|thread| Some(thread.file_name().as_os_str()) != own);
        others.map(|thread| Self::of(&thread.path())).fold(Self::default(), |all, one| Self {
            wants_to_run: all.wants_to_run || one.wants_to_run,
            ran: all.ran + one.ran,
        })
    }

    fn of(thread: &Path) -> Self {
        let read = |name: &str| std::fs::read_to_string(thread.join(name)).unwrap_or_default();
        // A thread's name stands in brackets before its state, and may itself hold any.
        let wants_to_run = read("stat").rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('R'));
        let ran = read("schedstat").split_whitespace().next().and_then(|nanos| nanos.parse().ok());
        Self { wants_to_run, ran: Duration::from_nanos(ran.unwrap_or_default()) }
    }
}

/// Says why the process ends. What stalled it may be the log itself, so this is not waited for longer than `limit`.
fn tell_within(limit: Duration, stalled: Vec<String>) {
    let (written, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        tracing::error!(tasks = ?stalled, "stalled; ending the process so that it is restarted");
        crate::flush_logs(limit);
        let _ = written.send(());
    });
    let _ = done.recv_timeout(limit);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_without_beats_is_stalled_and_not_ready() {
        let health = Health::default();
        let pulse = health.pulse("watch pods");
        tokio::time::advance(STALLED / 2).await;
        assert_eq!(health.stalled(), [""; 0]);
        pulse.beat();
        tokio::time::advance(STALLED).await;
        assert_eq!(health.stalled(), [""; 0]);
        tokio::time::advance(BEAT).await;
        assert_eq!(health.stalled(), ["watch pods"]);
        assert!(health.readiness()["task watch pods"].is_err());
        pulse.tick().await;
        assert!(health.readiness()["task watch pods"].is_ok());
        pulse.retire();
        tokio::time::advance(STALLED * 2).await;
        assert_eq!(health.stalled(), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_is_always_woken_by_its_work_is_not_stalled() {
        let health = Health::default();
        let pulse = health.pulse("source shards");
        tokio::time::advance(STALLED * 2).await;
        assert_eq!(health.stalled(), ["source shards"]);
        tokio::select! {
            biased;
            () = std::future::ready(()) => {}
            () = pulse.tick() => unreachable!("the work is ready"),
        }
        assert_eq!(health.stalled(), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_without_a_processor_are_waited_for_and_those_that_hang_are_not() {
        let health = Health::default();
        let pulse = health.pulse("driver");
        tokio::time::advance(STALLED * 2).await;
        let beat = Duration::from_millis(1);
        let looks = std::cell::Cell::new(0);
        let look = |work: Work| {
            looks.set(looks.get() + 1);
            work
        };
        let blocked = || look(Work::default());
        assert_eq!(still_stalled(&health, blocked, beat), ["driver"]);
        assert_eq!(looks.replace(0), 2, "at once");
        let spinning = || look(Work { wants_to_run: true, ran: beat * looks.get() / 3 });
        assert_eq!(still_stalled(&health, spinning, beat), ["driver"]);
        assert_eq!(looks.replace(0), 4, "when it had run for a beat");
        let starved = || {
            if looks.get() == 5 {
                pulse.beat();
            }
            look(Work { wants_to_run: true, ran: Duration::ZERO })
        };
        assert_eq!(still_stalled(&health, starved, beat), [""; 0]);
        assert_eq!(looks.get(), 6, "until it ran again");
    }

    #[test]
    fn the_kernel_says_whether_other_threads_run_and_for_how_long() {
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let spinning = std::thread::spawn({
            let stop = stop.clone();
            move || while !stop.load(Ordering::Relaxed) {}
        });
        let before = Work::now();
        while Work::now().ran == before.ran {}
        assert!(Work::now().wants_to_run);
        stop.store(true, Ordering::Relaxed);
        spinning.join().unwrap();
        assert_eq!(Work::of(Path::new("/proc/none")), Work::default());
    }

    #[test]
    fn readiness_names_what_is_missing() {
        let health = Health::default();
        health.require("cache pods", || Err("not filled".into()));
        health.require("cache services", || Ok(()));
        assert_eq!(health.readiness()["cache pods"], Err("not filled".to_owned()));
        assert_eq!(health.readiness()["cache services"], Ok(()));
    }
}
