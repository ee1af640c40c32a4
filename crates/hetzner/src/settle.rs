//! Trying again, and the one way in which everything is changed: look, act, look again.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use tokio::time::sleep;

use crate::{client::Client, error::Error};

/// Waits do not grow beyond this: faults of the API that last longer are the caller's to see.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Counts the attempts of one request or change.
pub(crate) struct Retry {
    left: u32,
    wait: Duration,
}

impl Client {
    pub(crate) fn retry(&self) -> Retry {
        Retry { left: self.settings().attempts, wait: self.settings().first_retry }
    }

    /// Makes true what `observe` looks for. A failed `act` may have been carried out, so every attempt begins with a
    /// look.
    pub(crate) async fn settle<T, O, A>(&self, observe: impl Fn() -> O, act: impl Fn() -> A) -> Result<T, Error>
    where
        O: Future<Output = Result<Option<T>, Error>>,
        A: Future<Output = Result<T, Error>>,
    {
        let mut retry = self.retry();
        let mut last: Option<Error> = None;
        loop {
            match observe().await {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                Err(error) if error.is_passing() => {
                    retry.wait(error).await?;
                    continue;
                }
                Err(error) => return Err(error),
            }
            if let Some(error) = last.take_if(|error| error.code() == Some("uniqueness_error")) {
                // It is not the name that is taken, and a look cannot find what is.
                return Err(error);
            }
            match act().await {
                Ok(done) => return Ok(done),
                Err(error) if error.is_passing() => {
                    last = Some(error.clone());
                    retry.wait(error).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Retry {
    /// Waits, or gives the error back when there were enough attempts.
    pub async fn wait(&mut self, error: Error) -> Result<(), Error> {
        if self.left <= 1 {
            return Err(error);
        }
        self.left -= 1;
        // The budget itself waits after a 429.
        tracing::debug!(%error, wait = ?self.wait, "hetzner: trying again");
        sleep(jittered(self.wait)).await;
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        Ok(())
    }
}

/// Between half of it and all of it, so that those who failed together do not come back together.
fn jittered(wait: Duration) -> Duration {
    let random = RandomState::new().hash_one(0_u8) % 512;
    wait / 2 + wait * u32::try_from(random).unwrap_or_default() / 1024
}
