//! Faults of single calls, on demand.

use std::{sync::Mutex, time::Duration};

use tonic::Code;

use super::node::lock;

/// What goes wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFault {
    /// The node does nothing and answers with this code.
    Refused(Code),
    /// The node does what it is asked for, and the connection breaks before it answers.
    LostReply,
    /// The node answers this much later.
    Slow(Duration),
    /// A stream ends after so many bytes as if it were whole.
    EndsEarly { after: usize },
}

#[derive(Debug)]
struct Rule {
    rpc: String,
    fault: CallFault,
    left: u32,
}

/// Faults that wait for their calls, oldest first.
#[derive(Debug, Default)]
pub(super) struct CallFaults(Mutex<Vec<Rule>>);

impl CallFaults {
    pub(super) fn add(&self, rpc: &str, fault: CallFault, times: u32) {
        lock(&self.0).push(Rule { rpc: rpc.to_owned(), fault, left: times });
    }

    pub(super) fn clear(&self) {
        lock(&self.0).clear();
    }

    /// The fault of this call, if it has one; it is used up by that.
    pub(super) fn take(&self, rpc: &str) -> Option<CallFault> {
        let mut rules = lock(&self.0);
        let rule = rules.iter_mut().find(|rule| rule.rpc == rpc && rule.left > 0)?;
        rule.left -= 1;
        let fault = rule.fault;
        rules.retain(|rule| rule.left > 0);
        Some(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_meets_its_call_as_often_as_asked() {
        let faults = CallFaults::default();
        faults.add("Reset", CallFault::LostReply, 2);
        assert_eq!(faults.take("Reboot"), None);
        assert_eq!(faults.take("Reset"), Some(CallFault::LostReply));
        assert_eq!(faults.take("Reset"), Some(CallFault::LostReply));
        assert_eq!(faults.take("Reset"), None);
        faults.add("Reset", CallFault::LostReply, 1);
        faults.clear();
        assert_eq!(faults.take("Reset"), None);
    }
}
