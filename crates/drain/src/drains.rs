//! The drains of one cluster.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use plan::{
    drain::{FIELD_MANAGER, Order, Plan},
    fact::Failure,
};
use process::Clock;
use runtime::{Class, Cluster, Error, Key, Kind, Recorder, Selection, Slots};
use tokio::{sync::watch as signal, time::Instant};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    execute,
    follow::{Budgets, Followed, Scene},
    ledger::Ledger,
    run::{Run, changed},
    view::{BudgetView, NodeView},
};

/// Evictions of one cluster at once. Each is three writes for the server, which does a little over a thousand writes a
/// second: more in flight would only wait there, in the way of others.
const EVICTIONS: usize = 32;
/// Of these for the pods of one namespace: three namespaces whose evictions hang, on a webhook for example, leave room
/// for others. A namespace alone is still quick: at 50 ms each, eight at once are 160 evictions a second, as many as the
/// server did in the benchmark with 32 at once (2000 pods of one namespace in 12 s).
const EVICTIONS_OF_NAMESPACE: usize = 8;

/// As often as a node may change between our read and our write, one after another.
const UNDO_TRIES: u32 = 5;

/// What is asked for, and until when.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    pub order: Order,
    /// What is left on the node then is named and left.
    pub deadline: Option<Instant>,
}

/// How a drain stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The last plan; its `end` says that the drain is over.
    pub plan: Plan,
    /// Why the node could not be cordoned; it is tried again.
    pub cordon_failure: Option<Failure>,
}

/// Clones are the same; with the last of them all drains end.
#[derive(Clone)]
pub struct Drains(Arc<Owner>);

/// No drain holds this: it would keep itself alive.
struct Owner {
    shared: Arc<Shared>,
    running: Mutex<HashMap<String, Running>>,
}

/// What the drains have in common.
pub(crate) struct Shared {
    pub cluster: Cluster,
    pub clock: Clock,
    pub recorder: Recorder,
    pub ledger: Arc<Mutex<Ledger>>,
    pub evictions: Slots,
    budgets: Mutex<Weak<Budgets>>,
    /// Drains so far.
    count: AtomicU64,
}

struct Running {
    request: signal::Sender<Request>,
    progress: signal::Receiver<Progress>,
    task: AbortOnDropHandle<()>,
}

impl Running {
    /// Whether this drain is the one that is asked for.
    fn goes_on(&self, request: &Request) -> bool {
        let known = self.request.borrow();
        known.order.id == request.order.id && (!self.task.is_finished() || *known == *request)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn next_number(&self) -> u64 {
        self.count.fetch_add(1, Ordering::Relaxed)
    }

    /// All budgets of the cluster, followed once for all drains.
    pub fn budgets(&self) -> Arc<Budgets> {
        let mut known = lock(&self.budgets);
        if let Some(budgets) = known.upgrade() {
            return budgets;
        }
        let ledger = self.ledger.clone();
        let budgets = Followed::new(
            &self.cluster,
            "poddisruptionbudgets",
            Selection::default(),
            BudgetView::project,
            move |shown| lock(&ledger).shown(&shown.budget.name, &shown.disrupted),
        );
        let budgets = Arc::new(budgets);
        *known = Arc::downgrade(&budgets);
        budgets
    }
}

impl Drains {
    /// `recorder` records events in the cluster itself, where the nodes are.
    pub fn new(cluster: Cluster, recorder: Recorder, clock: Clock) -> Self {
        let shared = Shared {
            cluster,
            clock,
            recorder,
            ledger: Arc::default(),
            evictions: Slots::new(EVICTIONS, EVICTIONS_OF_NAMESPACE),
            budgets: Mutex::default(),
            count: AtomicU64::new(0),
        };
        Self(Arc::new(Owner { shared: Arc::new(shared), running: Mutex::default() }))
    }

    /// From now on the node is drained. A drain of the same id goes on, with what is asked for now; one of another id
    /// ends, and one that has ended begins anew if something else is asked for than then. `notify` is called whenever the progress changes.
    pub fn ensure(
        &self,
        node: &str,
        request: Request,
        notify: impl Fn() + Send + 'static,
    ) -> signal::Receiver<Progress> {
        let mut running = lock(&self.0.running);
        if let Some(known) = running.get(node).filter(|known| known.goes_on(&request)) {
            known.request.send_replace(request);
            return known.progress.clone();
        }
        let (request, requested) = signal::channel(request);
        let (report, progress) = signal::channel(Progress::default());
        let run = Run::new(self.0.shared.clone(), node, requested, report, Box::new(notify));
        let task = AbortOnDropHandle::new(tokio::spawn(run.run()));
        running.insert(node.to_owned(), Running { request, progress: progress.clone(), task });
        progress
    }

    /// How the drain of a node stands; `None` if there is none.
    pub fn progress(&self, node: &str) -> Option<Progress> {
        lock(&self.0.running).get(node).map(|running| running.progress.borrow().clone())
    }

    /// Ends the drain of a node. The node stays cordoned.
    pub fn release(&self, node: &str) {
        lock(&self.0.running).remove(node);
    }

    /// Ends the drain of a node that stays after all, and takes back its cordon. A node that another drain cordoned since
    /// is left alone.
    pub async fn undo(&self, node: &str, id: &str) -> Result<(), Error> {
        self.release(node);
        let (key, writer) = (Key::new("", node), self.0.shared.cluster.writer(FIELD_MANAGER));
        let nodes = Kind::new("nodes", writer.clone(), NodeView::project);
        let mut tries = 0;
        loop {
            tries += 1;
            let found = writer.read::<NodeView>("nodes", &key).await?.and_then(NodeView::project);
            let Some(found) = found.filter(|found| found.drain.as_deref() == Some(id)) else { return Ok(()) };
            match execute::uncordon(&nodes, &key, &found).await {
                // A node changes all the time: its kubelet reports, its labels are set.
                Err(error) if error.class() == Class::Conflict && tries < UNDO_TRIES => {}
                result => return result,
            }
        }
    }

    /// What a drain of the node would do. Nothing is changed.
    pub async fn preview(&self, node: &str, order: &Order) -> Plan {
        let mut scene = Scene::new(self.0.shared.cluster.clone(), node);
        scene.follow_pods(|| self.0.shared.budgets(), order.asks_for_namespaces());
        loop {
            // Subscribed before the look: what changes after it is not missed.
            let news = scene.news();
            if scene.is_settled() {
                return plan::drain::plan(order, &scene.observe(false), &BTreeMap::new(), None);
            }
            changed(news).await;
        }
    }
}
