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

mod usage;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use self::usage::Usage;
use super::{
    Refused,
    budget::{Budget, Budgets, Draw, Drawn, Fit, PotName},
};
use crate::key::Key;

/// How often a namespace that uses little may go before one that uses more. Large enough that the first goes before
/// all that a usual budget runs at once, and small enough that the second starts soon.
const MOST_PASSES: u64 = 16;

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
mod tests;
