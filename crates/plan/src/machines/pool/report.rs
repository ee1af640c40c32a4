//! The status of a pool, computed from what is observed.

use api::condition::{Condition, ConditionStatus, ConditionType, Reason};
use api::machine::{
    Initialization, MOST_REPORTED_SHARDS, NstanceMachine, NstanceMachinePool, NstanceMachinePoolSpec,
    NstanceMachinePoolStatus,
};
use jiff::Timestamp;

use super::super::condition::{Conditions, turned};
use super::super::shard::{Shard, UNDECLARED_REMEDY, undeclared};
use super::decide::{distribution, is_ours, provider_ids};
use super::removal::stays;
use super::{Observed, Owner, RoundOf, ShardGroup};
use crate::Why;
use crate::event::EventKind;
use crate::round::{Progress, Refusal, Report};

/// The whole report of a round.
pub fn report(round: &RoundOf<'_>, now: Timestamp) -> Report<NstanceMachinePoolStatus> {
    let former = round.object.status.clone().unwrap_or_default();
    let status = match &round.object.spec {
        // Before the MachinePool is known nothing can be said.
        _ if round.observed.owner == Owner::Unknown => former.clone(),
        spec => status(round, spec.as_ref(), &former, now),
    };
    let ready = status.condition(ConditionType::Ready);
    let kind = ready.map_or(EventKind::Normal, |ready| match ready.reason {
        Reason::Invalid | Reason::DuplicateGroup | Reason::ObjectTaken | Reason::ObjectRejected => EventKind::Warning,
        _ => EventKind::Normal,
    });
    let turned = ready.and_then(|ready| turned(former.condition(ConditionType::Ready), ready, kind, "Reconcile"));
    Report {
        fallback: None,
        is_provisional: false,
        done: Vec::new(),
        transitions: turned.into_iter().collect(),
        discriminator: round.object.metadata.generation.unwrap_or_default().to_string(),
        phase: ready.map_or("", |ready| ready.reason.as_str()).to_owned(),
        note: (),
        status,
    }
}

fn status(
    round: &RoundOf<'_>,
    spec: Option<&NstanceMachinePoolSpec>,
    former: &NstanceMachinePoolStatus,
    now: Timestamp,
) -> NstanceMachinePoolStatus {
    let (pool, observed) = (round.object, round.observed);
    let ours: Vec<_> = observed.shard_groups.iter().filter(|group| is_ours(pool, group)).collect();
    let conditions = Conditions::new(&former.conditions, pool.metadata.generation, now);
    let ready = ready(round, spec, &ours, &conditions);
    let ids = spec.map(|spec| provider_ids(pool, spec, observed)).unwrap_or_default();
    // Cluster API copies IDs only while a pool is ready.
    let is_ready = former.ready || ready.status == ConditionStatus::True;
    let config = ours.iter().find_map(|group| group.config.as_ref());
    let subnet_pool = config.and_then(|config| config.subnet_pool.clone());
    let observed_owner_generation = match &observed.owner {
        Owner::MachinePool { generation, .. } => *generation,
        Owner::Unknown | Owner::Absent { .. } | Owner::Taken => former.observed_owner_generation,
    };
    NstanceMachinePoolStatus {
        ready: is_ready,
        replicas: i32::try_from(ids.len()).unwrap_or(i32::MAX),
        is_static: is_static(observed, &ours, former),
        template: config.and_then(|config| config.template.clone()),
        subnets: subnet_pool.iter().cloned().collect(),
        subnet_pool,
        reported_shards: reported(observed, former),
        infrastructure_machine_kind: Some(NstanceMachine::KIND.to_owned()),
        initialization: Some(Initialization { provisioned: Some(is_ready) }),
        observed_generation: pool.metadata.generation,
        observed_owner_generation,
        conditions: vec![ready, conditions.paused(observed.is_paused)],
    }
}

/// Whether any shard says so; a silent one said it last in the status of its shard group.
fn is_static(observed: &Observed, ours: &[&ShardGroup], former: &NstanceMachinePoolStatus) -> bool {
    let says = |shard: &Shard| shard.answer().is_some_and(|answer| answer.group.as_ref().is_some_and(|g| g.is_static));
    let said = |(name, shard): (&String, &Shard)| {
        shard.is_silent() && ours.iter().any(|group| group.spec.shard == *name && group.is_static)
    };
    let is_any = observed.shards.values().any(says) || observed.shards.iter().any(said);
    // Before any shard has answered nothing speaks against what was known.
    is_any || (former.is_static && observed.shards.values().all(Shard::is_silent))
}

/// Shards whose server reports the group; a silent one that did is still listed.
fn reported(observed: &Observed, former: &NstanceMachinePoolStatus) -> Vec<String> {
    let reports = |(name, shard): &(&String, &Shard)| match shard.answer() {
        Some(answer) => answer.group.is_some(),
        None => shard.is_silent() && former.reported_shards.contains(name),
    };
    observed.shards.iter().filter(reports).map(|(name, _)| name.clone()).take(MOST_REPORTED_SHARDS).collect()
}

fn ready(
    round: &RoundOf<'_>,
    spec: Option<&NstanceMachinePoolSpec>,
    ours: &[&ShardGroup],
    conditions: &Conditions<'_, Reason>,
) -> Condition {
    if let Some(why) = why_not(round, spec, ours) {
        return conditions.make(ConditionType::Ready, ConditionStatus::False, why.reason, why.message);
    }
    let left = |group: &&ShardGroup| {
        let left = undeclared(&group.spec, group.config.as_ref()?, group.is_static)?;
        Some(format!("{} has {left}", group.spec.shard))
    };
    let left: Vec<_> = ours.iter().filter_map(left).collect();
    let message = if left.is_empty() {
        "all shards have the group as declared".to_owned()
    } else {
        format!("all shards have what is declared; beside it, {}, {UNDECLARED_REMEDY}", left.join("; "))
    };
    conditions.make(ConditionType::Ready, ConditionStatus::True, Reason::Reconciled, message)
}

fn why_not(round: &RoundOf<'_>, spec: Option<&NstanceMachinePoolSpec>, ours: &[&ShardGroup]) -> Option<Why> {
    let pool: &NstanceMachinePool = round.object;
    let why = |reason, message: String| Some(Why { reason, message });
    if pool.metadata.deletion_timestamp.is_some() {
        let going = round.observed.members.iter().filter(|member| !stays(pool, round.observed, member)).count();
        if let Some(blocked) = round.plan.blocked.first() {
            return why(Reason::Terminating, blocked.message.clone());
        }
        let message = format!("waiting for {} shard groups and {going} machines to go", ours.len());
        return why(Reason::Terminating, message);
    }
    if let Some(blocked) = round.plan.blocked.first() {
        return Some(blocked.clone());
    }
    if let Some(refused) = refusal(round) {
        return Some(refused);
    }
    let Owner::MachinePool { replicas, .. } = &round.observed.owner else {
        return why(
            Reason::Reconciling,
            "waiting for the MachinePool whose infrastructureRef names this pool".to_owned(),
        );
    };
    let spec = spec?;
    let total = i32::try_from(replicas.unwrap_or_default().max(0)).unwrap_or(i32::MAX);
    let waits = distribution(pool, spec, round.observed, total).waits;
    if !waits.is_empty() {
        let waits: Vec<_> =
            waits.iter().map(|wait| format!("{} ({} to {} replicas)", wait.shard, wait.from, wait.to)).collect();
        let message = format!("these shards do not answer and keep their share until they do: {}", waits.join(", "));
        return why(Reason::Reconciling, message);
    }
    let is_there = |shard: &&String| ours.iter().any(|group| group.spec.shard == ***shard);
    let missing: Vec<_> = spec.shards.iter().filter(|shard| !is_there(shard)).map(String::as_str).collect();
    let unready = ours.iter().filter(|group| !group.is_ready).map(|group| format!("{}: {}", group.name, group.message));
    let unready: Vec<_> = missing.iter().map(|shard| format!("{shard}: no shard group yet")).chain(unready).collect();
    if unready.is_empty() {
        return None;
    }
    why(Reason::Reconciling, format!("not all shards have their share: {}", unready.join("; ")))
}

fn refusal(round: &RoundOf<'_>) -> Option<Why> {
    round.progress.iter().find_map(|progress| match progress {
        Progress::Refused(Refusal::Because(why)) => Some(why.clone()),
        Progress::Refused(Refusal::Rejected(message)) => {
            Some(Why { reason: Reason::ObjectRejected, message: message.clone() })
        }
        _ => None,
    })
}
