//! How a finished helm ended: success, or a failure of a known class with helm's own last words. Pure.

use std::{collections::HashSet, fmt};

use aho_corasick::{Anchored, automaton::Automaton, nfa::contiguous::NFA};
use runtime::{child::Private, jobs::Stopped};
use serde_json::Value;

use super::command::OperationKind;

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
    /// The registry has no TLS, and was not said to have none.
    PlainHttp,
    /// What was fetched is not what was pinned.
    DigestMismatch,
    /// A chart or an index is larger than any that could be used.
    TooLarge,
    /// Charts in use take all of the cache.
    CacheFull,
    /// Ended by us: cancelled, or the process is shutting down.
    Cancelled,
    /// Handed back untouched: what it was planned on changed while it waited.
    NotBegun,
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
            Self::PlainHttp => "plain-http",
            Self::DigestMismatch => "digest-mismatch",
            Self::TooLarge => "too-large",
            Self::CacheFull => "cache-full",
            Self::Cancelled => "cancelled",
            Self::NotBegun => "not-begun",
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

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ending<'a> {
    pub operation: OperationKind,
    pub exit: Option<i32>,
    pub signal: Option<i32>,
    pub stderr: &'a str,
    pub stopped: Option<Stopped>,
    /// Its guard ended it, because the operator was silent.
    pub is_abandoned: bool,
}

/// What a condition shows; etcd's objects and people's patience both have limits.
const MESSAGE_BYTES: usize = 4096;
/// Shorter strings occur by chance, and cutting them out would leave no message.
const SHORTEST_SECRET: usize = 4;
/// Of all secrets together, each with its lines: what looks for them takes some fifty times that for a moment.
const SECRET_BYTES: usize = 512 << 10;

/// Words of Go's runtime, whatever it was asked to do. In each table the first that occurs decides.
const OUT_OF_MEMORY: [(&str, Class); 4] = [
    ("fatal error: runtime: out of memory", Class::OutOfMemory),
    ("fatal error: out of memory", Class::OutOfMemory),
    ("fatal error: runtime: cannot allocate memory", Class::OutOfMemory),
    ("failed to create new OS thread", Class::OutOfMemory),
];
/// helm's words when it fetches a chart.
const OF_A_PULL: [(&str, Class); 17] = [
    // The file that it writes has reached its limit.
    (": file too large", Class::TooLarge),
    ("no chart version found", Class::ChartNotFound),
    ("no chart name found", Class::ChartNotFound),
    ("could not locate a version matching", Class::ChartNotFound),
    ("404 Not Found", Class::ChartNotFound),
    ("status code 404", Class::ChartNotFound),
    (": not found", Class::ChartNotFound),
    ("401 Unauthorized", Class::Unauthorised),
    ("status code 401", Class::Unauthorised),
    ("403 Forbidden", Class::Unauthorised),
    ("status code 403", Class::Unauthorised),
    ("credential not found", Class::Unauthorised),
    ("server gave HTTP response to HTTPS client", Class::PlainHttp),
    ("connection refused", Class::Unreachable),
    ("no such host", Class::Unreachable),
    ("i/o timeout", Class::Unreachable),
    ("context deadline exceeded", Class::Timeout),
];
/// helm's words when it works on a release. A wait in vain quotes what its objects say, which may be of any kind, so
/// that stands before what else could be read out of it.
const OF_A_RELEASE: [(&str, Class); 21] = [
    // An install, where another process has made the release meanwhile: what is there is to be looked at again.
    ("cannot reuse a name that is still in use", Class::Locked),
    ("another operation (install/upgrade/rollback) is in progress", Class::Locked),
    ("release: not found", Class::ReleaseNotFound),
    ("kubernetes cluster unreachable", Class::Unreachable),
    ("context deadline exceeded", Class::Timeout),
    ("timed out waiting", Class::Timeout),
    // Not a quota, which is also "forbidden".
    ("is forbidden: User", Class::Forbidden),
    // The operator's own disk or limits, which say nothing about the release.
    (": no space left on device", Class::Killed),
    (": too many open files", Class::Killed),
    ("the server has asked for the client to provide credentials", Class::Forbidden),
    ("connection refused", Class::Unreachable),
    ("no such host", Class::Unreachable),
    // An API server that goes away in the middle of it.
    ("i/o timeout", Class::Unreachable),
    ("TLS handshake timeout", Class::Unreachable),
    ("connection reset by peer", Class::Unreachable),
    ("http2: client connection lost", Class::Unreachable),
    ("http2: server sent GOAWAY", Class::Unreachable),
    ("\": unexpected EOF", Class::Unreachable),
    ("\": EOF", Class::Unreachable),
    ("the server is currently unable to handle the request", Class::Unreachable),
    ("etcdserver: ", Class::Unreachable),
];

/// The result of one operation. `secrets` are cut out of every message.
pub(super) fn judge(ending: Ending<'_>, secrets: &[Private]) -> Result<(), Failure> {
    if ending.exit == Some(0) {
        // Also when we had asked it to end: it was done before.
        return Ok(());
    }
    let said = last_words(ending.stderr);
    let class = match ending.stopped {
        Some(Stopped::Deadline) => Class::Timeout,
        Some(Stopped::Cancelled | Stopped::Ending) => Class::Cancelled,
        None if ending.is_abandoned => Class::Cancelled,
        None if ending.exit.is_none() => Class::Killed,
        None => class_of(ending.operation, &said),
    };
    let lead = match (ending.stopped, class, ending.signal) {
        (Some(Stopped::Deadline), ..) => "ended because its time was over; ".to_owned(),
        (Some(Stopped::Cancelled), ..) => "cancelled; ".to_owned(),
        (Some(Stopped::Ending), ..) => "ended because the operator stops; ".to_owned(),
        (None, Class::Cancelled, _) => "ended because the operator did not run for too long; ".to_owned(),
        (None, Class::OutOfMemory, _) => "helm needed more memory than it may use; ".to_owned(),
        (None, Class::Killed, Some(signal)) => format!("helm was ended by signal {signal}; "),
        _ => String::new(),
    };
    let said = if said.is_empty() { "helm said nothing".to_owned() } else { redact(&said, secrets) };
    Err(Failure { class, message: bounded(format!("{lead}{said}")) })
}

fn class_of(operation: OperationKind, said: &str) -> Class {
    let table = if operation == OperationKind::Pull { &OF_A_PULL[..] } else { &OF_A_RELEASE };
    let mut words = OUT_OF_MEMORY.iter().chain(table);
    words.find(|(words, _)| said.contains(words)).map_or(Class::Other, |(_, class)| *class)
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

/// Every text and number in YAML documents that is not too short, each a secret by itself.
pub fn secrets_in(documents: &[Private]) -> impl Iterator<Item = Private> {
    let texts = documents.iter().filter_map(|document| std::str::from_utf8(document.expose()).ok());
    texts.filter_map(|text| serde_saphyr::from_str(text).ok()).flat_map(|value| leaves(&value))
}

fn leaves(value: &Value) -> Vec<Private> {
    // Those are passed over by `redact` anyway, and there may be a million of them.
    let leaf = |text: &str| if text.len() < SHORTEST_SECRET { Vec::new() } else { vec![Private::new(text)] };
    match value {
        Value::Object(fields) => fields.values().flat_map(leaves).collect(),
        Value::Array(elements) => elements.iter().flat_map(leaves).collect(),
        Value::String(text) => leaf(text),
        Value::Number(number) => leaf(&number.to_string()),
        Value::Null | Value::Bool(_) => Vec::new(),
    }
}

/// Cuts out the given secrets, whole and line by line, as they are and as they are quoted, and the credentials of every
/// URL. What is put in their place is not searched again: secrets that occur in it would let the text grow with each of
/// them.
pub fn redact(text: &str, secrets: &[Private]) -> String {
    let secrets: Vec<_> = secrets.iter().map(|secret| String::from_utf8_lossy(secret.expose())).collect();
    let parts = secrets.iter().flat_map(|secret| secret.lines().chain([&**secret])).map(str::trim);
    let mut parts: HashSet<_> = parts.filter(|part| (SHORTEST_SECRET..=text.len()).contains(&part.len())).collect();
    let quoted: Vec<_> = parts.iter().flat_map(|part| quoted(part)).collect();
    parts.extend(quoted.iter().map(String::as_str));
    let Some(searched) = automaton(&parts) else {
        return "[redacted: it has more secret values than can be looked for]".to_owned();
    };
    // Secrets overlap: of each position, how many begin there, less those that end.
    let mut edges = vec![0_i64; text.len() + 1];
    let mut state = searched.start_state(Anchored::No).expect("it is made for this");
    for (at, byte) in text.bytes().enumerate() {
        state = searched.next_state(Anchored::No, state, byte);
        if searched.is_match(state) {
            // Of those that end here the first is the longest, and covers the others.
            let length = searched.pattern_len(searched.match_pattern(state, 0));
            edges[at + 1 - length] += 1;
            edges[at + 1] -= 1;
        }
    }
    let open = edges.iter().scan(0, |open, edge| {
        *open += edge;
        Some(*open > 0)
    });
    let is_secret: Vec<bool> = open.collect();
    without_userinfo(&without(text, &is_secret))
}

/// A text with characters that quotes have other signs for, as Go and JSON write it in them. Go's JSON has some for HTML.
fn quoted(text: &str) -> Vec<String> {
    let is_plain = |c: char| !c.is_control() && !matches!(c, '"' | '\\' | '<' | '>' | '&');
    if text.chars().all(is_plain) {
        return Vec::new();
    }
    let quotes = serde_json::to_string(text).unwrap_or_default();
    let json = quotes.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or_default().to_owned();
    let html = json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    vec![json, html]
}

/// What finds all of these in one pass; `None` if they are too much. It has a state for each of their bytes, and not a
/// table for each state, as the crate's own choice for a few long ones would.
fn automaton(parts: &HashSet<&str>) -> Option<NFA> {
    let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
    (bytes <= SECRET_BYTES).then(|| NFA::new(parts).ok()).flatten()
}

/// The text with one mark in place of each run of bytes that are not to be shown; runs begin and end with a character.
fn without(text: &str, is_hidden: &[bool]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut was_hidden = false;
    for (at, character) in text.char_indices() {
        match (is_hidden[at], was_hidden) {
            (true, false) => out.push_str("[redacted]"),
            (true, true) => {}
            (false, _) => out.push(character),
        }
        was_hidden = is_hidden[at];
    }
    out
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

    fn judged(operation: OperationKind, stderr: &str) -> Failure {
        let ending = Ending { operation, exit: Some(1), signal: None, stderr, stopped: None, is_abandoned: false };
        judge(ending, &["hunter2", "first line\nsecond line"].map(Private::new)).unwrap_err()
    }

    fn check(operation: OperationKind, said: &str, class: Class) {
        let failure = judged(operation, &format!("level=WARN msg=\"404 Not Found\"\nError: {said}\n"));
        assert_eq!((failure.class, failure.message.as_str()), (class, said));
    }

    /// In the words that Go has for them.
    #[test]
    fn what_the_operators_machine_lacks_is_not_the_releases_failure() {
        for said in ["write /tmp/x: no space left on device", "fork/exec /bin/plugin: too many open files"] {
            check(OperationKind::Upgrade, said, Class::Killed);
        }
        check(OperationKind::Upgrade, "timed out waiting: no space left on device", Class::Timeout);
    }

    /// All of them were said by helm 4.3.1.
    #[test]
    fn helm_words_have_a_class() {
        let release = |said, class| check(OperationKind::Upgrade, said, class);
        release("UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress", Class::Locked);
        release("secrets is forbidden: User \"nobody\" cannot list resource \"secrets\"", Class::Forbidden);
        release("pods \"web\" is forbidden: exceeded quota: compute", Class::Other);
        for said in [
            "Patch \"https://h/api\": dial tcp 10.0.0.1:443: i/o timeout",
            "Patch \"https://h/api\": http2: client connection lost",
            "Get \"https://h/api\": unexpected EOF",
            "failed to create: the server is currently unable to handle the request (post secrets)",
            "failed to create: etcdserver: request timed out",
        ] {
            release(said, Class::Unreachable);
        }
        release("error parsing values.yaml: unexpected EOF", Class::Other);
        release("kubernetes cluster unreachable: Get \"https://h/version\": connection refused", Class::Unreachable);
        release("UPGRADE FAILED: resource Deployment/exp/t not ready.\ncontext deadline exceeded", Class::Timeout);
        release(
            "INSTALLATION FAILED: release name check failed: cannot reuse a name that is still in use",
            Class::Locked,
        );
        release("release: not found", Class::ReleaseNotFound);
        release("uninstall: Release not loaded: nope: release: not found", Class::ReleaseNotFound);
        release("create: failed to create: namespaces \"nowhere\" not found", Class::Other);
        let pull = |said, class| check(OperationKind::Pull, said, class);
        pull(
            "chart \"four\" matching ^2.0 not found in r1 index: no chart version found for four",
            Class::ChartNotFound,
        );
        pull("could not locate a version matching provided version string ^2.0", Class::ChartNotFound);
        pull("failed to perform \"FetchReference\" on source: h/charts/four:2.0.0: not found", Class::ChartNotFound);
        pull("GET \"http://h/v2/charts/nope/tags/list\": response status code 404: name unknown", Class::ChartNotFound);
        pull("failed to fetch http://h/four-1.0.0.tgz : 401 Unauthorized", Class::Unauthorised);
        pull("failed to perform \"FetchReference\" on source: Get \"x\": connection refused", Class::Unreachable);
        pull(
            "failed to perform \"FetchReference\" on source: Get \"https://h/v2/charts/four/manifests/1.0.0\": \
             http: server gave HTTP response to HTTPS client",
            Class::PlainHttp,
        );
    }

    #[test]
    fn memory_that_ran_out_is_reported_without_the_stack() {
        let failure = judged(OperationKind::Install, "fatal error: runtime: out of memory\n\nruntime stack:\nmore");
        let message = "helm needed more memory than it may use; fatal error: runtime: out of memory";
        assert_eq!((failure.class, failure.message.as_str()), (Class::OutOfMemory, message));
    }

    #[test]
    fn secrets_are_cut_out() {
        let check = |said, message| assert_eq!(judged(OperationKind::Install, said).message, message);
        check("Error: bad hunter2 in hunter2", "bad [redacted] in [redacted]");
        check("Error: second line stands alone", "[redacted] stands alone");
        check("Error: Get \"https://u:p@ss@host/x\": y", "Get \"https://host/x\": y");
        check("", "helm said nothing");
    }

    #[test]
    fn secrets_that_occur_in_the_mark_do_not_let_a_text_grow() {
        // All parts of the mark, and of two marks beside and within one another.
        let marks = ["[redacted][redacted]", "[red[redacted]ted]", "[[redacted]acted]", "[redac[redacted]]"];
        let parts = marks.iter().flat_map(|mark| {
            let ends = (0..mark.len())
                .flat_map(move |start| (start + SHORTEST_SECRET..=mark.len()).map(move |end| (start, end)));
            ends.map(move |(start, end)| Private::new(&mark[start..end]))
        });
        let secrets: Vec<_> = parts.chain([Private::new("hunter2")]).collect();
        let text = "hunter2 [redacted] ".repeat(1000);
        assert_eq!(redact(&text, &secrets), "[redacted] [redacted] ".repeat(1000));
        assert_eq!(redact("é hunter2hunter2é", &secrets), "é [redacted]é", "neighbours share a mark");
        let odd = [Private::new("p\"w\\9<x")];
        for said in [r#"p"w\9<x"#, r#""p\"w\\9<x""#, r#""p\"w\\9\u003cx""#] {
            assert_eq!(redact(said, &odd).trim_matches('"'), "[redacted]", "{said}");
        }
    }

    #[test]
    fn many_secrets_are_looked_for_at_once_and_of_too_many_nothing_is_said() {
        let mut secrets: Vec<_> = (0..20_000).map(|number| Private::new(format!("secret-{number:06}"))).collect();
        assert_eq!(redact("a secret-000000 b secret-019999", &secrets), "a [redacted] b [redacted]");
        secrets.push(Private::new("x".repeat(SECRET_BYTES)));
        assert_eq!(
            redact("a secret-000000 b", &secrets),
            "a [redacted] b",
            "what is longer than the text is not in it"
        );
        secrets.extend((0..10).map(|number| Private::new(number.to_string().repeat(SECRET_BYTES / 10))));
        assert!(redact(&"a".repeat(SECRET_BYTES / 10), &secrets).starts_with("[redacted: it has more"));
    }

    #[test]
    fn secrets_within_secrets_are_cut_out_with_them() {
        let secrets = ["abcdef", "cdef", "efghij", "aaaa", "aaaaaa"].map(Private::new);
        assert_eq!(redact("x abcdefghij y", &secrets), "x [redacted] y");
        assert_eq!(redact("x cdefg y", &secrets), "x [redacted]g y");
        assert_eq!(redact("aaaaaaaaa b", &secrets), "[redacted] b");
    }

    #[test]
    fn an_ending_of_ours_is_reported_as_such_and_success_wins() {
        let ending = |exit, stopped| {
            let operation = OperationKind::Install;
            Ending { operation, exit, signal: Some(9), stderr: "", stopped, is_abandoned: false }
        };
        assert_eq!(judge(ending(Some(0), Some(Stopped::Deadline)), &[]), Ok(()));
        let class = |exit, stopped| judge(ending(exit, stopped), &[]).unwrap_err().class;
        assert_eq!(class(Some(1), Some(Stopped::Deadline)), Class::Timeout);
        assert_eq!(class(None, Some(Stopped::Cancelled)), Class::Cancelled);
        assert_eq!(class(None, None), Class::Killed);
        let abandoned = Ending { is_abandoned: true, ..ending(Some(1), None) };
        assert_eq!(judge(abandoned, &[]).unwrap_err().class, Class::Cancelled, "it is no failure of the chart");
    }

    #[test]
    fn a_message_is_bounded() {
        let stderr = format!("Error: {}", "é".repeat(MESSAGE_BYTES));
        assert!(judged(OperationKind::Install, &stderr).message.len() <= MESSAGE_BYTES);
    }
}
