//! The operator's certificate, by which shards know it: when it registers, renews, and what it says meanwhile.
//!
//! The key is stored before the nonce is used, since a nonce registers one key only, as often as it takes. The nonce
//! goes when the certificate was stored and read back.

use std::time::Duration;

use api::condition::Reason;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::round::Why;

/// The longest wait of any kind: a clock that is set meanwhile is noticed within an hour.
const LONGEST_WAIT: Duration = Duration::from_hours(1);
/// Between attempts to renew at the least; the next one is due long before the end.
const SHORTEST_RENEWAL_PAUSE: Duration = Duration::from_secs(30);
/// So many attempts are left before the certificate ends, each time anew: rare at first, often towards the end.
const RENEWALS_LEFT: u32 = 16;
/// So many failures that may pass are followed by a quick attempt: the Secret was changed meanwhile, or a shard restarts.
const QUICK_RENEWALS: u32 = 2;
/// After a failure that may pass, as for every stream: a shard that restarts is back within seconds.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// After a refusal. A new Secret is noticed at once; a shard's clock that was wrong is not.
const REFUSED_PAUSE: Duration = Duration::from_mins(5);

/// What is known, without any content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    pub is_leading: bool,
    /// Whether any shard is configured.
    pub has_shards: bool,
    /// The certificate of the cluster's authority, in its ConfigMap.
    pub authority: Part,
    pub certificate: Certificate,
    pub key: Part,
    pub nonce: Part,
    /// Since this process last renewed it.
    pub renewed: Option<Duration>,
    pub names: Names,
}

/// What the objects are called, for the words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    pub namespace: String,
    pub authority: String,
    pub certificate: String,
    pub key: String,
    pub nonce: String,
}

/// An object that the identity is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// It could not be read.
    Unknown(String),
    Absent,
    /// It is there and of no use.
    Unusable(String),
    Present,
}

/// The stored certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Certificate {
    Unknown(String),
    Absent,
    /// Expired, damaged, of another authority, cluster or tenant.
    Unusable(String),
    Valid {
        not_before: Timestamp,
        not_after: Timestamp,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    MakeKey,
    Register,
    Renew,
    DeleteNonce,
}

/// An attempt that failed, for as long as what it rested on stays the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub action: Action,
    /// Failures in a row.
    pub count: u32,
    /// The peer does not want it as it is.
    pub is_refused: bool,
    pub message: String,
    pub age: Duration,
}

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub action: Option<Action>,
    pub standing: Standing,
    /// When to look again if nothing changes.
    pub next_look: Duration,
}

/// Whether the shards know the operator, and what is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    pub is_registered: bool,
    /// Of the certificate in use.
    pub not_after: Option<Timestamp>,
    pub why: Why,
}

impl Standing {
    /// Before the first look.
    pub fn unknown() -> Self {
        absent(Reason::StateUnknown, "the operator has not looked for its certificate yet")
    }
}

/// `last` is the failure of what was tried last.
pub fn decide(observed: &Observed, last: Option<&Attempt>, now: Timestamp) -> Decision {
    match &observed.certificate {
        Certificate::Valid { not_before, not_after } => valid(observed, last, (*not_before, *not_after), now),
        Certificate::Unknown(why) => {
            let message = format!("Secret {} cannot be read: {why}", observed.names.certificate);
            wait(absent(Reason::StateUnknown, message), LONGEST_PAUSE)
        }
        Certificate::Absent => without(observed, last, "there is no certificate yet"),
        Certificate::Unusable(why) => without(observed, last, why),
    }
}

fn valid(observed: &Observed, last: Option<&Attempt>, life: (Timestamp, Timestamp), now: Timestamp) -> Decision {
    let (not_before, not_after) = life;
    let failed = |action| last.filter(|attempt| attempt.action == action);
    let half = not_before.saturating_add(not_after.duration_since(not_before) / 2).unwrap_or(not_after);
    let until_half = positive(half, now);
    let renewal = failed(Action::Renew);
    let message = match renewal {
        Some(attempt) => format!("the certificate is valid until {not_after}; renewal fails: {}", attempt.message),
        // Without times: a message that differs in numbers alone is not written again.
        None => "the operator has a certificate of the shards, and renews it at half of its life".to_owned(),
    };
    let why = Why { reason: Reason::Registered, message };
    let standing = Standing { is_registered: true, not_after: Some(not_after), why };
    if !observed.is_leading {
        return wait(standing, LONGEST_WAIT);
    }
    // A shard that issues certificates for minutes is not asked all the time.
    let rest = observed.renewed.map_or(Duration::ZERO, |since| SHORTEST_RENEWAL_PAUSE.saturating_sub(since));
    if until_half.is_zero() && !rest.is_zero() {
        return wait(standing, rest);
    }
    if until_half.is_zero() {
        let rarely = (positive(not_after, now) / RENEWALS_LEFT).clamp(SHORTEST_RENEWAL_PAUSE, LONGEST_WAIT);
        let is_quick = |attempt: &Attempt| attempt.count <= QUICK_RENEWALS && !attempt.is_refused;
        let until_next = |attempt| if is_quick(attempt) { pause(attempt) } else { rarely };
        return act(Action::Renew, standing, renewal.map(|attempt| (attempt, until_next(attempt))));
    }
    if observed.nonce == Part::Present {
        let failure = failed(Action::DeleteNonce);
        return act(Action::DeleteNonce, standing, failure.map(|attempt| (attempt, pause(attempt))));
    }
    wait(standing, until_half.min(LONGEST_WAIT))
}

/// Without a certificate that can be used: what is missing first, in the order in which it is needed.
fn without(observed: &Observed, last: Option<&Attempt>, why: &str) -> Decision {
    let names = &observed.names;
    let place = |kind: &str, name: &str| format!("{kind} {}/{name}", names.namespace);
    let lacks = |part: &Part, what: String, remedy: &str, reason| match part {
        Part::Present => None,
        Part::Absent => Some(absent(reason, format!("{why}; {what} is missing; {remedy}"))),
        Part::Unusable(problem) => Some(absent(reason, format!("{why}; {what}: {problem}; {remedy}"))),
        Part::Unknown(problem) => {
            Some(absent(Reason::StateUnknown, format!("{why}; {what} cannot be read: {problem}")))
        }
    };
    let authority = place("ConfigMap", &names.authority);
    let remedy = "put the cluster's CA certificate, cluster/ca.crt of the shards' storage, under its key ca.crt";
    if let Some(standing) = lacks(&observed.authority, authority, remedy, Reason::AuthorityMissing) {
        return wait(standing, LONGEST_PAUSE);
    }
    let nonce = place("Secret", &names.nonce);
    let remedy = "put a new nonce (strata shard nonce --kind operator) under its key nonce.jwt";
    if let Some(standing) = lacks(&observed.nonce, nonce.clone(), remedy, Reason::NonceMissing) {
        return wait(standing, LONGEST_PAUSE);
    }
    let waits = |message: &str| absent(Reason::Registering, format!("{why}; {message}"));
    if !observed.has_shards {
        let message = format!("{why}; no shard is configured; list the shards in the configuration");
        return wait(absent(Reason::ShardUnreachable, message), LONGEST_PAUSE);
    }
    if !observed.is_leading {
        return wait(waits("the leader registers"), LONGEST_PAUSE);
    }
    let key = place("Secret", &names.key);
    if observed.key == Part::Absent {
        let failure = last.filter(|attempt| attempt.action == Action::MakeKey);
        let standing = failure.map_or_else(
            || waits("registering"),
            |attempt| absent(Reason::Registering, format!("{why}; {key} cannot be stored: {}", attempt.message)),
        );
        return act(Action::MakeKey, standing, failure.map(|attempt| (attempt, pause(attempt))));
    }
    let remedy = "delete it, and put a new nonce in place: a nonce serves one key";
    if let Some(standing) = lacks(&observed.key, key, remedy, Reason::KeyUnusable) {
        return wait(standing, LONGEST_PAUSE);
    }
    let failure = last.filter(|attempt| attempt.action == Action::Register);
    let standing = match failure {
        None => waits("registering"),
        Some(attempt) if attempt.is_refused => {
            let message = format!("{why}; the nonce is refused: {}; put a new one in {nonce}", attempt.message);
            absent(Reason::NonceRefused, message)
        }
        Some(attempt) => absent(Reason::ShardUnreachable, format!("{why}; no shard registers: {}", attempt.message)),
    };
    act(Action::Register, standing, failure.map(|attempt| (attempt, pause(attempt))))
}

fn absent(reason: Reason, message: impl Into<String>) -> Standing {
    Standing { is_registered: false, not_after: None, why: Why { reason, message: message.into() } }
}

fn wait(standing: Standing, next_look: Duration) -> Decision {
    Decision { action: None, standing, next_look }
}

/// The action, or a wait for the rest of the pause after its last failure.
fn act(action: Action, standing: Standing, failure: Option<(&Attempt, Duration)>) -> Decision {
    let left = failure.map_or(Duration::ZERO, |(attempt, pause)| pause.saturating_sub(attempt.age));
    Decision { action: left.is_zero().then_some(action), standing, next_look: left }
}

fn pause(attempt: &Attempt) -> Duration {
    if attempt.is_refused {
        return REFUSED_PAUSE;
    }
    FIRST_PAUSE.saturating_mul(1 << attempt.count.saturating_sub(1).min(5)).min(LONGEST_PAUSE)
}

fn positive(until: Timestamp, now: Timestamp) -> Duration {
    until.duration_since(now).try_into().unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn observed() -> Observed {
        Observed {
            is_leading: true,
            has_shards: true,
            authority: Part::Present,
            certificate: Certificate::Absent,
            key: Part::Present,
            nonce: Part::Present,
            renewed: None,
            names: Names {
                namespace: "n".to_owned(),
                authority: "ca".to_owned(),
                certificate: "cert".to_owned(),
                key: "key".to_owned(),
                nonce: "nonce".to_owned(),
            },
        }
    }

    fn hours(from: i64, until: i64) -> Certificate {
        let at = |hours: i64| now() + jiff::SignedDuration::from_hours(hours);
        Certificate::Valid { not_before: at(from), not_after: at(until) }
    }

    fn failed(action: Action, count: u32, is_refused: bool, seconds: u64) -> Attempt {
        Attempt { action, count, is_refused, message: "no".to_owned(), age: Duration::from_secs(seconds) }
    }

    #[test]
    fn a03_what_is_missing_is_named_in_the_order_in_which_it_is_needed() {
        let all = observed();
        let nothing = Observed { authority: Part::Absent, key: Part::Absent, nonce: Part::Absent, ..all.clone() };
        for (case, action, reason, words) in [
            (nothing.clone(), None, Reason::AuthorityMissing, "ConfigMap n/ca is missing"),
            (
                Observed { authority: Part::Present, ..nothing.clone() },
                None,
                Reason::NonceMissing,
                "Secret n/nonce is missing",
            ),
            (
                Observed { nonce: Part::Unknown("no answer".to_owned()), ..all.clone() },
                None,
                Reason::StateUnknown,
                "no answer",
            ),
            (Observed { has_shards: false, ..all.clone() }, None, Reason::ShardUnreachable, "no shard is configured"),
            (Observed { is_leading: false, ..all.clone() }, None, Reason::Registering, "the leader registers"),
            (Observed { key: Part::Absent, ..all.clone() }, Some(Action::MakeKey), Reason::Registering, "registering"),
            (
                Observed { key: Part::Unusable("junk".to_owned()), ..all.clone() },
                None,
                Reason::KeyUnusable,
                "delete it",
            ),
            (
                Observed { certificate: Certificate::Unknown("x".to_owned()), ..all.clone() },
                None,
                Reason::StateUnknown,
                "Secret cert",
            ),
            (all, Some(Action::Register), Reason::Registering, "no certificate yet"),
        ] {
            let decision = decide(&case, None, now());
            assert_eq!((decision.action, decision.standing.why.reason), (action, reason), "{case:?}");
            assert!(decision.standing.why.message.contains(words), "{}", decision.standing.why.message);
            assert!(!decision.standing.is_registered);
            assert!(action.is_some() || !decision.next_look.is_zero(), "{case:?}");
        }
    }

    #[test]
    fn a07_a_valid_certificate_needs_no_registration() {
        let observed = Observed {
            certificate: hours(-1, 23),
            nonce: Part::Absent,
            key: Part::Absent,
            authority: Part::Absent,
            ..observed()
        };
        let decision = decide(&observed, None, now());
        assert_eq!(decision.action, None);
        assert!(decision.standing.is_registered);
        assert_eq!(decision.next_look, LONGEST_WAIT);
    }

    #[test]
    fn a08_renewal_begins_at_half_of_the_life_and_is_repeated_until_the_end() {
        let at_half = Observed { certificate: hours(-12, 12), ..observed() };
        assert_eq!(decide(&at_half, None, now()).action, Some(Action::Renew));
        let before = Observed { certificate: hours(-11, 12), nonce: Part::Absent, ..observed() };
        let decision = decide(&before, None, now());
        assert_eq!((decision.action, decision.next_look), (None, Duration::from_mins(30)));
        let just = Observed { renewed: Some(Duration::from_secs(10)), ..at_half.clone() };
        let decision = decide(&just, None, now());
        assert_eq!((decision.action, decision.next_look), (None, Duration::from_secs(20)), "certificates for minutes");
        let standby = Observed { is_leading: false, ..at_half.clone() };
        assert_eq!(decide(&standby, None, now()).action, None, "the leader renews");
        // A sixteenth of what is left: 45 minutes of 12 hours.
        let early = decide(&at_half, Some(&failed(Action::Renew, 3, false, 60)), now());
        assert_eq!((early.action, early.next_look), (None, Duration::from_mins(44)));
        assert!(early.standing.is_registered && early.standing.why.message.contains("renewal fails: no"));
        let conflict = decide(&at_half, Some(&failed(Action::Renew, 1, false, 0)), now());
        assert_eq!((conflict.action, conflict.next_look), (None, FIRST_PAUSE));
        let refused = decide(&at_half, Some(&failed(Action::Renew, 1, true, 60)), now());
        assert_eq!((refused.action, refused.next_look), (None, Duration::from_mins(44)));
        let due = decide(&at_half, Some(&failed(Action::Renew, 3, false, 45 * 60)), now());
        assert_eq!(due.action, Some(Action::Renew));
    }

    #[test]
    fn a06_the_nonce_goes_once_the_certificate_is_good() {
        let stored = Observed { certificate: hours(0, 24), ..observed() };
        assert_eq!(decide(&stored, None, now()).action, Some(Action::DeleteNonce));
        assert_eq!(decide(&Observed { is_leading: false, ..stored.clone() }, None, now()).action, None);
        assert_eq!(decide(&Observed { nonce: Part::Absent, ..stored }, None, now()).action, None);
    }

    #[test]
    fn a09_an_expired_certificate_and_a_fresh_nonce_register_again() {
        let expired =
            Observed { certificate: Certificate::Unusable("the certificate expired".to_owned()), ..observed() };
        assert_eq!(decide(&expired, None, now()).action, Some(Action::Register));
        let without = decide(&Observed { nonce: Part::Absent, ..expired }, None, now());
        assert_eq!(without.standing.why.reason, Reason::NonceMissing);
        assert!(without.standing.why.message.starts_with("the certificate expired; Secret n/nonce is missing; put"));
    }

    #[test]
    fn attempts_are_repeated_with_growing_pauses_and_a_refusal_waits() {
        for (attempt, wait, reason) in [
            (failed(Action::Register, 1, false, 0), 1, Reason::ShardUnreachable),
            (failed(Action::Register, 4, false, 3), 5, Reason::ShardUnreachable),
            (failed(Action::Register, 40, false, 0), 30, Reason::ShardUnreachable),
            (failed(Action::Register, 1, true, 0), 300, Reason::NonceRefused),
        ] {
            let decision = decide(&observed(), Some(&attempt), now());
            assert_eq!((decision.action, decision.next_look), (None, Duration::from_secs(wait)));
            assert_eq!(decision.standing.why.reason, reason);
            let later = Attempt { age: attempt.age + Duration::from_secs(wait), ..attempt };
            assert_eq!(decide(&observed(), Some(&later), now()).action, Some(Action::Register));
        }
        // The failure of one thing holds up no other.
        let other = failed(Action::MakeKey, 9, true, 0);
        assert_eq!(decide(&observed(), Some(&other), now()).action, Some(Action::Register));
    }
}
