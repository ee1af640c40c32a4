//! How a running job is asked to end.

use tokio::{sync::watch, time::Instant};

/// Why a job was to end before it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Its time was over.
    Deadline,
    Cancelled,
    /// The lead was lost, or the process ends.
    Ending,
}

/// A job is to end: it is asked at once, and forced to at `kill_at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    pub why: Stopped,
    pub kill_at: Instant,
}

/// The side that asks.
#[derive(Debug, Default)]
pub(super) struct Stopper(watch::Sender<Option<Stop>>);

impl Stopper {
    pub fn stops(&self) -> Stops {
        Stops { asked: self.0.subscribe(), known: None }
    }

    pub fn is_asked(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// The first reason stays, and a later request only brings the end forward.
    pub fn ask(&self, stop: Stop) {
        self.0.send_if_modified(|known| match known {
            Some(known) if known.kill_at <= stop.kill_at => false,
            Some(known) => {
                known.kill_at = stop.kill_at;
                true
            }
            None => {
                *known = Some(stop);
                true
            }
        });
    }
}

/// The side that is asked.
#[derive(Clone, Debug)]
pub struct Stops {
    asked: watch::Receiver<Option<Stop>>,
    known: Option<Stop>,
}

impl Stops {
    /// The next time that an end is asked for, or asked for sooner.
    pub async fn asked(&mut self) -> Stop {
        loop {
            let latest = *self.asked.borrow_and_update();
            if let Some(stop) = latest.filter(|_| latest != self.known) {
                self.known = latest;
                return stop;
            }
            if self.asked.changed().await.is_err() {
                // The side that asks is gone.
                std::future::pending::<()>().await;
            }
        }
    }
}
