//! Where an operator is killed: at the nth effect that concerns one subject, be it a write to the API server or a call to
//! a shard, just before or just after it is carried out.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use shard::provider::InProcess;
use testbed::fault::{ApiRequest, Calls, Fault, FaultProxy, Injected, Verb};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    Before,
    After,
}

/// One place to be killed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub nth: u64,
    pub side: Side,
}

/// What a held call to a shard is described with, before its method.
pub const CALL: &str = "Call";

/// A call that changes something on a shard.
#[derive(Clone, Debug)]
pub struct Rpc {
    pub method: String,
    /// The group or the instance that it is about.
    pub about: String,
}

pub struct Strike {
    /// A group, whose name is part of the names of all that belongs to it but its instances.
    subject: String,
    pub point: Point,
    /// Events are written one after another by one task: a held one holds those of all subjects.
    counts_events: bool,
    cloud: InProcess,
    seen: AtomicU64,
    /// The call to a shard that is held.
    rpc: Mutex<Option<String>>,
}

impl Strike {
    pub fn new(subject: &str, point: Point, counts_events: bool, cloud: &InProcess) -> Arc<Self> {
        Arc::new(Self {
            subject: subject.to_owned(),
            point,
            counts_events,
            cloud: cloud.clone(),
            seen: AtomicU64::new(0),
            rpc: Mutex::default(),
        })
    }

    /// Effects of the subject so far.
    pub fn seen(&self) -> u64 {
        self.seen.load(Ordering::SeqCst)
    }

    /// Also of what is named by an instance.
    fn concerns(&self, name: &str) -> bool {
        name.contains(&self.subject) || self.cloud.order(name).is_some_and(|order| order.group == self.subject)
    }

    /// Counts an effect of the subject; whether it is the one.
    fn takes(&self, name: &str) -> bool {
        self.concerns(name) && self.seen.fetch_add(1, Ordering::SeqCst) + 1 == self.point.nth
    }

    fn takes_write(&self, request: &ApiRequest) -> bool {
        let name = request.name.as_deref().unwrap_or_default();
        // An event is named by its object.
        let name = if request.resource == "events" { name.split('.').next().unwrap_or_default() } else { name };
        (self.counts_events || request.resource != "events") && self.takes(name)
    }

    fn reach(&self, rpc: &Rpc) {
        *self.rpc.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{CALL} {}", rpc.method));
    }
}

/// A strike that waits for its moment in both proxies.
pub struct Armed {
    pub strike: Arc<Strike>,
    writes: Injected,
}

impl Armed {
    pub fn new(strike: Arc<Strike>, proxy: &FaultProxy, strikes: &Strikes) -> Self {
        let fault = match strike.point.side {
            Side::Before => Fault::HoldBeforeCommit,
            Side::After => Fault::HoldAfterCommit,
        };
        let counting = strike.clone();
        let writes = proxy.inject(Calls::writes("*").only_if(move |request| counting.takes_write(request)), fault);
        strikes.add(strike.clone());
        Self { strike, writes }
    }

    /// What is held: verb and resource, or the method of a call.
    pub async fn reached(&self) -> Option<String> {
        if let Some(rpc) = self.strike.rpc.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            return Some(rpc);
        }
        if self.writes.hits() == 0 {
            return None;
        }
        let ApiRequest { verb, resource, subresource, .. } = self.writes.reached().await.ok()?;
        let part = subresource.map(|part| format!("/{part}")).unwrap_or_default();
        Some(format!("{} {resource}{part}", word(verb)))
    }

    /// The operator is dead: what was held goes nowhere.
    pub fn cut(&self) {
        self.writes.cut();
    }
}

fn word(verb: Verb) -> &'static str {
    match verb {
        Verb::Create => "Create",
        Verb::Update => "Update",
        Verb::Patch => "Patch",
        Verb::Delete => "Delete",
        Verb::DeleteCollection => "DeleteCollection",
        Verb::Get | Verb::List | Verb::Watch => "Read",
    }
}

/// All strikes that calls to shards may meet. Clones are the same.
#[derive(Clone, Default)]
pub struct Strikes(Arc<Mutex<Vec<Arc<Strike>>>>);

impl Strikes {
    fn add(&self, strike: Arc<Strike>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(strike);
    }

    pub fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn take(&self, rpc: &Rpc) -> Option<Arc<Strike>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = None;
        // Every one counts the call.
        for strike in all.iter() {
            if strike.takes(&rpc.about) {
                taken = Some(strike.clone());
            }
        }
        taken
    }

    /// Carries a call out, unless it is held for good.
    pub async fn meet<T>(&self, rpc: &Rpc, call: impl Future<Output = T>) -> T {
        let strike = self.take(rpc);
        if let Some(strike) = strike.as_ref().filter(|strike| strike.point.side == Side::Before) {
            strike.reach(rpc);
            std::future::pending::<()>().await;
        }
        let answer = call.await;
        if let Some(strike) = strike {
            strike.reach(rpc);
            std::future::pending::<()>().await;
        }
        answer
    }
}
