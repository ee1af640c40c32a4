//! Names: of clusters, tenants, shards and groups, and of instances.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::refusal::Refusal;

/// Two names and their separator fit a label value of 63 characters, and some room.
const LONGEST: usize = 32;

/// Crockford's base 32, which has no letters that look like digits.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Of an instance id: the kind, then 128 bits in base 32.
const KIND: usize = 3;
const DIGITS: usize = 26;

/// Checks the name of a cluster, tenant, shard, group or subnet pool.
pub fn check(field: &str, name: &str) -> Result<(), Refusal> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let inside = name.bytes().all(|byte| plain(byte) || byte == b'-') && !name.contains("--");
    let ends = name.bytes().next().is_some_and(plain) && name.bytes().next_back().is_some_and(plain);
    if inside && ends && name.len() <= LONGEST {
        return Ok(());
    }
    // The name may be anything a client sent: show no more than a name could have.
    let shown: String = name.chars().take(LONGEST).collect();
    Err(Refusal::invalid(format!(
        "{field}: {shown:?} is not a name: 1 to {LONGEST} lower-case letters, digits and single hyphens, beginning and \
         ending with a letter or digit"
    )))
}

/// Whether that is an instance's kind: the first three letters of its id.
pub fn is_kind(kind: &str) -> bool {
    kind.len() == KIND && kind.bytes().all(|byte| byte.is_ascii_lowercase())
}

/// An instance's id: its kind and a UUID of version 7 in base 32, so that ids sort by creation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct InstanceId(String);

impl InstanceId {
    /// `kind` is three lower-case letters.
    pub fn new(kind: &str, uuid: u128) -> Self {
        let digit = |index: usize| {
            let shift = 5 * (DIGITS - 1 - index);
            char::from(ALPHABET[usize::try_from((uuid >> shift) & 31).unwrap_or(0)])
        };
        Self(kind.chars().chain((0..DIGITS).map(digit)).collect())
    }

    /// What a client sent as `instance_id`.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let id = Self(text.to_owned());
        let fits = text.is_ascii()
            && text.len() == KIND + DIGITS
            && is_kind(&text[..KIND])
            && text[KIND..].bytes().all(|byte| ALPHABET.contains(&byte))
            // 26 digits hold 130 bits.
            && text.as_bytes()[KIND] < b'8';
        if fits {
            return Ok(id);
        }
        let shown: String = text.chars().take(KIND + DIGITS).collect();
        Err(Refusal::invalid(format!(
            "instance_id: {shown:?} is not an instance id: three letters and {DIGITS} digits of base 32"
        )))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn kind(&self) -> &str {
        &self.0[..KIND]
    }

    /// The UUID form and the kind: how storage names the instance.
    pub fn storage_key(&self) -> String {
        let value = self.0[KIND..].bytes().fold(0u128, |value, byte| {
            let digit = ALPHABET.iter().position(|other| *other == byte).unwrap_or(0);
            (value << 5) | digit as u128
        });
        let hex = format!("{value:032x}");
        let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
        format!("{}-{}", parts.join("-"), self.kind())
    }

    /// The instance that storage names so; `None` for a name that is none of ours.
    pub fn of_storage_key(text: &str) -> Option<Self> {
        let (uuid, kind) = text.rsplit_once('-').filter(|(_, kind)| is_kind(kind))?;
        let id = Self::new(kind, u128::from_str_radix(&uuid.replace('-', ""), 16).ok()?);
        (id.storage_key() == text).then_some(id)
    }
}

/// Texts and ids compare and hash alike, so that a map of ids is asked by text.
impl std::borrow::Borrow<str> for InstanceId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for InstanceId {
    type Error = Refusal;

    fn try_from(text: String) -> Result<Self, Refusal> {
        Self::parse(&text)
    }
}

impl From<InstanceId> for String {
    fn from(id: InstanceId) -> Self {
        id.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rule() {
        for good in ["a", "0", "web", "web-1", "a-b-c", &"x".repeat(32)] {
            assert!(check("key", good).is_ok(), "{good:?}");
        }
        for bad in ["", "-a", "a-", "a--b", "A", "a_b", "ä", "a.b", "a/b", &"x".repeat(33)] {
            let refusal = check("key", bad).unwrap_err();
            assert!(refusal.message.starts_with("key: "), "{refusal}");
        }
    }

    #[test]
    fn an_instance_id_is_its_kind_and_its_uuid() {
        let uuid = 0x0197_0a3b_4c5d_7e6f_8091_a2b3_c4d5_e6f7;
        let id = InstanceId::new("web", uuid);
        assert_eq!(id.as_str(), "web01jw53pk2xfsqr14d2pf2dbsqq");
        assert_eq!(id.storage_key(), "01970a3b-4c5d-7e6f-8091-a2b3c4d5e6f7-web");
        assert_eq!(InstanceId::parse(id.as_str()).unwrap(), id);
        assert_eq!(InstanceId::of_storage_key(&id.storage_key()), Some(id.clone()));
        for other in
            ["", "-web", "0197-web", "01970a3b-4c5d-7e6f-8091-a2b3c4d5e6f7", "01970a3b4c5d7e6f8091a2b3c4d5e6f7-web"]
        {
            assert_eq!(InstanceId::of_storage_key(other), None, "{other:?}");
        }
        assert!(InstanceId::new("web", uuid) < InstanceId::new("web", uuid + 1), "ids sort by creation");
        assert_eq!(InstanceId::new("web", u128::MAX).as_str(), "web7zzzzzzzzzzzzzzzzzzzzzzzzz");
    }

    #[test]
    fn what_is_no_instance_id_is_refused() {
        let digits = "01jw53pk2xfsqr14d2pf2dbsqq";
        for bad in [
            String::new(),
            format!("we{digits}"),
            format!("WEB{digits}"),
            format!("web{digits}0"),
            format!("web8{}", &digits[1..]),
            format!("webi{}", &digits[1..]),
            format!("wéb{}", &digits[1..]),
        ] {
            assert!(InstanceId::parse(&bad).is_err(), "{bad:?}");
        }
    }
}
