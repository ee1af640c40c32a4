//! Which crate may depend on which. `ARCHITECTURE.md` draws the same picture.

use anyhow::Result;
use serde::Deserialize;

/// A crate and those of ours it may name. `strata` may have `testbed` only as an optional
/// dependency: the production image is built without it.
const ARROWS: &[(&str, &[&str])] = &[
    ("features", &[]),
    ("catalog", &[]),
    ("api", &[]),
    ("plan", &["api"]),
    ("process", &[]),
    ("runtime", &["api", "plan", "process"]),
    ("drain", &["api", "plan", "process", "runtime"]),
    ("performers", &["api", "plan", "process", "runtime"]),
    ("workspaces", &["api", "plan", "process", "runtime"]),
    ("hetzner", &["api"]),
    ("shard", &["api", "plan", "process", "hetzner"]),
    ("agent", &["api", "plan", "process", "shard"]),
    ("machines", &["api", "plan", "process", "runtime", "shard", "drain"]),
    ("talos", &["api"]),
    ("testbed", &["catalog", "api", "talos"]),
    (
        "strata",
        &[
            "features",
            "api",
            "plan",
            "process",
            "runtime",
            "drain",
            "shard",
            "agent",
            "machines",
            "performers",
            "workspaces",
            "hetzner",
            "talos",
            "testbed",
        ],
    ),
    (
        "xtask",
        &[
            "api",
            "plan",
            "process",
            "runtime",
            "drain",
            "shard",
            "hetzner",
            "machines",
            "performers",
            "workspaces",
            "testbed",
            "strata",
            "launcher",
        ],
    ),
    ("launcher", &["catalog"]),
];

/// Packages that would let a pure crate reach the outside.
const IMPURE: &[&str] = &["tokio", "futures", "hyper", "axum", "tonic", "reqwest", "rustix", "tracing"];

/// Crates that decide and describe, and never act.
const PURE: &[&str] = &["api", "plan"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    optional: bool,
    path: Option<String>,
}

/// Reads the output of `cargo metadata --no-deps`.
pub fn check(metadata: &str) -> Result<Vec<String>> {
    let metadata: Metadata = serde_json::from_str(metadata)?;
    let mut problems = Vec::new();
    for package in &metadata.packages {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == package.name) else {
            problems.push(format!("{}: not in the table of arrows; add it there and to ARCHITECTURE.md", package.name));
            continue;
        };
        let broken = package.dependencies.iter().filter_map(|to| breach(package, to, allowed));
        problems.extend(broken.map(|why| format!("{}: {why}", package.name)));
    }
    Ok(problems)
}

fn breach(from: &Package, to: &Dependency, allowed: &[&str]) -> Option<String> {
    if to.kind.as_deref() == Some("dev") {
        let ours = to.path.is_some();
        let fine = !ours || to.name == "testbed" || allowed.contains(&to.name.as_str());
        return (!fine).then(|| format!("may not test with {}", to.name));
    }
    if to.path.is_none() {
        let impure = PURE.contains(&from.name.as_str()) && IMPURE.contains(&to.name.as_str());
        return impure.then(|| format!("is pure and may not depend on {}", to.name));
    }
    if !allowed.contains(&to.name.as_str()) {
        return Some(format!("may not depend on {}", to.name));
    }
    let heavy = from.name == "strata" && to.name == "testbed" && !to.optional;
    heavy.then(|| "testbed must stay optional (feature `dev`)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_one(from: &str, dependency: &str, problems: &[&str]) {
        let metadata = format!(r#"{{"packages":[{{"name":"{from}","dependencies":[{dependency}]}}]}}"#);
        assert_eq!(check(&metadata).unwrap(), problems);
    }

    #[test]
    fn arrows_point_one_way() {
        let on = |name: &str| format!(r#"{{"name":"{name}","kind":null,"optional":false,"path":"/x/{name}"}}"#);
        check_one("plan", &on("api"), &[]);
        check_one("api", &on("plan"), &["api: may not depend on plan"]);
        check_one("runtime", &on("performers"), &["runtime: may not depend on performers"]);
        check_one("performers", &on("testbed"), &["performers: may not depend on testbed"]);
        check_one("strata", &on("testbed"), &["strata: testbed must stay optional (feature `dev`)"]);
    }

    #[test]
    fn testbed_is_a_dev_dependency_anywhere() {
        let dev = |name: &str| format!(r#"{{"name":"{name}","kind":"dev","optional":false,"path":"/x/{name}"}}"#);
        check_one("plan", &dev("testbed"), &[]);
        check_one("plan", &dev("runtime"), &["plan: may not test with runtime"]);
    }

    #[test]
    fn pure_crates_cannot_reach_out() {
        let tokio = r#"{"name":"tokio","kind":null,"optional":false,"path":null}"#;
        check_one("plan", tokio, &["plan: is pure and may not depend on tokio"]);
        check_one("runtime", tokio, &[]);
    }

    #[test]
    fn a_new_crate_must_be_placed() {
        check_one("clouds", "", &["clouds: not in the table of arrows; add it there and to ARCHITECTURE.md"]);
    }
}
