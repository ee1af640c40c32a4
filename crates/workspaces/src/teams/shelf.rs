//! The derived objects of all kinds behind one face: what is there, and writes.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use api::workspace::{LABEL_MANAGED_BY, MANAGED_BY};
use futures::future::BoxFuture;
use plan::workspaces::{Action, Body, Derived, Found, ObjectId, ObjectKind, Objects, fingerprint, is_lacking};
use runtime::{Error, Index, Key, Kind, View};
use serde_json::{Value, json};

use super::kept::Owned;

/// One kind of derived objects.
pub struct Shelf {
    kind: Arc<dyn Contents>,
    owned: Arc<Index<Box<str>>>,
    /// Whether only labelled objects are watched: nobody tells what becomes of the others.
    is_selected: bool,
}

impl Shelf {
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
trait Contents: Send + Sync {
    fn found(&self, key: &Key) -> Option<Found>;
    fn settle<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<(), Error>>;
    fn refresh<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<(), Error>>;
    fn apply<'a>(&'a self, key: &'a Key, body: &'a Value) -> BoxFuture<'a, Result<(), Error>>;
    fn patch<'a>(&'a self, key: &'a Key, patch: Value) -> BoxFuture<'a, Result<(), Error>>;
    fn delete<'a>(&'a self, key: &'a Key, uid: &'a str, version: &'a str) -> BoxFuture<'a, Result<(), Error>>;
}

impl<W: View, T: Owned + Send + Sync + 'static> Contents for Kind<W, T> {
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
pub struct Shelves {
    shelves: BTreeMap<ObjectKind, Shelf>,
    /// What the server made of applies that did not give what was asked for; see [`Found::accepted`].
    accepted: Mutex<HashMap<(ObjectKind, Key), String>>,
}

impl Shelves {
    pub fn new(shelves: impl IntoIterator<Item = (ObjectKind, Shelf)>) -> Self {
        Self { shelves: shelves.into_iter().collect(), accepted: Mutex::default() }
    }

    /// What an owner owns.
    pub async fn owned(&self, namespace: &Arc<str>, uid: &str) -> Result<Objects, Error> {
        let mut objects = Objects::new();
        for (kind, shelf) in &self.shelves {
            for key in shelf.owned.keys(&uid.into()) {
                if key.namespace == *namespace {
                    self.add(&mut objects, ObjectId::new(*kind, &*key.name), &key).await?;
                }
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
        for derived in wanted.iter().filter(|derived| matches!(derived.wish, plan::workspaces::Wish::Apply(_))) {
            if !objects.contains_key(&derived.id) {
                let key = Key::new(namespace.clone(), derived.id.name.as_str());
                self.add(objects, derived.id.clone(), &key).await?;
            }
        }
        Ok(())
    }

    pub async fn add(&self, objects: &mut Objects, id: ObjectId, key: &Key) -> Result<(), Error> {
        if let Some(found) = self.shelf(id.kind).look(key).await? {
            let accepted = self.accepted().get(&(id.kind, key.clone())).cloned();
            objects.insert(id, Found { accepted, ..found });
        }
        Ok(())
    }

    /// Carries out an action on a derived object.
    pub async fn execute(&self, namespace: &Arc<str>, action: &Action) -> Result<(), Error> {
        let (Action::Apply { id, .. } | Action::Patch { id, .. } | Action::Delete { id, .. }) = action else {
            unreachable!("finalizers are the owner's")
        };
        let (shelf, key) = (self.shelf(id.kind), Key::new(namespace.clone(), id.name.as_str()));
        match action {
            Action::Apply { body, .. } => {
                tracing::debug!(object = %id, "applying");
                shelf.kind.apply(&key, &body.0).await?;
                self.take_note(id, &key, body);
                Ok(())
            }
            Action::Patch { uid, resource_version, patch, .. } => {
                tracing::debug!(object = %id, "patching");
                let mut patch = patch.0.clone();
                patch["metadata"]["uid"] = json!(uid);
                patch["metadata"]["resourceVersion"] = json!(resource_version);
                shelf.kind.patch(&key, patch).await
            }
            Action::Delete { uid, resource_version, .. } => {
                tracing::debug!(object = %id, "deleting");
                self.accepted().remove(&(id.kind, key.clone()));
                shelf.kind.delete(&key, uid, resource_version).await
            }
            Action::AddFinalizer { .. } | Action::ReleaseFinalizer { .. } => Ok(()),
        }
    }

    /// If the answer to an apply is not what was asked for, asking again would not help.
    fn take_note(&self, id: &ObjectId, key: &Key, body: &Body) {
        let Some(found) = self.shelf(id.kind).kind.found(key) else { return };
        let mut desired = body.0.clone();
        // What the apply was decided on is no wish.
        if let Some(metadata) = desired["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        let mut accepted = self.accepted();
        if is_lacking(id, &desired, &found.content.0) {
            accepted.insert((id.kind, key.clone()), fingerprint(&found.content.0));
        } else {
            accepted.remove(&(id.kind, key.clone()));
        }
    }

    fn shelf(&self, kind: ObjectKind) -> &Shelf {
        self.shelves.get(&kind).expect("every kind has its shelf")
    }

    fn accepted(&self) -> MutexGuard<'_, HashMap<(ObjectKind, Key), String>> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
