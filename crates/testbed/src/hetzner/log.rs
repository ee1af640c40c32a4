//! The log of requests: one JSON object per line.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
    sync::Mutex,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// One request, as the log has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// RFC 3339, UTC, six fraction digits.
    pub time: String,
    pub method: String,
    /// Without `/v1` and the query.
    pub path: String,
    /// What the server produced, whether or not the client got it.
    pub status: u16,
}

/// Reads a log.
pub fn read(path: &Path) -> io::Result<Vec<Line>> {
    let text = std::fs::read_to_string(path)?;
    text.lines().map(|line| serde_json::from_str(line).map_err(io::Error::from)).collect()
}

#[derive(Debug, Default)]
pub(super) struct Log(Option<Mutex<File>>);

impl Log {
    pub fn open(path: Option<&Path>) -> io::Result<Self> {
        let open = |path| OpenOptions::new().create(true).append(true).open(path);
        Ok(Self(path.map(open).transpose()?.map(Mutex::new)))
    }

    pub fn write(&self, method: &str, path: &str, status: u16) {
        let Some(file) = &self.0 else { return };
        let time = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
        let line = Line { time, method: method.to_owned(), path: path.to_owned(), status };
        let mut text = serde_json::to_vec(&line).unwrap_or_default();
        text.push(b'\n');
        // One write per line: readers that follow the file never see half of one.
        let mut file = file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Err(error) = file.write_all(&text) {
            tracing::warn!(%error, "the log of the Hetzner simulator cannot be written");
        }
    }
}
