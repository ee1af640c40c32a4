//! Reading a shard's configuration: JSON with comments.

use jsonc_parser::{ParseOptions, parse_to_serde_value};
use plan::shard::{
    config::{Config, Findings, Problem, read},
    group::Dynamic,
};

use crate::provider::{self, check_template};

/// Deeper nesting is no configuration; the parser recurses.
const DEEPEST: usize = 64;

/// What to do about a file of dynamic groups that cannot be read.
pub const CORRECT: &str = "correct it, or restore it from a backup of the storage";

/// What to do about one that is missing. It is not made anew: without it no instance of such a group would stay.
pub const RESTORE: &str =
    "restore it from a backup of the storage, or write {} to it, and every group goes that it had";

/// Reads and checks. `None` when the text is not a configuration at all; the findings say why.
pub fn parse(text: &str) -> (Option<Config>, Findings) {
    let wrong = |message: String| {
        let problem = Problem { field: "config".to_owned(), message };
        (None, Findings { problems: vec![problem], warnings: Vec::new() })
    };
    if depth(text) > DEEPEST {
        return wrong(format!("nested deeper than {DEEPEST} levels"));
    }
    match parse_to_serde_value::<serde_json::Value>(text, &ParseOptions::default()) {
        Ok(value) => {
            let (config, mut findings) = read(value);
            if let Some(config) = &config {
                check(config, &mut findings);
            }
            (config, findings)
        }
        Err(error) => wrong(format!("{error}; correct the syntax")),
    }
}

/// The same for the configuration of that shard, and of that cluster where it is known: one that was copied from another
/// shard is not its own.
pub fn parse_own(text: &str, shard: &str, cluster: Option<&str>) -> (Option<Config>, Findings) {
    let (config, mut findings) = parse(text);
    let own = config
        .as_ref()
        .map(|config| [("shard.id", &config.shard.id, Some(shard)), ("cluster.id", &config.cluster.id, cluster)]);
    for (field, written, expected) in own.into_iter().flatten() {
        if let Some(expected) = expected.filter(|expected| expected != written) {
            let message = format!("{written:?} is another one: this is the configuration of {expected:?}; write that");
            findings.problems.push(Problem { field: field.to_owned(), message });
        }
    }
    (config, findings)
}

/// What takes a provider or a template's language to see.
fn check(config: &Config, findings: &mut Findings) {
    provider::check(config, findings);
    for (name, template) in &config.templates {
        if let Err(error) = check_template(&template.userdata) {
            let (field, message) = (format!("templates.{name}.userdata"), format!("{error}; correct the template"));
            findings.problems.push(Problem { field, message });
        }
    }
}

/// Reads the file of dynamic groups.
pub fn parse_groups(text: &str) -> Result<Dynamic, String> {
    parse_to_serde_value(text, &ParseOptions::default()).map_err(|error| error.to_string())
}

/// An upper bound: brackets in strings and comments count too.
fn depth(text: &str) -> usize {
    let mut depths = text.bytes().scan(0usize, |depth, byte| {
        match byte {
            b'{' | b'[' => *depth += 1,
            b'}' | b']' => *depth = depth.saturating_sub(1),
            _ => {}
        }
        Some(*depth)
    });
    depths
        .try_fold(0, |most: usize, depth| if depth > 10 * DEEPEST { Err(depth) } else { Ok(most.max(depth)) })
        .unwrap_or_else(|deep| deep)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_trailing_commas_are_fine_and_junk_is_named() {
        let (config, findings) = parse("// a shard\n{\"cluster\": {\"id\": \"dev\",}, /* more */}");
        assert_eq!(config.unwrap().cluster.id, "dev");
        assert!(!findings.problems.is_empty(), "and incomplete");
        for junk in ["", "{", "[]", "null", "{\"cluster\": 1}", "{\"cluster\": {\"idd\": \"x\"}}", &"[".repeat(100_000)]
        {
            let (config, findings) = parse(junk);
            assert!(config.is_none() && !findings.problems.is_empty(), "{}", &junk[..junk.len().min(40)]);
        }
    }
}
