//! Charts of our own, packaged by the real helm, and the two places that charts come from: a repository
//! over http and an OCI registry, both on loopback.
//!
//! | chart | versions | what it is for |
//! | --- | --- | --- |
//! | `four` | 1.0.0, 1.1.0, 2.0.0 | Deployment (`replicas`, 0 by default), Service, ServiceAccount, Ingress; `note` becomes the Deployment's annotation `strata.dev/note` |
//! | `web` | 1.0.0, 1.1.0 | Deployment and Service; the ConfigMap `RELEASE-values` holds all values as JSON; a chart test that ends as `test` says |
//! | `db` | 1.0.0 | StatefulSet with a claim template, and the claim `RELEASE-backup` in the manifest |
//! | `broken` | 1.0.0 | fails as `fault` says: `template`, `object`, `hook`, or the [behaviour](crate::kwok) of its pod |
//! | `gauge` | 1.0.0 | a CRD and one object of its kind |

mod index;
mod registry;
mod repository;
mod sample;

use std::{
    io,
    path::{Path, PathBuf},
};

use k8s_openapi::ByteString;
pub use registry::Registry;
pub use repository::{ChartRepository, Request};
pub use sample::{sample, samples, write_source};
use sha2::{Digest, Sha256};

use crate::{
    helm::{self, Helm},
    process, tools,
};

/// Whom a repository or registry with [`Access::Login`] lets in.
pub const USERNAME: &str = "reader";
pub const PASSWORD: &str = "opens-the-charts";

/// Who may read, and in a registry write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Anyone,
    /// [`USERNAME`] with [`PASSWORD`], by basic authentication.
    Login,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Helm(#[from] helm::Error),
    #[error(transparent)]
    Tool(#[from] tools::Error),
    #[error(transparent)]
    Process(#[from] process::Error),
    #[error("cannot read or write charts")]
    Io(#[from] io::Error),
    #[error("the description of the chart in {0} cannot be read")]
    Description(PathBuf),
    #[error("there is no sample chart {0}")]
    NoSample(String),
    #[error("no loopback port is to be had for {0}")]
    NoPort(&'static str),
    #[error("the registry ended with status {status} before it was ready; the end of its log:\n{tail}")]
    Ended { status: i32, tail: String },
    #[error("the registry does not listen after {} s", .0.as_secs())]
    NotReady(std::time::Duration),
}

/// A packaged chart.
#[derive(Clone, Debug)]
pub struct Archive {
    pub name: String,
    pub version: String,
    pub path: PathBuf,
    /// SHA-256 of the archive, in hexadecimal, as an index states it.
    pub digest: String,
    /// `Chart.yaml`, as an index repeats it.
    description: serde_json::Map<String, serde_json::Value>,
}

impl Archive {
    /// `four-1.0.0.tgz`.
    pub fn file_name(&self) -> String {
        format!("{}-{}.tgz", self.name, self.version)
    }
}

/// Packages the chart in `source` under another version; the archive is in `destination`.
pub async fn package(source: &Path, version: &str, destination: &Path) -> Result<Archive, Error> {
    let helm = Helm::current().await?;
    let arguments = ["package".as_ref(), source.as_os_str(), "--version".as_ref(), version.as_ref()];
    helm.run(arguments.into_iter().chain(["--destination".as_ref(), destination.as_os_str()])).await?;
    let text = std::fs::read_to_string(source.join("Chart.yaml"))?;
    let mut description: serde_json::Map<_, _> =
        serde_saphyr::from_str(&text).map_err(|_| Error::Description(source.to_owned()))?;
    description.insert("version".to_owned(), version.into());
    let name = description.get("name").and_then(|name| name.as_str());
    let name = name.ok_or_else(|| Error::Description(source.to_owned()))?.to_owned();
    let path = destination.join(format!("{name}-{version}.tgz"));
    let digest = hexadecimal(&std::fs::read(&path)?);
    Ok(Archive { name, version: version.to_owned(), path, digest, description })
}

/// SHA-256.
fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for byte in Sha256::digest(bytes) {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
    }
    text
}

/// What basic authentication sends, and what a registry's client keeps: `base64(USERNAME:PASSWORD)`.
fn credential() -> String {
    let bytes = ByteString(format!("{USERNAME}:{PASSWORD}").into_bytes());
    let value = serde_json::to_value(bytes).expect("bytes have a JSON form");
    value.as_str().expect("which is text in base64").to_owned()
}
