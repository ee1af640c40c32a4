//! The file of dynamic groups: read again when another hand changed it, written over what was read, and never over what
//! cannot be read.

use plan::shard::{
    group::Dynamic,
    refusal::{Code, Refusal},
};

use super::{
    memory::Memory,
    term::{Context, Term, TermError, bounded},
};
use crate::store::{Etag, Expect, OBJECT_LIMIT};

impl Term {
    /// Takes over what another hand changed in the groups file.
    pub(super) async fn reload_groups(&self) -> Result<(), TermError> {
        let known = self.memory().dynamic_etag.clone();
        if let Some((dynamic, etag)) = load_groups_unless(&self.context, known.as_ref()).await? {
            {
                let mut memory = self.memory();
                memory.groups.set_dynamic(dynamic);
                memory.dynamic_etag = etag;
            }
            self.enqueue_all();
        }
        Ok(())
    }

    /// Reads the groups again if some of them are unknown: they may have been restored.
    pub(super) async fn recheck_groups(&self) -> Result<(), TermError> {
        if self.memory().groups.unknown() == 0 {
            return Ok(());
        }
        let _one = self.groups_gate.lock().await;
        self.reload_groups().await
    }

    /// Refuses what would be answered as if groups that cannot be read were gone.
    pub(super) fn tenant_readable(&self, tenant: &str) -> Result<(), TermError> {
        let damage = self.memory().groups.dynamic().tenant_damage(tenant);
        damage.map_or(Ok(()), |why| Err(self.damaged_groups(why)))
    }

    /// The same for one group: what cannot be read is not written over.
    pub(super) fn readable(&self, memory: &Memory, tenant: &str, key: &str) -> Result<(), TermError> {
        let damage = memory.groups.dynamic().damage(tenant, key);
        damage.map_or(Ok(()), |why| Err(self.damaged_groups(why)))
    }

    pub(super) fn damaged_groups(&self, why: String) -> TermError {
        TermError::Damaged { key: self.context.layout.groups(), why }
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
        let body = serde_json::to_vec_pretty(&after).expect("groups are plain data");
        if body.len() > OBJECT_LIMIT {
            let text =
                "config: the groups of all tenants together are longer than storage takes; remove groups or vars";
            return Err(Refusal::new(Code::ResourceExhausted, text).into());
        }
        let expect = etag.map_or(Expect::Absent, Expect::Content);
        let etag = bounded(&key, self.context.store.put(&key, body, expect)).await?;
        let mut memory = self.memory();
        memory.groups.set_dynamic(after);
        memory.dynamic_etag = Some(etag);
        Ok(())
    }
}

pub(super) async fn load_groups(context: &Context) -> Result<(Dynamic, Option<Etag>), TermError> {
    Ok(load_groups_unless(context, None).await?.unwrap_or_default())
}

/// `None` if the groups are those of `known`, which costs no reading of them.
async fn load_groups_unless(
    context: &Context,
    known: Option<&Etag>,
) -> Result<Option<(Dynamic, Option<Etag>)>, TermError> {
    let key = context.layout.groups();
    let object = bounded(&key, context.store.get(&key)).await?;
    if known.is_some() && known == object.as_ref().map(|object| &object.etag) {
        return Ok(None);
    }
    // Without it no group has a size: to take it for empty would drain the instances of all of them.
    let damaged = |why: String| {
        let why = format!("{why}; correct it, or restore it from a backup of the storage");
        TermError::Damaged { key: key.clone(), why }
    };
    let object = match object {
        Some(object) => object,
        // A server that removes the last group leaves an empty object.
        None if known.is_some() => return Err(damaged("it was there and is missing".to_owned())),
        None => return Ok(Some(Default::default())),
    };
    let text = std::str::from_utf8(&object.body).map_err(|error| damaged(error.to_string()))?;
    let groups = jsonc_parser::parse_to_serde_value(text, &jsonc_parser::ParseOptions::default());
    Ok(Some((groups.map_err(|error| damaged(error.to_string()))?, Some(object.etag))))
}
