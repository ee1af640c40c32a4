//! Faults for tests: storage and providers that are slow, refuse, hang, or are the last thing a process does.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use tokio::sync::watch;

use super::{Etag, Expect, MemoryStore, Object, Store, StoreError};

/// How every call behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// Each call takes that much longer.
    Slow(Duration),
    /// Each call fails at once, without an effect.
    Refusing,
    /// Calls with an effect fail, others go on: a full disk.
    Full,
    /// No call is answered until the fault is lifted.
    Partitioned,
    /// Objects whose key has this in it are listed, and said not to be there: something in front of the storage answers.
    Hiding(&'static str),
}

/// On which side of an effect the process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Before,
    After,
}

/// The faults of one process: its calls to storage and provider share them. Clones are the same process.
#[derive(Clone, Debug)]
pub struct Faults {
    inner: Arc<Mutex<Inner>>,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    fault: Fault,
    dead: bool,
}

#[derive(Debug)]
struct Inner {
    effects: usize,
    death: Option<(usize, Side)>,
}

/// The call was refused by a fault.
#[derive(Debug, thiserror::Error)]
#[error("an injected fault refused the call")]
pub struct Refused;

impl Default for Faults {
    fn default() -> Self {
        let inner = Arc::new(Mutex::new(Inner { effects: 0, death: None }));
        Self { inner, state: watch::Sender::new(State { fault: Fault::None, dead: false }) }
    }
}

impl Faults {
    /// A process that dies at its `point`th effect (from 0), on that side of it.
    pub fn dying(point: usize, side: Side) -> Self {
        let faults = Self::default();
        faults.die_at(point, side);
        faults
    }

    /// The process dies at its `point`th effect since it began.
    pub fn die_at(&self, point: usize, side: Side) {
        self.lock().death = Some((point, side));
    }

    pub fn set(&self, fault: Fault) {
        self.state.send_modify(|state| state.fault = fault);
    }

    /// How many effects the process began: the points at which it can die.
    pub fn effects(&self) -> usize {
        self.lock().effects
    }

    pub fn is_dead(&self) -> bool {
        self.state.borrow().dead
    }

    /// Resolves when the process dies. A test drops the rest of it then.
    pub async fn death(&self) {
        // The sender is ours: it cannot be gone.
        let _ = self.state.subscribe().wait_for(|state| state.dead).await;
    }

    /// A call that changes nothing.
    pub async fn read<T>(&self, call: impl Future<Output = T>) -> Result<T, Refused> {
        self.pass().await?;
        Ok(call.await)
    }

    /// A call with an effect: a point at which the process may die.
    pub async fn effect<T>(&self, call: impl Future<Output = T>) -> Result<T, Refused> {
        self.pass().await?;
        if self.state.borrow().fault == Fault::Full {
            return Err(Refused);
        }
        let side = {
            let mut inner = self.lock();
            let point = inner.effects;
            inner.effects += 1;
            inner.death.filter(|(at, _)| *at == point).map(|(_, side)| side)
        };
        if side == Some(Side::Before) {
            self.die().await;
        }
        let outcome = call.await;
        if side == Some(Side::After) {
            self.die().await;
        }
        Ok(outcome)
    }

    async fn pass(&self) -> Result<(), Refused> {
        let mut state = self.state.subscribe();
        loop {
            let now = *state.borrow_and_update();
            match now.fault {
                _ if now.dead => std::future::pending().await,
                Fault::None | Fault::Full | Fault::Hiding(_) => return Ok(()),
                Fault::Slow(time) => {
                    tokio::time::sleep(time).await;
                    return Ok(());
                }
                Fault::Refusing => return Err(Refused),
                Fault::Partitioned => {
                    let _ = state.changed().await;
                }
            }
        }
    }

    fn hides(&self, key: &str) -> bool {
        matches!(self.state.borrow().fault, Fault::Hiding(part) if key.contains(part))
    }

    /// A dead process gets no answer and does nothing more.
    async fn die(&self) {
        self.state.send_modify(|state| state.dead = true);
        std::future::pending::<()>().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A store as one process sees it.
#[derive(Clone)]
pub struct FaultyStore {
    store: Arc<dyn Store>,
    faults: Faults,
}

impl FaultyStore {
    pub fn new(store: Arc<dyn Store>, faults: Faults) -> Self {
        Self { store, faults }
    }
}

fn refused(key: &str) -> impl FnOnce(Refused) -> StoreError {
    move |refused| StoreError::unavailable(key, refused)
}

#[async_trait]
impl Store for FaultyStore {
    async fn get(&self, key: &str) -> Result<Option<Object>, StoreError> {
        let object = self.faults.read(self.store.get(key)).await.map_err(refused(key))?;
        object.map(|object| object.filter(|_| !self.faults.hides(key)))
    }

    async fn put(&self, key: &str, body: Vec<u8>, expect: Expect) -> Result<Etag, StoreError> {
        self.faults.effect(self.store.put(key, body, expect)).await.map_err(refused(key))?
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.faults.effect(self.store.delete(key)).await.map_err(refused(key))?
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.faults.read(self.store.list(prefix)).await.map_err(refused(prefix))?
    }
}

/// A store that ignores conditions, as some object stores do.
pub struct Careless(pub MemoryStore);

#[async_trait]
impl Store for Careless {
    async fn get(&self, key: &str) -> Result<Option<Object>, StoreError> {
        self.0.get(key).await
    }

    async fn put(&self, key: &str, body: Vec<u8>, expect: Expect) -> Result<Etag, StoreError> {
        let lax = match (expect, self.0.get(key).await?) {
            (Expect::Content(_), Some(object)) => Expect::Content(object.etag),
            (expect, _) => expect,
        };
        self.0.put(key, body, lax).await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.0.delete(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.0.list(prefix).await
    }
}
