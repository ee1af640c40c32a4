//! The contract of a round: which steps run, what is stored before them, and what is fetched for them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use api::performer::{Performer, PerformerStatus};
use jiff::Timestamp;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use plan::{
    fact::{Class, Failure},
    round::{Inputs, Peer, Plan, Progress, Report, Step, Why},
};
use runtime::{Controller, Error, Fence, InputsOf, Json, Key, Kind, Operator, RoundOf, Turn, enqueue_on_watch};
use serde_json::json;
use testbed::ControlPlane;

use crate::world::{World, run, until};

type Action = &'static str;
type Ask = &'static str;

/// What the script says to a step.
type Execute = Box<dyn Fn(Action) -> Result<(), Error> + Send + Sync>;
type Decide = Box<dyn Fn(&Inputs<u32, Ask, u32>) -> Plan<Action, Ask> + Send + Sync>;

/// A controller that plays a script for the objects of one namespace.
struct Script {
    performers: Arc<Kind<Json<Performer>, Performer>>,
    namespace: String,
    client: Client,
    decide: Decide,
    execute: Execute,
    diary: Diary,
    /// Objects that are changed behind the round's back, once.
    disturb: AtomicU32,
    fetched: Arc<AtomicU32>,
}

#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn count(&self, what: &str) -> usize {
        self.all().iter().filter(|noted| *noted == what).count()
    }
}

#[allow(clippy::unnecessary_wraps, reason = "the form that every kind's projection has")]
fn project(object: Json<Performer>) -> Option<Performer> {
    let status = serde_json::from_value(object.status).ok();
    Some(Performer { metadata: object.metadata, spec: None, status })
}

impl Controller for Script {
    const NAME: &'static str = "script";
    type View = Json<Performer>;
    type Object = Performer;
    type Kept = Performer;
    type Status = PerformerStatus;
    type Observed = bool;
    type Action = Action;
    type Done = ();
    type Note = u32;
    type Ask = Ask;
    type Answer = u32;

    fn kind(&self) -> &Arc<Kind<Json<Performer>, Performer>> {
        &self.performers
    }

    fn span(_: &Key) -> tracing::Span {
        tracing::Span::none()
    }

    async fn gather(&self, key: &Key, _: &Performer, _: &u32) -> Result<bool, Error> {
        let is_ours = *key.namespace == *self.namespace;
        if is_ours && self.disturb.swap(0, Ordering::SeqCst) > 0 {
            let api: Api<Performer> = Api::namespaced(self.client.clone(), &key.namespace);
            let patch = json!({"metadata": {"annotations": {"disturbed": "yes"}}});
            let patched = api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
            self.diary.note(format!("disturbed: {}", patched.is_ok()));
        }
        Ok(is_ours)
    }

    fn plan(&self, _: &Performer, is_ours: &bool, inputs: &InputsOf<Self>) -> Plan<Action, Ask> {
        if *is_ours { (self.decide)(inputs) } else { Plan::default() }
    }

    async fn execute(&self, turn: &Turn<'_, Self>, action: &Action) -> Result<(), Error> {
        let api: Api<Performer> = Api::namespaced(self.client.clone(), &turn.key.namespace);
        let stored = api.get(&turn.key.name).await.ok().and_then(|performer| performer.status?.pod_name);
        self.diary.note(format!("{action} with {}", stored.as_deref().unwrap_or("nothing")));
        (self.execute)(action)
    }

    /// The status shows the progress of every step.
    fn report(&self, round: &RoundOf<'_, Self>, _: Timestamp) -> Report<PerformerStatus, u32> {
        let word = |progress: &Progress<()>| match progress {
            Progress::NotBegun => "later",
            Progress::Begun => "begun",
            Progress::Done(()) => "done",
            Progress::Refused(_) => "refused",
            Progress::Failed { .. } => "failed",
            Progress::Skipped => "skipped",
        };
        let words: Vec<_> = round.attempts().map(|(action, progress)| format!("{action}:{}", word(progress))).collect();
        let words = words.join(" ");
        if *round.observed && !words.is_empty() {
            self.diary.note(&words);
        }
        let mut status = round.object.status.clone().unwrap_or_default();
        if *round.observed && !words.is_empty() {
            status.pod_name = Some(words);
        }
        Report {
            status,
            fallback: None,
            is_provisional: false,
            done: Vec::new(),
            transitions: Vec::new(),
            discriminator: String::new(),
            phase: String::new(),
            note: round.inputs.note + 1,
        }
    }

    async fn fetch(&self, ask: &Ask, _: &Fence) -> Result<u32, Failure> {
        let count = self.fetched.fetch_add(1, Ordering::SeqCst) + 1;
        self.diary.note(format!("fetched {ask}"));
        match *ask {
            "never" => Err(Failure { class: Class::Transient, message: "no answer".into() }),
            "panic" => panic!("a mistake of the controller"),
            _ => Ok(count),
        }
    }
}

struct Scene {
    world: World,
    diary: Diary,
    fetched: Arc<AtomicU32>,
    metrics: Arc<runtime::Metrics>,
}

impl Scene {
    /// A running operator with the script, and one Performer for it.
    async fn new(prefix: &str, decide: Decide, execute: Execute, disturb: u32) -> Result<Self> {
        let world = World::new(prefix).await?;
        ControlPlane::shared().await?.install(&[json!(api::performer::crd())]).await?;
        let mut operator: Operator = world.operator();
        let performers = Kind::new("performers", operator.writer("strata-test"), project);
        let queue = operator.queue(Duration::from_mins(10));
        operator.watch(&performers, enqueue_on_watch(&queue, |key| Some(key.clone())));
        let (diary, fetched) = (Diary::default(), Arc::<AtomicU32>::default());
        let metrics = operator.metrics.clone();
        let script = Script {
            performers,
            namespace: world.namespace.clone(),
            client: world.client.clone(),
            decide,
            execute,
            diary: diary.clone(),
            disturb: AtomicU32::new(disturb),
            fetched: fetched.clone(),
        };
        operator.control(script, queue, 4);
        run(operator).await?;
        let scene = Self { world, diary, fetched, metrics };
        scene.create("one").await?;
        Ok(scene)
    }

    async fn create(&self, name: &str) -> Result<()> {
        let performer: Performer = serde_json::from_value(json!({
            "metadata": {"name": name}, "spec": {"avsAddress": "0x1", "image": "x:1", "version": "1"},
        }))?;
        Api::namespaced(self.world.client.clone(), &self.world.namespace)
            .create(&PostParams::default(), &performer)
            .await?;
        Ok(())
    }

    /// How often the plan paused, and how many fetches came before each pause beyond those that a write excused. A
    /// change, as from the operator's own start, brings another four before the plan pauses again.
    fn defects(&self, excused: u32) -> (u32, Option<u32>) {
        let text = self.metrics.encode().unwrap();
        let value =
            text.lines().find_map(|line| line.strip_prefix(r#"strata_fetch_loops_total{controller="script"} "#));
        let defects = value.and_then(|value| value.parse().ok()).unwrap_or(0);
        let fetched = self.fetched.load(Ordering::SeqCst).saturating_sub(excused);
        (defects, (defects > 0 && fetched.is_multiple_of(defects)).then(|| fetched / defects))
    }

    async fn noted(&self, what: &str) -> Result<()> {
        until(&format!("{what} in {:?}", self.diary.all()), || self.diary.count(what) > 0).await
    }
}

fn refused() -> Error {
    Error::Refused(Why { reason: api::condition::Reason::InvalidSpec, message: "no".into() })
}

fn silent() -> Error {
    let failure = Failure { class: Class::Transient, message: "no answer".into() };
    Error::Peer { peer: "cloud".into(), failure, retry_after: Some(Duration::from_mins(10)) }
}

#[tokio::test]
async fn a_failed_step_stops_only_those_that_need_it() -> Result<()> {
    let decide = |_: &Inputs<_, _, _>| {
        let mut plan = Plan::default();
        let a = plan.push("a");
        let b = plan.push_step(Step::new("b").needs([a]));
        plan.push_step(Step::new("c").needs([b]));
        plan.push("d");
        plan
    };
    let execute = |action| if action == "a" { Err(refused()) } else { Ok(()) };
    let scene = Scene::new("needs", Box::new(decide), Box::new(execute), 0).await?;
    scene.noted("a:refused b:skipped c:skipped d:done").await
}

#[tokio::test]
async fn a_silent_peer_gets_no_more_and_others_do() -> Result<()> {
    let cloud = || Peer("cloud".into());
    let decide = move |_: &Inputs<_, _, _>| {
        let mut plan = Plan::default();
        plan.push_step(Step::new("a").to(cloud()));
        plan.push_step(Step::new("b").to(cloud()));
        plan.push("c");
        plan
    };
    let execute = |action| if action == "a" { Err(silent()) } else { Ok(()) };
    let scene = Scene::new("peers", Box::new(decide), Box::new(execute), 0).await?;
    scene.noted("a:failed b:skipped c:done").await?;
    assert_eq!(scene.diary.all().iter().filter(|line| line.starts_with("b with")).count(), 0);
    Ok(())
}

#[tokio::test]
async fn an_announced_step_begins_only_when_the_status_that_says_so_is_stored() -> Result<()> {
    let decide = |inputs: &Inputs<u32, Ask, u32>| {
        let mut plan = Plan::default();
        if inputs.note < 2 {
            plan.push_step(Step::new("a").announced());
        }
        plan
    };
    // The first round's view is old by the time it announces: the API server refuses that status.
    let scene = Scene::new("announced", Box::new(decide), Box::new(|_| Ok(())), 1).await?;
    scene.noted("a with a:begun").await?;
    let diary = scene.diary.all();
    assert_eq!(diary[..3], ["disturbed: true", "a:begun", "a:failed"], "{diary:?}");
    assert_eq!(diary.iter().filter(|line| line.starts_with("a with")).count(), 1, "{diary:?}");
    Ok(())
}

#[tokio::test]
async fn a_fact_is_fetched_once_for_all_that_want_it() -> Result<()> {
    let decide = |inputs: &Inputs<u32, Ask, u32>| {
        let mut plan = Plan::default();
        if let Some(fact) = plan.want(&inputs.facts, "fact", Duration::from_mins(5)) {
            assert_eq!(fact.known().ok(), Some(&1));
            if inputs.note < 4 {
                plan.push_step(Step::new("use").rests_on("fact", Duration::from_mins(1)));
            }
        }
        plan
    };
    let scene = Scene::new("wants", Box::new(decide), Box::new(|_| Ok(())), 0).await?;
    scene.create("two").await?;
    until("both used it", || scene.diary.count("use:done") >= 2).await?;
    assert_eq!(scene.fetched.load(Ordering::SeqCst), 1);
    Ok(())
}

#[tokio::test]
async fn a_step_does_not_rest_on_what_an_earlier_one_spoiled() -> Result<()> {
    let decide = |inputs: &Inputs<u32, Ask, u32>| {
        let mut plan = Plan::default();
        let members = plan.want(&inputs.facts, "members", Duration::from_mins(5));
        if members.and_then(|fact| fact.known().ok()) == Some(&1) {
            plan.push_step(Step::new("remove").rests_on("members", Duration::from_mins(1)).spoils(["members"]));
            plan.push_step(Step::new("remove-another").rests_on("members", Duration::from_mins(1)));
        }
        plan
    };
    let scene = Scene::new("spoils", Box::new(decide), Box::new(|_| Ok(())), 0).await?;
    scene.noted("remove:done remove-another:skipped").await?;
    until("it is fetched anew", || scene.diary.count("fetched members") == 2).await
}

#[tokio::test]
async fn an_answer_that_does_not_come_is_unknown_and_costs_no_round_its_slot() -> Result<()> {
    let decide = |inputs: &Inputs<u32, Ask, u32>| {
        let mut plan = Plan::default();
        let known = ["never", "panic"].map(|ask| plan.want(&inputs.facts, ask, Duration::from_mins(5)).cloned());
        if known.iter().all(|fact| fact.as_ref().is_some_and(|fact| fact.known().is_err())) {
            plan.push("unknown");
            plan.look_within(Duration::from_mins(5));
        }
        plan
    };
    let scene = Scene::new("unknown", Box::new(decide), Box::new(|_| Ok(())), 0).await?;
    scene.noted("unknown:done").await
}

#[tokio::test]
async fn a_plan_that_only_asks_is_reported_as_a_defect_and_pauses() -> Result<()> {
    const ASKS: [&str; 8] = ["1", "2", "3", "4", "5", "6", "7", "8"];
    let decide = |inputs: &Inputs<u32, Ask, u32>| {
        let mut plan = Plan::default();
        let all = ASKS.iter().take_while(|ask| plan.want(&inputs.facts, **ask, Duration::from_mins(5)).is_some());
        let _ = all.count();
        plan
    };
    let scene = Scene::new("loops", Box::new(decide), Box::new(|_| Ok(())), 0).await?;
    until("four fetches are counted as a defect", || matches!(scene.defects(0), (1.., Some(4)))).await
}

#[tokio::test]
async fn a_step_that_rests_on_what_no_plan_wants_is_reported_as_a_defect_too() -> Result<()> {
    let decide = |_: &Inputs<_, _, _>| {
        let mut plan = Plan::default();
        plan.push_step(Step::new("use").rests_on("loose", Duration::from_mins(1)));
        plan
    };
    let scene = Scene::new("rests", Box::new(decide), Box::new(|_| Ok(())), 0).await?;
    // One in the round that stored the status, and four in rounds that did nothing else.
    until("four fetches are counted as a defect", || matches!(scene.defects(1), (1.., Some(4)))).await
}

#[tokio::test]
async fn what_was_asked_for_in_vain_is_asked_for_again_without_a_change() -> Result<()> {
    let decide = |inputs: &Inputs<u32, Ask, u32>| {
        let mut plan = Plan::default();
        // As if each answer took longer than it may be old.
        plan.want(&inputs.facts, "late", Duration::ZERO);
        plan
    };
    let began = tokio::time::Instant::now();
    let scene = Scene::new("late", Box::new(decide), Box::new(|_| Ok(())), 0).await?;
    // Changes account for two at most.
    until("it is asked for again and again", || matches!(scene.defects(0), (3.., Some(4)))).await?;
    assert!(began.elapsed() >= Duration::from_secs(5), "after {:?}", began.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_fact_that_a_step_rests_on_is_not_fetched_again_before_its_time() -> Result<()> {
    let decide = |_: &Inputs<_, _, _>| {
        let mut plan = Plan::default();
        plan.push_step(Step::new("use").rests_on("never", Duration::from_mins(1)));
        plan
    };
    let scene = Scene::new("rests-later", Box::new(decide), Box::new(|_| Ok(())), 0).await?;
    until("it is fetched again", || scene.fetched.load(Ordering::SeqCst) >= 2).await?;
    // The round that asked, the one that the failure brought, and the one that asked again.
    assert!(scene.diary.count("use:skipped") >= 3, "{:?}", scene.diary.all());
    Ok(())
}

#[tokio::test]
async fn a_step_that_waits_for_a_change_does_not_hold_up_what_the_others_asked_for() -> Result<()> {
    let decide = |inputs: &Inputs<u32, Ask, u32>| {
        let mut plan = Plan::default();
        match inputs.note {
            // The next round follows because something was done.
            0 => {
                plan.push("wrong");
                plan.push("right");
            }
            // And the one after that because the plan asked for it.
            1 => {
                plan.push("wrong");
                plan.look_within(Duration::from_millis(100));
            }
            2 => {
                plan.push("last");
            }
            _ => {}
        }
        plan
    };
    let terminal = || {
        let failure = Failure { class: Class::Terminal, message: "wrong in itself".into() };
        Error::Peer { peer: "cloud".into(), failure, retry_after: None }
    };
    let execute = move |action| if action == "wrong" { Err(terminal()) } else { Ok(()) };
    let scene = Scene::new("terminal", Box::new(decide), Box::new(execute), 0).await?;
    // The resync comes after ten minutes.
    scene.noted("last:done").await?;
    let diary = scene.diary.all();
    assert!(diary.contains(&"wrong:failed right:done".to_owned()) && diary.contains(&"wrong:failed".to_owned()));
    let errors = r#"controller_runtime_terminal_reconcile_errors_total{controller="script"} 2"#;
    until("both failures are counted", || scene.metrics.encode().unwrap().contains(errors)).await
}
