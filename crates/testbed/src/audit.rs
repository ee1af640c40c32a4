//! The API server's audit log, read as typed entries.
//!
//! The server writes an entry when a request is complete, which may be just after the client got its
//! answer; [`AuditLog::wait_for`] waits for an entry instead of reading once.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
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
}

/// A moment in the log; entries after it are those of later requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    offset: u64,
    /// On a loaded machine the entry of an earlier request may be written after later ones have begun.
    at: jiff::Timestamp,
}

/// Entries are written within milliseconds of the answer; this only bounds a test that asks in vain.
const PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);

impl AuditLog {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
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
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(mark.offset))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        // The last line may be half written; it is whole the next time.
        let complete = text.iter().rposition(|&byte| byte == b'\n').unwrap_or(0);
        let lines = text[..complete].split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        let entries = lines.map(|line| Ok(serde_json::from_slice::<Line>(line)?.into()));
        let is_later = |entry: &io::Result<Entry>| entry.as_ref().map_or(true, |entry| entry.received_at >= mark.at);
        entries.filter(is_later).collect()
    }

    /// The first entry after `mark` that fits; `None` when none came in ten seconds.
    pub async fn wait_for(&self, mark: Mark, fits: impl Fn(&Entry) -> bool) -> io::Result<Option<Entry>> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let entry = self.entries_after(mark)?.into_iter().find(&fits);
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
