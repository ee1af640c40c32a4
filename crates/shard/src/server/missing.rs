//! Machines that a list does not have although their instances should. A cloud lists in pages, and one that moves from a
//! page not yet read to one already read is in neither: only an answer about the one machine says that it is gone.
//! Without one it is unknown, which is not absent.

use std::{
    collections::{BTreeMap, HashSet},
    pin::pin,
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream};

use super::{
    memory::Memory,
    quarantine::last_known,
    term::{Context, bounded_provider},
};
use crate::provider::{MachineInfo, ProviderError};

/// For all of them: a server that begins to lead does not renew its lead meanwhile. The next look asks about the rest.
const LIMIT: Duration = Duration::from_secs(5);

/// Questions at once, as many as looks after agents that hung up.
const AT_ONCE: usize = 16;

/// Whether the provider has made a machine that should be there.
pub fn has_machines(memory: &Memory) -> bool {
    memory.entries.iter().any(|entry| entry.record.deleted_at.is_none() && entry.record.machine.is_some())
}

/// The machines of living instances that the list does not have, as they were known last.
pub fn from(memory: &Memory, machines: &[MachineInfo]) -> Vec<MachineInfo> {
    let found: HashSet<(&str, &str)> = machines.iter().map(names).collect();
    let living = memory.entries.iter().filter(|entry| entry.record.deleted_at.is_none());
    living.filter_map(last_known).filter(|machine| !found.contains(&names(machine))).collect()
}

/// Another machine may have the same label.
fn names(machine: &MachineInfo) -> (&str, &str) {
    (&*machine.instance_id, &*machine.provider_id)
}

/// Asks about each of them, and adds to the list what is there and what is not known.
pub async fn confirm(context: &Context, missing: Vec<MachineInfo>, machines: &mut Vec<MachineInfo>) {
    type Answer = (String, Result<Option<MachineInfo>, ProviderError>);
    let mut unknown: BTreeMap<String, MachineInfo> =
        missing.into_iter().map(|machine| (machine.instance_id.clone(), machine)).collect();
    let ask = |id: &String| -> BoxFuture<'_, Answer> {
        let id = id.clone();
        async move {
            let found = bounded_provider(context.provider.status(&id)).await;
            (id, found)
        }
        .boxed()
    };
    let questions: Vec<_> = unknown.keys().map(ask).collect();
    let answers = stream::iter(questions).buffer_unordered(AT_ONCE).take_until(tokio::time::sleep(LIMIT));
    let mut answers = pin!(answers);
    let mut answered = Vec::new();
    while let Some((id, found)) = answers.next().await {
        match found {
            Ok(Some(other)) if other.provider_id != unknown[&id].provider_id => {
                tracing::warn!(
                    instance = id,
                    machine = other.provider_id,
                    "the instance's machine is missing, and another one has its labels; take them away"
                );
            }
            Ok(found) => answered.push((id, found)),
            Err(error) => tracing::warn!(instance = id, %error, "a machine is missing in the provider's list"),
        }
    }
    for (id, found) in answered {
        unknown.remove(&id);
        machines.extend(found);
    }
    machines.extend(unknown.into_values());
}
