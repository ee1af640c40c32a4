//! `strata group scale`: replicas of the MachinePool, by its scale subresource.

use std::process::ExitCode;

use api::condition::{ConditionStatus, ConditionType, Reason};
use clap::Args;

use super::{
    read::{Group, MachinePool, Reader, Whole},
    view::{Summary, paused},
};
use crate::{
    Failure,
    output::one_line,
    verb::waiting,
    wait::{Progress, Standing, Verdict, WaitFlags},
};

#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Flags {
    /// The group's key, or the name of its NstanceMachinePool
    group: String,
    /// How many instances there shall be on all shards together
    #[arg(value_parser = clap::value_parser!(i32).range(0..))]
    replicas: i32,
    #[command(flatten)]
    wait: WaitFlags,
}

const NOTES: &str = "\
What happens:
  The number is set on the MachinePool, by the subresource that cluster autoscalers use. The operator
  divides it over the group's shards: more instances go where there are fewest, fewer leave where there
  are most, and none moves from shard to shard. A shard that does not answer keeps its share.
  Before an instance goes, its node is cordoned and drained within PodDisruptionBudgets. An instance whose
  Machine has the annotation cluster.x-k8s.io/delete-machine goes first.
  A static group, one of the shards' own configuration, scales like any other.

With --wait the command ends when so many instances are there and their Machines are ready, and shows
meanwhile what waits for what. Ctrl-C ends only the waiting.";

/// By these an autoscaler knows the limits of a group.
const MIN_SIZE: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size";
const MAX_SIZE: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size";

/// As many as a line can hold; `strata group status` shows all.
const WAITS_SHOWN: usize = 3;

pub async fn run(reader: &Reader, flags: &Flags) -> Result<ExitCode, Failure> {
    let group = reader.find(&flags.group).await?;
    let machine_pool = check(reader, &group)?;
    let name = machine_pool.name().to_owned();
    reader.machine_pools.scale(&name, flags.replicas).await?;
    let progress = Progress::new();
    let before = machine_pool.spec.replicas.unwrap_or_default();
    let key = group.key().to_owned();
    progress.line(&format!("group {key} scaled from {before} to {}", flags.replicas));
    if let Some(note) = autoscaler(machine_pool, flags.replicas) {
        progress.line(&note);
    }
    if !flags.wait.wait {
        return Ok(ExitCode::SUCCESS);
    }
    let pool = group.pool_name().to_owned();
    let look = async || reader.look(&pool, &name).await;
    let judge = |whole: &Whole| Ok(judge(whole, flags.replicas, &reader.pools.status_command(&key)));
    waiting(&reader.pools, &progress, &flags.wait).until_seen(&key, look, &judge).await?;
    progress.line(&format!("✔ {key}"));
    Ok(ExitCode::SUCCESS)
}

/// The MachinePool, if scaling it would have an effect.
fn check<'a>(reader: &Reader, group: &'a Group) -> Result<&'a MachinePool, Failure> {
    let (key, namespace) = (group.key(), reader.pools.namespace().unwrap_or_default());
    if group.pool.metadata.deletion_timestamp.is_some() {
        return Err(Failure::new(format!("group {key} is being deleted"))
            .hint(format!("{} shows what it waits for", reader.pools.status_command(key))));
    }
    if let Some(what) = paused(group) {
        return Err(
            Failure::new(format!("{what} is paused: group {key} would not change")).hint(resume(&what, namespace))
        );
    }
    group.machine_pool.as_ref().ok_or_else(|| {
        Failure::new(format!("group {key} has no MachinePool that says how many instances it has")).hint(format!(
            "create one whose infrastructureRef names NstanceMachinePool {}; a running operator makes one within a minute",
            group.pool_name()
        ))
    })
}

fn resume(what: &str, namespace: &str) -> String {
    let (kind, name) = what.split_once(' ').unwrap_or((what, "NAME"));
    let object = format!("{} {name} -n {namespace}", kind.to_lowercase());
    if kind == "Cluster" {
        let patch = r#"{"spec":{"paused":false}}"#;
        return format!(
            "resume it with `kubectl patch {object} --type=merge -p '{patch}'`, and remove its annotation {} if it has one",
            api::machine::PAUSED_ANNOTATION
        );
    }
    format!("resume it with `kubectl annotate {object} {}-`", api::machine::PAUSED_ANNOTATION)
}

/// That a cluster autoscaler changes the number as well.
fn autoscaler(machine_pool: &MachinePool, replicas: i32) -> Option<String> {
    let limit = |name: &str| machine_pool.metadata.annotations.as_ref()?.get(name)?.parse::<i32>().ok();
    let (least, most) = (limit(MIN_SIZE)?, limit(MAX_SIZE)?);
    let advice = if (least..=most).contains(&replicas) {
        "it may change the number again"
    } else {
        "it will bring the number back between them"
    };
    Some(format!("a cluster autoscaler keeps this group between {least} and {most} instances; {advice}"))
}

/// How a group stands towards the replicas that were asked for.
fn judge(whole: &Whole, asked: i32, status_command: &str) -> Standing {
    let group = &whole.group;
    let summary = Summary::of(group);
    let waits = whole.waits();
    let shown = waits.iter().take(WAITS_SHOWN).map(|wait| format!("; {}: {}", wait.what, one_line(&wait.why)));
    let text: String = std::iter::once(summary.counts()).chain(shown).collect();
    let failed = |what: String| Verdict::Failed(Failure::new(what).hint(format!("{status_command} shows the details")));
    let status = group.pool.status.clone().unwrap_or_default();
    let ready = status.condition(ConditionType::Ready);
    let is_seen = group.machine_pool.as_ref().is_some_and(|pool| {
        status.observed_owner_generation.is_some() && status.observed_owner_generation >= pool.metadata.generation
    });
    let verdict = if let Some(what) = paused(group) {
        failed(format!("{what} was paused meanwhile; {text}"))
    } else if summary.wanted != Some(asked) {
        let wanted = summary.wanted.map_or_else(|| "no".to_owned(), |wanted| wanted.to_string());
        failed(format!("the MachinePool asks for {wanted} instances now, not {asked}: another client scaled it"))
    } else if let Some(ready) = ready.filter(|ready| is_seen && is_final(ready.reason)) {
        failed(format!("group {}: {}: {}", summary.group, ready.reason, one_line(&ready.message)))
    } else if let Some(refusal) = whole.refusal().filter(|_| is_seen) {
        failed(format!("{} refuses the group: {}", refusal.what, one_line(&refusal.why)))
    } else if !is_seen {
        Verdict::Unseen
    } else if (summary.current, summary.ready) == (asked, asked)
        && ready.is_some_and(|ready| ready.status == ConditionStatus::True)
    {
        Verdict::Done
    } else {
        Verdict::Moving
    };
    Standing { summary: text, verdict }
}

/// Whether the user has to correct something.
fn is_final(reason: Reason) -> bool {
    matches!(reason, Reason::Invalid | Reason::DuplicateGroup | Reason::ObjectTaken | Reason::ObjectRejected)
}

#[cfg(test)]
mod tests {
    use api::condition::Condition;
    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;

    /// Three wanted of generation 2, and a pool that reports so.
    fn whole(current: i32, ready: i32, observed: i64, reason: Reason) -> Whole {
        let status = if reason == Reason::Reconciled { ConditionStatus::True } else { ConditionStatus::False };
        let condition: Condition = Condition {
            kind: ConditionType::Ready,
            status,
            observed_generation: None,
            last_transition_time: Timestamp::UNIX_EPOCH,
            reason,
            message: "as the operator says".to_owned(),
        };
        let status = json!({ "replicas": current, "observedOwnerGeneration": observed, "conditions": [condition] });
        let pool =
            json!({ "metadata": { "name": "web" }, "spec": { "group": "web", "shards": ["a"] }, "status": status });
        let machine_pool = json!({
            "metadata": { "name": "web", "generation": 2 }, "spec": { "replicas": 3 },
            "status": { "readyReplicas": ready },
        });
        let group = Group {
            pool: serde_json::from_value(pool).unwrap(),
            machine_pool: Some(serde_json::from_value(machine_pool).unwrap()),
        };
        Whole { group, ..Whole::default() }
    }

    fn verdict(whole: &Whole, asked: i32) -> String {
        match judge(whole, asked, "`strata group status web`").verdict {
            Verdict::Unseen => "unseen".to_owned(),
            Verdict::Moving => "moving".to_owned(),
            Verdict::Done => "done".to_owned(),
            Verdict::Failed(failure) => failure.message,
        }
    }

    #[test]
    fn a_scale_is_done_when_all_are_there_and_ready() {
        for (whole, expected) in [
            (whole(3, 3, 1, Reason::Reconciled), "unseen"),
            (whole(2, 2, 2, Reason::Reconciled), "moving"),
            (whole(3, 2, 2, Reason::Reconciled), "moving"),
            (whole(4, 3, 2, Reason::Reconciled), "moving"),
            (whole(3, 3, 2, Reason::Reconciling), "moving"),
            (whole(3, 3, 2, Reason::Reconciled), "done"),
            (whole(0, 0, 2, Reason::Invalid), "group web: Invalid: as the operator says"),
            // What was wrong before the change may be right after it.
            (whole(0, 0, 1, Reason::Invalid), "unseen"),
        ] {
            assert_eq!(verdict(&whole, 3), expected);
        }
    }

    #[test]
    fn what_happens_meanwhile_ends_the_wait() {
        let mut whole = whole(2, 2, 2, Reason::Reconciled);
        assert_eq!(verdict(&whole, 5), "the MachinePool asks for 3 instances now, not 5: another client scaled it");
        let annotations = [(api::machine::PAUSED_ANNOTATION.to_owned(), String::new())];
        whole.group.pool.metadata.annotations = Some(annotations.into());
        assert!(
            verdict(&whole, 3).starts_with("NstanceMachinePool web was paused meanwhile; 2 of 3 instances, 2 ready")
        );
    }

    #[test]
    fn an_autoscaler_is_named_with_its_limits() {
        let pool = |annotations: Value| -> MachinePool {
            serde_json::from_value(json!({ "metadata": { "annotations": annotations } })).unwrap()
        };
        let limited = pool(json!({ MIN_SIZE: "1", MAX_SIZE: "5" }));
        assert!(autoscaler(&limited, 3).unwrap().ends_with("it may change the number again"));
        assert!(autoscaler(&limited, 6).unwrap().ends_with("it will bring the number back between them"));
        assert_eq!(autoscaler(&pool(json!({ MIN_SIZE: "1" })), 3), None);
        assert_eq!(autoscaler(&pool(json!({ MIN_SIZE: "few", MAX_SIZE: "5" })), 3), None);
    }
}
