//! Rules about one source file.

use std::path::Path;

use super::blank::blank;

/// The readable operators measure so; a longer file holds two things.
const MOST_LINES: usize = 500;

/// Names that say nothing about content and so collect everything.
const BANNED_NAMES: &[&str] =
    &["common", "util", "utils", "helper", "helpers", "misc", "shared", "core", "base", "manager"];

/// Not a test but a program that a test starts, and kills.
const HELPER: &str = "#[ignore = \"started ";

struct Ban {
    codes: &'static [&'static str],
    why: &'static str,
    place: Place,
}

enum Place {
    Everywhere,
    /// The crates that decide and describe.
    Pure,
    /// Outside those that may build on kube's runtime; tests may wait with it.
    OutsideRuntime,
}

const BANS: &[Ban] = &[
    Ban {
        codes: &["#[ignore"],
        why: "a test that does not run shows nothing: fix or delete it",
        place: Place::Everywhere,
    },
    Ban { codes: &["todo!", "unimplemented!"], why: "unfinished code stays on its branch", place: Place::Everywhere },
    Ban {
        codes: &["store_shared", "reflect_shared", "_shared_stream"],
        why: "kube's shared streams drop deletions and can stall for ever",
        place: Place::Everywhere,
    },
    Ban {
        codes: &["kube::runtime"],
        why: "only the crate runtime builds on kube's runtime",
        place: Place::OutsideRuntime,
    },
    Ban { codes: &["tokio"], why: "api and plan are pure and synchronous", place: Place::Pure },
    Ban {
        codes: &["kube::Client", "kube::client", "kube::Api", "kube::Config"],
        why: "api and plan know no client",
        place: Place::Pure,
    },
];

/// All rules that the file at `path` (relative to the repository) breaks.
pub fn check(path: &Path, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if let Some(name) = banned_name(path) {
        problems.push(format!("{}: name a module for its content, not {name}", path.display()));
    }
    let code = blank(text);
    let lines = lines_without_tests(path, &code);
    if lines > MOST_LINES {
        let path = path.display();
        problems.push(format!("{path}: {lines} lines without tests, at most {MOST_LINES}"));
    }
    let bans: Vec<&Ban> = BANS.iter().filter(|ban| ban.place.holds(path)).collect();
    for (index, (line, raw)) in flat_uses(&code).lines().zip(text.lines()).enumerate() {
        for ban in &bans {
            for found in ban.codes.iter().filter(|found| line.contains(**found) && !raw.contains(HELPER)) {
                problems.push(format!("{}:{}: {found}: {}", path.display(), index + 1, ban.why));
            }
        }
    }
    problems
}

impl Place {
    fn holds(&self, path: &Path) -> bool {
        let under = |folders: &[&str]| folders.iter().any(|folder| path.starts_with(folder));
        match self {
            Self::Everywhere => true,
            Self::Pure => under(&["crates/api", "crates/plan"]),
            Self::OutsideRuntime => {
                !under(&["crates/runtime", "crates/testbed"]) && !path.iter().any(|part| part == "tests")
            }
        }
    }
}

fn banned_name(path: &Path) -> Option<&str> {
    path.iter()
        .filter_map(|part| part.to_str())
        .map(|part| part.trim_end_matches(".rs"))
        .find(|part| BANNED_NAMES.contains(part))
}

/// Lines up to the test module; a file under `tests/` has none.
fn lines_without_tests(path: &Path, code: &str) -> usize {
    if path.iter().any(|part| part == "tests" || part == "tests.rs") {
        return 0;
    }
    code.lines().take_while(|line| *line != "#[cfg(test)]").count()
}

/// Writes grouped imports of kube out (`use kube::{Client, runtime::watcher}` becomes
/// `kube::Client, kube::runtime::watcher`), so that one search finds both forms.
fn flat_uses(code: &str) -> String {
    let mut flat = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(start) = rest.find("kube::{") {
        let (before, group) = rest.split_at(start + "kube::{".len());
        flat.push_str(before);
        let end = group_end(group);
        let mut depth = 0;
        let mut item_starts = true;
        for c in group[..end].chars() {
            if depth == 0 && item_starts && (c.is_alphanumeric() || c == '_') {
                flat.push_str("kube::");
                item_starts = false;
            }
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => item_starts = true,
                _ => {}
            }
            flat.push(c);
        }
        rest = &group[end..];
    }
    flat + rest
}

fn group_end(group: &str) -> usize {
    let mut depth = 1;
    for (index, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return index;
        }
    }
    group.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_file(path: &str, text: &str, problems: &[&str]) {
        assert_eq!(check(Path::new(path), text), problems);
    }

    #[test]
    fn modules_are_named_for_content() {
        check_file(
            "crates/runtime/src/utils/retry.rs",
            "",
            &["crates/runtime/src/utils/retry.rs: name a module for its content, not utils"],
        );
        check_file(
            "crates/plan/src/common.rs",
            "",
            &["crates/plan/src/common.rs: name a module for its content, not common"],
        );
        check_file("crates/plan/src/base64.rs", "", &[]);
    }

    #[test]
    fn files_are_short_tests_aside() {
        let code = "fn f() {}\n".repeat(MOST_LINES);
        let tests = "#[cfg(test)]\nmod tests {\n}\n".repeat(9);
        check_file("crates/plan/src/pod.rs", &format!("{code}{tests}"), &[]);
        check_file(
            "crates/plan/src/pod.rs",
            &format!("fn g() {{}}\n{code}{tests}"),
            &["crates/plan/src/pod.rs: 501 lines without tests, at most 500"],
        );
        check_file("crates/plan/tests/it/main.rs", &code.repeat(2), &[]);
    }

    #[test]
    fn bans_see_code_but_not_prose() {
        check_file(
            "crates/plan/src/pod.rs",
            "// todo!()\nlet a = \"tokio\";\nlet b = todo!();\nuse tokio::spawn;\n",
            &[
                "crates/plan/src/pod.rs:3: todo!: unfinished code stays on its branch",
                "crates/plan/src/pod.rs:4: tokio: api and plan are pure and synchronous",
            ],
        );
        check_file("crates/runtime/src/queue.rs", "use tokio::spawn;\n", &[]);
    }

    #[test]
    fn an_ignored_test_is_found_unless_another_starts_it() {
        let text = "#[ignore = \"started and killed by other\"]\n#[ignore = \"slow\"]\n#[ignore]\n";
        let why = "#[ignore: a test that does not run shows nothing: fix or delete it";
        let path = "crates/testbed/tests/it/node.rs";
        check_file(path, text, &[&format!("{path}:2: {why}"), &format!("{path}:3: {why}")]);
    }

    #[test]
    fn kube_runtime_is_found_in_both_forms_outside_its_crate() {
        let text = "use kube::{\n    Client,\n    api::{Api, Patch},\n    runtime::watcher,\n};\nuse kube::runtime::reflector;\n";
        let path = "crates/performers/src/gather.rs";
        let why = "kube::runtime: only the crate runtime builds on kube's runtime";
        check_file(path, text, &[&format!("{path}:4: {why}"), &format!("{path}:6: {why}")]);
        check_file("crates/runtime/src/watch.rs", text, &[]);
        check_file("crates/api/src/performer.rs", "use kube::{CustomResource, Resource};\n", &[]);
    }
}
