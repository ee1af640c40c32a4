//! Configs: values with a hash of their content in the name, and references that follow them.

use std::collections::BTreeMap;

use api::condition::Reason;
use api::workspace::{Config, ConfigKind, ValuesKind, ValuesSource, WorkspaceSpec};
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::{MOST_TAKEN, Source, Surroundings};
use crate::Why;
use crate::object::digest;
use crate::workspaces::derived::{Derived, ObjectId, ObjectKind, Owner, Wish};

/// Says which entry of spec.configs an object is a version of.
const LABEL_CONFIG: &str = "workspaces.strata.dev/config";

/// Enough that two versions of one config never meet, short enough to be read out.
const HASH_DIGITS: usize = 10;

/// The present version of each config.
pub(super) struct Configs<'a> {
    versions: BTreeMap<&'a str, Result<Version, Why>>,
}

struct Version {
    kind: ObjectKind,
    name: String,
    /// Of a Secret in base64, as the API server has it.
    data: Value,
}

impl<'a> Configs<'a> {
    pub(super) fn new(workspace: &str, spec: &'a WorkspaceSpec, surroundings: &Surroundings) -> Self {
        let version = |(name, config): (&'a String, &'a Config)| {
            (name.as_str(), Version::new(workspace, name, config, surroundings))
        };
        Self { versions: spec.configs.iter().map(version).collect() }
    }

    /// The objects; those whose source is missing have no version now, and their former ones are not collected while
    /// something refers to them.
    pub(super) fn objects(&self, owner: &Owner) -> Vec<Derived> {
        let of_version = |(config, version): (&&str, &Result<Version, Why>)| match version {
            Ok(Version { kind, name, data }) => owner.derive(
                *kind,
                name.as_str(),
                json!({ "metadata": { "labels": { LABEL_CONFIG: config } }, "immutable": true, "data": data }),
            ),
            Err(why) => Derived { id: ObjectId::new(ObjectKind::Secret, *config), wish: Wish::Hold(why.clone()) },
        };
        self.versions.iter().map(of_version).collect()
    }

    /// The same references, with the present version wherever a config is named.
    pub(super) fn follow(&self, sources: &[ValuesSource]) -> Result<Vec<ValuesSource>, Why> {
        sources.iter().map(|source| self.present(source)).collect()
    }

    fn present(&self, source: &ValuesSource) -> Result<ValuesSource, Why> {
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

impl Version {
    fn new(workspace: &str, name: &str, config: &Config, surroundings: &Surroundings) -> Result<Self, Why> {
        let (kind, data) = match (&config.from_secret, config.kind.unwrap_or_default()) {
            (Some(source), _) => (ObjectKind::Secret, taken(name, &source.name, surroundings)?),
            (None, ConfigKind::ConfigMap) => (ObjectKind::ConfigMap, json!(config.data)),
            (None, ConfigKind::Secret) => {
                let encode = |text: &String| json!(ByteString(text.clone().into_bytes()));
                let data: BTreeMap<_, _> = config.data.iter().map(|(key, text)| (key, encode(text))).collect();
                (ObjectKind::Secret, json!(data))
            }
        };
        Ok(Self { kind, name: hash_name(&format!("{workspace}-{name}"), &data), data })
    }
}

/// What a config takes from a Secret.
fn taken(config: &str, secret: &str, surroundings: &Surroundings) -> Result<Value, Why> {
    let (reason, message) = match surroundings.sources.get(secret) {
        Some(Source::Content(data)) => return Ok(json!(data)),
        Some(Source::TooMuch) => {
            let most = MOST_TAKEN >> 20;
            let remedy = "make them smaller, or name the Secret itself in valuesFrom or envFrom";
            let message = format!("with Secret {secret} more than {most} MiB would be taken from Secrets; {remedy}");
            (Reason::ValuesInvalid, message)
        }
        Some(Source::Missing) | None => (Reason::ValuesMissing, format!("there is no Secret {secret}; create it")),
    };
    Err(Why { reason, message: format!("spec.configs.{config}: {message}") })
}

/// A name that changes with the content.
pub(in crate::workspaces) fn hash_name(prefix: &str, content: &Value) -> String {
    format!("{prefix}-{}", &digest(content)[..HASH_DIGITS])
}

fn values_kind(kind: ObjectKind) -> ValuesKind {
    if kind == ObjectKind::Secret { ValuesKind::Secret } else { ValuesKind::ConfigMap }
}
