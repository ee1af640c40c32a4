//! Control planes that tests of a process share: one for all, and some that each has for itself for a while.

use std::{
    collections::BTreeMap,
    ops::Deref,
    sync::{Mutex, PoisonError},
};

use tokio::sync::{OnceCell, oneshot};

use super::{ControlPlane, Error, Options};

static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
/// Those that were lent before, by purpose. As many are started as tests have one at the same time.
static IDLE: Mutex<BTreeMap<&'static str, Vec<ControlPlane>>> = Mutex::new(BTreeMap::new());

impl ControlPlane {
    /// The control plane that all tests of this process share, each in a namespace of its own. It lives
    /// on a thread and runtime of its own, because those of a test end with the test, and until the
    /// process ends.
    pub async fn shared() -> Result<&'static Self, Error> {
        SHARED.get_or_try_init(start_on_own_thread).await
    }

    /// A control plane that no other test uses while the loan lasts: for operators of a test's own. Starting one costs more
    /// than most tests do, so it is left to the next test as it is, and that removes what would disturb it. A test that
    /// breaks a program, or changes what others rely on, starts its own. Tests of one purpose install the same kinds and
    /// rights: what is granted to one's operator would be granted to another's, too.
    pub async fn lent(purpose: &'static str) -> Result<Lent, Error> {
        let idle = idle().get_mut(purpose).and_then(Vec::pop);
        let control_plane = match idle {
            Some(control_plane) => control_plane,
            None => start_on_own_thread().await?,
        };
        Ok(Lent { purpose, control_plane: Some(control_plane) })
    }
}

/// A loan of a control plane; dropping it gives it back.
pub struct Lent {
    purpose: &'static str,
    control_plane: Option<ControlPlane>,
}

impl Deref for Lent {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        self.control_plane.as_ref().expect("only dropping it takes the control plane out")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        idle().entry(self.purpose).or_default().extend(self.control_plane.take());
    }
}

fn idle() -> std::sync::MutexGuard<'static, BTreeMap<&'static str, Vec<ControlPlane>>> {
    // Each use is one push or pop, so a poisoned lock still guards whole lists.
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn start_on_own_thread() -> Result<ControlPlane, Error> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => {
                let _ = sender.send(Err(Error::Shared(error.to_string())));
                return;
            }
        };
        runtime.block_on(async {
            // Nothing is measured on it, so the disk need not be waited for.
            let options = Options { fsync: false, ..Options::default() };
            let is_wanted = sender.send(ControlPlane::start(options).await).is_ok();
            if is_wanted {
                std::future::pending::<()>().await;
            }
        });
    });
    receiver.await.unwrap_or_else(|_| Err(Error::Shared("its thread panicked".to_owned())))
}
