//! Old requests: a caller that lost its lease, or repeats itself, must not undo what came after.

use serde::{Deserialize, Serialize};

use super::refusal::{Code, Refusal};

/// How new a request is: the epoch of the caller's lease, then the generation of the object that caused it. Stock
/// callers send neither and are never refused for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Age {
    pub epoch: u64,
    pub generation: u64,
}

impl Age {
    /// `None` for a request without a fence.
    pub fn read(epoch: Option<u64>, generation: Option<u64>) -> Option<Self> {
        (epoch.is_some() || generation.is_some())
            .then(|| Self { epoch: epoch.unwrap_or(0), generation: generation.unwrap_or(0) })
    }
}

/// Refuses a request that is older than the newest that was accepted for the same subject.
pub fn check(newest: Option<Age>, request: Option<Age>) -> Result<(), Refusal> {
    match (newest, request) {
        (Some(newest), Some(request)) if request < newest => {
            let field = if request.epoch < newest.epoch { "strata-epoch" } else { "strata-generation" };
            let text = format!("{field}: a newer request was accepted; read the object again");
            Err(Refusal::new(Code::FailedPrecondition, text))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a87_an_older_epoch_or_generation_is_refused() {
        let age = |epoch, generation| Age::read(Some(epoch), Some(generation));
        assert!(check(None, age(1, 1)).is_ok());
        assert!(check(age(1, 1), None).is_ok(), "stock callers have no fence");
        assert!(check(age(1, 5), age(1, 5)).is_ok(), "a repeated request is no older one");
        assert!(check(age(1, 5), age(2, 1)).is_ok());
        assert!(check(age(1, 5), age(1, 4)).unwrap_err().message.contains("strata-generation"));
        assert!(check(age(2, 1), age(1, 9)).unwrap_err().message.contains("strata-epoch"));
    }
}
