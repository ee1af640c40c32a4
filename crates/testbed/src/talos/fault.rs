//! Faults of single calls, on demand.

use std::{fmt, str::FromStr, sync::Mutex, time::Duration};

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

/// A text that names no fault of a call.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is not a fault of a call: use lost-response, slow=SECONDS, ends-early=BYTES, or a code of gRPC: {codes}",
    codes = CODES.map(|(name, _)| name).join(", ")
)]
pub struct BadCallFault(String);

/// Codes that a node or a proxy before it answers with when something is wrong.
const CODES: [(&str, Code); 6] = [
    ("unavailable", Code::Unavailable),
    ("deadline-exceeded", Code::DeadlineExceeded),
    ("permission-denied", Code::PermissionDenied),
    ("resource-exhausted", Code::ResourceExhausted),
    ("internal", Code::Internal),
    ("unknown", Code::Unknown),
];

impl FromStr for CallFault {
    type Err = BadCallFault;

    fn from_str(text: &str) -> Result<Self, BadCallFault> {
        let bad = || BadCallFault(text.to_owned());
        if text == "lost-response" {
            return Ok(Self::LostReply);
        }
        if let Some((_, code)) = CODES.iter().find(|(name, _)| *name == text) {
            return Ok(Self::Refused(*code));
        }
        let (name, value) = text.split_once('=').ok_or_else(bad)?;
        match name {
            "slow" => {
                let seconds = value.parse().map_err(|_| bad())?;
                Duration::try_from_secs_f64(seconds).map(Self::Slow).map_err(|_| bad())
            }
            "ends-early" => value.parse().map(|after| Self::EndsEarly { after }).map_err(|_| bad()),
            _ => Err(bad()),
        }
    }
}

/// In the form that is read.
impl fmt::Display for CallFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LostReply => f.write_str("lost-response"),
            Self::Slow(delay) => write!(f, "slow={}", delay.as_secs_f64()),
            Self::EndsEarly { after } => write!(f, "ends-early={after}"),
            Self::Refused(code) => {
                let known = CODES.iter().find(|(_, known)| known == code);
                match known {
                    Some((name, _)) => f.write_str(name),
                    None => write!(f, "{code:?}"),
                }
            }
        }
    }
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

    pub(super) fn list(&self) -> Vec<(String, CallFault, u32)> {
        lock(&self.0).iter().map(|rule| (rule.rpc.clone(), rule.fault, rule.left)).collect()
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
    fn faults_are_written_as_they_are_read() {
        for text in ["lost-response", "slow=0.5", "ends-early=100", "unavailable", "permission-denied"] {
            assert_eq!(text.parse::<CallFault>().unwrap().to_string(), text);
        }
        for text in ["slow=x", "slow=-1", "Unavailable", "", "ends-early"] {
            assert!(text.parse::<CallFault>().unwrap_err().to_string().contains("deadline-exceeded"), "{text}");
        }
    }

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
