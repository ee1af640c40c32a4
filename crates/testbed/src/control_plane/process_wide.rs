//! Control planes that tests of a process share: one for all, and some that each has for itself for a while.

use std::{
    ops::Deref,
    sync::{Mutex, PoisonError},
};

use tokio::sync::{OnceCell, oneshot};

use super::{ControlPlane, Error, Options};

static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
/// Those that were lent before. As many are started as tests have one at the same time.
static IDLE: Mutex<Vec<ControlPlane>> = Mutex::new(Vec::new());

impl ControlPlane {
    /// The control plane that all tests of this process share, each in a namespace of its own. It lives
    /// on a thread and runtime of its own, because those of a test end with the test, and until the
    /// process ends.
    pub async fn shared() -> Result<&'static Self, Error> {
        SHARED.get_or_try_init(start_on_own_thread).await
    }

    /// A control plane that no other test uses while the loan lasts: for operators of a test's own. Starting one costs more
    /// than most tests do, so it is left to the next test as it is, and that removes what would disturb it. A test that
    /// breaks a program, or changes what others rely on, starts its own.
    pub async fn lent() -> Result<Lent, Error> {
        let idle = idle().pop();
        let control_plane = match idle {
            Some(control_plane) => control_plane,
            None => start_on_own_thread().await?,
        };
        Ok(Lent(Some(control_plane)))
    }
}

/// A loan of a control plane; dropping it gives it back.
pub struct Lent(Option<ControlPlane>);

impl Deref for Lent {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        self.0.as_ref().expect("only dropping it takes the control plane out")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        idle().extend(self.0.take());
    }
}

fn idle() -> std::sync::MutexGuard<'static, Vec<ControlPlane>> {
    // Each use is one push or pop, so a poisoned lock still guards a whole list.
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
