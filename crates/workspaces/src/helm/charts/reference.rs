//! A wanted chart in the words of helm: what its repository is called, the files with its credentials.

use std::path::Path;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{
    super::{
        command,
        files::Private,
        output::{Class, Failure, redact},
    },
    ChartRef, archive,
};

impl ChartRef {
    pub(super) fn local(&self) -> Option<&Path> {
        self.repo.strip_prefix("file://").map(Path::new)
    }

    /// An exact version of a remote chart never changes.
    pub(super) fn is_settled(&self) -> bool {
        let version = self.version.strip_prefix('v').unwrap_or(&self.version);
        let numbers = version.split(['-', '+']).next().unwrap_or_default();
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        self.local().is_none() && numbers.split('.').count() == 3 && numbers.split('.').all(is_number)
    }

    /// What the repository is called by: another URL or other credentials are another repository.
    pub(super) fn repository_id(&self) -> String {
        let (username, password) = self.login();
        let ca = self.ca.as_ref().map_or(&[][..], Private::expose);
        short_digest(&[self.repo.as_bytes(), username.as_bytes(), password, ca, &[u8::from(self.plain_http)]])
    }

    pub(super) fn id(&self) -> String {
        let digest = self.digest.as_deref().unwrap_or_default();
        short_digest(&[
            self.repository_id().as_bytes(),
            self.name.as_bytes(),
            self.version.as_bytes(),
            digest.as_bytes(),
        ])
    }

    fn login(&self) -> (&str, &[u8]) {
        self.credentials.as_ref().map_or(("", &[][..]), |login| (&login.username, login.password.expose()))
    }

    pub(super) fn secrets(&self) -> Vec<Private> {
        self.credentials.iter().map(|login| login.password.clone()).collect()
    }

    /// helm's files with the credentials; nothing of them is ever an argument.
    pub(super) fn files(&self) -> Vec<(&'static str, Private)> {
        let mut files: Vec<_> = self.ca.iter().map(|ca| (command::CA, ca.clone())).collect();
        let (username, password) = self.login();
        let file = |content: serde_json::Value| Private::new(content.to_string());
        if let Some(registry) = self.repo.strip_prefix("oci://") {
            let host = registry.split('/').next().unwrap_or_default();
            let pair = [username.as_bytes(), b":", password].concat();
            let auths = match self.credentials {
                Some(_) => json!({ host: { "auth": BASE64_STANDARD.encode(pair) } }),
                None => json!({}),
            };
            files.push((command::REGISTRY, file(json!({ "auths": auths }))));
            return files;
        }
        let repository = json!({
            "name": self.repository_id(),
            "url": self.repo,
            "username": username,
            "password": String::from_utf8_lossy(password),
            "caFile": if self.ca.is_some() { command::CA } else { "" },
        });
        files.push((command::REPOSITORIES, file(json!({ "apiVersion": "v1", "repositories": [repository] }))));
        files
    }

    pub(super) fn shown_repo(&self) -> String {
        redact(&self.repo, &self.secrets())
    }

    /// helm speaks of indexes and of updating them, which is our business and not the user's.
    pub(super) fn explain(&self, failure: &Failure) -> Failure {
        let Self { name, version, .. } = self;
        let repo = self.shown_repo();
        match failure.class {
            Class::ChartNotFound => Failure::new(
                failure.class,
                format_args!("{repo} has no chart {name} with a version that fits {version:?}"),
            ),
            class => Failure::new(class, format_args!("cannot fetch {name} {version} from {repo}: {failure}")),
        }
    }
}

/// 128 bits: nobody meets a second one by chance, and whoever could choose both would only meet himself.
fn short_digest(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    let mut digest = archive::hex(hash);
    digest.truncate(32);
    digest
}
