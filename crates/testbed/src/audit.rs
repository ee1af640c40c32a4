//! The API server's audit log, read as typed entries.
//!
//! The server writes an entry when a request is complete, which may be just after the client got its
//! answer; [`AuditLog::wait_for`] waits for an entry instead of reading once.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::Deserialize;

/// All users, metadata only, one entry per request at its end.
pub(crate) const POLICY: &str = r#"{"apiVersion":"audit.k8s.io/v1","kind":"Policy",
"omitStages":["RequestReceived","ResponseStarted","Panic"],"rules":[{"level":"Metadata"}]}"#;

/// One request as the API server saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub user: String,
    pub verb: String,
    pub resource: String,
    pub subresource: String,
    pub group: String,
    pub namespace: String,
    pub name: String,
    pub code: u16,
    pub user_agent: String,
    pub uri: String,
    pub received_at: jiff::Timestamp,
    /// When the answer was sent.
    pub answered_at: jiff::Timestamp,
}

impl Entry {
    pub fn is_write(&self) -> bool {
        matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection")
    }
}

/// The log of one control plane.
#[derive(Clone, Debug)]
pub struct AuditLog {
    path: PathBuf,
    /// Tests ask again and again, and a log of one program's tests has tens of megabytes: each line is decoded once.
    decoded: Arc<Mutex<Decoded>>,
}

/// The part of the log that was read.
#[derive(Debug, Default)]
struct Decoded {
    /// Where the first line begins that is not among them.
    end: u64,
    /// In the order of the log, each with the place where its line begins.
    entries: Vec<(u64, Entry)>,
}

impl Decoded {
    /// Reads what was written since.
    fn advance(&mut self, path: &Path) -> io::Result<()> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(self.end))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        // The last line may be half written; it is whole the next time.
        for line in text.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            let start = self.end;
            self.end += line.len() as u64;
            if line != b"\n" {
                self.entries.push((start, serde_json::from_slice::<Line>(line)?.into()));
            }
        }
        Ok(())
    }

    fn after(&self, mark: Mark) -> impl Iterator<Item = &Entry> {
        let first = self.entries.partition_point(|(start, _)| *start < mark.offset);
        self.entries[first..].iter().map(|(_, entry)| entry).filter(move |entry| entry.received_at >= mark.at)
    }
}

/// A moment in the log; entries after it are those of later requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    offset: u64,
    /// On a loaded machine the entry of an earlier request may be written after later ones have begun.
    at: jiff::Timestamp,
}

/// Entries are written within milliseconds of the answer; this only bounds a test that asks in vain.
const PATIENCE: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(50);

impl AuditLog {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, decoded: Arc::default() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The present end of the log.
    pub fn mark(&self) -> io::Result<Mark> {
        let offset = std::fs::metadata(&self.path)?.len();
        Ok(Mark { offset, at: jiff::Timestamp::now() })
    }

    /// Every request so far.
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        self.entries_after(Mark::default())
    }

    pub fn entries_after(&self, mark: Mark) -> io::Result<Vec<Entry>> {
        Ok(self.decoded()?.after(mark).cloned().collect())
    }

    /// All that is written by now.
    fn decoded(&self) -> io::Result<MutexGuard<'_, Decoded>> {
        // A panic leaves whole entries and their end behind.
        let mut decoded = self.decoded.lock().unwrap_or_else(PoisonError::into_inner);
        decoded.advance(&self.path)?;
        Ok(decoded)
    }

    /// The first entry after `mark` that fits; `None` when none came in a minute.
    pub async fn wait_for(&self, mark: Mark, fits: impl Fn(&Entry) -> bool) -> io::Result<Option<Entry>> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let entry = self.decoded()?.after(mark).find(|entry| fits(entry)).cloned();
            if entry.is_some() || tokio::time::Instant::now() > deadline {
                return Ok(entry);
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    verb: String,
    user: LineUser,
    #[serde(default)]
    user_agent: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: ResponseStatus,
    request_received_timestamp: jiff::Timestamp,
    stage_timestamp: jiff::Timestamp,
}

#[derive(Deserialize)]
struct LineUser {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObjectRef {
    resource: String,
    subresource: String,
    api_group: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseStatus {
    code: u16,
}

impl From<Line> for Entry {
    fn from(line: Line) -> Self {
        Self {
            user: line.user.username,
            verb: line.verb,
            resource: line.object_ref.resource,
            subresource: line.object_ref.subresource,
            group: line.object_ref.api_group,
            namespace: line.object_ref.namespace,
            name: line.object_ref.name,
            code: line.response_status.code,
            user_agent: line.user_agent,
            uri: line.request_uri,
            received_at: line.request_received_timestamp,
            answered_at: line.stage_timestamp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(user: &str) -> String {
        let time = "2026-01-01T00:00:00.000000Z";
        let line = serde_json::json!({
            "verb": "get", "user": { "username": user }, "requestURI": "/", "requestReceivedTimestamp": time,
            "stageTimestamp": time,
        });
        format!("{line}\n")
    }

    #[test]
    fn what_is_written_between_two_looks_is_read_once_and_only_when_its_line_is_whole() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (log, mut text) = (AuditLog::new(file.path().to_owned()), String::new());
        let mut users = |more: &str, mark: Mark| -> Vec<String> {
            text.push_str(more);
            std::fs::write(log.path(), &text).unwrap();
            log.entries_after(mark).unwrap().into_iter().map(|entry| entry.user).collect()
        };
        let (first, third) = (line("first"), line("third"));
        let (start, end) = third.split_at(20);
        assert_eq!(users("", Mark::default()), [""; 0]);
        assert_eq!(users(&first, Mark::default()), ["first"]);
        assert_eq!(users(&format!("{}{start}", line("second")), Mark::default()), ["first", "second"]);
        // A request whose line is being written came before the mark.
        let offset = std::fs::metadata(log.path()).unwrap().len();
        let mark = Mark { offset, at: jiff::Timestamp::MIN };
        assert_eq!(users(end, mark), [""; 0]);
        assert_eq!(users(&line("fourth"), mark), ["fourth"]);
        assert_eq!(users("", Mark::default()), ["first", "second", "third", "fourth"]);
    }
}
