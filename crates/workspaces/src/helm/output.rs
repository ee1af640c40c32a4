//! What a finished helm tells: success, or a failure of a known class with helm's own last words. Pure.

use std::fmt;

/// Why an operation failed, as far as it steers what comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Not done in time: helm's own limit for a wait, or our deadline for the whole.
    Timeout,
    /// Ended by its own memory limit.
    OutOfMemory,
    /// No such chart, or no version of it that fits.
    ChartNotFound,
    /// The repository or registry refused the credentials.
    Unauthorised,
    /// The API server refused the identity that helm acts as.
    Forbidden,
    /// Another operation holds the release (`pending-*`).
    Locked,
    ReleaseNotFound,
    /// The API server, the repository or the registry did not answer.
    Unreachable,
    /// What was fetched is not what was pinned.
    DigestMismatch,
    /// Ended by us: cancelled, or the process is shutting down.
    Cancelled,
    /// Ended by a signal that was not ours, or never started.
    Killed,
    Other,
}

impl Class {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::OutOfMemory => "out-of-memory",
            Self::ChartNotFound => "chart-not-found",
            Self::Unauthorised => "unauthorised",
            Self::Forbidden => "forbidden",
            Self::Locked => "locked",
            Self::ReleaseNotFound => "release-not-found",
            Self::Unreachable => "unreachable",
            Self::DigestMismatch => "digest-mismatch",
            Self::Cancelled => "cancelled",
            Self::Killed => "killed",
            Self::Other => "other",
        }
    }
}

/// A failed operation: its class, and a message for people without secrets, of at most 4 KiB.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub class: Class,
    pub message: String,
}

impl Failure {
    pub(super) fn new(class: Class, message: impl fmt::Display) -> Self {
        Self { class, message: message.to_string() }
    }
}

/// Why we ended a child ourselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    Deadline,
    Cancelled,
    Draining,
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ending<'a> {
    pub exit: Option<i32>,
    pub signal: Option<i32>,
    pub stderr: &'a str,
    pub stopped: Option<Stopped>,
}

/// What a condition shows; etcd's objects and people's patience both have limits.
const MESSAGE_BYTES: usize = 4096;
/// Shorter strings occur by chance, and cutting them out would leave no message.
const SHORTEST_SECRET: usize = 4;

/// helm's words by class; the first that occurs decides, so the more specific stand first.
const WORDS: [(&str, Class); 22] = [
    ("another operation (install/upgrade/rollback) is in progress", Class::Locked),
    ("fatal error: runtime: out of memory", Class::OutOfMemory),
    ("fatal error: out of memory", Class::OutOfMemory),
    ("fatal error: runtime: cannot allocate memory", Class::OutOfMemory),
    ("runtime: cannot map pages in arena", Class::OutOfMemory),
    ("runtime: failed to create new OS thread", Class::OutOfMemory),
    ("Release not loaded:", Class::ReleaseNotFound),
    ("release: not found", Class::ReleaseNotFound),
    ("no chart version found", Class::ChartNotFound),
    ("no chart name found", Class::ChartNotFound),
    ("not found in", Class::ChartNotFound),
    ("404 Not Found", Class::ChartNotFound),
    ("could not locate a version matching", Class::ChartNotFound),
    ("401 Unauthorized", Class::Unauthorised),
    ("unauthorized", Class::Unauthorised),
    ("403 Forbidden", Class::Unauthorised),
    ("is forbidden:", Class::Forbidden),
    ("kubernetes cluster unreachable", Class::Unreachable),
    ("connection refused", Class::Unreachable),
    ("no such host", Class::Unreachable),
    ("context deadline exceeded", Class::Timeout),
    ("timed out waiting", Class::Timeout),
];

/// The result of one operation. `secrets` are cut out of every message.
pub(super) fn judge(ending: Ending<'_>, secrets: &[String]) -> Result<(), Failure> {
    if ending.exit == Some(0) {
        // Also when we had asked it to end: it was done before.
        return Ok(());
    }
    let said = last_words(ending.stderr);
    let class = match ending.stopped {
        Some(Stopped::Deadline) => Class::Timeout,
        Some(Stopped::Cancelled | Stopped::Draining) => Class::Cancelled,
        None if ending.exit.is_none() => Class::Killed,
        None => class_of(ending.stderr),
    };
    let lead = match (ending.stopped, class, ending.signal) {
        (Some(Stopped::Deadline), ..) => "ended because its time was over; ".to_owned(),
        (Some(Stopped::Cancelled), ..) => "cancelled; ".to_owned(),
        (Some(Stopped::Draining), ..) => "ended because the operator stops; ".to_owned(),
        (None, Class::OutOfMemory, _) => "helm needed more memory than it may use; ".to_owned(),
        (None, Class::Killed, Some(signal)) => format!("helm was ended by signal {signal}; "),
        _ => String::new(),
    };
    let said = if said.is_empty() { "helm said nothing".to_owned() } else { redact(&said, secrets) };
    Err(Failure { class, message: bounded(format!("{lead}{said}")) })
}

fn class_of(stderr: &str) -> Class {
    WORDS.iter().find(|(words, _)| stderr.contains(words)).map_or(Class::Other, |(_, class)| *class)
}

/// From helm's last error on; where it has none, its last lines.
fn last_words(stderr: &str) -> String {
    let lines: Vec<_> = stderr.lines().collect();
    let error = lines.iter().rposition(|line| line.starts_with("Error:") || line.starts_with("fatal error:"));
    // A stack trace may follow the runtime's own error, and only that line says anything.
    let end = error.filter(|&at| lines[at].starts_with("fatal")).map_or(lines.len(), |at| at + 1);
    let start = error.unwrap_or_else(|| end.saturating_sub(20));
    lines[start..end].join("\n").trim().trim_start_matches("Error: ").to_owned()
}

/// Cuts out the given secrets, whole and line by line, and the credentials of every URL.
pub(super) fn redact(text: &str, secrets: &[String]) -> String {
    let mut text = text.to_owned();
    let mut parts: Vec<_> = secrets.iter().flat_map(|secret| secret.lines().chain([secret.as_str()])).collect();
    // The longest first: a part cut out of a longer secret would leave the rest of it.
    parts.sort_by_key(|part| std::cmp::Reverse(part.len()));
    for part in parts.into_iter().map(str::trim).filter(|part| part.len() >= SHORTEST_SECRET) {
        text = text.replace(part, "[redacted]");
    }
    without_userinfo(&text)
}

fn without_userinfo(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        let end = after.find(|c: char| c == '/' || c == '"' || c.is_whitespace()).unwrap_or(after.len());
        out.push_str(before);
        rest = after[..end].rfind('@').map_or(after, |at| &after[at + 1..]);
    }
    out + rest
}

fn bounded(mut message: String) -> String {
    let end = message.floor_char_boundary(MESSAGE_BYTES);
    message.truncate(end);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(stderr: &str, class: Class, message: &str) {
        let ending = Ending { exit: Some(1), signal: None, stderr, stopped: None };
        let failure = judge(ending, &["hunter2".into(), "first line\nsecond line".into()]).unwrap_err();
        assert_eq!((failure.class, failure.message.as_str()), (class, message));
    }

    /// All of them were said by helm 4.3.1.
    #[test]
    fn helm_words_have_a_class() {
        let busy = "UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress";
        check(&format!("Error: {busy}\n"), Class::Locked, busy);
        let forbidden = "query: failed to query with labels: secrets is forbidden: User \"nobody\" cannot list";
        check(&format!("level=WARN msg=x\nError: {forbidden}"), Class::Forbidden, forbidden);
        let dead = "kubernetes cluster unreachable: Get \"https://127.0.0.1:1/version\": dial tcp: connection refused";
        check(&format!("Error: {dead}"), Class::Unreachable, dead);
        let slow = "UPGRADE FAILED: resource Deployment/exp/t not ready.\ncontext deadline exceeded";
        check(&format!("Error: {slow}"), Class::Timeout, slow);
        let missing = "chart \"four\" matching ^2.0 not found in r1 index. (try 'helm repo update'): \
                       no chart version found for four-^2.0";
        check(&format!("Error: {missing}"), Class::ChartNotFound, missing);
        check("Error: release: not found", Class::ReleaseNotFound, "release: not found");
        let gone = "uninstall: Release not loaded: nope: release: not found";
        check(&format!("Error: {gone}"), Class::ReleaseNotFound, gone);
        let locked_out = "failed to fetch http://h/four-1.0.0.tgz : 401 Unauthorized";
        check(&format!("Error: {locked_out}"), Class::Unauthorised, locked_out);
        let memory = "helm needed more memory than it may use; fatal error: runtime: out of memory";
        check("fatal error: runtime: out of memory\n\nruntime stack:\nmore", Class::OutOfMemory, memory);
        check("", Class::Other, "helm said nothing");
    }

    #[test]
    fn secrets_are_cut_out() {
        check("Error: bad hunter2 in hunter2", Class::Other, "bad [redacted] in [redacted]");
        check("Error: second line stands alone", Class::Other, "[redacted] stands alone");
        check("Error: Get \"https://u:p@ss@host/x\": y", Class::Other, "Get \"https://host/x\": y");
    }

    #[test]
    fn an_ending_of_ours_is_told_as_such_and_success_wins() {
        let ending = |exit, stopped| Ending { exit, signal: Some(9), stderr: "", stopped };
        assert_eq!(judge(ending(Some(0), Some(Stopped::Deadline)), &[]), Ok(()));
        let class = |exit, stopped| judge(ending(exit, stopped), &[]).unwrap_err().class;
        assert_eq!(class(Some(1), Some(Stopped::Deadline)), Class::Timeout);
        assert_eq!(class(None, Some(Stopped::Cancelled)), Class::Cancelled);
        assert_eq!(class(None, None), Class::Killed);
    }

    #[test]
    fn a_message_is_bounded() {
        let stderr = format!("Error: {}", "é".repeat(MESSAGE_BYTES));
        let ending = Ending { exit: Some(1), signal: None, stderr: &stderr, stopped: None };
        assert!(judge(ending, &[]).unwrap_err().message.len() <= MESSAGE_BYTES);
    }
}
