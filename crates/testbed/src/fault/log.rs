//! What the proxy saw.

use std::{collections::VecDeque, sync::Mutex};

use http::StatusCode;

use super::{ApiRequest, Fault, rule::lock};

/// Ten times what the largest scenario sends; at some 200 bytes each the log stays near 13 MB.
const LONGEST_LOG: usize = 65_536;

/// One call and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub request: ApiRequest,
    /// The fault that was chosen for the call.
    pub fault: Option<Fault>,
    /// The code that was passed on to the client; none while it waits, and for a call that was cut or given up.
    pub code: Option<u16>,
}

#[derive(Default)]
pub(super) struct Log(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    dropped: usize,
    entries: VecDeque<Seen>,
}

impl Log {
    pub(super) fn arrived(&self, request: &ApiRequest, fault: Option<Fault>) -> usize {
        let mut log = lock(&self.0);
        if log.entries.len() == LONGEST_LOG {
            if log.dropped == 0 {
                tracing::warn!("the fault proxy's log is full and forgets its oldest calls");
            }
            log.entries.pop_front();
            log.dropped += 1;
        }
        log.entries.push_back(Seen { request: request.clone(), fault, code: None });
        log.dropped + log.entries.len() - 1
    }

    pub(super) fn answered(&self, number: usize, code: StatusCode) {
        let mut log = lock(&self.0);
        let index = number.checked_sub(log.dropped);
        if let Some(entry) = index.and_then(|index| log.entries.get_mut(index)) {
            entry.code = Some(code.as_u16());
        }
    }

    pub(super) fn entries(&self) -> Vec<Seen> {
        lock(&self.0).entries.iter().cloned().collect()
    }
}
