//! Configs: values with a hash of their content in the name, and references that follow them.

use std::collections::BTreeMap;

use api::condition::Reason;
use api::workspace::{Config, ConfigKind, ValuesKind, ValuesSource, WorkspaceSpec};
use serde_json::json;

use super::{MOST_TAKEN, Source, Surroundings};
use crate::Why;
use crate::object::digest;
use crate::workspaces::derived::{Derived, ObjectKind, Objects, Owner};
use crate::workspaces::secret::{Content, Digested, data_of_config};

/// Says which entry of spec.configs an object is a version of.
const LABEL_CONFIG: &str = "workspaces.strata.dev/config";

/// Enough that two versions of one config never meet, short enough to be read out.
const HASH_DIGITS: usize = 10;

/// The present version of each config; without one, why, if that is known.
pub(super) struct Configs<'a> {
    versions: BTreeMap<&'a str, Result<Version<'a>, Option<Why>>>,
}

struct Version<'a> {
    kind: ObjectKind,
    name: String,
    config: &'a Config,
    digest: String,
}

impl<'a> Configs<'a> {
    pub(super) fn new(workspace: &str, spec: &'a WorkspaceSpec, surroundings: &Surroundings) -> Self {
        let taken = Taken::new(surroundings);
        let version = |(name, config): (&'a String, &'a Config)| {
            let version = digest_of(name, config, &taken).map(|(kind, digest)| {
                let name = hashed(&format!("{workspace}-{name}"), &digest);
                Version { kind, name, config, digest }
            });
            (name.as_str(), version)
        };
        Self { versions: spec.configs.iter().map(version).collect() }
    }

    /// The objects; those whose source is missing have no version now, and their former ones are not collected while
    /// something refers to them.
    pub(super) fn objects(&self, owner: &Owner) -> Vec<Derived> {
        let of_version = |(config, version): (&&str, &Result<Version<'_>, Option<Why>>)| match version {
            Ok(version) => version.object(owner, config),
            Err(why) => Derived::hold(ObjectKind::Secret, config, why.clone()),
        };
        self.versions.iter().map(of_version).collect()
    }

    /// The same references, with the present version wherever a config is named.
    pub(super) fn follow(&self, sources: &[ValuesSource]) -> Result<Vec<ValuesSource>, Option<Why>> {
        sources.iter().map(|source| self.present(source)).collect()
    }

    fn present(&self, source: &ValuesSource) -> Result<ValuesSource, Option<Why>> {
        match self.versions.get(source.name.as_str()) {
            Some(Err(why)) => Err(why.clone()),
            Some(Ok(version)) if values_kind(version.kind) == source.kind => {
                Ok(ValuesSource { name: version.name.clone(), ..source.clone() })
            }
            // A Secret beside a ConfigMap config of the same name, or the other way round.
            _ => Ok(source.clone()),
        }
    }
}

impl Version<'_> {
    fn object(&self, owner: &Owner, config: &str) -> Derived {
        let mut fields = json!({ "metadata": { "labels": { LABEL_CONFIG: config } }, "immutable": true });
        if self.kind == ObjectKind::ConfigMap {
            fields["data"] = json!(self.config.data);
            return owner.derive(self.kind, self.name.as_str(), fields);
        }
        let content = match &self.config.from_secret {
            Some(source) => Content::FromSecret { name: source.name.clone(), digest: self.digest.clone() },
            None => Content::FromConfig { name: config.to_owned() },
        };
        owner.derive_secret(self.name.as_str(), fields, content, Some(&self.digest))
    }
}

fn digest_of(name: &str, config: &Config, taken: &Taken<'_>) -> Result<(ObjectKind, String), Option<Why>> {
    match (&config.from_secret, config.kind.unwrap_or_default()) {
        (Some(source), _) => Ok((ObjectKind::Secret, taken.digest(name, &source.name)?)),
        (None, ConfigKind::ConfigMap) => Ok((ObjectKind::ConfigMap, digest(&json!(config.data)))),
        (None, ConfigKind::Secret) => Ok((ObjectKind::Secret, Digested::of(&data_of_config(config)).digest)),
    }
}

/// Whether it is not known yet what a config is, and there is no former version of it either.
pub(super) fn is_awaited(spec: &WorkspaceSpec, surroundings: &Surroundings, uid: &str, objects: &Objects) -> bool {
    let is_unknown = |config: &Config| {
        let source = config.from_secret.as_ref().and_then(|source| surroundings.sources.get(&source.name));
        matches!(source, Some(Source::Present { content: None, .. }))
    };
    let has_version = |name: &String| {
        let mut ours = objects.values().filter(|found| found.is_of(uid));
        ours.any(|found| found.content.0["metadata"]["labels"][LABEL_CONFIG] == **name)
    };
    spec.configs.iter().any(|(name, config)| is_unknown(config) && !has_version(name))
}

/// What configs take from Secrets.
struct Taken<'a> {
    sources: BTreeMap<&'a str, &'a Source>,
    /// Those with which more than [`MOST_TAKEN`] would be taken.
    too_much: Vec<&'a str>,
}

impl<'a> Taken<'a> {
    fn new(surroundings: &'a Surroundings) -> Self {
        let sources: BTreeMap<_, _> =
            surroundings.sources.iter().map(|(name, source)| (name.as_str(), source)).collect();
        let (mut room, mut too_much) = (MOST_TAKEN, Vec::new());
        for (name, source) in &sources {
            let Source::Present { content: Some(content), .. } = source else { continue };
            match room.checked_sub(content.bytes) {
                Some(left) => room = left,
                None => too_much.push(*name),
            }
        }
        Self { sources, too_much }
    }

    fn digest(&self, config: &str, secret: &str) -> Result<String, Option<Why>> {
        let (reason, message) = match self.sources.get(secret) {
            Some(Source::Present { .. }) if self.too_much.contains(&secret) => {
                let most = MOST_TAKEN >> 20;
                let remedy = "make them smaller, or name the Secret itself in valuesFrom or envFrom";
                let message =
                    format!("with Secret {secret} more than {most} MiB would be copied from Secrets; {remedy}");
                (Reason::ValuesInvalid, message)
            }
            Some(Source::Present { content: Some(content), .. }) => return Ok(content.digest.clone()),
            Some(Source::Present { content: None, .. }) => return Err(None),
            Some(Source::Missing) | None => {
                (Reason::ValuesMissing, format!("Secret {secret} does not exist; create it"))
            }
        };
        Err(Some(Why { reason, message: format!("spec.configs.{config}: {message}") }))
    }
}

/// A name that changes with the content.
fn hashed(prefix: &str, digest: &str) -> String {
    format!("{prefix}-{}", &digest[..HASH_DIGITS])
}

/// A name that changes with what it is made for.
pub(in crate::workspaces) fn hash_name(prefix: &str, what: &serde_json::Value) -> String {
    hashed(prefix, &digest(what))
}

fn values_kind(kind: ObjectKind) -> ValuesKind {
    if kind == ObjectKind::Secret { ValuesKind::Secret } else { ValuesKind::ConfigMap }
}
