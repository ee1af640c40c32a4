//! What a request asks of the API server, read from its method, path and query as the server itself does.

use std::fmt;

use http::{Method, Uri};
use serde::Deserialize;

/// The verbs of RBAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    Get,
    List,
    Watch,
}

impl Verb {
    /// Every verb that changes something.
    pub const WRITES: [Self; 5] = [Self::Create, Self::Update, Self::Patch, Self::Delete, Self::DeleteCollection];
}

/// One request for a resource; discovery and health paths are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiRequest {
    pub verb: Verb,
    pub group: String,
    pub resource: String,
    pub subresource: Option<String>,
    pub namespace: Option<String>,
    pub name: Option<String>,
}

impl ApiRequest {
    /// Reads a request. A create names its object only in the body.
    pub fn parse(method: &Method, uri: &Uri, body: &[u8]) -> Option<Self> {
        let parts: Vec<&str> = uri.path().split('/').filter(|part| !part.is_empty()).collect();
        let (group, rest) = match parts.as_slice() {
            ["api", _version, rest @ ..] => ("", rest),
            ["apis", group, _version, rest @ ..] => (*group, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            // The subresources of a namespace itself look like resources in it.
            ["namespaces", name, "status" | "finalize"] => (Some(*name), rest),
            ["namespaces", namespace, inner @ ..] if !inner.is_empty() => (Some(*namespace), inner),
            _ => (None, rest),
        };
        let (resource, name, subresource) = match rest {
            [resource] => (*resource, None, None),
            [resource, name] => (*resource, Some(*name), None),
            [resource, name, subresource, ..] => (*resource, Some(*name), Some(*subresource)),
            [] => return None,
        };
        let verb = verb(method, uri, name.is_some())?;
        let name = name.map(str::to_owned).or_else(|| (verb == Verb::Create).then(|| name_in(body))?);
        Some(Self {
            verb,
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.map(str::to_owned),
            namespace: namespace.map(str::to_owned),
            name,
        })
    }

    /// Whether this is a request for `resource[.group][/subresource]`. `pods` leaves subresources out, `pods/*` takes
    /// all of them with the resource itself, `*` is everything.
    pub fn is_for(&self, pattern: &str) -> bool {
        if pattern == "*" {
            return true;
        }
        let (resource, subresource) = match pattern.split_once('/') {
            Some((resource, subresource)) => (resource, Some(subresource)),
            None => (pattern, None),
        };
        let of_resource = match resource.split_once('.') {
            Some((resource, group)) => resource == self.resource && group == self.group,
            None => resource == self.resource,
        };
        of_resource && (subresource == Some("*") || subresource == self.subresource.as_deref())
    }
}

impl fmt::Display for ApiRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?} {}", self.verb, self.resource)?;
        for part in [&self.subresource, &self.namespace, &self.name].into_iter().flatten() {
            write!(formatter, "/{part}")?;
        }
        Ok(())
    }
}

fn verb(method: &Method, uri: &Uri, named: bool) -> Option<Verb> {
    let watches = uri
        .query()
        .is_some_and(|query| query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1" | "watch")));
    Some(match *method {
        Method::POST => Verb::Create,
        Method::PUT => Verb::Update,
        Method::PATCH => Verb::Patch,
        Method::DELETE if named => Verb::Delete,
        Method::DELETE => Verb::DeleteCollection,
        Method::GET | Method::HEAD if watches => Verb::Watch,
        Method::GET | Method::HEAD if named => Verb::Get,
        Method::GET | Method::HEAD => Verb::List,
        _ => return None,
    })
}

fn name_in(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        name: Option<String>,
    }
    serde_json::from_slice::<Object>(body).ok()?.metadata.name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(method: &Method, uri: &str, body: &str) -> String {
        let uri: Uri = uri.parse().unwrap();
        ApiRequest::parse(method, &uri, body.as_bytes())
            .map_or_else(|| "none".to_owned(), |request| request.to_string())
    }

    #[test]
    fn requests_are_read_as_the_server_reads_them() {
        let named = r#"{"metadata":{"name":"a"}}"#;
        for (method, uri, body, expected) in [
            (Method::GET, "/api/v1/namespaces/x/pods/a", "", "Get pods/x/a"),
            (Method::GET, "/api/v1/pods?limit=5", "", "List pods"),
            (Method::GET, "/api/v1/namespaces/x/pods?watch=true", "", "Watch pods/x"),
            (Method::GET, "/api/v1/namespaces/x", "", "Get namespaces/x"),
            (Method::PUT, "/api/v1/namespaces/x/finalize", "", "Update namespaces/finalize/x/x"),
            (Method::POST, "/api/v1/namespaces/x/pods", named, "Create pods/x/a"),
            (Method::POST, "/api/v1/namespaces/x/pods", "{}", "Create pods/x"),
            (Method::POST, "/api/v1/namespaces/x/pods/a/eviction", "{}", "Create pods/eviction/x/a"),
            (Method::PATCH, "/apis/apps/v1/namespaces/x/deployments/a/status", "", "Patch deployments/status/x/a"),
            (Method::DELETE, "/apis/apps/v1/namespaces/x/deployments", "", "DeleteCollection deployments/x"),
            (Method::GET, "/apis/apps/v1", "", "none"),
            (Method::GET, "/readyz", "", "none"),
        ] {
            assert_eq!(parsed(&method, uri, body), expected, "{uri}");
        }
    }

    #[test]
    fn patterns_name_resource_group_and_subresource() {
        let uri: Uri = "/apis/events.k8s.io/v1/namespaces/x/events/a/status".parse().unwrap();
        let request = ApiRequest::parse(&Method::PATCH, &uri, b"").unwrap();
        for (pattern, expected) in [
            ("*", true),
            ("events", false),
            ("events/status", true),
            ("events/*", true),
            ("events.events.k8s.io/status", true),
            ("events.apps/status", false),
            ("pods/status", false),
        ] {
            assert_eq!(request.is_for(pattern), expected, "{pattern}");
        }
    }
}
