//! Who belongs to a pool, and who of them goes.

use std::collections::BTreeMap;

use super::super::shard::{Group, Instance};
use super::{Member, Observed, Rank};
use crate::shard::instance::MachineStatus;

/// Members by the ID of their instance.
pub(super) fn by_id(observed: &Observed) -> BTreeMap<&str, &Member> {
    observed.members.iter().map(|member| (member.instance_id.as_str(), member)).collect()
}

/// The living instances of a group that have no NstanceMachine yet.
pub(super) fn missing<'a>(group: &'a Group, members: &BTreeMap<&str, &Member>) -> Vec<&'a Instance> {
    let instances = group.instances().iter();
    instances.filter(|instance| instance.is_living() && !members.contains_key(instance.id.as_str())).collect()
}

/// Members that go so that the shard has `size`: the marked ones, then those that do not run, that are cordoned, and
/// the oldest; of the unmarked ones the paused are the last. Only a size that the shard is still to give up makes a
/// member go: one instance more than the size may be a replacement.
pub(super) fn victims<'a>(group: &Group, size: i32, members: &BTreeMap<&str, &'a Member>) -> Vec<&'a Member> {
    let living: Vec<_> = group.instances().iter().filter(|instance| instance.is_living()).collect();
    let is_going = |instance: &&&Instance| members.get(instance.id.as_str()).is_some_and(|member| member.is_going());
    let going = living.iter().filter(is_going).count();
    let size = usize::try_from(size).unwrap_or_default();
    let given_up = usize::try_from(group.size).unwrap_or_default().saturating_sub(size);
    let surplus = (living.len() - going).saturating_sub(size).min(given_up.saturating_sub(going));
    let mut candidates: Vec<(Rank<'_>, &Member)> = living
        .iter()
        .filter_map(|instance| {
            let member = members.get(instance.id.as_str()).filter(|member| !member.is_going())?;
            // Cluster API has not made its Machine yet; it does.
            let machine = member.machine.as_ref()?;
            let rank = Rank {
                is_unmarked: !machine.is_marked,
                is_paused: machine.is_paused,
                is_running: instance.status == MachineStatus::Running,
                is_schedulable: !machine.is_cordoned,
                created_at: instance.created_at,
                id: &instance.id,
            };
            Some((rank, *member))
        })
        .collect();
    candidates.sort_by_key(|(rank, _)| *rank);
    candidates.into_iter().take(surplus).map(|(_, member)| member).collect()
}

/// Members of one shard that a decrease takes first. These are the marked ones, less those that are paid for: where its
/// share was lowered to `asked` and the members for that do not go yet, the marked ones are those members. And these are
/// members that go by another hand, which would be replaced.
pub(super) fn marked(group: &Group, asked: Option<i32>, members: &BTreeMap<&str, &Member>) -> i32 {
    let (mut marked, mut going) = (0, 0);
    for instance in group.instances().iter().filter(|instance| instance.is_living()) {
        let Some(member) = members.get(instance.id.as_str()) else { continue };
        let is_marked = member.machine.as_ref().is_some_and(|machine| machine.is_marked);
        going += i32::from(member.is_going());
        marked += i32::from(is_marked && !member.is_going());
    }
    let owed = asked.map_or(0, |asked| group.size - asked - going);
    (marked - owed).max(0)
}
