//! What waits, what runs and what starts next. Pure: no process, and time is an argument.
//!
//! Namespaces take turns: the next job is the oldest of the namespace that uses the least of what it wants, of those
//! that use equally little, of the one that [used](Usage) the least lately, and of those, of the one whose turn is
//! longest ago. A namespace that was passed over [`MOST_PASSES`] times goes first.
//!
//! A job that does not fit beside what runs becomes the first in line at the budgets that are short. Others start past
//! it only as long as all of them together draw no more than what a share leaves of the total. No draw is larger than
//! a share, so the job starts at the latest when everything that ran before it came has ended; and however large it
//! is and however long others run, other namespaces are served meanwhile.
//!
//! One namespace never draws more than its share, so what its jobs take and how long they run keeps no other waiting. Nor
//! do long jobs of all namespaces together, so however many ask for as much and as long as they may, what no share holds
//! comes back soon; and who had none of it lately is the next to get it.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Refused,
    budget::{Budget, Budgets, Draw, Drawn, Fit, PotName},
};
use crate::key::Key;

/// How often a namespace that uses little may go before one that uses more. Large enough that the first goes before
/// all that a usual budget runs at once, and small enough that the second starts soon.
const MOST_PASSES: u64 = 16;

/// After this long, time that was used counts half: what a namespace took an hour ago says little about the present.
const HALF_LIFE: Duration = Duration::from_mins(10);

/// How long the jobs of each namespace ran lately. What runs now counts by what it draws.
#[derive(Debug, Default)]
struct Usage(HashMap<Arc<str>, (Duration, Instant)>);

impl Usage {
    fn of(&self, namespace: &str, now: Instant) -> Duration {
        self.0.get(namespace).map_or(Duration::ZERO, |used| Self::decayed(*used, now))
    }

    /// Also forgets what has become less than a second: no ordinary job takes less.
    fn add(&mut self, namespace: &Arc<str>, used: Duration, now: Instant) {
        let used = used + self.of(namespace, now);
        self.0.insert(namespace.clone(), (used, now));
        self.0.retain(|_, used| Self::decayed(*used, now) >= Duration::from_secs(1));
    }

    fn decayed((used, at): (Duration, Instant), now: Instant) -> Duration {
        used.mul_f64(0.5f64.powf(now.saturating_duration_since(at).div_duration_f64(HALF_LIFE)))
    }
}

/// `T` is what the caller gets back when it is a job's turn.
#[derive(Debug)]
pub(super) struct Queue<T> {
    budgets: Budgets,
    waiting: HashMap<Key, Waiting<T>>,
    lines: BTreeMap<Line, Turns>,
    running: HashMap<Key, Running>,
    usage: Usage,
    /// Counts pushes and starts: the order in which lines had their turn.
    turn: u64,
    starts: u64,
    tickets: u64,
}

#[derive(Debug)]
struct Running {
    drawn: Vec<Drawn>,
    namespace: Arc<str>,
    since: Instant,
}

/// Jobs that wait for one another: those of one namespace and, where they draw from the budgets of a peer or an
/// account, of that one. So a peer that does not answer holds up only what is for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    namespace: Arc<str>,
    peers: Vec<PotName>,
}

#[derive(Debug)]
struct Turns {
    /// When it last had a turn; a newcomer stands behind all that wait.
    last: u64,
    /// How much had been started by then.
    starts: u64,
    keys: VecDeque<Key>,
}

#[derive(Debug)]
struct Waiting<T> {
    draws: Vec<Draw>,
    /// Where it stands: in more than one when several namespaces want it.
    lines: Vec<Line>,
    /// Given when it did not fit for the first time.
    ticket: Option<u64>,
    request: T,
}

/// The first of a line, and its place among the first of all lines.
struct Candidate {
    place: (u8, u64, Duration, u64),
    line: Line,
    key: Key,
}

impl<T> Queue<T> {
    pub fn new(budgets: impl IntoIterator<Item = (&'static str, Budget)>) -> Self {
        Self {
            budgets: Budgets::new(budgets),
            waiting: HashMap::new(),
            lines: BTreeMap::new(),
            running: HashMap::new(),
            usage: Usage::default(),
            turn: 0,
            starts: 0,
            tickets: 0,
        }
    }

    pub fn budgets(&self) -> &Budgets {
        &self.budgets
    }

    /// Puts a job in the lines of these namespaces. A waiting one of the same key is replaced and returned; the new one
    /// keeps its place where it stands in the same lines.
    pub fn push(
        &mut self,
        key: &Key,
        namespaces: &[Arc<str>],
        draws: Vec<Draw>,
        request: T,
    ) -> Result<Option<T>, Refused> {
        for draw in &draws {
            let most = self.budgets.limits(draw.budget).share;
            if draw.amount > most {
                return Err(Refused::TooLarge { budget: draw.budget, asked: draw.amount, most });
            }
        }
        let peers: Vec<_> = draws.iter().filter(|draw| !draw.of.is_empty()).map(Draw::pot).collect();
        let line = |namespace: &Arc<str>| Line { namespace: namespace.clone(), peers: peers.clone() };
        let lines: Vec<_> = namespaces.iter().map(line).collect();
        if let Some(former) = self.waiting.get_mut(key).filter(|former| former.lines == lines) {
            self.budgets.release_hold(key);
            former.draws = draws;
            return Ok(Some(std::mem::replace(&mut former.request, request)));
        }
        let former = self.remove(key);
        self.waiting.insert(key.clone(), Waiting { draws, lines: lines.clone(), ticket: None, request });
        for line in lines {
            self.stand(key, line);
        }
        Ok(former)
    }

    /// Lets a waiting job also start in the turn of another namespace: of a job that several wait for, none has to wait
    /// for the turn of the one that asked first.
    pub fn join(&mut self, key: &Key, namespace: &Arc<str>) {
        let Some(waiting) = self.waiting.get_mut(key) else { return };
        let peers = waiting.lines.first().map(|line| line.peers.clone()).unwrap_or_default();
        let line = Line { namespace: namespace.clone(), peers };
        if !waiting.lines.contains(&line) {
            waiting.lines.push(line.clone());
            self.stand(key, line);
        }
    }

    /// At the end of a line; one whose key runs comes to stand there when that has ended.
    fn stand(&mut self, key: &Key, line: Line) {
        if self.running.contains_key(key) {
            return;
        }
        self.turn += 1;
        let (last, starts) = (self.turn, self.starts);
        let turns = self.lines.entry(line).or_insert_with(|| Turns { last, starts, keys: VecDeque::new() });
        turns.keys.push_back(key.clone());
    }

    /// Takes the job that starts now, if any; call until there is none.
    pub fn start_next(&mut self, now: Instant) -> Option<(Key, T)> {
        self.budgets.refill(now);
        let mut candidates = self.candidates(now);
        candidates.sort_by_key(|candidate| candidate.place);
        for Candidate { line, key, .. } in candidates {
            let Some(waiting) = self.waiting.get_mut(&key) else { continue };
            match self.budgets.fit(&key, &line.namespace, waiting.ticket, &waiting.draws) {
                Fit::Now => return self.start(&key, &line, now),
                Fit::Short(pots) => {
                    let tickets = &mut self.tickets;
                    let ticket = *waiting.ticket.get_or_insert_with(|| {
                        *tickets += 1;
                        *tickets
                    });
                    let is_long = waiting.draws.iter().any(Draw::is_long);
                    self.budgets.hold(pots, &key, &line.namespace, ticket, is_long);
                }
                // It waits for its own namespace, and no other namespace is to wait for that.
                Fit::OverShare => self.budgets.release_hold(&key),
                Fit::Behind => {}
            }
        }
        None
    }

    fn start(&mut self, key: &Key, line: &Line, now: Instant) -> Option<(Key, T)> {
        self.budgets.release_hold(key);
        if let Some(turns) = self.lines.get_mut(line) {
            self.turn += 1;
            self.starts += 1;
            (turns.last, turns.starts) = (self.turn, self.starts);
        }
        let Waiting { draws, request, .. } = self.leave(key)?;
        let drawn = self.budgets.draw(&line.namespace, &draws, now);
        self.running.insert(key.clone(), Running { drawn, namespace: line.namespace.clone(), since: now });
        Some((key.clone(), request))
    }

    fn candidates(&self, now: Instant) -> Vec<Candidate> {
        let candidate = |(line, turns): (&Line, &Turns)| {
            let key = turns.keys.front()?;
            let waiting = self.waiting.get(key)?;
            let place = match waiting.ticket {
                Some(ticket) => (0, ticket, Duration::ZERO, 0),
                None if self.starts - turns.starts >= MOST_PASSES => (1, turns.last, Duration::ZERO, 0),
                None => {
                    let used = self.budgets.used_part(&line.namespace, &waiting.draws);
                    (2, used, self.usage.of(&line.namespace, now), turns.last)
                }
            };
            Some(Candidate { place, line: line.clone(), key: key.clone() })
        };
        self.lines.iter().filter_map(candidate).collect()
    }

    /// What ran has ended.
    pub fn finish(&mut self, key: &Key, now: Instant) {
        if let Some(Running { drawn, namespace, since }) = self.running.remove(key) {
            self.budgets.give_back(&drawn);
            self.usage.add(&namespace, now.saturating_duration_since(since), now);
        }
        let lines = self.waiting.get(key).map(|waiting| waiting.lines.clone()).unwrap_or_default();
        for line in lines {
            self.stand(key, line);
        }
    }

    /// Takes a waiting job out.
    pub fn remove(&mut self, key: &Key) -> Option<T> {
        self.budgets.release_hold(key);
        self.leave(key).map(|waiting| waiting.request)
    }

    fn leave(&mut self, key: &Key) -> Option<Waiting<T>> {
        let waiting = self.waiting.remove(key)?;
        for line in &waiting.lines {
            if let Some(turns) = self.lines.get_mut(line) {
                turns.keys.retain(|other| other != key);
            }
            // Who comes back stands behind all that wait: what counts is what its namespace uses then.
            if self.lines.get(line).is_some_and(|turns| turns.keys.is_empty()) {
                self.lines.remove(line);
            }
        }
        Some(waiting)
    }

    /// Takes all waiting jobs out.
    pub fn clear(&mut self) {
        for key in self.waiting.keys().cloned().collect::<Vec<_>>() {
            self.remove(&key);
        }
    }

    pub fn is_waiting(&self, key: &Key) -> bool {
        self.waiting.contains_key(key)
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// When a job that waits for a rate could start.
    pub fn next_refill(&self) -> Option<Instant> {
        self.budgets.next_refill().filter(|_| !self.waiting.is_empty())
    }
}

#[cfg(test)]
mod tests {
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
    fn long_jobs_of_all_namespaces_leave_room_for_an_ordinary_one() {
        let mut queue = bytes(5, 1);
        let long = |queue: &mut Queue<&'static str>, namespace: &str, name: &str| {
            let key = Key::new(namespace, name);
            let draws = vec![Draw::new(BYTES, 1).lasting(LONG * 4)];
            queue.push(&key, std::slice::from_ref(&key.namespace), draws, "").unwrap();
        };
        for (namespace, name) in [("one", "1"), ("one", "2"), ("two", "1"), ("two", "2"), ("three", "1"), ("four", "1")]
        {
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
        assert!(queue.usage.0.len() <= 2, "who used nothing is not remembered");
        queue.usage.add(&"other".into(), Duration::from_secs(1), begin + HALF_LIFE * 20);
        assert_eq!(queue.usage.0.len(), 1, "what is long ago is forgotten");
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
}
