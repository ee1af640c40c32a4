//! One control plane for all tests of a process.

use tokio::sync::{OnceCell, oneshot};

use super::{ControlPlane, Error, Options};

static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();

impl ControlPlane {
    /// The control plane that all tests of this process share, each in a namespace of its own. It lives
    /// on a thread and runtime of its own, because those of a test end with the test, and until the
    /// process ends.
    pub async fn shared() -> Result<&'static Self, Error> {
        SHARED.get_or_try_init(start_on_own_thread).await
    }
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
