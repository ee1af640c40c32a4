//! The real programs that `strata dev` and the tests run, at pinned versions.
//!
//! A program is looked for, in this order: in its own variable (`STRATA_ETCD`, `STRATA_KUBE_APISERVER`,
//! …), in `KUBEBUILDER_ASSETS` (etcd, kube-apiserver, kubectl; only when not older than the pin), in the
//! cache `${XDG_CACHE_HOME:-~/.cache}/strata/tools`; else it is built there with the machine's Go. A
//! build that was interrupted goes on where Go's own build cache left off. Files that a program is installed with
//! (definitions, webhooks, roles) come from its Go module and are kept in the cache beside it.

mod build;
mod module_files;
mod progress;

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

use build::Workshop;
pub use catalog::{CATALOG, CHARTS, FIRST_START, Tool};
pub(crate) use module_files::copy;
pub use progress::{Plain, Progress, State, Step};

/// Why a program is not available.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no program called {name}; known are {known}")]
    Unknown { name: String, known: String },
    #[error("{variable} names {path}, which is not a file; correct it or unset it")]
    NotAFile { variable: String, path: PathBuf },
    #[error(
        "{program} has to be built and the Go toolchain is missing ({go} cannot be run); install Go {version} or \
         newer from your distribution or https://go.dev/dl, or name a ready binary in {variable}"
    )]
    NoGo { program: &'static str, go: PathBuf, version: String, variable: String },
    #[error(
        "{program} needs Go {version} or newer: {said}; install a newer Go, or let it fetch one (GOTOOLCHAIN=auto), \
         or name a ready binary in {variable}"
    )]
    OldGo { program: &'static str, version: String, said: String, variable: String },
    #[error("building {program} failed; the whole output is in {log}\n{tail}")]
    Build { program: &'static str, log: PathBuf, tail: String },
    #[error(
        "the files of {program} {version} are missing in its Go module: {said}; make sure that Go can fetch modules \
         (`go env GOPROXY`) and try again"
    )]
    Files { program: &'static str, version: &'static str, said: String },
    #[error("cannot write to the tool cache at {path}; set XDG_CACHE_HOME to a directory that can be written")]
    Cache {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Process(#[from] crate::process::Error),
}

/// Path of one program, built first where it is missing; progress goes to standard error.
pub async fn path(name: &str) -> Result<PathBuf, Error> {
    let paths = ensure(&[name], &Plain::default()).await?;
    Ok(paths.into_iter().next().expect("one path for one name"))
}

/// Folder of the files that a program is installed with, under the paths they have in its Go module; fetched first
/// where they are missing. They are those of the pinned version, also where a variable names another program.
pub async fn files(name: &str) -> Result<PathBuf, Error> {
    Workshop::from_environment().files(find(name)?, &Plain::default()).await
}

/// Which of these programs would have to be built.
pub fn missing<'a>(names: &[&'a str]) -> Result<Vec<&'a str>, Error> {
    let workshop = Workshop::from_environment();
    let mut missing = Vec::new();
    for name in names {
        if locate(find(name)?, &workshop)?.is_none() {
            missing.push(*name);
        }
    }
    Ok(missing)
}

/// Where a program is, or will be once it is built.
pub fn place(name: &str) -> Result<PathBuf, Error> {
    let (tool, workshop) = (find(name)?, Workshop::from_environment());
    Ok(locate(tool, &workshop)?.unwrap_or_else(|| workshop.cached(tool)))
}

/// Paths of several programs, in the order asked for; builds those that are missing, one after another
/// because linking Kubernetes takes two gigabytes.
pub async fn ensure(names: &[&str], progress: &dyn Progress) -> Result<Vec<PathBuf>, Error> {
    let workshop = Workshop::from_environment();
    let tools: Vec<_> = names.iter().map(|name| find(name)).collect::<Result<_, _>>()?;
    let mut paths = Vec::with_capacity(tools.len());
    for tool in &tools {
        paths.push(locate(tool, &workshop)?);
    }
    let mut left = paths.iter().filter(|path| path.is_none()).count();
    let mut ready = Vec::with_capacity(tools.len());
    for (tool, path) in tools.into_iter().zip(paths) {
        if let Some(path) = path {
            ready.push(path);
            continue;
        }
        left -= 1;
        ready.push(workshop.build(tool, left, progress).await?);
    }
    Ok(ready)
}

fn find(name: &str) -> Result<&'static Tool, Error> {
    Tool::named(name).ok_or_else(|| Error::Unknown {
        name: name.to_owned(),
        known: CATALOG.iter().map(|tool| tool.name).collect::<Vec<_>>().join(", "),
    })
}

/// A program that is already there.
fn locate(tool: &Tool, workshop: &Workshop) -> Result<Option<PathBuf>, Error> {
    let variable = tool.variable();
    if let Some(path) = non_empty(&variable).map(PathBuf::from) {
        return if path.is_file() { Ok(Some(path)) } else { Err(Error::NotAFile { variable, path }) };
    }
    if let Some(path) = kubebuilder_asset(tool) {
        return Ok(Some(path));
    }
    Ok(Some(workshop.cached(tool)).filter(|_| workshop.is_complete(tool)))
}

fn kubebuilder_asset(tool: &Tool) -> Option<PathBuf> {
    if !tool.is_kubebuilder_asset {
        return None;
    }
    let path = Path::new(&non_empty("KUBEBUILDER_ASSETS")?).join(tool.name);
    let pinned = catalog::major_minor(tool.version());
    let found = path.is_file().then(|| version_of(tool, &path))?;
    let fits = found.zip(pinned).is_some_and(|(found, pinned)| found.0 == pinned.0 && found.1 >= pinned.1);
    if !fits {
        let found = found.map_or_else(|| "an unknown version".to_owned(), |(major, minor)| format!("{major}.{minor}"));
        eprintln!("warning: ignoring {} ({found}): {} is pinned", path.display(), tool.version());
    }
    fits.then_some(path)
}

fn version_of(tool: &Tool, path: &Path) -> Option<(u32, u32)> {
    let args: &[&str] = if tool.name == "kubectl" { &["version", "--client"] } else { &["--version"] };
    let output = std::process::Command::new(path).args(args).output().ok()?;
    catalog::major_minor(&String::from_utf8_lossy(&output.stdout))
}

fn non_empty(variable: &str) -> Option<OsString> {
    std::env::var_os(variable).filter(|value| !value.is_empty())
}
