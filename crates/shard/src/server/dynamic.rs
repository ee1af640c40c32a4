//! The file of dynamic groups: read again when another hand changed it, written over what was read, and never over what
//! cannot be read.

use plan::shard::{
    config::Config,
    group::{Dynamic, lost},
    refusal::{Code, Refusal},
};

use super::{
    entries::Entries,
    memory::Memory,
    term::{Context, Term, TermError, bounded},
};
use crate::{
    config::{CORRECT, RESTORE, parse_groups},
    store::{Etag, Expect, Lead, OBJECT_LIMIT, Object},
};

/// What the object says that is there once groups were stored: for an administrator who finds it.
const WRITTEN: &str = "{\"note\": \"groups.jsonc was written; if it is missing, it was lost\"}\n";

impl Term {
    /// Takes over what another hand changed in the groups file.
    pub(super) async fn reload_groups(&self) -> Result<(), TermError> {
        let known = self.memory().dynamic_etag.clone();
        let loaded = load_groups_unless(&self.context, &known).await;
        self.note_groups(loaded.as_ref().err());
        if let Some((dynamic, etag)) = loaded? {
            {
                let mut memory = self.memory();
                memory.groups.set_dynamic(dynamic);
                memory.dynamic_etag = etag;
            }
            self.enqueue_all();
        }
        Ok(())
    }

    /// Reads the groups again: they may have been lost, or restored. What is damaged stays as it was known.
    pub(super) async fn recheck_groups(&self) -> Result<(), TermError> {
        let _one = self.groups_gate.lock().await;
        match self.reload_groups().await {
            Err(TermError::Damaged { .. }) => Ok(()),
            other => other,
        }
    }

    /// Logs the damage of the whole file when it begins, changes and ends.
    fn note_groups(&self, error: Option<&TermError>) {
        let mut memory = self.memory();
        match error {
            Some(error @ TermError::Damaged { .. }) => {
                let error = error.to_string();
                if memory.groups_damage.is_news(&error) {
                    tracing::error!(error, "groups: they stay as they were, and changes of them are refused");
                }
            }
            None => {
                if memory.groups_damage.ends() {
                    tracing::info!("groups: their file can be read again");
                }
            }
            // Storage did not answer, which says nothing about the file.
            Some(_) => {}
        }
    }

    /// Whether the file of groups is missing or cannot be read.
    pub fn groups_damaged(&self) -> bool {
        self.memory().groups_damage.is_failing()
    }

    /// Refuses what would be answered as if groups that cannot be read were gone.
    pub(super) fn tenant_readable(&self, tenant: &str) -> Result<(), TermError> {
        let damage = self.memory().groups.dynamic().tenant_damage(tenant);
        damage.map_or(Ok(()), |why| Err(self.damaged_groups(&why)))
    }

    /// The same for one group: what cannot be read is not written over.
    pub(super) fn readable(&self, memory: &Memory, tenant: &str, key: &str) -> Result<(), TermError> {
        let damage = memory.groups.dynamic().damage(tenant, key);
        damage.map_or(Ok(()), |why| Err(self.damaged_groups(&why)))
    }

    pub(super) fn damaged_groups(&self, why: &str) -> TermError {
        damaged(&self.context.layout.groups(), why)
    }

    pub(super) async fn store_groups(&self, after: Dynamic) -> Result<(), TermError> {
        self.lead.verify().await?;
        let key = self.context.layout.groups();
        let etag = {
            let memory = self.memory();
            if *memory.groups.dynamic() == after {
                return Ok(());
            }
            memory.dynamic_etag.clone()
        };
        let body = encoded(&after);
        if body.len() > OBJECT_LIMIT {
            let text =
                "config: the groups of all tenants together are longer than storage takes; remove groups or vars";
            return Err(Refusal::new(Code::ResourceExhausted, text).into());
        }
        let etag = bounded(&key, self.context.store.put(&key, body, Expect::Content(etag))).await?;
        let mut memory = self.memory();
        memory.groups.set_dynamic(after);
        memory.dynamic_etag = etag;
        Ok(())
    }
}

/// Reads the groups for a new lead. The first of a shard's life stores that there are none, so that a later leader can tell
/// groups that were lost from groups that never were.
pub(super) async fn load_groups(
    context: &Context,
    lead: &Lead,
    config: &Config,
    entries: &Entries,
) -> Result<(Dynamic, Etag), TermError> {
    let (store, key, mark) = (&context.store, context.layout.groups(), context.layout.groups_written());
    let object = bounded(&key, store.get(&key)).await?;
    let is_written = bounded(&mark, store.get(&mark)).await?.is_some();
    let (dynamic, etag) = if let Some(object) = object {
        parsed(&key, object)?
    } else {
        if let Some(why) = lost(Some(config), is_written, entries.iter().map(|entry| &entry.record)) {
            return Err(damaged(&key, &format!("{why}; {RESTORE}")));
        }
        lead.verify().await?;
        let none = Dynamic::default();
        let etag = bounded(&key, store.put(&key, encoded(&none), Expect::Absent)).await?;
        (none, etag)
    };
    if !is_written {
        // After the groups: a server that dies in between leaves groups without the mark, which the next one writes.
        match bounded(&mark, store.put(&mark, WRITTEN.as_bytes().to_vec(), Expect::Absent)).await {
            Err(error) if !error.is_conflict() => return Err(error.into()),
            _ => {}
        }
    }
    Ok((dynamic, etag))
}

/// `None` if the groups are those of `known`, which costs no reading of them.
async fn load_groups_unless(context: &Context, known: &Etag) -> Result<Option<(Dynamic, Etag)>, TermError> {
    let key = context.layout.groups();
    match bounded(&key, context.store.get(&key)).await? {
        Some(object) if object.etag == *known => Ok(None),
        Some(object) => parsed(&key, object).map(Some),
        // A server that removes the last group leaves an empty object.
        None => Err(damaged(&key, &format!("it was there and is missing; {RESTORE}"))),
    }
}

/// Without them no group has a size: to take them for empty would drain the instances of all of them.
fn parsed(key: &str, object: Object) -> Result<(Dynamic, Etag), TermError> {
    let text = std::str::from_utf8(&object.body).map_err(|error| error.to_string());
    let groups = text.and_then(parse_groups).map_err(|why| damaged(key, &format!("{why}; {CORRECT}")))?;
    Ok((groups, object.etag))
}

fn damaged(key: &str, why: &str) -> TermError {
    TermError::Damaged { key: key.to_owned(), why: why.to_owned() }
}

fn encoded(groups: &Dynamic) -> Vec<u8> {
    serde_json::to_vec_pretty(groups).expect("groups are plain data")
}
