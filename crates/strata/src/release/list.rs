//! `strata release list`, and the columns of a release.

use std::process::ExitCode;

use api::{condition::ConditionType, workspace::HelmRelease};
use clap::Args;
use jiff::Timestamp;
use kube::api::DynamicObject;

use crate::{
    Failure,
    objects::{Objects, decode, name_of},
    output::{OutputFlags, Shown, View, object_age, print_objects},
};

#[derive(Debug, Args)]
pub struct Flags {
    /// List all namespaces
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Only objects with these labels, for example app=web,tier!=test
    #[arg(long, short = 'l')]
    selector: Option<String>,
    #[command(flatten)]
    output: OutputFlags,
}

/// The columns that `kubectl get helmreleases` has.
pub const VIEW: View = View {
    columns: &["NAME", "CHART", "VERSION", "REVISION", "READY", "REASON", "AGE"],
    wide: &["SUSPENDED", "MESSAGE"],
    row,
};

/// Prints what the flags select; that there is nothing is printed on standard error.
pub async fn list(objects: &Objects, flags: &Flags, view: &View) -> Result<ExitCode, Failure> {
    let items = objects.list(flags.selector.as_deref()).await?;
    if items.is_empty() {
        anstream::eprintln!("there is no {} {}", objects.noun(), objects.place());
        if !flags.output.is_for_programs() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    print_objects(Shown::Several { items, of_all_namespaces: flags.all_namespaces }, view, &flags.output)?;
    Ok(ExitCode::SUCCESS)
}

fn row(object: &DynamicObject, now: Timestamp) -> Result<Vec<String>, Failure> {
    let release: HelmRelease = decode(object)?;
    let (spec, status) = (release.spec.unwrap_or_default(), release.status.unwrap_or_default());
    let ready = status.condition(ConditionType::Ready);
    Ok(vec![
        name_of(object).to_owned(),
        spec.chart.name,
        status.last_applied_revision.clone().unwrap_or_default(),
        status.history.first().map(|newest| newest.revision.to_string()).unwrap_or_default(),
        ready.map(|ready| format!("{:?}", ready.status)).unwrap_or_default(),
        ready.map(|ready| ready.reason.to_string()).unwrap_or_default(),
        object_age(object, now),
        spec.suspend.unwrap_or_default().to_string(),
        ready.map(|ready| ready.message.clone()).unwrap_or_default(),
    ])
}
