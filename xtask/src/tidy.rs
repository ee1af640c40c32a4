//! What no compiler checks: crate arrows, file sizes, banned names and calls.

mod arrows;
mod blank;
mod features;
mod links;
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
    problems.extend(features::check(root)?);
    for file in files(root, &["crates", "xtask"], "rs")? {
        problems.extend(source::check(&file, &read(root, &file)?));
    }
    let pages = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(PathBuf::from);
    for page in files(root, &["docs"], "md")?.into_iter().chain(pages) {
        problems.extend(links::check(root, &page, &read(root, &page)?));
    }
    Ok(problems)
}

fn read(root: &Path, file: &Path) -> Result<String> {
    std::fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {}", file.display()))
}

/// All files of that kind in the folders, by their path in the repository and in a stable order.
fn files(root: &Path, folders: &[&str], extension: &str) -> Result<Vec<PathBuf>> {
    let mut folders: Vec<PathBuf> = folders.iter().map(PathBuf::from).collect();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let entries =
            std::fs::read_dir(root.join(&folder)).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
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
