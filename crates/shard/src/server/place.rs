//! Where a shard's machines are. Credentials of another place show none of them, and all would seem gone; so the place has a
//! mark, and storage says which.

use serde::{Deserialize, Serialize};

use super::term::{Context, TermError, bounded, bounded_provider};
use crate::store::{Expect, Lead};

#[derive(Debug, Serialize, Deserialize)]
struct Place {
    mark: String,
}

/// Makes sure that the provider looks where the machines are, and stores the mark. `expected` as for
/// [`Provider::claim`](crate::provider::Provider::claim).
pub async fn claim(context: &Context, lead: &Lead, expected: bool) -> Result<(), TermError> {
    let key = context.layout.place();
    let stored = bounded(&key, context.store.get(&key)).await?;
    let known = stored.as_ref().map(|object| serde_json::from_slice::<Place>(&object.body)).transpose();
    let known = known.map_err(|error| TermError::Damaged {
        key: key.clone(),
        why: format!("{error}; restore it, or remove it if the provider's credentials are the right ones"),
    })?;
    let known = known.map(|place| place.mark);
    let mark = bounded_provider(context.provider.claim(known.as_deref(), expected)).await?;
    match mark.filter(|mark| Some(mark) != known.as_ref()) {
        None => Ok(()),
        Some(mark) => {
            lead.verify().await?;
            let body = serde_json::to_vec(&Place { mark }).expect("a place is plain data");
            let expect = stored.map_or(Expect::Absent, |object| Expect::Content(object.etag));
            bounded(&key, context.store.put(&key, body, expect)).await?;
            Ok(())
        }
    }
}
