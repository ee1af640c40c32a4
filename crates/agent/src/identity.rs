//! The identity folder: what userdata put there, and what the agent adds. The names are the original's.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use rcgen::KeyPair;
use shard::identity::key_pair;
use x509_parser::{
    certificate::X509Certificate,
    pem::parse_x509_pem,
    prelude::{FromDer, X509Name},
};

use crate::AgentError;

const CA: &str = "ca.crt";
const NONCE: &str = "nonce.jwt";
const KEY: &str = "identity.key";
const CERTIFICATE: &str = "identity.crt";

/// Between attempts to renew at the least: a fresh nonce comes by a person or a tool, not by the second.
const SHORTEST_PAUSE: Duration = Duration::from_secs(30);

/// The longest wait of any kind: a clock that is set meanwhile is noticed within an hour.
const LONGEST_WAIT: Duration = Duration::from_hours(1);

/// So many attempts are left before the certificate ends, each time anew: rare at first, often towards the end.
const ATTEMPTS_LEFT: u32 = 16;

/// The agent's certificate and its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    pub pem: String,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

impl Certificate {
    fn read(pem: &str) -> Option<(Self, X509Details)> {
        let (_, block) = parse_x509_pem(pem.as_bytes()).ok()?;
        let (_, certificate) = X509Certificate::from_der(&block.contents).ok()?;
        let time = |seconds: i64| Timestamp::from_second(seconds).ok();
        let validity = certificate.validity();
        let mut names = X509Name::iter_common_name(certificate.subject());
        let details = X509Details {
            id: names.next()?.as_str().ok()?.to_owned(),
            public_key: certificate.public_key().subject_public_key.data.to_vec(),
        };
        let not_before = time(validity.not_before.timestamp())?;
        let not_after = time(validity.not_after.timestamp())?;
        Some((Self { pem: pem.to_owned(), not_before, not_after }, details))
    }

    /// How long to wait before it is renewed: until half of its life is over.
    pub fn renewal_in(&self, now: Timestamp) -> Duration {
        let life = self.not_after.duration_since(self.not_before);
        let half = self.not_before.saturating_add(life / 2).unwrap_or(Timestamp::MAX);
        let wait: Duration = half.duration_since(now).try_into().unwrap_or(Duration::ZERO);
        wait.min(LONGEST_WAIT)
    }

    /// How long to wait after an attempt to renew failed.
    pub fn renewal_pause(&self, now: Timestamp) -> Duration {
        let left: Duration = self.not_after.duration_since(now).try_into().unwrap_or(Duration::ZERO);
        (left / ATTEMPTS_LEFT).clamp(SHORTEST_PAUSE, LONGEST_WAIT)
    }
}

struct X509Details {
    id: String,
    public_key: Vec<u8>,
}

/// The folder.
pub struct Files {
    directory: PathBuf,
}

impl Files {
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    pub fn ca(&self) -> Result<String, AgentError> {
        self.read(CA)
    }

    pub fn nonce(&self) -> Result<String, AgentError> {
        Ok(self.read(NONCE)?.trim().to_owned())
    }

    /// The agent's own key, made on first use.
    pub fn key(&self) -> Result<KeyPair, AgentError> {
        let path = self.directory.join(KEY);
        if !path.try_exists().map_err(at(&path))? {
            self.write(KEY, key_pair().serialize_pem().as_bytes())?;
        }
        let damaged = |error: rcgen::Error| AgentError::Damaged { path, why: error.to_string() };
        KeyPair::from_pem(&self.read(KEY)?).map_err(damaged)
    }

    /// The stored certificate, if it is this instance's, fits the key and is valid now.
    pub fn certificate(&self, instance_id: &str, now: Timestamp) -> Result<Option<Certificate>, AgentError> {
        let path = self.directory.join(CERTIFICATE);
        if !path.try_exists().map_err(at(&path))? {
            return Ok(None);
        }
        let Some((certificate, details)) = Certificate::read(&self.read(CERTIFICATE)?) else { return Ok(None) };
        let is_ours = details.id == instance_id && details.public_key == self.key()?.public_key_raw();
        Ok(Some(certificate).filter(|found| is_ours && found.not_before <= now && now < found.not_after))
    }

    pub fn store(&self, pem: &[u8]) -> Result<Certificate, AgentError> {
        let path = self.directory.join(CERTIFICATE);
        let read = std::str::from_utf8(pem).ok().and_then(Certificate::read);
        let why = "the server sent no certificate".to_owned();
        let (certificate, _) = read.ok_or(AgentError::Damaged { path, why })?;
        self.write(CERTIFICATE, pem)?;
        Ok(certificate)
    }

    fn read(&self, name: &str) -> Result<String, AgentError> {
        let path = self.directory.join(name);
        fs::read_to_string(&path).map_err(at(&path))
    }

    /// Replaces a file at once and durably: a key that was used and is lost cannot be registered again.
    fn write(&self, name: &str, text: &[u8]) -> Result<(), AgentError> {
        let (path, partial) = (self.directory.join(name), self.directory.join(format!("{name}.new")));
        let write = || -> io::Result<()> {
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
            file.write_all(text)?;
            file.sync_all()?;
            fs::rename(&partial, &path)?;
            fs::File::open(&self.directory)?.sync_all()
        };
        write().map_err(at(&path))
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> AgentError {
    let path = path.to_owned();
    move |source| AgentError::File { path, source }
}

#[cfg(test)]
mod tests {
    use shard::identity::{Authority, Role};

    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn issued(files: &Files, id: &str, at: Timestamp, hours: u64) -> String {
        let (authority, _) = Authority::create("dev", at).unwrap();
        let key = files.key().unwrap().public_key_pem();
        let life = Duration::from_hours(hours);
        authority.issue_client((id, "default", Role::Agent), key.as_bytes(), at, life).unwrap().0
    }

    #[test]
    fn a_key_is_made_once_and_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let files = Files::new(directory.path());
        let key = files.key().unwrap().serialize_pem();
        assert_eq!(Files::new(directory.path()).key().unwrap().serialize_pem(), key);
        let mode = fs::metadata(directory.path().join(KEY)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(matches!(files.nonce(), Err(AgentError::File { path, .. }) if path.ends_with(NONCE)));
    }

    #[test]
    fn a_stored_certificate_serves_while_it_is_valid_and_ours() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::new(directory.path());
        assert_eq!(files.certificate("web01", now()).unwrap(), None);
        let stored = files.store(issued(&files, "web01", now(), 24).as_bytes()).unwrap();
        assert_eq!(files.certificate("web01", now()).unwrap(), Some(stored));
        assert_eq!(files.certificate("web02", now()).unwrap(), None, "another instance's");
        assert_eq!(files.certificate("web01", now() + Duration::from_hours(25)).unwrap(), None, "expired");
        fs::remove_file(directory.path().join(KEY)).unwrap();
        assert_eq!(files.certificate("web01", now()).unwrap(), None, "of another key");
        assert!(files.store(b"junk").is_err());
    }

    #[test]
    fn renewal_is_due_at_half_of_the_life() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::new(directory.path());
        let certificate = files.store(issued(&files, "web01", now(), 1).as_bytes()).unwrap();
        // It is valid from a little before it was issued.
        assert_eq!(certificate.renewal_in(now()), Duration::from_secs(60 * 65 / 2 - 300));
        assert_eq!(certificate.renewal_in(now() + Duration::from_hours(2)), Duration::ZERO);
        let long = files.store(issued(&files, "web01", now(), 1000).as_bytes()).unwrap();
        assert_eq!(long.renewal_in(now()), LONGEST_WAIT);
        assert_eq!(certificate.renewal_pause(now()), Duration::from_secs(3600 / 16));
        assert_eq!(certificate.renewal_pause(now() + Duration::from_hours(2)), SHORTEST_PAUSE);
        assert_eq!(long.renewal_pause(now()), LONGEST_WAIT);
    }
}
