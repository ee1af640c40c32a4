//! Keeps compiled third-party packages for the next clone.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use launcher::dependencies::{self, Key, Store};
use serde::Deserialize;

use crate::workspace;

/// Hashes of the packages that this run's builds used and that came from a registry.
#[derive(Debug, Default)]
pub struct Used(BTreeSet<String>);

/// The parts of Cargo's messages that name files.
#[derive(Deserialize)]
struct Message {
    package_id: String,
    #[serde(default)]
    filenames: Vec<String>,
    /// Of a build script that ran: `…/build/NAME-HASH/out`.
    out_dir: Option<String>,
}

impl Used {
    /// Reads what `cargo … --message-format=json` said.
    pub fn read(&mut self, messages: &str) {
        let messages = messages.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
        let foreign = messages.filter(|message| message.package_id.starts_with("registry+"));
        let files = foreign.flat_map(|message| message.filenames.into_iter().chain(message.out_dir));
        // The hash is in the name of the file itself or, for a build script, of the folder that it lies in.
        let hashes = files.filter_map(|file| {
            let names = Path::new(&file).components().rev().take(2);
            let mut names = names.filter_map(|name| name.as_os_str().to_str());
            names.find_map(dependencies::hash).map(str::to_owned)
        });
        self.0.extend(hashes);
    }

    /// A failure to keep them costs the next clone time, and this run nothing.
    pub fn keep(&self) -> Result<()> {
        let (key, folder) = (Key::of(&workspace::root())?, launcher::profile_folder()?);
        match Store::new(&launcher::cache()).save(&key, &folder, &self.0) {
            Ok(true) => eprintln!("    {} compiled packages kept for the next clone", self.0.len()),
            Ok(false) => eprintln!("    kept already"),
            Err(error) => eprintln!("    not kept: {error}"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: &str = r#"
{"reason":"compiler-artifact","package_id":"registry+https://github.com/rust-lang/crates.io-index#serde@1.0.2","filenames":["/t/debug/deps/libserde-00000000000000a1.rlib","/t/debug/deps/libserde-00000000000000a1.rmeta"]}
{"reason":"compiler-artifact","package_id":"registry+https://github.com/rust-lang/crates.io-index#serde@1.0.2","filenames":["/t/debug/build/serde-00000000000000a2/build-script-build"]}
{"reason":"build-script-executed","package_id":"registry+https://github.com/rust-lang/crates.io-index#serde@1.0.2","out_dir":"/t/debug/build/serde-00000000000000a3/out"}
{"reason":"compiler-artifact","package_id":"path+file:///src/crates/api#0.1.0","filenames":["/t/debug/deps/libapi-00000000000000b1.rlib"]}
{"reason":"build-script-executed","package_id":"path+file:///src/crates/shard#0.1.0","out_dir":"/t/debug/build/shard-00000000000000b2/out"}
{"reason":"build-finished","success":true}
"#;

    #[test]
    fn packages_of_a_registry_are_used_and_ours_are_not_kept() {
        let mut used = Used::default();
        used.read(MESSAGES);
        let hashes: Vec<_> = used.0.iter().map(String::as_str).collect();
        assert_eq!(hashes, ["00000000000000a1", "00000000000000a2", "00000000000000a3"]);
    }
}
