//! The Secrets that spec.configs takes from: which they are is observed, and their digests are facts to be fetched.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{InputsOf, Surroundings};
use crate::fact::Facts;
use crate::round::Plan;
use crate::workspaces::derived::{Accepted, Action};
use crate::workspaces::secret::Digested;

/// Bytes of keys and base64 that one Workspace may take from Secrets. The operator reads and writes each of them, and
/// every version is stored again; three full Secrets are more than values and environments are made of.
pub const MOST_TAKEN: usize = 4 << 20;

/// One version of a Secret never changes.
const MAX_AGE: Duration = Duration::MAX;
/// When to ask again for a digest that could not be read: nothing else brings a round then.
const RETRY_LOOK: Duration = Duration::from_secs(5);

/// A Secret that spec.configs takes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    Missing,
    Present {
        resource_version: u64,
        /// `None` if it is not known.
        content: Option<Digested>,
    },
}

/// Asks for the digest of one version of a Secret. The answer is `None` if there is none any more.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SourceAsk {
    pub namespace: String,
    pub name: String,
    pub resource_version: u64,
}

/// What is remembered between rounds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    pub accepted: Accepted,
    /// The digests of Secrets that are taken from, so that gathering knows the names of what is made of them.
    pub sources: BTreeMap<String, Source>,
}

impl Note {
    /// A Secret that is there in this version.
    pub fn source(&self, name: &str, version: u64) -> Source {
        let is_same = |source: &&Source| matches!(source, Source::Present { resource_version, .. } if *resource_version == version);
        let unknown = Source::Present { resource_version: version, content: None };
        self.sources.get(name).filter(is_same).cloned().unwrap_or(unknown)
    }
}

impl Surroundings {
    /// With what was fetched.
    #[must_use]
    pub(super) fn with(&self, namespace: &str, facts: &Facts<SourceAsk, Option<Digested>>) -> Self {
        let mut filled = self.clone();
        for (ask, source) in unknown(namespace, self) {
            match facts.get(&ask).map(|fact| fact.known()) {
                Some(Ok(Some(found))) => {
                    let (resource_version, content) = (ask.resource_version, Some(found.clone()));
                    filled.sources.insert(source.clone(), Source::Present { resource_version, content });
                }
                Some(Ok(None)) => drop(filled.sources.insert(source.clone(), Source::Missing)),
                Some(Err(_)) | None => {}
            }
        }
        filled
    }

    /// Whether it is known what every config takes.
    pub(super) fn is_complete(&self) -> bool {
        !self.sources.values().any(|source| matches!(source, Source::Present { content: None, .. }))
    }
}

/// Names what must be fetched.
pub(super) fn want(
    plan: &mut Plan<Action, SourceAsk>,
    namespace: &str,
    surroundings: &Surroundings,
    inputs: &InputsOf,
) {
    for (ask, _) in unknown(namespace, surroundings) {
        if plan.want(&inputs.facts, ask, MAX_AGE).is_some_and(|fact| fact.known().is_err()) {
            plan.look_within(RETRY_LOOK);
        }
    }
}

fn unknown<'a>(
    namespace: &'a str,
    surroundings: &'a Surroundings,
) -> impl Iterator<Item = (SourceAsk, &'a String)> + use<'a> {
    surroundings.sources.iter().filter_map(move |(name, source)| match source {
        Source::Present { resource_version, content: None } => {
            let (namespace, resource_version) = (namespace.to_owned(), *resource_version);
            Some((SourceAsk { namespace, name: name.clone(), resource_version }, name))
        }
        _ => None,
    })
}
