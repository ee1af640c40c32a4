//! How the API is reached: where it is, and with which token.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hetzner::{Class, Client, Clients, ENDPOINT, Token};
use plan::shard::config;
use serde::Deserialize;
use tokio::time::Instant;

use crate::provider::{ErrorClass, ProviderError, ProviderVariables};

/// Where an image has our binary unless the configuration says otherwise.
const PROGRAM: &str = "/usr/local/bin/strata";

/// A token that was refused is not sent again for so long: it does not become good by itself, and a server that wants to
/// lead asks every second.
const REFUSED: Duration = Duration::from_secs(30);

/// What the configuration says of this provider, beside its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The project's token; `HCLOUD_TOKEN` without it. Read for every call, so that a new token needs no restart.
    pub token_file: Option<PathBuf>,
    /// The API; `HCLOUD_ENDPOINT` without it, else Hetzner's own.
    pub endpoint: Option<String>,
    /// Our binary on the machine, which runs as the agent.
    pub program: Option<PathBuf>,
    /// On the machine: with it agents register their Nodes.
    pub kubeconfig: Option<PathBuf>,
    pub region: String,
    pub zone: String,
}

/// What the environment says, where the configuration does not.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    pub token: Option<Token>,
    pub endpoint: Option<String>,
}

impl Settings {
    pub fn read(provider: &config::Provider) -> Result<Self, ProviderError> {
        let settings = serde_json::Value::Object(provider.settings.clone());
        let settings = serde_json::from_value(settings);
        settings.map_err(|error| ProviderError::invalid(format!("shard.provider: {error}")))
    }

    /// As templates see them.
    pub fn variables(&self, kind: &str) -> ProviderVariables {
        let text = |path: &Option<PathBuf>, default| {
            path.as_deref().unwrap_or(Path::new(default)).to_string_lossy().into_owned()
        };
        ProviderVariables {
            kind: kind.to_owned(),
            region: self.region.clone(),
            zone: self.zone.clone(),
            program: text(&self.program, PROGRAM),
            kubeconfig: text(&self.kubeconfig, ""),
            lock: String::new(),
        }
    }
}

enum Source {
    File(PathBuf),
    Given(Token),
}

/// A project at an endpoint, by a token that may change.
pub struct Access {
    endpoint: String,
    source: Source,
    clients: Clients,
    current: Mutex<Option<Current>>,
}

/// The client of the last token: its budget and its lists last as long as it is held.
struct Current {
    token: Token,
    client: Client,
    refused: Option<(Instant, String)>,
    project: Project,
}

/// What is known of a token's project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Project {
    /// The first token's: a server claims it before it uses it for anything else.
    First,
    /// That of a token that has taken the place of another, and was not looked at yet.
    New,
    /// The shard's servers are there.
    Claimed,
}

impl Access {
    pub fn open(
        settings: &Settings,
        environment: &Environment,
        times: hetzner::Settings,
    ) -> Result<Self, ProviderError> {
        let given = environment.token.clone().map(Source::Given);
        let source = settings.token_file.clone().map(Source::File).or(given);
        let none = || unauthorized("no token: name a file that holds the project's token, or set HCLOUD_TOKEN");
        let endpoint = settings.endpoint.clone().or_else(|| environment.endpoint.clone());
        let access = Self {
            endpoint: endpoint.unwrap_or_else(|| ENDPOINT.to_owned()),
            source: source.ok_or_else(none)?,
            clients: Clients::new(times),
            current: Mutex::default(),
        };
        let token = access.token()?;
        let client = access.clients.get(&access.endpoint, &token);
        client.map_err(|error| ProviderError::invalid(error.to_string()))?;
        Ok(access)
    }

    /// A file of one line: it is read as quickly as memory.
    pub fn token(&self) -> Result<Token, ProviderError> {
        match &self.source {
            Source::Given(token) => Ok(token.clone()),
            Source::File(path) => {
                let text = fs::read_to_string(path);
                let text = text
                    .map_err(|error| unauthorized(format!("cannot read the token in {}: {error}", path.display())))?;
                if text.trim().is_empty() {
                    let path = path.display();
                    return Err(unauthorized(format!("{path} is empty; put the project's token into it")));
                }
                Ok(Token::new(&text))
            }
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn client(&self) -> Result<Client, ProviderError> {
        let token = self.token()?;
        let mut current = self.current();
        if let Some(current) = current.as_ref().filter(|current| current.token == token) {
            let is_recent = |(at, _): &&(Instant, String)| at.elapsed() < REFUSED;
            return match current.refused.as_ref().filter(is_recent) {
                Some((_, message)) => Err(unauthorized(message)),
                None => Ok(current.client.clone()),
            };
        }
        let client = self.clients.get(&self.endpoint, &token);
        let client = client.map_err(|error| ProviderError::invalid(error.to_string()))?;
        let project = if current.is_none() { Project::First } else { Project::New };
        *current = Some(Current { token, client: client.clone(), refused: None, project });
        Ok(client)
    }

    pub fn is_new(&self) -> bool {
        self.current().as_ref().is_some_and(|current| current.project == Project::New)
    }

    pub fn claim(&self, token: &Token) {
        if let Some(current) = self.current().as_mut().filter(|current| current.token == *token) {
            current.project = Project::Claimed;
        }
    }

    /// Remembers that the token is of another project.
    pub fn refuse(&self, token: &Token, message: String) -> ProviderError {
        if let Some(current) = self.current().as_mut().filter(|current| current.token == *token) {
            current.refused = Some((Instant::now(), message.clone()));
        }
        unauthorized(message)
    }

    /// Remembers that the token is none of a project's. One that may only read is good for looks.
    pub fn note(&self, error: &hetzner::Error) {
        let is_refused = error.class() == Class::Unauthorised && error.code() == Some("unauthorized");
        if let Some(current) = self.current().as_mut().filter(|_| is_refused) {
            current.refused = Some((Instant::now(), error.to_string()));
        }
    }
}

fn unauthorized(message: impl Into<String>) -> ProviderError {
    ProviderError { class: ErrorClass::Unauthorized, ..ProviderError::new(message) }
}
