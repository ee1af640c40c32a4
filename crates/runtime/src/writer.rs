//! Requests of one layer: bounded in time, and writes only while leading.

use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use kube::{
    Client,
    api::{GetParams, ListParams, PostParams},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    cluster::Cluster,
    error::{Error, undecodable},
    key::Key,
    kind::place,
    lease::Leadership,
    lines::LONGEST_LINE,
    view::View,
};

/// Who writes, under whose authority and within which time.
#[derive(Clone)]
pub struct Writer {
    pub(crate) cluster: Cluster,
    pub leadership: Leadership,
    /// Field manager of the layer.
    pub manager: &'static str,
    /// A request without answer is given up after this; what it may have done is found out by the next round.
    pub timeout: Duration,
}

impl Writer {
    /// How the cluster is reached now.
    pub fn client(&self) -> Client {
        self.cluster.client()
    }

    /// Reads one object that no cache holds, as much of it as the view decodes. `None`: there is none.
    pub async fn read<W: View>(&self, resource: &'static str, key: &Key) -> Result<Option<W>, Error>
    where
        W::DynamicType: Default,
    {
        self.read_of(&W::DynamicType::default(), resource, key).await
    }

    pub(crate) async fn read_of<W: View>(
        &self,
        types: &W::DynamicType,
        resource: &'static str,
        key: &Key,
    ) -> Result<Option<W>, Error> {
        let (place, params) = (place::<W>(types, key), GetParams::default());
        let request =
            if W::metadata_api() { place.get_metadata(&key.name, &params) } else { place.get(&key.name, &params) };
        let request = request.map_err(|error| unmade("get", resource, error))?;
        match self.bounded(resource, "get", self.timeout, request).await {
            Ok(answer) => Ok(Some(decode(resource, "get", &answer)?)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the objects of a namespace that have these labels as the server has them now, past every cache.
    pub async fn list<W: View>(&self, resource: &'static str, namespace: &str, labels: &str) -> Result<Vec<W>, Error>
    where
        W::DynamicType: Default,
    {
        let (place, params) = (place::<W>(&W::DynamicType::default(), &Key::new(namespace, "")), ListParams::default());
        let params = params.labels(labels);
        let request = if W::metadata_api() { place.list_metadata(&params) } else { place.list(&params) };
        let request = request.map_err(|error| unmade("list", resource, error))?;
        let answer = self.bounded(resource, "list", self.timeout, request).await?;
        Ok(decode::<Items<W>>(resource, "list", &answer)?.items)
    }

    /// Posts to a subresource that answers with something of its own, as the token of a ServiceAccount. No cache holds
    /// either.
    pub async fn ask<W: View, A: DeserializeOwned>(
        &self,
        resource: &'static str,
        key: &Key,
        subresource: &str,
        body: &impl Serialize,
    ) -> Result<A, Error>
    where
        W::DynamicType: Default,
    {
        let params = PostParams { field_manager: Some(self.manager.into()), ..PostParams::default() };
        let body = serde_json::to_vec(body).expect("our own objects serialise");
        let place = place::<W>(&W::DynamicType::default(), key);
        let request = place.create_subresource(subresource, &key.name, &params, body);
        let request = request.map_err(|error| unmade("create", resource, error))?;
        decode(resource, "create", &self.send(resource, "create", request).await?)
    }

    /// A write; the text of its answer.
    pub(crate) async fn send(
        &self,
        resource: &'static str,
        verb: &'static str,
        request: http::Request<Vec<u8>>,
    ) -> Result<Vec<u8>, Error> {
        let Some(left) = self.leadership.time_left() else {
            return Err(Error::NotLeader { verb, resource });
        };
        self.bounded(resource, verb, left.min(self.timeout), request).await
    }

    async fn bounded(
        &self,
        resource: &'static str,
        verb: &'static str,
        limit: Duration,
        request: http::Request<Vec<u8>>,
    ) -> Result<Vec<u8>, Error> {
        match tokio::time::timeout(limit, self.exchange(resource, verb, request)).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::TimedOut { verb, resource, limit }),
        }
    }

    /// One request and its answer. Not by kube's own `request`: that loses the header Retry-After, which is all that an
    /// overloaded API server says, and logs an answer that it cannot decode, environment values and all.
    async fn exchange(
        &self,
        resource: &'static str,
        verb: &'static str,
        request: http::Request<Vec<u8>>,
    ) -> Result<Vec<u8>, Error> {
        let lost = |source| Error::Client { verb, resource, source: Box::new(source) };
        let answer = self.client().send(request.map(Into::into)).await.map_err(lost)?;
        let (head, body) = answer.into_parts();
        self.cluster.server_clock().read(&head.headers);
        let body = Limited::new(body, LONGEST_LINE).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                let place = format!("the answer is longer than {LONGEST_LINE} bytes");
                return Error::Undecodable { verb, resource, place };
            }
            lost(kube::Error::Service(error))
        })?;
        let body = body.to_bytes();
        if head.status.is_client_error() || head.status.is_server_error() {
            return Err(Error::refused(verb, resource, &head, &body));
        }
        Ok(body.to_vec())
    }
}

/// The answer to a list.
#[derive(Deserialize)]
#[serde(bound = "W: DeserializeOwned")]
struct Items<W> {
    items: Vec<W>,
}

/// An object in the answer to a request.
pub(crate) fn decode<A: DeserializeOwned>(
    resource: &'static str,
    verb: &'static str,
    answer: &[u8],
) -> Result<A, Error> {
    serde_json::from_slice(answer).map_err(|error| Error::Undecodable { verb, resource, place: undecodable(&error) })
}

/// From a request that was never sent, because no path can be made of its name.
pub(crate) fn unmade(verb: &'static str, resource: &'static str, error: kube::core::request::Error) -> Error {
    Error::of_client(verb, resource, kube::Error::BuildRequest(error))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;
    use crate::{
        error::{Chain, Class},
        scripted::{Answer, Script},
    };

    #[tokio::test]
    async fn no_answer_takes_more_memory_than_it_may() {
        let script = Script::new([Answer::LongRefusal(403, 1 << 20), Answer::Blank(LONGEST_LINE + 1)]);
        let writer = script.world(None).cluster.writer("test");
        let read = async || writer.read::<ConfigMap>("configmaps", &Key::new("n", "a")).await.unwrap_err();
        let refused = read().await;
        let status = refused.status().unwrap();
        assert_eq!((status.code, status.message.len()), (403, 64 << 10), "the rest is not even read");
        let long = read().await.to_string();
        assert!(long.contains("longer than 33554432 bytes"), "{long}");
    }

    #[tokio::test]
    async fn a_list_past_the_cache_is_of_one_namespace_and_as_new_as_the_server_is() {
        let items = json!([{ "metadata": { "name": "a" } }, { "metadata": { "name": "b" } }]);
        let script = Script::new([
            Answer::Object(Duration::ZERO, json!({ "kind": "ConfigMapList", "items": items })),
            Answer::Refusal(503, None),
        ]);
        let writer = script.world(None).cluster.writer("test");
        let list = async || writer.list::<ConfigMap>("configmaps", "n", "pool=web").await;
        let names: Vec<_> = list().await.unwrap().into_iter().filter_map(|found| found.metadata.name).collect();
        assert_eq!(names, ["a", "b"]);
        let request = &script.requests()[0];
        assert!(request.starts_with("GET /api/v1/namespaces/n/configmaps?"), "{request}");
        assert!(request.contains("labelSelector=pool%3Dweb") && !request.contains("resourceVersion"), "{request}");
        assert_eq!(list().await.unwrap_err().class(), Class::Transient);
    }

    #[test]
    fn a_name_that_no_path_can_be_made_of_is_reported_and_waits_for_a_change() {
        for (name, why) in [("", "name"), ("two words", "invalid uri")] {
            let request = place::<ConfigMap>(&(), &Key::new("default", name)).get(name, &GetParams::default());
            let error = unmade("get", "configmaps", request.unwrap_err());
            assert_eq!(error.class(), Class::Terminal);
            let text = Chain(&error).to_string();
            assert!(text.starts_with("get configmaps: ") && text.contains(why), "{text}");
        }
    }
}
