//! The lock of the environment that an instance belongs to.

use std::{fs::File, io, path::Path, time::Duration};

use rustix::process::{Flock, FlockType, Pid, fcntl_getlk};

/// A lock that is given up has no event for those who never wanted it: to wait for it as a candidate would keep the
/// next holder out. This often costs one system call and is soon enough for processes that people look for afterwards.
const POLL: Duration = Duration::from_millis(500);

/// Returns once no process holds a lock on the file, or another one than at the start: that is another environment.
/// Never without a file.
pub async fn released(path: Option<&Path>) {
    let Some(path) = path else { return std::future::pending().await };
    let mut first = None;
    loop {
        match holder(path) {
            Ok(None) => return,
            Ok(Some(pid)) if *first.get_or_insert(pid) != pid => return,
            Ok(Some(_)) => {}
            // Not known is not free.
            Err(error) => tracing::warn!(path = %path.display(), %error, "cannot look at the environment's lock"),
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The process that has the file locked; one without a file has none.
fn holder(path: &Path) -> io::Result<Option<Pid>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let lock = fcntl_getlk(&file, &Flock::from(FlockType::WriteLock))?;
    Ok(lock.and_then(|lock| lock.pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn without_a_file_it_is_for_ever_and_without_a_holder_at_once() {
        let year = Duration::from_hours(24 * 365);
        assert!(tokio::time::timeout(year, released(None)).await.is_err());
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        released(Some(&path)).await;
        File::create(&path).unwrap();
        released(Some(&path)).await;
    }
}
