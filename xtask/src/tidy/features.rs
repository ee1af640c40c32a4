//! One set of dependency features for every build, or third-party code is compiled once for each set.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use crate::workspace;

/// What is built beside the tests of the whole workspace, as arguments of Cargo.
const SELECTIONS: &[(&str, &[&str])] = &[
    ("xtask", &["--package", "xtask"]),
    ("strata", &["--package", "strata"]),
    ("the production image", &["--package", "strata", "--no-default-features"]),
];

pub fn check(root: &Path) -> Result<Vec<String>> {
    let tests = tree(root, &["--workspace", "--edges", "normal,build,dev"])?;
    let mut problems = Vec::new();
    for (name, arguments) in SELECTIONS {
        let selected = tree(root, &[arguments, ["--edges", "normal,build"].as_slice()].concat())?;
        problems.extend(differences(name, &selected, &tests));
    }
    Ok(problems)
}

fn tree(root: &Path, arguments: &[&str]) -> Result<String> {
    let mut cargo = workspace::cargo(["tree", "--locked", "--prefix", "none", "--format", "{p}|{f}"]);
    workspace::output(cargo.args(arguments).current_dir(root))
}

/// Packages that a selection builds with features that the tests' build does not have.
fn differences(name: &str, selected: &str, tests: &str) -> Vec<String> {
    let tests = packages(tests);
    let missing = packages(selected).into_iter().filter(|package| !tests.contains(package));
    missing
        .map(|(package, features)| {
            format!(
                "{package} has the features {features:?} for {name} and others for the tests, and is compiled twice: \
                 state them in crates/features/Cargo.toml"
            )
        })
        .collect()
}

/// Third-party packages (`name version`) with their features; ours are shown with their path.
fn packages(tree: &str) -> BTreeSet<(&str, &str)> {
    let lines = tree.lines().filter_map(|line| line.split_once('|'));
    let lines = lines.map(|(package, features)| (package, features.trim_end_matches(" (*)")));
    lines
        .map(|(package, features)| (package.trim_end_matches(" (proc-macro)"), features))
        .filter(|(package, _)| !package.contains('('))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TESTS: &str = "strata v0.1.0 (/src)|default\nsyn v3.0.9|fold,full\nserde v1.0.2|std\nserde v1.0.2|std (*)\n";

    #[test]
    fn a_selection_with_the_tests_features_is_fine() {
        let selected = "strata v0.1.0 (/src)|\nsyn v3.0.9 (proc-macro)|fold,full (*)\nserde v1.0.2|std\n";
        assert_eq!(differences("xtask", selected, TESTS), Vec::<String>::new());
    }

    #[test]
    fn other_features_are_named() {
        let problems = differences("xtask", "syn v3.0.9|full\n", TESTS);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].starts_with("syn v3.0.9 has the features \"full\" for xtask"), "{problems:?}");
    }
}
