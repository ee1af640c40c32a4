//! Jobs under paused time, with work that does as it is asked.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Semaphore;

use super::*;

/// What a job of these tests does once it begins.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Return,
    /// Until an end is asked for.
    Obey,
    /// Whatever is asked for.
    Ignore,
    Panic,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Read {
    AtOnce,
    Never,
    Panics,
}

struct Work {
    act: Act,
    read: Read,
    /// The version of the contents that the job was planned on.
    planned_on: u32,
}

#[derive(Default)]
struct Scene {
    /// The contents' version now.
    version: AtomicUsize,
    prepared: AtomicUsize,
    begun: AtomicUsize,
    /// Lets jobs return.
    gate: Option<Semaphore>,
}

impl Executor for Arc<Scene> {
    type Task = Work;
    type Contents = Act;
    type Output = Option<Stopped>;

    async fn prepare(&self, task: Work) -> Result<Act, NotBegun<Option<Stopped>>> {
        match task.read {
            Read::Never => std::future::pending().await,
            Read::Panics => panic!("unreadable"),
            Read::AtOnce => {}
        }
        self.prepared.fetch_add(1, Ordering::Relaxed);
        let now = u32::try_from(self.version.load(Ordering::Relaxed)).unwrap();
        if now == task.planned_on { Ok(task.act) } else { Err(NotBegun::Outdated(format!("version {now}"))) }
    }

    async fn execute(&self, act: Act, mut stops: Stops) -> Option<Stopped> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        match act {
            Act::Return => {
                if let Some(gate) = &self.gate {
                    gate.acquire().await.unwrap().forget();
                }
                None
            }
            Act::Obey => Some(stops.asked().await.why),
            Act::Ignore => std::future::pending().await,
            Act::Panic => panic!("at work"),
        }
    }

    fn result(ended: &Ended<Option<Stopped>>) -> &'static str {
        match ended {
            Ended::Done(None) => "success",
            Ended::Done(Some(_)) => "stopped",
            Ended::Panicked(_) => "panic",
            _ => "other",
        }
    }
}

const SLOTS: &str = "slots";
const GRACE: Duration = Duration::from_secs(10);
const PREPARATION: Duration = Duration::from_secs(30);

fn jobs(scene: &Arc<Scene>, slots: u64) -> (Jobs<Arc<Scene>>, Arc<Notify>) {
    let changed = Arc::new(Notify::new());
    let notify = changed.clone();
    let config = Config {
        budgets: vec![(SLOTS, Budget::of(slots, 1)), ("rate", Budget::rate(1, Duration::from_mins(1)))],
        preparation: PREPARATION,
        grace: GRACE,
        clock: Clock::default(),
        on_change: Box::new(move |key| {
            notify.notify_one();
            &*key.name != "gone"
        }),
    };
    (Jobs::new(scene.clone(), config), changed)
}

fn job(name: &str, act: Act) -> Job<Work> {
    let key = Key::new("a", name);
    Job {
        namespaces: vec![key.namespace.clone()],
        key,
        kind: "work",
        label: name.into(),
        draws: vec![Draw::new(SLOTS, 1)],
        time: Duration::from_hours(1),
        task: Work { act, read: Read::AtOnce, planned_on: 0 },
    }
}

fn key(name: &str) -> Key {
    Key::new("a", name)
}

/// Waits for the end of a job and takes its result.
async fn ended(jobs: &Jobs<Arc<Scene>>, changed: &Notify, name: &str) -> Ended<Option<Stopped>> {
    loop {
        if let Some(finished) = jobs.take(&key(name)) {
            return finished.ended.clone();
        }
        changed.notified().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_not_read_and_what_changed_meanwhile_is_outdated() {
    let scene = Arc::new(Scene { gate: Some(Semaphore::new(0)), ..Scene::default() });
    let (jobs, changed) = jobs(&scene, 1);
    jobs.submit(job("first", Act::Return)).unwrap();
    jobs.submit(job("second", Act::Return)).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((scene.prepared.load(Ordering::Relaxed), scene.begun.load(Ordering::Relaxed)), (1, 1));
    assert!(matches!(jobs.state(&key("second")), State::Waiting));
    scene.version.store(1, Ordering::Relaxed);
    scene.gate.as_ref().unwrap().add_permits(1);
    assert_eq!(ended(&jobs, &changed, "first").await, Ended::Done(None));
    assert_eq!(ended(&jobs, &changed, "second").await, Ended::Outdated("version 1".to_owned()));
    assert_eq!(scene.begun.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_newer_job_replaces_the_waiting_one_and_a_result_stays_until_it_is_taken() {
    let scene = Arc::new(Scene { gate: Some(Semaphore::new(0)), ..Scene::default() });
    let (jobs, changed) = jobs(&scene, 1);
    jobs.submit(job("one", Act::Return)).unwrap();
    for label in ["older", "newer"] {
        jobs.submit(Job { label: label.into(), ..job("one", Act::Return) }).unwrap();
    }
    assert_eq!((jobs.snapshot().waiting, jobs.snapshot().running), (1, 1));
    scene.gate.as_ref().unwrap().add_permits(2);
    while jobs.snapshot().running + jobs.snapshot().waiting > 0 {
        changed.notified().await;
    }
    for _ in 0..2 {
        let State::Finished(finished) = jobs.state(&key("one")) else { panic!("not finished") };
        assert_eq!(&*finished.label, "newer");
    }
    assert!(jobs.take(&key("one")).is_some() && jobs.take(&key("one")).is_none());
    assert_eq!(jobs.snapshot().ended[&("work", "success")].count, 2);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_asks_and_then_gives_up() {
    let scene = Arc::<Scene>::default();
    let (jobs, changed) = jobs(&scene, 4);
    let begin = jobs.config().clock.instant();
    for (name, act, expected, seconds) in [
        ("obeys", Act::Obey, Ended::Done(Some(Stopped::Deadline)), 5),
        ("ignores", Act::Ignore, Ended::Abandoned(Stopped::Deadline), 5 + 5 + GRACE.as_secs() + ABANDON.as_secs()),
    ] {
        jobs.submit(Job { time: Duration::from_secs(5), ..job(name, act) }).unwrap();
        assert_eq!(ended(&jobs, &changed, name).await, expected);
        assert_eq!((jobs.config().clock.instant() - begin).as_secs(), seconds, "{name}");
    }
    assert_eq!(jobs.snapshot().budgets[SLOTS], (0, 4));
}

#[tokio::test(start_paused = true)]
async fn preparing_has_its_own_limit_and_is_dropped_when_the_job_is_cancelled() {
    let scene = Arc::<Scene>::default();
    let (jobs, changed) = jobs(&scene, 4);
    let unreadable = |name: &str, read| {
        let job = job(name, Act::Return);
        Job { task: Work { read, ..job.task }, ..job }
    };
    jobs.submit(unreadable("late", Read::Never)).unwrap();
    assert_eq!(ended(&jobs, &changed, "late").await, Ended::NotBegun(Stopped::Deadline));
    jobs.submit(unreadable("cancelled", Read::Never)).unwrap();
    jobs.cancel(&key("cancelled"));
    assert!(matches!(jobs.state(&key("cancelled")), State::Running { is_ending: true, .. }));
    assert_eq!(ended(&jobs, &changed, "cancelled").await, Ended::NotBegun(Stopped::Cancelled));
    assert_eq!(scene.begun.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_panic_costs_its_job_alone() {
    let scene = Arc::<Scene>::default();
    let (jobs, changed) = jobs(&scene, 1);
    let unreadable = job("unreadable", Act::Return);
    jobs.submit(Job { task: Work { read: Read::Panics, ..unreadable.task }, ..unreadable }).unwrap();
    jobs.submit(job("shaken", Act::Panic)).unwrap();
    jobs.submit(job("calm", Act::Return)).unwrap();
    for name in ["unreadable", "shaken"] {
        let ended = ended(&jobs, &changed, name).await;
        assert!(matches!(ended, Ended::Panicked(_)), "{ended:?}");
    }
    assert_eq!(ended(&jobs, &changed, "calm").await, Ended::Done(None));
    assert_eq!(jobs.snapshot().ended[&("work", "panic")].count, 2);
}

#[tokio::test(start_paused = true)]
async fn cancelling_ends_what_runs_and_forgetting_only_what_waits() {
    let scene = Arc::<Scene>::default();
    let (jobs, changed) = jobs(&scene, 1);
    jobs.submit(job("gone", Act::Obey)).unwrap();
    jobs.submit(job("gone", Act::Obey)).unwrap();
    jobs.submit(job("dropped", Act::Return)).unwrap();
    jobs.forget(&key("gone"));
    jobs.forget(&key("dropped"));
    assert_eq!((jobs.snapshot().waiting, jobs.snapshot().running), (0, 1));
    assert!(matches!(jobs.state(&key("gone")), State::Running { is_ending: false, .. }));
    jobs.cancel(&key("gone"));
    changed.notified().await;
    tokio::task::yield_now().await;
    assert!(matches!(jobs.state(&key("gone")), State::Idle), "its object is gone, and with it the result");
    assert!(matches!(jobs.state(&key("dropped")), State::Idle));
}

#[tokio::test(start_paused = true)]
async fn draining_starts_nothing_drops_what_waits_and_waits_for_what_runs() {
    let scene = Arc::<Scene>::default();
    let (jobs, _) = jobs(&scene, 2);
    for name in ["1", "2", "3"] {
        jobs.submit(job(name, Act::Obey)).unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    jobs.drain(Duration::from_secs(3)).await;
    assert_eq!((jobs.snapshot().waiting, jobs.snapshot().running), (0, 0));
    assert_eq!(jobs.take(&key("1")).unwrap().ended, Ended::Done(Some(Stopped::Ending)));
    assert!(matches!(jobs.state(&key("3")), State::Idle));
    assert_eq!(jobs.submit(job("4", Act::Return)), Err(Refused::Draining));
}

#[tokio::test(start_paused = true)]
async fn a_later_request_to_end_only_brings_it_forward() {
    let stopper = Stopper::default();
    let mut stops = stopper.stops();
    let now = Clock::default().instant();
    let at = |seconds| now + Duration::from_secs(seconds);
    stopper.ask(Stop { why: Stopped::Cancelled, kill_at: at(10) });
    assert_eq!(stops.asked().await, Stop { why: Stopped::Cancelled, kill_at: at(10) });
    stopper.ask(Stop { why: Stopped::Deadline, kill_at: at(20) });
    stopper.ask(Stop { why: Stopped::Ending, kill_at: at(1) });
    assert_eq!(stops.asked().await, Stop { why: Stopped::Cancelled, kill_at: at(1) });
}

#[tokio::test(start_paused = true)]
async fn a_rate_wakes_what_waits_for_it() {
    let scene = Arc::<Scene>::default();
    let (jobs, changed) = jobs(&scene, 4);
    let begin = jobs.config().clock.instant();
    for name in ["1", "2", "3"] {
        jobs.submit(Job { draws: vec![Draw::on("rate", "account", 1)], ..job(name, Act::Return) }).unwrap();
    }
    assert_eq!(ended(&jobs, &changed, "3").await, Ended::Done(None));
    assert_eq!((jobs.config().clock.instant() - begin).as_secs(), 120);
}

#[tokio::test(start_paused = true)]
async fn jobs_end_with_the_lead_and_with_the_process() {
    let scene = Arc::<Scene>::default();
    let (jobs, _) = jobs(&scene, 2);
    let leadership = Leadership::always(Clock::default());
    let stop = CancellationToken::new();
    jobs.submit(job("1", Act::Obey)).unwrap();
    let ending = jobs.end_with(&leadership, Duration::from_millis(500), &stop, GRACE);
    let stopping = async {
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert_eq!(jobs.snapshot().running, 1);
        stop.cancel();
    };
    tokio::join!(ending, stopping);
    assert_eq!(jobs.take(&key("1")).unwrap().ended, Ended::Done(Some(Stopped::Ending)));
}

#[tokio::test(start_paused = true)]
async fn a_job_under_way_is_ended_before_its_lead_is_lost() {
    let scene = Arc::<Scene>::default();
    let (jobs, _) = jobs(&scene, 3);
    let (clock, margin, lead) = (Clock::default(), Duration::from_millis(500), Duration::from_secs(20));
    let leadership = Leadership::until(clock.instant() + lead, clock.clone());
    let (begin, stop) = (clock.instant(), CancellationToken::new());
    for name in ["1", "2", "3"] {
        jobs.submit(job(name, Act::Obey)).unwrap();
    }
    let ending = jobs.end_with(&leadership, margin, &stop, GRACE);
    let looking = async {
        tokio::time::sleep_until(begin + lead - margin * 2).await;
        assert_eq!((jobs.snapshot().running, jobs.snapshot().waiting), (2, 1), "while it leads they go on");
        tokio::time::sleep_until(begin + lead).await;
        assert_eq!((jobs.snapshot().running, jobs.snapshot().waiting), (0, 0), "nothing outlives the lead");
        stop.cancel();
    };
    tokio::join!(ending, looking);
    for name in ["1", "2"] {
        assert_eq!(jobs.take(&key(name)).unwrap().ended, Ended::Done(Some(Stopped::Ending)), "{name}");
    }
    assert_eq!(scene.begun.load(Ordering::Relaxed), 2, "what waited never begins");
}

/// A job of this namespace that ends when its deadline has come.
fn lasting(namespace: &str, name: &str, time: Duration) -> Job<Work> {
    let job = job(name, Act::Obey);
    Job { key: Key::new(namespace, name), namespaces: vec![namespace.into()], time, ..job }
}

/// Three namespaces ask for all they can get, for as long as they can, over and over; a fourth has now and then an
/// ordinary job.
#[tokio::test(start_paused = true)]
async fn an_ordinary_namespace_is_served_beside_any_number_of_greedy_ones() {
    let scene = Arc::<Scene>::default();
    let (jobs, changed) = jobs(&scene, 5);
    let (clock, most) = (Clock::default(), Duration::from_hours(1));
    let greedy = |time: Duration| {
        for (namespace, name) in ["one", "two", "three"].into_iter().flat_map(|n| ["1", "2", "3", "4"].map(|m| (n, m)))
        {
            let state = jobs.state(&Key::new(namespace, name));
            if matches!(state, State::Idle | State::Finished(_)) {
                jobs.submit(lasting(namespace, name, time)).unwrap();
            }
        }
    };
    let ordinary = Duration::from_mins(5);
    for (time, longest) in [(most, Duration::ZERO), (ordinary, ordinary + GRACE)] {
        for round in 0..20 {
            greedy(time);
            let asked = clock.instant();
            let calm = Key::new("calm", "1");
            jobs.submit(lasting("calm", "1", Duration::from_secs(30))).unwrap();
            while matches!(jobs.state(&calm), State::Waiting) {
                changed.notified().await;
                greedy(time);
            }
            // Where the greedy ones ask for ordinary times, what they have taken has to come back first.
            assert!(clock.instant() - asked <= longest, "{round}: {:?}", clock.instant() - asked);
            while !matches!(jobs.state(&calm), State::Finished(_)) {
                changed.notified().await;
                greedy(time);
            }
            tokio::time::sleep(Duration::from_mins(3)).await;
        }
        // What runs of the long ones ends first.
        jobs.cancel_all(GRACE).await;
    }
}
