//! Records of instances as storage has them, those that cannot be read included: their machines run.

use std::fmt;

use plan::shard::{id::InstanceId, instance::Record};

use crate::store::layout::ShardLayout;

/// An object among the records that is none. It is never taken for an absent one, and never written over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    pub key: String,
    pub why: String,
    /// Tenant and instance that it is about, as far as its name or its content says.
    pub owner: Option<(String, InstanceId)>,
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, why, .. } = self;
        let remedy = "restore it from a backup of the storage, or remove it, and its machine is removed too";
        write!(f, "{key} is damaged: {why}; {remedy}")
    }
}

/// Reads the record under that key.
pub fn read(layout: &ShardLayout, key: &str, body: &[u8]) -> Result<Record, Damaged> {
    let damaged = |why: String, owner| Damaged { key: key.to_owned(), why, owner };
    let record: Record =
        serde_json::from_slice(body).map_err(|error| damaged(error.to_string(), owner(layout, key)))?;
    if layout.instance(&record.tenant, &record.id.storage_key()) == key {
        return Ok(record);
    }
    // A copy, or a file by another hand: the instance has its record elsewhere, or has lost it.
    let why = format!("its name is not that of its instance, {} of tenant {:?}", record.id, record.tenant);
    Err(damaged(why, Some((record.tenant, record.id))))
}

/// Whom the name of an object is about.
fn owner(layout: &ShardLayout, key: &str) -> Option<(String, InstanceId)> {
    let name = key.strip_prefix(&layout.instances())?.strip_suffix(".json")?;
    let (tenant, storage_key) = name.split_once('.')?;
    Some((tenant.to_owned(), InstanceId::of_storage_key(storage_key)?))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use plan::shard::group::Blueprint;

    use super::*;

    #[test]
    fn what_is_no_record_says_whose_it_may_be() {
        let layout = ShardLayout::new("a");
        let id = InstanceId::new("web", 7);
        let names = ("default", "g", "w");
        let record = Record::new(id.clone(), names, &Blueprint::default(), "s", Timestamp::UNIX_EPOCH);
        let text = serde_json::to_vec(&record).unwrap();
        let key = layout.instance("default", &id.storage_key());
        assert_eq!(read(&layout, &key, &text), Ok(record));
        let owner = Some(("default".to_owned(), id.clone()));
        for body in [&b""[..], b"\xff\xfe", b"{", b"[]", b"null", b"{\"id\": 5}", &text[..text.len() - 1]] {
            let damaged = read(&layout, &key, body).unwrap_err();
            assert_eq!((&damaged.key, &damaged.owner), (&key, &owner), "{damaged}");
            assert!(damaged.to_string().contains("restore it"), "{damaged}");
        }
        let copy = read(&layout, &format!("{key}.bak"), &text).unwrap_err();
        assert_eq!(copy.owner, owner, "its content says so");
        let other = read(&layout, &layout.instance("acme", &id.storage_key()), &text).unwrap_err();
        assert!(other.why.contains("default"), "{other}");
        assert_eq!(read(&layout, &format!("{}notes.txt", layout.instances()), b"x").unwrap_err().owner, None);
    }
}
