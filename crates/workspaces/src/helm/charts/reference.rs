//! A wanted chart in the words of helm: what to fetch, with which files, and whether it is what was pinned.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use api::workspace::{ChartReference, Repository};
use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::ByteString;
use runtime::child::Private;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{
    super::{
        command::{self, ARCHIVE_BYTES, Pull},
        output::{Class, Failure, redact},
    },
    archive,
};

/// Which chart is wanted, and what its source asks for.
#[derive(Clone, Debug)]
pub struct ChartRef {
    /// `file://` is of a chart directory or archive here, and its name is not used. The digest is the archive's, as
    /// `sha256:…` or in plain hex; of a registry it may be the manifest's, as `sha256:…`.
    pub chart: ChartReference,
    pub credentials: Option<Credentials>,
    /// The repository's certificate authority, as PEM.
    pub ca: Option<Private>,
}

#[derive(Clone, Debug)]
pub struct Credentials {
    pub username: String,
    pub password: Private,
}

impl ChartRef {
    /// With what the Secret of `secretRef` holds, if there is one. The error says what is wrong with the Secret.
    pub fn new(chart: &ChartReference, mut secret: BTreeMap<String, ByteString>) -> Result<Self, String> {
        let ca = secret.remove("ca.crt").map(|pem| Private::new(pem.0));
        let credentials = match (secret.remove("username"), secret.remove("password")) {
            (Some(username), Some(password)) => {
                let username = String::from_utf8_lossy(&username.0).into_owned();
                Some(Credentials { username, password: Private::new(password.0) })
            }
            (None, None) => None,
            _ => {
                let name = chart.secret_ref.as_ref().map_or("", |reference| &reference.name);
                return Err(format!("Secret {name} must have username and password, or neither"));
            }
        };
        let mut wanted = Self { chart: chart.clone(), credentials, ca };
        // A folder of charts, as a repository is.
        if let Some(folder) = wanted.local().map(|folder| folder.join(&chart.name))
            && folder.join("Chart.yaml").is_file()
        {
            wanted.chart.repo = format!("file://{}", folder.display());
        }
        Ok(wanted)
    }

    /// Where a chart is that need not be fetched.
    pub fn local(&self) -> Option<&Path> {
        self.chart.repo.strip_prefix("file://").map(Path::new)
    }

    pub(super) fn is_oci(&self) -> bool {
        self.chart.repository() == Some(Repository::Oci)
    }

    /// An exact version of a remote chart never changes.
    pub(super) fn is_settled(&self) -> bool {
        self.local().is_none() && self.chart.exact_version().is_some()
    }

    pub(super) fn version(&self) -> &str {
        self.chart.version.as_deref().unwrap_or_default()
    }

    /// What the repository is called by: another URL or other credentials are another repository.
    pub(super) fn repository_id(&self) -> String {
        let (username, password) = self.login();
        let ca = self.ca.as_ref().map_or(&[][..], Private::expose);
        let plain_http = self.chart.plain_http.unwrap_or(false);
        short_digest(&[self.chart.repo.as_bytes(), username.as_bytes(), password, ca, &[u8::from(plain_http)]])
    }

    pub(super) fn id(&self) -> String {
        let digest = self.chart.digest.as_deref().unwrap_or_default();
        let repository = self.repository_id();
        short_digest(&[&repository, &self.chart.name, self.version(), digest].map(str::as_bytes))
    }

    fn login(&self) -> (&str, &[u8]) {
        self.credentials.as_ref().map_or(("", &[][..]), |login| (&login.username, login.password.expose()))
    }

    /// What must be said nowhere.
    pub fn secrets(&self) -> Vec<Private> {
        self.credentials.iter().map(|login| login.password.clone()).collect()
    }

    /// How helm fetches it, with its [files](Self::files) in `place`.
    pub fn pull(&self, place: &Path, destination: PathBuf) -> Pull {
        let ChartReference { repo, name, .. } = &self.chart;
        let is_oci = self.is_oci();
        let repository = if is_oci { repo.trim_end_matches('/').to_owned() } else { self.repository_id() };
        let version = if self.version().is_empty() { "*" } else { self.version() };
        Pull {
            reference: format!("{repository}/{name}"),
            version: version.to_owned(),
            destination,
            plain_http: is_oci && self.chart.plain_http.unwrap_or(false),
            ca: self.ca.as_ref().filter(|_| is_oci).map(|_| place.join(command::CA)),
        }
    }

    /// helm's files with the credentials, by name; nothing of them is ever an argument. `place` is where they will lie:
    /// nothing for helm's own working directory.
    pub fn files(&self, place: &Path) -> Vec<(&'static str, Private)> {
        let mut files: Vec<_> = self.ca.iter().map(|ca| (command::CA, ca.clone())).collect();
        let (username, password) = self.login();
        let file = |content: serde_json::Value| Private::new(content.to_string());
        if let Some(registry) = self.chart.repo.strip_prefix("oci://") {
            let host = registry.split('/').next().unwrap_or_default();
            let pair = [username.as_bytes(), b":", password].concat();
            let auths = match self.credentials {
                Some(_) => json!({ host: { "auth": BASE64_STANDARD.encode(pair) } }),
                None => json!({}),
            };
            files.push((command::REGISTRY, file(json!({ "auths": auths }))));
            return files;
        }
        let ca = self.ca.as_ref().map(|_| place.join(command::CA)).unwrap_or_default();
        let repository = json!({
            "name": self.repository_id(),
            "url": self.chart.repo,
            "username": username,
            "password": String::from_utf8_lossy(password),
            "caFile": ca,
        });
        files.push((command::REPOSITORIES, file(json!({ "apiVersion": "v1", "repositories": [repository] }))));
        files
    }

    /// Whether the archive of this digest is what was pinned, after helm said this while it fetched it. The digest of a
    /// registry's manifest is a pin as well, and the one that other tools show.
    pub fn verify(&self, said: &str, digest: &str) -> Result<(), Failure> {
        let published = said.lines().find_map(|line| line.strip_prefix("Digest: ")).map(str::trim);
        let pinned = self.chart.digest.as_deref().filter(|pinned| !self.is_oci() || published != Some(pinned));
        match pinned.map(|pinned| pinned.strip_prefix("sha256:").unwrap_or(pinned)) {
            Some(pinned) if !pinned.eq_ignore_ascii_case(digest) => {
                let message = format_args!("the chart's digest is sha256:{digest}, not the pinned sha256:{pinned}");
                Err(Failure::new(Class::DigestMismatch, message))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn shown_repo(&self) -> String {
        redact(&self.chart.repo, &self.secrets())
    }

    /// helm speaks of indexes and of updating them, which is our business and not the user's.
    pub(super) fn explain(&self, failure: &Failure) -> Failure {
        let (name, version, repo) = (&self.chart.name, self.version(), self.shown_repo());
        match failure.class {
            Class::ChartNotFound => Failure::new(
                failure.class,
                format_args!("{repo} has no chart {name} with a version that fits {version:?}"),
            ),
            Class::TooLarge => Failure::new(
                failure.class,
                format_args!(
                    "cannot fetch {name} {version} from {repo}: its archive is larger than {ARCHIVE_BYTES} bytes, which no release can hold; make the chart smaller"
                ),
            ),
            class => Failure::new(class, format_args!("cannot fetch {name} {version} from {repo}: {failure}")),
        }
    }

    /// A failure with what its reader can do about it in the spec.
    pub(super) fn advise(&self, failure: Failure) -> Failure {
        let remedy = match (failure.class, &self.credentials) {
            (Class::Unauthorised, None) => "name a Secret with username and password in spec.chart.secretRef",
            (Class::Unauthorised, Some(_)) => "correct username and password in the Secret of spec.chart.secretRef",
            (Class::PlainHttp, _) if self.is_oci() => {
                "if the registry is meant to have no TLS, set spec.chart.plainHTTP: true"
            }
            _ => return failure,
        };
        Failure::new(failure.class, format_args!("{failure}; {remedy}"))
    }
}

/// 128 bits: two are not the same by chance, and a user who could choose both would only meet their own.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(chart: serde_json::Value, secret: &[(&str, &str)]) -> Result<ChartRef, String> {
        let secret = secret.iter().map(|(key, text)| ((*key).to_owned(), ByteString((*text).into())));
        ChartRef::new(&serde_json::from_value(chart).unwrap(), secret.collect())
    }

    #[test]
    fn a_secret_has_a_whole_login_or_none() {
        let chart = json!({ "repo": "https://c", "name": "n", "secretRef": { "name": "login" } });
        let error = wanted(chart.clone(), &[("username", "u")]).unwrap_err();
        assert_eq!(error, "Secret login must have username and password, or neither");
        let wanted = wanted(chart, &[("ca.crt", "pem"), ("username", "u"), ("password", "p")]).unwrap();
        let files = wanted.files(Path::new("/at"));
        assert_eq!(files[0], (command::CA, Private::new("pem")));
        let repositories: serde_json::Value = serde_json::from_slice(files[1].1.expose()).unwrap();
        let repository = &repositories["repositories"][0];
        assert_eq!((&repository["password"], &repository["caFile"]), (&json!("p"), &json!("/at/ca.pem")));
        assert_eq!(wanted.pull(Path::new("/at"), PathBuf::new()).ca, None, "the repository file names it");
    }

    #[test]
    fn a_pin_is_of_the_archive_or_of_the_registrys_manifest() {
        let check = |repo: &str, pin: &str, said: &str| {
            let chart = json!({ "repo": repo, "name": "n", "digest": pin });
            wanted(chart, &[]).unwrap().verify(said, "aa").map_err(|failure| failure.class)
        };
        let said = "Pulled: r/n:1\nDigest: sha256:bb\n";
        for repo in ["oci://r", "http://r"] {
            assert_eq!(check(repo, "sha256:aa", said), Ok(()));
            assert_eq!(check(repo, "AA", said), Ok(()));
            assert_eq!(check(repo, "sha256:cc", said), Err(Class::DigestMismatch));
        }
        assert_eq!(check("oci://r", "sha256:bb", said), Ok(()));
        assert_eq!(check("http://r", "sha256:bb", said), Err(Class::DigestMismatch), "any repository could say that");
    }

    #[test]
    fn a_folder_of_charts_is_a_repository() {
        let folder = tempfile::tempdir().unwrap();
        let repo = format!("file://{}", folder.path().display());
        let chart = || wanted(json!({ "repo": repo, "name": "web" }), &[]).unwrap();
        assert_eq!(chart().local(), Some(folder.path()));
        std::fs::create_dir(folder.path().join("web")).unwrap();
        std::fs::write(folder.path().join("web/Chart.yaml"), "").unwrap();
        assert_eq!(chart().local(), Some(&*folder.path().join("web")));
    }
}
