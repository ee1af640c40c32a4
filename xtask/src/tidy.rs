//! What no compiler checks: crate arrows, file sizes, banned names and calls.

mod arrows;
mod blank;
mod source;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::workspace;

/// Prints every broken rule and fails if there is one.
pub fn run() -> Result<()> {
    let problems = problems(&workspace::root())?;
    for problem in &problems {
        eprintln!("tidy: {problem}");
    }
    match problems.len() {
        0 => Ok(()),
        count => bail!("{count} rules broken"),
    }
}

fn problems(root: &Path) -> Result<Vec<String>> {
    let mut problems = arrows::check(&workspace::metadata(root)?)?;
    let files = rust_files(root)?;
    for file in &files {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let path = file.strip_prefix(root).unwrap_or(file);
        problems.extend(source::check(path, &text));
    }
    Ok(problems)
}

/// All Rust files of our crates, in a stable order.
fn rust_files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = vec![root.join("crates"), root.join("xtask")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_tidy() {
        assert_eq!(problems(&workspace::root()).unwrap(), Vec::<String>::new());
    }
}
