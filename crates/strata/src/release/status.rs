//! `strata release status`: one release on a page.

use std::process::ExitCode;

use api::workspace::{HelmRelease, HelmReleaseSpec, HelmReleaseStatus};
use jiff::Timestamp;
use kube::api::DynamicObject;

use super::{history, list::VIEW};
use crate::{
    Failure,
    objects::{Objects, decode, name_of},
    output::{self, OutputFlags, indented, object_age, print_page},
};

/// As many as fit beside the rest; `strata release history` has them all.
const REVISIONS_SHOWN: usize = 3;

pub async fn run(releases: &Objects, name: &str, flags: &OutputFlags) -> Result<ExitCode, Failure> {
    print_page(releases.get(name).await?, page, &VIEW, flags)?;
    Ok(ExitCode::SUCCESS)
}

fn page(object: &DynamicObject, now: Timestamp) -> Result<String, Failure> {
    let release: HelmRelease = decode(object)?;
    let (spec, status) = (release.spec.unwrap_or_default(), release.status.unwrap_or_default());
    let mut text = facts(object, &spec, &status, now);
    let newest = &status.history[..status.history.len().min(REVISIONS_SHOWN)];
    text.push_str(&output::conditions(&status.conditions, now).section());
    text.push_str(&history::short(newest).section());
    if let Some(output) = &status.last_output {
        text.push_str("\nhelm said:\n");
        text.push_str(&indented(output));
    }
    Ok(text)
}

/// Names of values' sources alone: what they hold is not shown here.
fn facts(object: &DynamicObject, spec: &HelmReleaseSpec, status: &HelmReleaseStatus, now: Timestamp) -> String {
    let chart = &spec.chart;
    let mut values: Vec<_> = spec.values_from.iter().map(|s| format!("{:?}/{}[{}]", s.kind, s.name, s.key())).collect();
    values.extend(spec.values.as_ref().map(|_| "spec.values".to_owned()));
    let deployed = status.history.iter().find(|revision| revision.status == "deployed");
    let revision = deployed.map(|deployed| format!(" (revision {})", deployed.revision)).unwrap_or_default();
    let version = status.last_applied_revision.as_ref().map(|version| format!("{version}{revision}"));
    let tried =
        status.last_attempted_revision.clone().filter(|tried| Some(tried) != status.last_applied_revision.as_ref());
    let failures = (status.failures > 0).then(|| {
        let reason = status.last_failure.map(|reason| format!(", last: {reason}")).unwrap_or_default();
        format!("{}{reason}", status.failures)
    });
    let is = |flag: Option<bool>| flag.unwrap_or_default().then(|| "yes".to_owned());
    let rows = [
        ("NAME", Some(name_of(object).to_owned())),
        ("NAMESPACE", object.metadata.namespace.clone()),
        ("RELEASE", spec.release_name.clone()),
        ("TARGET NAMESPACE", spec.target_namespace.clone()),
        (
            "CHART",
            Some(format!("{} {} from {}", chart.name, chart.version.as_deref().unwrap_or("(newest)"), chart.repo)),
        ),
        ("DEPLOYED", version),
        ("TRIED LAST", tried),
        ("VALUES", Some(values.join(", ")).filter(|values| !values.is_empty())),
        ("DEPENDS ON", Some(spec.depends_on.join(", ")).filter(|names| !names.is_empty())),
        ("SUSPENDED", is(spec.suspend)),
        ("STOPPED", is(spec.stopped)),
        ("FAILURES", failures),
        ("AGE", Some(object_age(object, now))),
    ];
    output::facts(rows)
}
