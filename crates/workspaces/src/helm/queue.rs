//! What waits, what runs and what starts next. Pure: no clock, no process.
//!
//! Namespaces take turns: the next request is the oldest of the namespace that uses the fewest bytes now, and of those
//! that use equally few, of the one whose turn is longest ago. When that request does not fit beside what runs, nothing
//! else starts either until it does; so a large request is never overtaken for ever, and since no request is larger
//! than the budget, it starts at the latest when everything that runs now has ended.
//!
//! One namespace alone does not get all of the budget: operations that wait for minutes would keep all others waiting.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use runtime::Key;

/// `T` is what the caller wants back when it is a request's turn.
#[derive(Debug)]
pub(super) struct Queue<T> {
    total: u64,
    /// What one namespace may use with more than one request.
    share: u64,
    in_use: u64,
    running: HashMap<Key, u64>,
    namespaces: BTreeMap<Arc<str>, Turns<T>>,
    turn: u64,
    /// Its turn has come and it does not fit yet.
    held: Option<Key>,
}

#[derive(Debug)]
struct Turns<T> {
    /// When it last had a turn; a newcomer stands behind all that wait.
    last: u64,
    in_use: u64,
    waiting: VecDeque<Waiting<T>>,
}

#[derive(Debug)]
struct Waiting<T> {
    key: Key,
    bytes: u64,
    request: T,
}

impl<T> Queue<T> {
    pub fn new(total: u64, share: u64) -> Self {
        Self { total, share, in_use: 0, running: HashMap::new(), namespaces: BTreeMap::new(), turn: 0, held: None }
    }

    /// Puts a request in its line, in the place of a waiting one of the same key, which is returned.
    pub fn push(&mut self, key: Key, bytes: u64, request: T) -> Option<T> {
        debug_assert!(bytes <= self.total, "the caller refuses what can never start");
        self.turn += 1;
        let last = self.turn;
        let turns = self.namespaces.entry(key.namespace.clone()).or_insert_with(|| Turns {
            last,
            in_use: 0,
            waiting: VecDeque::new(),
        });
        if let Some(waiting) = turns.waiting.iter_mut().find(|waiting| waiting.key == key) {
            waiting.bytes = bytes;
            return Some(std::mem::replace(&mut waiting.request, request));
        }
        turns.waiting.push_back(Waiting { key, bytes, request });
        None
    }

    /// Takes the request that starts now, if any; call until there is none.
    pub fn start_next(&mut self) -> Option<(Key, u64, T)> {
        let (namespace, at) = self.held().or_else(|| self.candidate())?;
        let free = self.total - self.in_use;
        let turns = self.namespaces.get_mut(&namespace)?;
        let next = &turns.waiting[at];
        if next.bytes > free {
            self.held = Some(next.key.clone());
            return None;
        }
        let Waiting { key, bytes, request } = turns.waiting.remove(at)?;
        self.held = None;
        self.turn += 1;
        turns.last = self.turn;
        turns.in_use += bytes;
        self.in_use += bytes;
        self.running.insert(key.clone(), bytes);
        Some((key, bytes, request))
    }

    /// The request that did not fit last time, if it still waits.
    fn held(&self) -> Option<(Arc<str>, usize)> {
        let key = self.held.as_ref()?;
        let waiting = &self.namespaces.get(&key.namespace)?.waiting;
        Some((key.namespace.clone(), waiting.iter().position(|waiting| waiting.key == *key)?))
    }

    /// Whose turn it is, fitting or not.
    fn candidate(&self) -> Option<(Arc<str>, usize)> {
        let candidates = self.namespaces.iter().filter_map(|(namespace, turns)| {
            // A key that runs already waits for its own end and holds up nobody else.
            let at = turns.waiting.iter().position(|waiting| !self.running.contains_key(&waiting.key))?;
            let is_within = turns.in_use == 0 || turns.in_use + turns.waiting[at].bytes <= self.share;
            is_within.then_some(((turns.in_use, turns.last), namespace, at))
        });
        candidates.min_by_key(|(order, ..)| *order).map(|(_, namespace, at)| (namespace.clone(), at))
    }

    /// What ran has ended.
    pub fn finish(&mut self, key: &Key) {
        let Some(bytes) = self.running.remove(key) else { return };
        self.in_use -= bytes;
        if let Some(turns) = self.namespaces.get_mut(&key.namespace) {
            turns.in_use -= bytes;
        }
        self.forget_idle(&key.namespace);
    }

    /// Takes a waiting request out.
    pub fn remove(&mut self, key: &Key) -> Option<T> {
        let turns = self.namespaces.get_mut(&key.namespace)?;
        let at = turns.waiting.iter().position(|waiting| waiting.key == *key)?;
        let removed = turns.waiting.remove(at).map(|waiting| waiting.request);
        self.forget_idle(&key.namespace);
        removed
    }

    /// Takes all waiting requests out.
    pub fn clear(&mut self) {
        self.namespaces.values_mut().for_each(|turns| turns.waiting.clear());
        self.namespaces.retain(|_, turns| turns.in_use > 0);
    }

    pub fn is_waiting(&self, key: &Key) -> bool {
        self.namespaces.get(&key.namespace).is_some_and(|turns| turns.waiting.iter().any(|w| w.key == *key))
    }

    pub fn waiting(&self) -> usize {
        self.namespaces.values().map(|turns| turns.waiting.len()).sum()
    }

    pub fn in_use(&self) -> u64 {
        self.in_use
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    fn forget_idle(&mut self, namespace: &str) {
        if self.namespaces.get(namespace).is_some_and(|turns| turns.in_use == 0 && turns.waiting.is_empty()) {
            self.namespaces.remove(namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn started(queue: &mut Queue<&'static str>) -> Vec<String> {
        std::iter::from_fn(|| queue.start_next()).map(|(key, _, what)| format!("{key}={what}")).collect()
    }

    #[test]
    fn the_newest_request_of_a_key_keeps_the_place() {
        let mut queue = Queue::new(1, 1);
        queue.push(Key::new("a", "x"), 1, "install");
        queue.push(Key::new("a", "y"), 1, "install");
        assert_eq!(queue.push(Key::new("a", "x"), 1, "uninstall"), Some("install"));
        assert_eq!(started(&mut queue), ["a/x=uninstall"]);
        queue.push(Key::new("a", "x"), 1, "again");
        assert_eq!(started(&mut queue), [""; 0], "one key never runs twice, and the budget is used up");
        queue.finish(&Key::new("a", "x"));
        assert_eq!(started(&mut queue), ["a/y=install"]);
    }

    #[test]
    fn a_running_key_holds_up_nobody_else() {
        let mut queue = Queue::new(3, 3);
        queue.push(Key::new("a", "x"), 1, "1");
        assert_eq!(started(&mut queue), ["a/x=1"]);
        queue.push(Key::new("a", "x"), 1, "2");
        queue.push(Key::new("a", "y"), 1, "1");
        assert_eq!(started(&mut queue), ["a/y=1"]);
    }

    #[test]
    fn namespaces_take_turns_even_on_one_slot() {
        let mut queue = Queue::new(1, 1);
        for name in ["1", "2", "3"] {
            queue.push(Key::new("many", name), 1, "");
        }
        let mut order = vec![];
        while let Some((key, ..)) = queue.start_next() {
            order.push(key.to_string());
            queue.finish(&key);
            if order.len() == 1 {
                queue.push(Key::new("few", "1"), 1, "");
            }
        }
        assert_eq!(order, ["many/1", "many/2", "few/1", "many/3"]);
    }

    #[test]
    fn a_large_request_is_not_overtaken() {
        let mut queue = Queue::new(4, 4);
        for name in ["1", "2", "3"] {
            queue.push(Key::new("small", name), 1, "");
        }
        assert_eq!(started(&mut queue).len(), 3);
        queue.push(Key::new("large", "1"), 4, "");
        queue.push(Key::new("small", "4"), 1, "");
        for name in ["1", "2", "3"] {
            assert_eq!(started(&mut queue), [""; 0]);
            queue.finish(&Key::new("small", name));
        }
        assert_eq!(started(&mut queue), ["large/1="]);
    }

    #[test]
    fn w22_one_namespace_leaves_room_for_another() {
        let mut queue = Queue::new(4, 3);
        for name in ["1", "2", "3", "4"] {
            queue.push(Key::new("slow", name), 1, "");
        }
        assert_eq!(started(&mut queue), ["slow/1=", "slow/2=", "slow/3="]);
        queue.push(Key::new("quick", "1"), 1, "");
        assert_eq!(started(&mut queue), ["quick/1="]);
        queue.finish(&Key::new("slow", "1"));
        assert_eq!(started(&mut queue), ["slow/4="]);
        for name in ["2", "3", "4"] {
            queue.finish(&Key::new("slow", name));
        }
        queue.finish(&Key::new("quick", "1"));
        queue.push(Key::new("slow", "large"), 4, "");
        assert_eq!(started(&mut queue), ["slow/large="], "alone it may have all");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(u8, u8, u64),
        Finish(usize),
        Remove(u8, u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..3u8, 0..6u8, 1..=8u64).prop_map(|(namespace, name, bytes)| Step::Push(namespace, name, bytes)),
            2 => any::<usize>().prop_map(Step::Finish),
            1 => (0..3u8, 0..6u8).prop_map(|(namespace, name)| Step::Remove(namespace, name)),
        ]
    }

    fn key(namespace: u8, name: u8) -> Key {
        Key::new(namespace.to_string(), name.to_string())
    }

    proptest! {
        /// Whatever happens: the budget holds, a key runs once, and everything that waits starts in the end, no
        /// later than after as many endings as there were others.
        #[test]
        fn never_too_much_and_never_forgotten(share in 4..=8u64, steps in proptest::collection::vec(step(), 1..80)) {
            let mut queue = Queue::new(8, share);
            let mut running: Vec<(Key, u64)> = vec![];
            for step in steps {
                match step {
                    Step::Push(namespace, name, bytes) => {
                        queue.push(key(namespace, name), bytes, ());
                    }
                    Step::Finish(_) if running.is_empty() => {}
                    Step::Finish(at) => queue.finish(&running.swap_remove(at % running.len()).0),
                    Step::Remove(namespace, name) => {
                        queue.remove(&key(namespace, name));
                    }
                }
                while let Some((key, bytes, ())) = queue.start_next() {
                    prop_assert!(running.iter().all(|(other, _)| *other != key));
                    running.push((key, bytes));
                }
                prop_assert!(running.iter().map(|(_, bytes)| bytes).sum::<u64>() <= 8);
                prop_assert_eq!(running.iter().map(|(_, bytes)| bytes).sum::<u64>(), queue.in_use());
                prop_assert!(queue.waiting() == 0 || !running.is_empty());
            }
            // A stream of newcomers of another namespace that never ends must not hold the rest up.
            let mut endings = 0;
            let old: Vec<_> = (0..3).flat_map(|n| (0..6).map(move |m| key(n, m))).collect();
            while old.iter().any(|key| queue.is_waiting(key)) {
                prop_assert!(endings < 200, "somebody starves");
                queue.push(Key::new("stream", endings.to_string()), 1, ());
                queue.finish(&running.remove(0).0);
                endings += 1;
                while let Some((key, bytes, ())) = queue.start_next() {
                    running.push((key, bytes));
                }
            }
        }
    }
}
