//! Actions: what a change does after its answer.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    Running,
    Success,
    Error,
}

/// What changes when an action ends well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Effect {
    Nothing,
    Create(i64),
    Start(i64),
    Stop(i64),
    Reboot(i64),
    Rebuild(i64),
    Delete(i64),
    /// The server's interface in the network comes up.
    Attach {
        server: i64,
        network: i64,
    },
    Detach {
        server: i64,
        network: i64,
    },
    ImageReady(i64),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Action {
    pub id: i64,
    pub command: String,
    pub status: Status,
    started: Timestamp,
    finished: Option<Timestamp>,
    /// Code and message.
    error: Option<(String, String)>,
    resources: Vec<(String, i64)>,
    pub effect: Effect,
    /// Its number in the chain that one request began: later ones wait for earlier ones.
    pub chain: i64,
    /// By a fault the API does not know it.
    #[serde(default)]
    pub is_hidden: bool,
}

impl Action {
    pub fn new(id: i64, chain: i64, command: &str, resources: &[(&str, i64)], effect: Effect, now: Timestamp) -> Self {
        Self {
            id,
            command: command.to_owned(),
            status: Status::Running,
            started: now,
            finished: None,
            error: None,
            resources: resources.iter().map(|(kind, id)| ((*kind).to_owned(), *id)).collect(),
            effect,
            chain,
            is_hidden: false,
        }
    }

    pub fn end(&mut self, error: Option<(String, String)>, now: Timestamp) {
        self.status = if error.is_some() { Status::Error } else { Status::Success };
        self.error = error;
        self.finished = Some(now);
    }

    pub fn is_running(&self) -> bool {
        self.status == Status::Running
    }

    /// Its resources of one kind.
    pub fn ids<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = i64> + 'a {
        self.resources.iter().filter(move |(of, _)| of == kind).map(|(_, id)| *id)
    }

    pub fn concerns(&self, kind: &str, id: i64) -> bool {
        self.resources.iter().any(|(of, number)| of == kind && *number == id)
    }

    /// One of its resources is of this kind.
    pub fn is_about(&self, kind: &str) -> bool {
        self.resources.iter().any(|(of, _)| of == kind)
    }

    pub fn view(&self) -> Value {
        let resources = self.resources.iter().map(|(kind, id)| json!({ "id": id, "type": kind }));
        json!({
            "id": self.id, "command": self.command, "status": self.status,
            "progress": if self.is_running() { 0 } else { 100 },
            "started": seconds(self.started), "finished": self.finished.map(seconds),
            "resources": resources.collect::<Vec<_>>(),
            "error": self.error.as_ref().map(|(code, message)| json!({ "code": code, "message": message })),
        })
    }
}

/// The API gives times in whole seconds.
pub(super) fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
