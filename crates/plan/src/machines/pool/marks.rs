//! Which Machines are marked, read past the cache before a member goes.
//!
//! An autoscaler marks Machines first and lowers the replicas then. Two watches bring the two, and either may be late:
//! the marks that the cache shows beside new replicas may be older than these. A list that is asked for once the new
//! replicas are known is not.

use std::borrow::Cow;
use std::time::Duration;

use api::condition::Reason;

use super::{Action, Answer, Ask, InputsOf, Machine, Marks, Observed, Owner};
use crate::fact::Fact;
use crate::round::Plan;

/// Replicas that change have another generation, and marks that change are seen by the watch: an answer for a generation
/// never grows old.
const ANY_AGE: Duration = Duration::MAX;

/// The surroundings with the marks as they were when the replicas were known, or as the cache has them where that is
/// newer. `None` before that is known.
pub(super) fn confirmed<'a>(
    plan: &mut Plan<Action, Ask>,
    pool: (&str, &str),
    observed: &'a Observed,
    inputs: &InputsOf,
) -> Option<Cow<'a, Observed>> {
    let Owner::MachinePool { name, generation, .. } = &observed.owner else { return None };
    let ((namespace, uid), machine_pool) = (pool, name.clone());
    let ask =
        Ask::Marks { namespace: namespace.to_owned(), uid: uid.to_owned(), machine_pool, generation: *generation };
    match plan.want(&inputs.facts, ask, ANY_AGE)? {
        Fact::Known { value: Answer::Marks(marks), .. } => Some(corrected(observed, marks)),
        Fact::Unknown { why, .. } => {
            let message = format!(
                "replicas are not lowered before the Machines of the pool were read: {}; check the API server",
                why.message
            );
            plan.block(Reason::StateUnknown, message);
            None
        }
    }
}

fn corrected<'a>(observed: &'a Observed, marks: &Marks) -> Cow<'a, Observed> {
    // One that is not in the list was gone then, or was made since.
    let read = |machine: &Machine| {
        let mark = marks.get(&machine.name)?;
        let is_newer = machine.resource_version.parse::<u64>().is_ok_and(|cached| mark.version > cached);
        (is_newer && mark.is_marked != machine.is_marked).then_some(mark.is_marked)
    };
    let mut corrected = Cow::Borrowed(observed);
    for index in 0..observed.members.len() {
        if let Some(is_marked) = observed.members[index].machine.as_ref().and_then(read) {
            let machine = corrected.to_mut().members[index].machine.as_mut();
            if let Some(machine) = machine {
                machine.is_marked = is_marked;
            }
        }
    }
    corrected
}

/// What a round knows once the server has answered what the first plan asked for.
#[cfg(test)]
pub(in crate::machines) fn answered(first: &Plan<Action, Ask>, marks: &Marks) -> InputsOf {
    let mut inputs = InputsOf::default();
    for want in &first.wants {
        let fact = Fact::Known { value: Answer::Marks(marks.clone()), age: Duration::ZERO };
        inputs.facts.insert(want.ask.clone(), fact);
    }
    inputs
}
