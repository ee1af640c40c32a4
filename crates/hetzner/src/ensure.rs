//! Resources that exist once, whatever happened to the request that created them.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use http::Method;
use serde_json::{Value, json};

use crate::{
    client::{Client, encoded},
    decode::{self, decode_one, decode_page},
    error::{Cause, Error},
    resource::{Action, Labels, Resource},
};

/// A resource that is to exist.
#[derive(Clone)]
pub struct Wanted {
    /// Unique in the project: it is what makes creating safe to repeat.
    pub name: String,
    /// The labels of a new one.
    pub labels: Labels,
    /// One of that name is ours if it has this label; else it is left alone.
    pub owner: (String, String),
    /// The other fields of the request that creates it.
    pub body: Value,
}

impl fmt::Debug for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // User data and private keys are in the body.
        let Self { name, labels, owner, body: _ } = self;
        let mut shown = f.debug_struct("Wanted");
        shown.field("name", name).field("labels", labels).field("owner", owner).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
pub struct Ensured<R> {
    pub resource: R,
    /// By a request of this call, even if its answer was lost.
    pub was_created: bool,
}

impl Wanted {
    fn request(&self) -> Value {
        let mut labels = self.labels.clone();
        labels.insert(self.owner.0.clone(), self.owner.1.clone());
        let mut body = self.body.clone();
        if !body.is_object() {
            body = json!({});
        }
        body["name"] = json!(self.name);
        body["labels"] = json!(labels);
        body
    }

    fn adopt<R: Resource>(&self, found: R) -> Result<R, Error> {
        let (key, value) = &self.owner;
        if found.labels().get(key) == Some(value) {
            return Ok(found);
        }
        let cause = Cause::Foreign { kind: R::ONE, name: self.name.clone(), id: found.id() };
        Err(Error::new(format!("POST /{}", R::MANY), cause))
    }
}

impl Client {
    /// `None` where there is none.
    pub async fn get<R: Resource>(&self, id: i64) -> Result<Option<R>, Error> {
        match self.read(&format!("/{}/{id}", R::MANY), decode_one::<R>).await {
            Ok((found, _)) => Ok(Some(found)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub async fn by_name<R: Resource>(&self, name: &str) -> Result<Option<R>, Error> {
        let path = format!("/{}?name={}", R::MANY, encoded(name));
        let page = self.read(&path, decode_page::<R>).await?;
        // An API that ignored the filter must not make us adopt another resource.
        Ok(page.items.into_iter().find(|found| found.name() == name))
    }

    /// Finds it by name and adopts it, or creates it; and waits until nothing is under way on it any more.
    pub async fn ensure<R: Resource>(&self, wanted: &Wanted) -> Result<Ensured<R>, Error> {
        let was_created = &AtomicBool::new(false);
        let observe = || async move {
            let Some(found) = self.by_name::<R>(&wanted.name).await? else { return Ok(None) };
            let found = wanted.adopt(found)?;
            if !R::HAS_ACTIONS {
                return Ok(Some(found));
            }
            self.wait(self.actions::<R>(found.id(), "running").await?).await?;
            // What was found may have changed since, even if nothing was under way any more.
            self.get(found.id()).await
        };
        let act = || async move {
            was_created.store(true, Relaxed);
            let (created, actions) = self.create::<R>(wanted).await?;
            if actions.is_empty() {
                return Ok(created);
            }
            let id = created.id();
            self.wait(actions).await?;
            // It may be gone again: then its creation is to be repeated.
            let gone = || Error::new(format!("GET /{}/{id}", R::MANY), Cause::Unseen);
            self.get(id).await?.ok_or_else(gone)
        };
        let resource = self.settle(observe, act).await?;
        Ok(Ensured { resource, was_created: was_created.load(Relaxed) })
    }

    /// As [`Client::ensure`], for callers that look again anyway: it does not wait for what the API goes on with after
    /// its answer, so that the resource may have an action under way, and that action may fail.
    pub async fn begin<R: Resource>(&self, wanted: &Wanted) -> Result<Ensured<R>, Error> {
        let was_created = &AtomicBool::new(false);
        let observe = || async move {
            let found = self.by_name::<R>(&wanted.name).await?;
            found.map(|found| wanted.adopt(found)).transpose()
        };
        let act = || async move {
            was_created.store(true, Relaxed);
            Ok(self.create::<R>(wanted).await?.0)
        };
        let resource = self.settle(observe, act).await?;
        Ok(Ensured { resource, was_created: was_created.load(Relaxed) })
    }

    /// One request that creates, once.
    async fn create<R: Resource>(&self, wanted: &Wanted) -> Result<(R, Vec<Action>), Error> {
        let path = format!("/{}", R::MANY);
        let body = self.send(Method::POST, &path, Some(&wanted.request())).await?;
        decode_one::<R>(&body).map_err(|cause| Error::new(format!("POST {path}"), cause))
    }

    /// The actions on it with this status, the newest first.
    pub(crate) async fn actions<R: Resource>(&self, id: i64, status: &str) -> Result<Vec<Action>, Error> {
        let path = format!("/{}/{id}/actions?status={status}&sort=id:desc", R::MANY);
        let read = self.read(&path, |body| decode::page::<Action>(body, "actions")).await;
        match read {
            Ok(page) => Ok(page.items),
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Until it is gone; one that was gone before is no error.
    pub async fn delete<R: Resource>(&self, id: i64) -> Result<(), Error> {
        let path = format!("/{}/{id}", R::MANY);
        let mut retry = self.retry();
        loop {
            let deleted = async {
                let body = self.send(Method::DELETE, &path, None).await?;
                let actions = decode::actions(&body).map_err(|cause| Error::new(format!("DELETE {path}"), cause))?;
                self.wait(actions).await
            };
            match deleted.await {
                Ok(()) => return Ok(()),
                Err(error) if error.is_not_found() => return Ok(()),
                Err(error) if error.is_passing() => retry.wait(error).await?,
                Err(error) => return Err(error),
            }
        }
    }

    /// Replaces all labels.
    pub async fn set_labels<R: Resource>(&self, id: i64, labels: &Labels) -> Result<R, Error> {
        let path = format!("/{}/{id}", R::MANY);
        let mut retry = self.retry();
        loop {
            let body = self.send(Method::PUT, &path, Some(&json!({ "labels": labels }))).await;
            let decoded =
                body.and_then(|body| decode_one::<R>(&body).map_err(|cause| Error::new(format!("PUT {path}"), cause)));
            match decoded {
                Ok((changed, _)) => return Ok(changed),
                // The same labels again change nothing.
                Err(error) if error.is_passing() => retry.wait(error).await?,
                Err(error) => return Err(error),
            }
        }
    }
}
