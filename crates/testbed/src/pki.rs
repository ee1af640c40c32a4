//! The control plane's own certificate authority.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// Why a certificate could not be made or kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
    #[error("cannot read or write {path}")]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A certificate and its key, both PEM.
#[derive(Clone)]
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

/// The files of an [`Identity`].
#[derive(Clone, Debug)]
pub struct IdentityFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Signs for servers and users; also holds the key that signs ServiceAccount tokens. Kept in a directory,
/// so that tokens and certificates stay valid when the same control plane starts again.
pub struct Authority {
    directory: PathBuf,
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Opens the authority kept in `directory`, or founds one there.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        fs::create_dir_all(directory).map_err(|source| Error::File { path: directory.to_owned(), source })?;
        let files = ["ca.pem", "ca.key", "service-account.key"].map(|name| directory.join(name));
        if !files.iter().all(|file| file.is_file()) {
            found(directory)?;
        }
        let certificate = read(&directory.join("ca.pem"))?;
        let key = KeyPair::from_pem(&read(&directory.join("ca.key"))?)?;
        let issuer = Issuer::from_ca_cert_pem(&certificate, key)?;
        Ok(Self { directory: directory.to_owned(), certificate, issuer })
    }

    /// PEM of the authority's own certificate.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    pub fn certificate_file(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    pub fn service_account_key_file(&self) -> PathBuf {
        self.directory.join("service-account.key")
    }

    pub fn service_account_public_key_file(&self) -> PathBuf {
        self.directory.join("service-account.pub")
    }

    /// A certificate for a server under these names and addresses; it can be a client too, as etcd's
    /// gateway needs.
    pub fn server(&self, name: &str, hosts: &[&str]) -> Result<Identity, Error> {
        let hosts: Vec<_> = hosts.iter().map(|&host| host.to_owned()).collect();
        self.sign(CertificateParams::new(hosts)?, name, None)
    }

    /// A client certificate that Kubernetes reads as this user in this group. One group only: the
    /// certificate library keeps one value of each kind in a subject.
    pub fn client(&self, user: &str, group: Option<&str>) -> Result<Identity, Error> {
        self.sign(CertificateParams::default(), user, group)
    }

    fn sign(&self, mut params: CertificateParams, name: &str, group: Option<&str>) -> Result<Identity, Error> {
        params.distinguished_name = subject(name, group);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Identity { certificate, key: key.serialize_pem() })
    }

    /// Writes an identity beside the authority, for programs that want files.
    pub fn write(&self, file_name: &str, identity: &Identity) -> Result<IdentityFiles, Error> {
        let files = IdentityFiles {
            certificate: self.directory.join(format!("{file_name}.pem")),
            key: self.directory.join(format!("{file_name}.key")),
        };
        write_private(&files.certificate, &identity.certificate)?;
        write_private(&files.key, &identity.key)?;
        Ok(files)
    }
}

fn found(directory: &Path) -> Result<(), Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name = subject("strata-testbed", None);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    write_private(&directory.join("ca.pem"), &params.self_signed(&key)?.pem())?;
    write_private(&directory.join("ca.key"), &key.serialize_pem())?;
    let key = KeyPair::generate()?;
    write_private(&directory.join("service-account.pub"), &key.public_key_pem())?;
    write_private(&directory.join("service-account.key"), &key.serialize_pem())
}

fn subject(name: &str, group: Option<&str>) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    if let Some(group) = group {
        subject.push(DnType::OrganizationName, group);
    }
    subject
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::File { path: path.to_owned(), source })
}

/// Writes a file that only its owner may read; others see it whole, or as it was.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    let write = || {
        // Temporary files are made with the owner's rights alone.
        let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
        file.write_all(text.as_bytes())?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(|source| Error::File { path: path.to_owned(), source })
}
