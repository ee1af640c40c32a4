//! Keeping files of a program's Go module beside the program.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use catalog::GO_ENVIRONMENT;
use serde::Deserialize;

use super::{Error, Tool, build::Workshop};

/// What `go mod download -json` says of a module.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Download {
    /// The module's source, read-only, in Go's module cache.
    dir: Option<PathBuf>,
    error: Option<String>,
}

impl Workshop {
    /// Copies the files into the cache, where they outlive a cleaned module cache. They appear there all at once.
    pub(super) async fn keep_files(&self, tool: &Tool, module: &Path) -> Result<(), Error> {
        if self.shelf.has_files(tool) {
            return Ok(());
        }
        let source = download(&self.go, module, tool).await?;
        let partial = module.join("files");
        match fs::remove_dir_all(&partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(self.cache_error(error)),
            _ => {}
        }
        for path in tool.files {
            copy(&source.join(path), &partial.join(path))
                .map_err(|error| missing(tool, format!("{}: {error}", source.join(path).display())))?;
        }
        fs::rename(&partial, self.shelf.files(tool)).map_err(|error| self.cache_error(error))
    }
}

/// The folder of the upstream module's source; Go checks it against the pinned sums.
async fn download(go: &Path, module: &Path, tool: &Tool) -> Result<PathBuf, Error> {
    let mut command = tokio::process::Command::new(go);
    command.args(tool.go_download_arguments()).envs(GO_ENVIRONMENT).current_dir(module).kill_on_drop(true);
    let output = command.output().await.map_err(|error| missing(tool, error.to_string()))?;
    let said = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let download: Download = serde_json::from_slice(&output.stdout).map_err(|_| missing(tool, said()))?;
    download.dir.ok_or_else(|| missing(tool, download.error.unwrap_or_else(said)))
}

fn missing(tool: &Tool, said: String) -> Error {
    Error::Files { program: tool.name, version: tool.version(), said }
}

/// A file or a whole folder. Contents alone: Go's module cache is read-only, and its users' copies need not be.
pub(crate) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if !from.is_dir() {
        to.parent().map(fs::create_dir_all).transpose()?;
        return fs::write(to, fs::read(from)?);
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use catalog::Shelf;

    use super::*;
    use crate::tools::Plain;

    /// A Go that knows one module, whose source is `source`, and counts the times it is asked for it in `asked`.
    fn go(folder: &Path, answer: &str) -> PathBuf {
        let go = folder.join("go");
        let script = format!("#!/bin/sh\n[ \"$1\" = list ] && exit\necho >> {0}/asked\n{answer}\n", folder.display());
        fs::write(&go, script).unwrap();
        fs::set_permissions(&go, fs::Permissions::from_mode(0o755)).unwrap();
        go
    }

    fn capi() -> &'static Tool {
        Tool::named("capi").unwrap()
    }

    #[tokio::test]
    async fn files_of_a_module_are_fetched_once_and_kept_under_their_paths() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source");
        for path in ["core/config/crd/bases/a.yaml", "core/config/rbac/role.yaml", "core/config/webhook/manifests.yaml"]
        {
            fs::create_dir_all(source.join(path).parent().unwrap()).unwrap();
            fs::write(source.join(path), path).unwrap();
        }
        fs::write(source.join("core/other.yaml"), "not asked for").unwrap();
        let go = go(folder.path(), &format!("echo '{{\"Dir\": \"{}\"}}'", source.display()));
        let workshop = Workshop { shelf: Shelf::new(folder.path()), go };
        // What an interrupted start left behind.
        let partial = workshop.shelf.module(capi()).join("files/core/config/crd/bases");
        fs::create_dir_all(&partial).unwrap();
        fs::write(partial.join("stale.yaml"), "").unwrap();
        for _ in 0..2 {
            let kept = workshop.files(capi(), &Plain::default()).await.unwrap();
            let text = fs::read_to_string(kept.join("core/config/crd/bases/a.yaml")).unwrap();
            assert_eq!(text, "core/config/crd/bases/a.yaml");
            assert!(kept.join("core/config/webhook/manifests.yaml").is_file());
            assert!(!kept.join("core/config/crd/bases/stale.yaml").exists() && !kept.join("core/other.yaml").exists());
        }
        assert_eq!(fs::read_to_string(folder.path().join("asked")).unwrap().lines().count(), 1);
    }

    #[tokio::test]
    async fn a_program_without_its_files_is_not_complete() {
        let folder = tempfile::tempdir().unwrap();
        let workshop = Workshop { shelf: Shelf::new(folder.path()), go: go(folder.path(), "") };
        for program in ["etcd", "capi"].map(|name| Tool::named(name).unwrap()) {
            workshop.shelf.write_module(program).unwrap();
            fs::write(workshop.shelf.program(program), "").unwrap();
            assert_eq!(workshop.is_complete(program), program.files.is_empty(), "{}", program.name);
        }
        fs::create_dir(workshop.shelf.files(capi())).unwrap();
        assert!(workshop.is_complete(capi()));
    }

    #[tokio::test]
    async fn a_module_that_cannot_be_fetched_or_lacks_a_file_is_named_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let check = async |answer: &str, part: &str| {
            let workshop = Workshop { shelf: Shelf::new(folder.path()), go: go(folder.path(), answer) };
            let error = workshop.files(capi(), &Plain::default()).await.unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("capi 1.") && error.contains("GOPROXY"), "{error}");
            assert!(!workshop.shelf.has_files(capi()));
        };
        check("echo '{\"Error\": \"proxy refused\"}'", "proxy refused").await;
        check("echo no network >&2; exit 1", "no network").await;
        check(&format!("echo '{{\"Dir\": \"{}\"}}'", folder.path().display()), "core/config/crd/bases: No such file")
            .await;
    }
}
