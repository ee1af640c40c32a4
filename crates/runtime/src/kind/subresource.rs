//! Requests to a part of an object that is not stored with it, as the eviction of a pod.

use kube::api::PostParams;
use serde::Serialize;

use super::Kind;
use crate::{error::Error, key::Key, view::View, writer::unmade};

impl<W: View, T: Send + Sync + 'static> Kind<W, T> {
    /// Posts to a subresource that answers with something else than the object: what became of the object comes by the
    /// watch. An object that is gone is forgotten, one that was replaced is read, and after no answer at all the object
    /// is in doubt until [`Kind::settle`] has read it.
    pub async fn post(&self, key: &Key, subresource: &str, body: &impl Serialize) -> Result<(), Error> {
        let params = PostParams { field_manager: Some(self.writer.manager.into()), ..PostParams::default() };
        let body = serde_json::to_vec(body).expect("our own objects serialise");
        let request = self.at(key).create_subresource(subresource, &key.name, &params, body);
        let request = request.map_err(|error| unmade("create", self.resource, error))?;
        let held = self.store.version(key);
        match self.writer.send(self.resource, "create", request).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => {
                self.gone(key, held);
                Err(error)
            }
            Err(error) => Err(self.look_after(key, error).await),
        }
    }
}
