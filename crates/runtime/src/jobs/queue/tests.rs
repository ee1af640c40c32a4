use proptest::prelude::*;

use super::*;
use crate::jobs::budget::LONG;

const BYTES: &str = "bytes";

fn bytes(total: u64, ordinary: u64) -> Queue<&'static str> {
    Queue::new([(BYTES, Budget::of(total, ordinary))])
}

fn now() -> Instant {
    Instant::now()
}

fn add(queue: &mut Queue<&'static str>, namespace: &str, name: &str, amount: u64) {
    let key = Key::new(namespace, name);
    queue.push(&key, std::slice::from_ref(&key.namespace), vec![Draw::new(BYTES, amount)], "").unwrap();
}

fn started(queue: &mut Queue<&'static str>) -> Vec<String> {
    std::iter::from_fn(|| queue.start_next(now())).map(|(key, _)| key.to_string()).collect()
}

fn finish(queue: &mut Queue<&'static str>, namespace: &str, name: &str) {
    queue.finish(&Key::new(namespace, name), now());
}

#[test]
fn the_newest_job_of_a_key_keeps_the_place() {
    let mut queue = bytes(1, 1);
    add(&mut queue, "a", "x", 1);
    add(&mut queue, "a", "y", 1);
    let key = Key::new("a", "x");
    let former =
        queue.push(&key, std::slice::from_ref(&key.namespace), vec![Draw::new(BYTES, 1)], "uninstall").unwrap();
    assert_eq!(former, Some(""));
    assert_eq!(queue.start_next(now()), Some((key.clone(), "uninstall")));
    add(&mut queue, "a", "x", 1);
    assert_eq!(started(&mut queue), [""; 0], "one key never runs twice, and the budget is used up");
    queue.finish(&key, now());
    assert_eq!(started(&mut queue), ["a/y"]);
}

#[test]
fn a_running_key_holds_up_no_other() {
    let mut queue = bytes(4, 1);
    add(&mut queue, "a", "x", 1);
    assert_eq!(started(&mut queue), ["a/x"]);
    add(&mut queue, "a", "x", 1);
    add(&mut queue, "a", "y", 1);
    assert_eq!(started(&mut queue), ["a/y"]);
}

#[test]
fn namespaces_take_turns_even_on_one_slot() {
    let mut queue = bytes(1, 1);
    for name in ["1", "2", "3"] {
        add(&mut queue, "many", name, 1);
    }
    let mut order = vec![];
    while let Some((key, _)) = queue.start_next(now()) {
        order.push(key.to_string());
        queue.finish(&key, now());
        if order.len() == 1 {
            add(&mut queue, "few", "1", 1);
        }
    }
    assert_eq!(order, ["many/1", "many/2", "few/1", "many/3"]);
}

#[test]
fn a_large_job_waits_for_what_ran_before_it_and_one_ordinary_job_at_a_time_goes_past() {
    let mut queue = bytes(5, 1);
    for name in ["1", "2", "3"] {
        add(&mut queue, "small", name, 1);
    }
    assert_eq!(started(&mut queue).len(), 3);
    add(&mut queue, "large", "1", 4);
    assert_eq!(started(&mut queue), [""; 0]);
    add(&mut queue, "large", "2", 1);
    add(&mut queue, "other", "1", 1);
    add(&mut queue, "third", "1", 1);
    add(&mut queue, "wide", "1", 2);
    assert_eq!(started(&mut queue), ["other/1"], "one, of another namespace");
    finish(&mut queue, "other", "1");
    assert_eq!(started(&mut queue), ["third/1"]);
    for name in ["1", "2"] {
        finish(&mut queue, "small", name);
        assert_eq!(started(&mut queue), [""; 0]);
    }
    finish(&mut queue, "small", "3");
    assert_eq!(started(&mut queue), ["large/1"], "although a third one still runs");
}

#[test]
fn w22_one_namespace_leaves_room_for_another() {
    let mut queue = bytes(4, 1);
    for name in ["1", "2", "3", "4"] {
        add(&mut queue, "slow", name, 1);
    }
    assert_eq!(started(&mut queue), ["slow/1", "slow/2", "slow/3"]);
    add(&mut queue, "quick", "1", 1);
    assert_eq!(started(&mut queue), ["quick/1"]);
    finish(&mut queue, "slow", "1");
    assert_eq!(started(&mut queue), ["slow/4"]);
}

#[test]
fn slow_jobs_with_a_budget_of_their_own_hold_up_no_quick_one_of_their_namespace() {
    let (calls, slow) = ("calls", "slow");
    let mut queue = Queue::new([(calls, Budget::calls(4)), (slow, Budget::calls(3))]);
    let push = |queue: &mut Queue<&'static str>, namespace: &str, name: &str, budgets: &[&'static str]| {
        let key = Key::new(namespace, name);
        let draws = budgets.iter().map(|budget| Draw::on(budget, "peer", 1)).collect();
        queue.push(&key, std::slice::from_ref(&key.namespace), draws, "").unwrap();
    };
    for (namespace, name) in [("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("b", "2")] {
        push(&mut queue, namespace, name, &[calls, slow]);
    }
    assert_eq!(started(&mut queue), ["a/1", "b/1", "a/2"], "as many as their budget has");
    push(&mut queue, "a", "quick", &[calls]);
    assert_eq!(started(&mut queue), ["a/quick"], "past the slow ones that wait");
    finish(&mut queue, "b", "1");
    assert_eq!(started(&mut queue), ["b/2"]);
}

#[test]
fn long_jobs_of_all_namespaces_leave_room_for_an_ordinary_one() {
    let mut queue = bytes(5, 1);
    let long = |queue: &mut Queue<&'static str>, namespace: &str, name: &str| {
        let key = Key::new(namespace, name);
        let draws = vec![Draw::new(BYTES, 1).lasting(LONG * 4)];
        queue.push(&key, std::slice::from_ref(&key.namespace), draws, "").unwrap();
    };
    for (namespace, name) in [("one", "1"), ("one", "2"), ("two", "1"), ("two", "2"), ("three", "1"), ("four", "1")] {
        long(&mut queue, namespace, name);
    }
    assert_eq!(started(&mut queue).len(), 4);
    for name in ["1", "2"] {
        add(&mut queue, "calm", name, 1);
    }
    assert_eq!(started(&mut queue), ["calm/1"]);
    finish(&mut queue, "calm", "1");
    assert_eq!(started(&mut queue), ["calm/2"], "and the next, although four namespaces ask for more");
}

#[test]
fn who_used_little_lately_goes_before_who_used_much() {
    let mut queue = bytes(1, 1);
    let begin = now();
    let mut run = |namespace: &str, from: u64, to: u64| {
        let key = Key::new(namespace, "run");
        queue.push(&key, std::slice::from_ref(&key.namespace), vec![Draw::new(BYTES, 1)], "").unwrap();
        assert!(queue.start_next(begin + Duration::from_secs(from)).is_some());
        queue.finish(&key, begin + Duration::from_secs(to));
    };
    run("busy", 0, 300);
    run("brief", 300, 310);
    for namespace in ["busy", "brief", "new"] {
        add(&mut queue, namespace, "next", 1);
    }
    let mut order = vec![];
    while let Some((key, _)) = queue.start_next(begin + Duration::from_secs(310)) {
        queue.finish(&key, begin + Duration::from_secs(310));
        order.push(key.namespace.to_string());
    }
    assert_eq!(order, ["new", "brief", "busy"]);
}

#[test]
fn what_no_share_holds_is_refused_by_name_and_amount() {
    let mut queue = bytes(5, 1);
    let key = Key::new("a", "x");
    let refused = queue.push(&key, std::slice::from_ref(&key.namespace), vec![Draw::new(BYTES, 5)], "");
    assert_eq!(refused, Err(Refused::TooLarge { budget: BYTES, asked: 5, most: 4 }));
    assert!(!queue.is_waiting(&key));
    let mut single = bytes(1, 1);
    add(&mut single, "a", "x", 1);
    assert_eq!(started(&mut single), ["a/x"], "a total of one ordinary draw has no room to share");
}

#[test]
fn a_job_that_several_wait_for_starts_in_the_first_turn_of_any() {
    let mut queue = bytes(4, 1);
    for name in ["1", "2", "3", "4"] {
        add(&mut queue, "busy", name, 1);
    }
    let pull = Key::new("", "chart");
    queue.push(&pull, &["busy".into()], vec![Draw::new(BYTES, 1)], "").unwrap();
    assert_eq!(started(&mut queue), ["busy/1", "busy/2", "busy/3"], "its share is used up");
    queue.join(&pull, &"calm".into());
    assert_eq!(started(&mut queue), ["/chart"]);
    assert!(!queue.is_waiting(&pull));
    queue.finish(&pull, now());
    finish(&mut queue, "busy", "1");
    assert_eq!(started(&mut queue), ["busy/4"], "it was taken out of both lines");
}

#[test]
fn a_peer_that_does_not_answer_holds_up_only_what_is_for_it() {
    let mut queue = Queue::new([("calls", Budget::calls(2))]);
    let mut add = |name: &str, peer: &str| {
        let key = Key::new("a", name);
        queue.push(&key, std::slice::from_ref(&key.namespace), vec![Draw::on("calls", peer, 1)], "").unwrap();
    };
    for (name, peer) in [("1", "dead"), ("2", "dead"), ("3", "alive"), ("4", "dead"), ("5", "alive")] {
        add(name, peer);
    }
    assert_eq!(started(&mut queue), ["a/1", "a/3"], "one of two for one namespace at each");
    finish(&mut queue, "a", "3");
    assert_eq!(started(&mut queue), ["a/5"]);
}

#[test]
fn a_rate_holds_however_soon_jobs_end() {
    let begin = now();
    let mut queue = Queue::new([("rate", Budget::rate(3, Duration::from_secs(10)))]);
    for (namespace, name) in [("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("b", "2")] {
        let key = Key::new(namespace, name);
        queue.push(&key, std::slice::from_ref(&key.namespace), vec![Draw::on("rate", "account", 1)], "").unwrap();
    }
    let mut started = |seconds: u64| {
        let mut names = vec![];
        while let Some((key, _)) = queue.start_next(begin + Duration::from_secs(seconds)) {
            queue.finish(&key, begin + Duration::from_secs(seconds));
            names.push(key.to_string());
        }
        (names, queue.next_refill().map(|at| (at - begin).as_secs()))
    };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(started(0), (names(&["a/1", "b/1", "a/2"]), Some(10)));
    assert_eq!(started(9), (vec![], Some(10)));
    assert_eq!(started(10), (names(&["b/2", "a/3"]), None), "what waits for nothing has no next moment");
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Namespace, name, bytes, peer.
    Push(u8, u8, u64, u8),
    Join(u8, u8, u8),
    Finish(usize),
    Remove(u8, u8),
    Wait(u64),
}

fn step(namespaces: u8, largest: u64) -> impl Strategy<Value = Step> {
    let names = 6u8;
    prop_oneof![
        5 => (0..namespaces, 0..names, 1..=largest, 0..2u8).prop_map(|(n, m, amount, peer)| Step::Push(n, m, amount, peer)),
        1 => (0..namespaces, 0..names, 0..namespaces).prop_map(|(n, m, other)| Step::Join(n, m, other)),
        4 => any::<usize>().prop_map(Step::Finish),
        1 => (0..namespaces, 0..names).prop_map(|(n, m)| Step::Remove(n, m)),
        1 => (1..5u64).prop_map(Step::Wait),
    ]
}

fn key(namespace: u8, name: u8) -> Key {
    Key::new(namespace.to_string(), name.to_string())
}

const PERIOD: Duration = Duration::from_secs(10);

/// A queue with all sorts of budgets, and a record of its own of what is drawn.
struct World {
    queue: Queue<Vec<Draw>>,
    at: Instant,
    running: Vec<(Key, Vec<Draw>)>,
    rates: Vec<(Instant, u64)>,
    total: u64,
}

impl World {
    fn new(total: u64, ordinary: u64) -> Self {
        let budgets =
            [(BYTES, Budget::of(total, ordinary)), ("calls", Budget::calls(3)), ("rate", Budget::rate(6, PERIOD))];
        Self { queue: Queue::new(budgets), at: now(), running: vec![], rates: vec![], total }
    }

    fn push(&mut self, key: &Key, amount: u64, peer: u8) {
        let mut draws = vec![Draw::new(BYTES, amount), Draw::on("calls", format!("peer-{peer}"), 1)];
        // Every other one may take long.
        if amount.is_multiple_of(2) {
            draws = draws.into_iter().map(|draw| draw.lasting(LONG * 2)).collect();
        }
        // Some jobs of the account whose rate is limited.
        if peer == 0 {
            draws.push(Draw::on("rate", "account", 1));
        }
        let namespace = key.namespace.clone();
        self.queue.push(key, &[namespace], draws.clone(), draws).unwrap();
    }

    fn finish(&mut self, at: usize) {
        if !self.running.is_empty() {
            let at = at % self.running.len();
            self.queue.finish(&self.running.remove(at).0, self.at);
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Push(namespace, name, amount, peer) => self.push(&key(namespace, name), amount, peer),
            Step::Join(namespace, name, other) => {
                self.queue.join(&key(namespace, name), &other.to_string().into());
            }
            Step::Finish(at) => self.finish(at),
            Step::Remove(namespace, name) => drop(self.queue.remove(&key(namespace, name))),
            Step::Wait(seconds) => self.at += Duration::from_secs(seconds),
        }
    }

    fn start(&mut self) {
        while let Some((key, draws)) = self.queue.start_next(self.at) {
            assert!(self.running.iter().all(|(other, _)| *other != key), "{key} runs twice");
            let rate = draws.iter().filter(|draw| draw.budget == "rate");
            self.rates.extend(rate.map(|draw| (self.at, draw.amount)));
            self.running.push((key, draws));
        }
    }

    fn check(&self) {
        let drawn = |budget, of: &str| -> u64 {
            let draws = self.running.iter().flat_map(|(_, draws)| draws);
            draws.filter(|draw| draw.budget == budget && *draw.of == *of).map(|draw| draw.amount).sum()
        };
        assert!(drawn(BYTES, "") <= self.total);
        let long =
            self.running.iter().flat_map(|(_, draws)| draws).filter(|draw| draw.budget == BYTES && draw.is_long());
        let long: u64 = long.map(|draw| draw.amount).sum();
        assert!(long <= self.queue.budgets().limits(BYTES).share);
        assert_eq!(drawn(BYTES, ""), self.queue.budgets().in_use(BYTES));
        assert!(drawn("calls", "peer-0") <= 3 && drawn("calls", "peer-1") <= 3);
        let recent = self.rates.iter().filter(|(at, _)| *at + PERIOD > self.at);
        assert!(recent.map(|(_, amount)| amount).sum::<u64>() <= 6);
        let is_waiting = self.queue.waiting() > 0 && self.queue.next_refill().is_none();
        assert!(!is_waiting || !self.running.is_empty(), "all wait and nothing runs");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 500, ..ProptestConfig::default() })]

    /// Whatever happens: every budget holds, a key runs once, and everything that waits starts in the end, also the
    /// largest, and also while ever new namespaces come with jobs of all sizes.
    #[test]
    fn never_too_much_and_never_starved(
        ordinary in 1..=8u64,
        newcomer in 1..=8u64,
        steps in proptest::collection::vec(step(3, 4), 1..80),
    ) {
        let mut world = World::new(8, ordinary);
        let largest = Budget::of(8, ordinary).share;
        for step in steps {
            world.take(step);
            world.start();
            world.check();
        }
        world.push(&Key::new("0", "largest"), largest, 1);
        let old: Vec<_> = world.queue.waiting.keys().cloned().collect();
        for ending in 0.. {
            if !old.iter().any(|key| world.queue.is_waiting(key)) {
                break;
            }
            prop_assert!(ending < 1000, "a job starves");
            // More than what can start, so that there is always one that could be preferred.
            if world.queue.waiting() < old.len() + 10 {
                let namespace = format!("new-{ending}");
                let peer = u8::try_from(ending % 2).unwrap();
                world.push(&Key::new(namespace.as_str(), "1"), newcomer.min(largest), peer);
                world.push(&Key::new("stream", namespace), 1, 1);
            }
            world.finish(0);
            world.at += Duration::from_secs(1);
            world.start();
            world.check();
        }
    }

    /// A namespace that asks for whatever it likes, and whose jobs never end, keeps no other waiting: ordinary jobs
    /// of another namespace start at once, one after another.
    #[test]
    fn w22_one_namespace_never_blocks_another(
        (total, ordinary) in (2..=20u64).prop_flat_map(|total| (Just(total), 1..=total / 2)),
        hostile in proptest::collection::vec((0..100u8, 1..=20u64, any::<bool>()), 1..60),
    ) {
        let mut queue = bytes(total, ordinary);
        let most = Budget::of(total, ordinary).share;
        for (round, (name, amount, removes)) in hostile.into_iter().enumerate() {
            add(&mut queue, "hostile", &name.to_string(), amount.min(most));
            if removes {
                queue.remove(&Key::new("hostile", name.to_string()));
            }
            let _ = started(&mut queue);
            let calm = format!("calm/{round}");
            add(&mut queue, "calm", &round.to_string(), ordinary);
            prop_assert!(started(&mut queue).contains(&calm), "{calm} waits");
            finish(&mut queue, "calm", &round.to_string());
        }
    }

    /// Two namespaces with work of any sizes: while one has something to start, the other is never served for long.
    #[test]
    fn w22_two_namespaces_with_unequal_requests_take_turns(
        sizes in proptest::collection::vec((1..=4u64, 1..=4u64), 60),
    ) {
        let mut queue = bytes(5, 1);
        for (number, (one, two)) in sizes.iter().enumerate() {
            add(&mut queue, "one", &number.to_string(), *one);
            add(&mut queue, "two", &number.to_string(), *two);
        }
        let (mut running, mut last, mut in_a_row) = (VecDeque::new(), Key::new("", ""), 0);
        // For as long as both have work.
        while queue.lines.len() == 2 {
            while let Some((key, _)) = queue.start_next(now()) {
                in_a_row = if key.namespace == last.namespace { in_a_row + 1 } else { 1 };
                prop_assert!(in_a_row <= 5, "only {} is served", key.namespace);
                last = key.clone();
                running.push_back(key);
            }
            let ended = running.pop_front();
            queue.finish(&ended.expect("something runs while anything waits"), now());
        }
    }
}
