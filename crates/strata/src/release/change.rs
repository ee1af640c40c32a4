//! `strata release rollback`, `reconcile`, `suspend` and `resume`: an annotation or a field, which the operator acts on.

use std::process::ExitCode;

use api::{
    condition::{Condition, ConditionStatus, ConditionType, Reason},
    workspace::{
        FORCE_ANNOTATION, HelmRelease, HelmReleaseStatus, RECONCILE_ANNOTATION, ROLLBACK_ANNOTATION, ReleaseRevision,
    },
};
use clap::Args;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::list::VIEW;
use crate::{
    Failure,
    objects::{Objects, decode, name_of},
    output::{indented, one_line},
    verb::{ChangeFlags, Verb},
    wait::{Standing, Verdict, may_pass, summary},
};

/// Some releases of a namespace, or all.
#[derive(Debug, Args)]
pub struct Selection {
    /// Names of the HelmReleases
    #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    names: Vec<String>,
    /// All releases of the namespace
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    change: ChangeFlags,
}

pub async fn reconcile(
    releases: &Objects,
    names: &[String],
    force: bool,
    flags: &ChangeFlags,
) -> Result<ExitCode, Failure> {
    let now = process::Clock::default().now().to_string();
    let mut annotations = json!({ RECONCILE_ANNOTATION: now });
    if force {
        annotations[FORCE_ANNOTATION] = json!(now);
    }
    let patch = json!({ "metadata": { "annotations": annotations } });
    let judge = |object: &DynamicObject| {
        judge(releases, object, |status, ready| {
            let is_forced = !force || status.last_handled_force.as_ref() == Some(&now);
            // What is blocked is never forced: it was looked at, and the condition says why not.
            let is_blocked = ready.is_some_and(|ready| ready.status == ConditionStatus::False);
            status.last_handled_reconcile.as_ref() == Some(&now) && (is_forced || is_blocked)
        })
    };
    let patch = |object: &DynamicObject| active(releases, object).map(|_| patch.clone());
    Verb { objects: releases, view: &VIEW, summary: "asked to reconcile", patch: &patch, judge: &judge }
        .run(names, flags)
        .await
}

pub async fn roll_back(
    releases: &Objects,
    name: String,
    revision: Option<u32>,
    flags: &ChangeFlags,
) -> Result<ExitCode, Failure> {
    let now = process::Clock::default().now();
    let annotation = |object: &DynamicObject| {
        let history = active(releases, object)?.status.unwrap_or_default().history;
        target(&name, &history, revision).map(|revision| format!("{revision}@{now}"))
    };
    let patch = |object: &DynamicObject| {
        Ok(json!({ "metadata": { "annotations": { ROLLBACK_ANNOTATION: annotation(object)? } } }))
    };
    let judge = |object: &DynamicObject| {
        let asked = object.metadata.annotations.as_ref().and_then(|all| all.get(ROLLBACK_ANNOTATION));
        judge(releases, object, |status, _| status.last_handled_rollback.as_ref() == asked)
    };
    Verb { objects: releases, view: &VIEW, summary: "asked to roll back", patch: &patch, judge: &judge }
        .run(std::slice::from_ref(&name), flags)
        .await
}

pub async fn suspend(releases: &Objects, selection: &Selection, suspend: bool) -> Result<ExitCode, Failure> {
    let names = if selection.all {
        releases.list(None).await?.iter().map(|object| name_of(object).to_owned()).collect()
    } else {
        selection.names.clone()
    };
    if names.is_empty() {
        anstream::eprintln!("there is no release {}", releases.place());
    }
    // `null` takes the field away again.
    let patch = json!({ "spec": { "suspend": suspend.then_some(true) } });
    let judge = |object: &DynamicObject| {
        let standing = judge(releases, object, |_, _| true)?;
        let is_suspended = ready(object)?.is_some_and(|ready| ready.reason == Reason::Suspended);
        let verdict = match standing.verdict {
            // Also a release that was not ready before is suspended now.
            Verdict::Done | Verdict::Failed(_) if suspend && is_suspended => Verdict::Done,
            Verdict::Done | Verdict::Failed(_) if suspend || is_suspended => Verdict::Moving,
            verdict => verdict,
        };
        Ok(Standing { verdict, ..standing })
    };
    let summary = if suspend { "suspended" } else { "resumed" };
    let patch = |_: &DynamicObject| -> Result<Value, Failure> { Ok(patch.clone()) };
    Verb { objects: releases, view: &VIEW, summary, patch: &patch, judge: &judge }.run(&names, &selection.change).await
}

/// The release, if the operator would act on it.
fn active(releases: &Objects, object: &DynamicObject) -> Result<HelmRelease, Failure> {
    let release: HelmRelease = decode(object)?;
    if release.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true)) {
        let name = name_of(object);
        return Err(Failure::new(format!(
            "release {name} {} is suspended: the operator changes nothing",
            releases.place()
        ))
        .hint(format!("resume it with `strata release resume {name}`")));
    }
    Ok(release)
}

/// The revision to go back to. `history` has the newest first.
fn target(name: &str, history: &[ReleaseRevision], asked: Option<u32>) -> Result<u32, Failure> {
    let known =
        || history.iter().map(|one| format!("{} ({})", one.revision, one.status)).collect::<Vec<_>>().join(", ");
    if let Some(asked) = asked {
        let is_known = history.iter().any(|one| one.revision == asked);
        return is_known.then_some(asked).ok_or_else(|| {
            Failure::new(format!("release {name} has no revision {asked}; it has: {}", known()))
                .hint(format!("`strata release history {name}` shows them"))
        });
    }
    let was_good = |one: &&ReleaseRevision| matches!(one.status.as_str(), "deployed" | "superseded");
    let earlier = history.iter().skip(1).find(was_good).map(|one| one.revision);
    earlier.ok_or_else(|| {
        Failure::new(format!("release {name} has no earlier revision that was deployed"))
            .hint(format!("`strata release history {name}` lists them; name a revision to roll back to it anyway"))
    })
}

fn ready(object: &DynamicObject) -> Result<Option<Condition>, Failure> {
    let release: HelmRelease = decode(object)?;
    Ok(release.status.and_then(|status| status.condition(ConditionType::Ready).cloned()))
}

/// Settled is: the request was handled, the newest spec was worked on, and readiness is not open.
fn judge(
    releases: &Objects,
    object: &DynamicObject,
    is_handled: impl Fn(&HelmReleaseStatus, Option<&Condition>) -> bool,
) -> Result<Standing, Failure> {
    let status = decode::<HelmRelease>(object)?.status.unwrap_or_default();
    let ready = status.condition(ConditionType::Ready);
    let is_current = status.observed_generation == object.metadata.generation;
    // The operator reports on a generation when it is done with it; its conditions say earlier that it has begun.
    let is_begun = ready.is_some_and(|ready| ready.observed_generation == object.metadata.generation);
    let verdict = match ready {
        _ if !is_begun => Verdict::Unseen,
        Some(ready) if ready.status == ConditionStatus::Unknown => Verdict::Moving,
        _ if !is_handled(&status, ready) => Verdict::Unseen,
        _ if !is_current => Verdict::Moving,
        Some(ready) if ready.status == ConditionStatus::False && may_pass(ready.reason) => Verdict::Moving,
        Some(ready) if ready.status == ConditionStatus::False => {
            Verdict::Failed(failure(releases, name_of(object), ready, &status))
        }
        _ => Verdict::Done,
    };
    Ok(Standing { summary: summary(ready), verdict })
}

/// What the condition says, and helm's own words where they are not the same.
fn failure(releases: &Objects, name: &str, ready: &Condition, status: &HelmReleaseStatus) -> Failure {
    let mut text = format!("release {name} {}: {}: {}", releases.place(), ready.reason, one_line(&ready.message));
    if let Some(output) = status.last_output.as_ref().filter(|output| !ready.message.contains(output.trim())) {
        text.push_str("\nhelm said:\n");
        text.push_str(indented(output).trim_end());
    }
    Failure::new(text).hint(format!(
        "{} shows the details; correct the spec or the values, or roll back with `strata release rollback {name}`",
        releases.status_command(name)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(statuses: &[&str]) -> Vec<ReleaseRevision> {
        let newest = u32::try_from(statuses.len()).unwrap();
        let revision = |(revision, status): (u32, &&str)| ReleaseRevision {
            revision,
            status: (*status).to_owned(),
            ..ReleaseRevision::default()
        };
        (1..=newest).rev().zip(statuses).map(revision).collect()
    }

    #[test]
    fn a_rollback_goes_to_the_newest_earlier_revision_that_was_deployed() {
        for (statuses, revision) in [
            (&["deployed", "superseded"][..], 1),
            (&["failed", "deployed", "superseded"], 2),
            (&["deployed", "failed", "superseded"], 1),
        ] {
            assert_eq!(target("web", &history(statuses), None).unwrap(), revision, "{statuses:?}");
        }
        for statuses in [&[][..], &["deployed"], &["failed", "failed"]] {
            assert!(target("web", &history(statuses), None).unwrap_err().hint.unwrap().contains("history web"));
        }
    }

    #[test]
    fn a_named_revision_must_be_there() {
        assert_eq!(target("web", &history(&["deployed", "failed"]), Some(1)).unwrap(), 1);
        let failure = target("web", &history(&["deployed", "superseded"]), Some(7)).unwrap_err();
        assert_eq!(failure.message, "release web has no revision 7; it has: 2 (deployed), 1 (superseded)");
    }
}
