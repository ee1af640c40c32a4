//! Tests that cannot run where they are.

use std::{
    fmt::Display,
    io::Write,
    path::{Path, PathBuf},
};

/// Lists the calling test as skipped, with one line that says why. In CI it hands the reason back as an error instead:
/// there nothing may be skipped unseen.
pub fn skip<E: Display>(reason: E) -> Result<(), E> {
    if std::env::var_os("CI").is_some_and(|value| value == "true") {
        return Err(reason);
    }
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("unnamed");
    // Past libtest's capture: `cargo xtask ci` lists skipped tests by these lines.
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {reason}");
    Ok(())
}

/// The folder of published definitions and manifests beside the repository. They are not part of it, so a lone clone
/// skips the tests that compare with them.
///
/// # Panics
/// In CI without the folder: the project's own runs must have it.
pub fn published() -> Option<PathBuf> {
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().skip(2);
    let folder = above.find_map(|above| Some(above.join("shared/compat")).filter(|folder| folder.is_dir()));
    if folder.is_none() {
        skip("../shared/compat, the published definitions, is not there").unwrap_or_else(|missing| panic!("{missing}"));
    }
    folder
}
