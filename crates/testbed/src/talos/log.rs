//! The record of calls that simulated nodes answered: one JSON object per line.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Mutex,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tonic::Code;

/// Its name in the folder of all disks.
pub(crate) const FILE: &str = "talos.log";

/// One call as a node answered it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Call {
    /// RFC 3339 in UTC with six fraction digits.
    pub time: String,
    /// Name of the server that answered, not of the one that forwarded the call.
    pub node: String,
    /// Without its service: `EtcdStatus`.
    pub rpc: String,
    /// As gRPC names it: `OK`, `PERMISSION_DENIED`.
    pub code: String,
}

/// Appends whole lines, so that readers never see half of one.
#[derive(Debug)]
pub(super) struct CallLog {
    path: PathBuf,
    file: Mutex<File>,
}

impl CallLog {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { path: path.to_owned(), file: Mutex::new(file) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn record(&self, node: &str, rpc: &str, code: Code) {
        let call = Call {
            time: format!("{:.6}", Timestamp::now()),
            node: node.to_owned(),
            rpc: rpc.to_owned(),
            code: code_name(code).to_owned(),
        };
        let mut line = serde_json::to_string(&call).expect("strings have a JSON form");
        line.push('\n');
        let mut file = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A full disk must not fail a call; the missing line shows.
        let _ = file.write_all(line.as_bytes());
    }

    /// All calls so far.
    pub(super) fn calls(&self) -> io::Result<Vec<Call>> {
        let text = std::fs::read_to_string(&self.path)?;
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }
}

/// gRPC's own name of a code.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_documented_form() {
        let directory = tempfile::tempdir().unwrap();
        let log = CallLog::open(&directory.path().join("talos.log")).unwrap();
        log.record("prod-cp-a1b2c", "EtcdStatus", Code::Ok);
        log.record("prod-w-d3e4f", "Reboot", Code::PermissionDenied);
        let text = std::fs::read_to_string(log.path()).unwrap();
        let first = text.lines().next().unwrap();
        let (time, rest) = first.split_once(r#"","node""#).unwrap();
        assert_eq!(rest, r#":"prod-cp-a1b2c","rpc":"EtcdStatus","code":"OK"}"#);
        let time = time.strip_prefix(r#"{"time":""#).unwrap();
        let shape: String = time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(shape, "0000-00-00T00:00:00.000000Z");
        assert_eq!(log.calls().unwrap()[1].code, "PERMISSION_DENIED");
    }
}
