//! The derived objects of all kinds behind one face: what is there, and writes.

use std::{collections::BTreeMap, sync::Arc};

use api::{
    condition::Reason,
    workspace::{LABEL_MANAGED_BY, MANAGED_BY, WorkspaceSpec},
};
use futures::future::BoxFuture;
use plan::{
    round::Why,
    workspaces::{
        Accepted, Action, Content, Data, Derived, Digested, Done, Found, ObjectId, ObjectKind, Objects, Wish,
        data_of_config, data_of_password, fingerprint, is_lacking,
    },
};
use runtime::{Controller, Error, Index, Key, Kind, Turn, View, Writer};
use serde_json::{Value, json};

use super::{projection::Owned, secret};

/// Of one kind, for one round. Anyone who may write objects in a namespace may call them owned by a Workspace there,
/// and a round holds all that it looks at; a Workspace derives some hundred of a kind. Of more, the first are removed,
/// and the next round sees others.
const MOST_OWNED: usize = 2000;

/// One kind of derived objects.
pub struct DerivedKind {
    kind: Arc<dyn AnyKind>,
    owned: Arc<Index<Box<str>>>,
    /// Whether only labelled objects are watched: no event says what becomes of the others.
    is_selected: bool,
}

impl DerivedKind {
    pub fn of<W: View, T: Owned + Send + Sync + 'static>(
        kind: &Arc<Kind<W, T>>,
        owned: &Arc<Index<Box<str>>>,
        is_selected: bool,
    ) -> Self {
        Self { kind: kind.clone(), owned: owned.clone(), is_selected }
    }

    /// The object as it is now, without doubt.
    async fn look(&self, key: &Key) -> Result<Option<Found>, Error> {
        self.kind.settle(key).await?;
        let found = self.kind.found(key);
        let is_hidden = |found: &Found| found.content.0["metadata"]["labels"][LABEL_MANAGED_BY] != MANAGED_BY;
        if self.is_selected && found.as_ref().is_some_and(is_hidden) {
            self.kind.refresh(key).await?;
            return Ok(self.kind.found(key));
        }
        Ok(found)
    }
}

/// A kind with its types erased.
trait AnyKind: Send + Sync {
    fn found(&self, key: &Key) -> Option<Found>;
    fn settle<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<(), Error>>;
    fn refresh<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<(), Error>>;
    fn apply<'a>(&'a self, key: &'a Key, body: &'a Value) -> BoxFuture<'a, Result<(), Error>>;
    fn patch<'a>(&'a self, key: &'a Key, patch: Value) -> BoxFuture<'a, Result<(), Error>>;
    fn delete<'a>(&'a self, key: &'a Key, uid: &'a str, version: &'a str) -> BoxFuture<'a, Result<(), Error>>;
}

impl<W: View, T: Owned + Send + Sync + 'static> AnyKind for Kind<W, T> {
    fn found(&self, key: &Key) -> Option<Found> {
        self.get(key).map(|version| T::found(&version))
    }

    fn settle<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(Kind::settle(self, key))
    }

    fn refresh<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(Kind::refresh(self, key))
    }

    fn apply<'a>(&'a self, key: &'a Key, body: &'a Value) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { Kind::apply(self, key, body).await.map(drop) })
    }

    fn patch<'a>(&'a self, key: &'a Key, patch: Value) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { Kind::patch(self, key, None, &patch).await.map(drop) })
    }

    fn delete<'a>(&'a self, key: &'a Key, uid: &'a str, version: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { Kind::delete(self, key, uid, version).await.map(drop) })
    }
}

/// All kinds of derived objects.
pub struct DerivedKinds {
    kinds: BTreeMap<ObjectKind, DerivedKind>,
    /// For the Secrets that content is taken from.
    writer: Writer,
}

impl DerivedKinds {
    pub fn new(kinds: impl IntoIterator<Item = (ObjectKind, DerivedKind)>, writer: Writer) -> Self {
        Self { kinds: kinds.into_iter().collect(), writer }
    }

    /// What an owner owns, up to [`MOST_OWNED`] of a kind.
    pub async fn owned(&self, namespace: &Arc<str>, uid: &str) -> Result<Objects, Error> {
        let mut objects = Objects::new();
        for (kind, of_kind) in &self.kinds {
            for key in owned_by(&of_kind.owned, namespace, uid) {
                self.add(&mut objects, ObjectId::new(*kind, &*key.name), &key).await?;
            }
        }
        Ok(objects)
    }

    /// Adds whatever has one of these names.
    pub async fn add_wanted(
        &self,
        objects: &mut Objects,
        namespace: &Arc<str>,
        wanted: &[Derived],
    ) -> Result<(), Error> {
        for derived in wanted.iter().filter(|derived| matches!(derived.wish, Wish::Apply(_))) {
            if !objects.contains_key(&derived.id) {
                let key = Key::new(namespace.clone(), derived.id.name.as_str());
                self.add(objects, derived.id.clone(), &key).await?;
            }
        }
        Ok(())
    }

    pub async fn add(&self, objects: &mut Objects, id: ObjectId, key: &Key) -> Result<(), Error> {
        if let Some(found) = self.kind(id.kind).look(key).await? {
            objects.insert(id, found);
        }
        Ok(())
    }

    /// Carries out an action for the object of a round. `spec` is that of a Workspace.
    pub async fn execute<C: Controller>(
        &self,
        turn: &Turn<'_, C>,
        kind: &Kind<C::View, C::Object>,
        spec: Option<&WorkspaceSpec>,
        action: &Action,
    ) -> Result<Done, Error> {
        let key = |id: &ObjectId| Key::new(turn.key.namespace.clone(), id.name.as_str());
        match action {
            Action::AddFinalizer { finalizers } => {
                let patch = json!({ "metadata": { "finalizers": finalizers } });
                turn.subject.patch(kind, turn.key, None, patch).await?;
            }
            Action::ReleaseFinalizer { finalizers } => {
                turn.subject.release_finalizer(kind, turn.key, finalizers).await?;
            }
            Action::Apply { id, body, content } => {
                tracing::debug!(object = %id, "applying");
                let mut body = body.0.clone();
                if let Some(content) = content {
                    body["data"] = json!(self.data(&key(id), spec, content).await?);
                }
                return self.apply(id, &key(id), body).await;
            }
            Action::Patch { id, uid, resource_version, patch } => {
                tracing::debug!(object = %id, "patching");
                let mut sent = patch.0.clone();
                sent["metadata"]["uid"] = json!(uid);
                sent["metadata"]["resourceVersion"] = json!(resource_version);
                let kind = &self.kind(id.kind).kind;
                kind.patch(&key(id), sent).await?;
                // A webhook may undo it. Of other kinds only a part is patched, and what else differs is for applies.
                let found = kind.found(&key(id)).filter(|_| id.kind.is_config());
                let undone = found.filter(|found| is_lacking(id, &patch.0, &found.content.0));
                return Ok(undone.map(|found| fingerprint(&found.content.0)));
            }
            Action::Delete { id, uid, resource_version } => {
                tracing::debug!(object = %id, "deleting");
                self.kind(id.kind).kind.delete(&key(id), uid, resource_version).await?;
            }
        }
        Ok(None)
    }

    /// If the answer is not what was asked for, asking again would not help: then the answer's fingerprint.
    async fn apply(&self, id: &ObjectId, key: &Key, mut body: Value) -> Result<Done, Error> {
        let kind = &self.kind(id.kind).kind;
        let is_secret = id.kind == ObjectKind::Secret;
        kind.apply(key, &body).await.map_err(|error| if is_secret { without_words(id, error) } else { error })?;
        let Some(found) = kind.found(key) else { return Ok(None) };
        // What the apply was decided on is no wish.
        if let Some(metadata) = body["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        Ok(is_lacking(id, &body, &found.content.0).then(|| fingerprint(&found.content.0)))
    }

    /// The data for a derived Secret, provided that it still is what was planned on.
    async fn data(&self, secret: &Key, spec: Option<&WorkspaceSpec>, content: &Content) -> Result<Data, Error> {
        let data = match content {
            Content::FromSecret { name, digest } => {
                let source = Key::new(secret.namespace.clone(), name.as_str());
                let data = secret::read(&self.writer, &source).await?;
                data.filter(|data| Digested::of(data).digest == *digest)
            }
            Content::FromConfig { name } => spec.and_then(|spec| spec.configs.get(name)).map(data_of_config),
            Content::NewPassword => {
                let is_free = self.kind(ObjectKind::Secret).kind.found(secret).is_none();
                is_free.then(|| data_of_password(secret::new_password()))
            }
        };
        data.ok_or(Error::Outdated)
    }

    fn kind(&self, kind: ObjectKind) -> &DerivedKind {
        self.kinds.get(&kind).expect("every kind is there")
    }
}

/// What an owner owns in its namespace. What is left out is surplus, or is looked up by its name.
fn owned_by(owned: &Index<Box<str>>, namespace: &str, uid: &str) -> Vec<Key> {
    owned.keys_up_to(&uid.into(), MOST_OWNED, |key| *key.namespace == *namespace)
}

/// What the server made of earlier applies.
pub fn accept(objects: &mut Objects, accepted: &Accepted) {
    for (id, fingerprint) in accepted {
        if let Some(found) = objects.get_mut(id) {
            found.accepted = Some(fingerprint.clone());
        }
    }
}

/// The server may quote what it refuses, and a Secret's content must reach neither a status nor a log.
fn without_words(id: &ObjectId, error: Error) -> Error {
    let Some(status) = error.status().filter(|_| !error.is_namespace_terminating()) else { return error };
    let message = format!("{id} was refused: {}", status.reason);
    // A webhook chooses its own code; whatever it is, its words are not repeated.
    match status.code {
        400 | 403 | 422 => Error::Refused(Why { reason: Reason::ObjectRejected, message }),
        _ => error.with_message(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_looks_at_a_bounded_part_of_what_claims_to_be_owned() {
        let owned = Index::default();
        owned.set(&Key::new("another", "a"), [Box::from("uid")]);
        for number in 0..=MOST_OWNED {
            owned.set(&Key::new("team", format!("a-{number}")), [Box::from("uid")]);
        }
        let keys = owned_by(&owned, "team", "uid");
        assert!(keys.len() == MOST_OWNED && keys.iter().all(|key| *key.namespace == *"team"));
    }
}
