//! The objects of a release as they are on the server: whether they differ from it, and their replicas.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use api::workspace::{DriftIgnore, StoppedWorkload};
use k8s_openapi::api::authorization::v1::ResourceAttributes;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GetParams, GroupVersionKind, Patch, PatchParams},
    core::Request,
    discovery::{self, Scope},
};
use plan::{object::differs, releases::Difference};
use runtime::{Error, Fence, Key};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, json, value::RawValue};

use super::{
    identity::is_allowed,
    pointer::{remove, set_from_live},
    storage::{self, Manifest, Object},
};

/// Helm's own field manager, so that what is set back is Helm's as before.
const HELM: &str = "helm";
/// Fields that differ between any two reads of one object.
const NOTED_BY_SERVER: [&str; 4] = ["managedFields", "resourceVersion", "generation", "uid"];

/// Requests in a release's own name: each bounded in time, and none without the lead.
pub struct Acting<'a> {
    pub client: Client,
    pub fence: &'a Fence,
    /// For one request.
    pub timeout: Duration,
}

impl Acting<'_> {
    pub async fn ask<T>(&self, request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
        let (verb, resource) = ("act on", "release");
        let limit = self.fence.check()?.min(self.timeout);
        match tokio::time::timeout(limit, request).await {
            Ok(answer) => answer.map_err(|error| Error::of_client(verb, resource, error)),
            Err(_) => Err(Error::TimedOut { verb, resource, limit }),
        }
    }
}

/// Whether the server does not know the kind.
fn is_undefined(error: &Error) -> bool {
    let is_undiscovered = |error: &kube::Error| matches!(error, kube::Error::Discovery(_));
    let is_absent = error.is_not_found() || error.is_not_served();
    is_absent || matches!(error, Error::Client { source, .. } if is_undiscovered(source))
}

/// Whether it is about the object that was asked for, and not about the server or us.
fn is_answer(error: &Error) -> bool {
    matches!(error, Error::Api { .. } | Error::Client { .. })
}

/// Whether the server says no to one object, and may say yes to the next.
fn is_about_object(error: &Error) -> bool {
    is_undefined(error) || error.status().is_some_and(|status| status.code < 500 && status.code != 429)
}

/// An object of a manifest, ready to be asked for.
pub struct Target {
    pub kind: GroupVersionKind,
    pub key: Key,
    object: Object,
    release: Key,
}

impl Target {
    /// As Helm applies it. `None` if it cannot be read or is too large. It is text: a tree of a large object must not be in
    /// memory while a server is asked.
    async fn desired(&self) -> Option<Box<RawValue>> {
        let text = self.object.with_tree(|mut desired| {
            self.mark(&mut desired);
            storage::request(&desired)
        });
        let text = text.await.flatten();
        if text.is_none() {
            tracing::warn!(
                object = self.title(),
                "an object of the release's manifest cannot be read, or is too large, and is left out"
            );
        }
        text
    }

    /// As [`Self::desired`] for an object that exists, with the ignored fields as they are there: Helm owns those that the
    /// chart sets, so an apply without them would remove them. It names what was read, so that it is a conflict where
    /// another client, such as an autoscaler, changed the object meanwhile. `None` if either is too large.
    async fn desired_beside(&self, live: &str, ignore: &[DriftIgnore]) -> Option<Box<RawValue>> {
        let desired = self.desired().await?;
        let text = storage::with_trees([desired.get(), live], |[mut desired, live]| {
            paths(self, ignore).for_each(|path| set_from_live(&mut desired, &live, path));
            for field in ["uid", "resourceVersion"] {
                desired["metadata"][field] = live["metadata"][field].clone();
            }
            storage::request(&desired)
        });
        let text = text.await.flatten();
        if text.is_none() {
            tracing::warn!(
                object = self.title(),
                "a live object is too large to read the fields of spec.driftIgnore from, and is not set back"
            );
        }
        text
    }

    /// Whether the chart says so.
    async fn is_suspended(&self) -> bool {
        self.object.with_tree(|tree| tree["spec"]["suspend"] == json!(true)).await == Some(true)
    }

    /// Adds the marks that Helm puts on every object and that the manifest does not show.
    fn mark(&self, desired: &mut Value) {
        let Key { namespace, name } = &self.release;
        for (field, mark, value) in [
            ("labels", "app.kubernetes.io/managed-by", "Helm"),
            ("annotations", "meta.helm.sh/release-name", name),
            ("annotations", "meta.helm.sh/release-namespace", namespace),
        ] {
            let marks = &mut desired["metadata"][field];
            // Where it is none, the server will say so.
            if marks.is_null() || marks.is_object() {
                marks[mark] = json!(value);
            }
        }
    }

    /// `Deployment web`.
    pub fn title(&self) -> String {
        format!("{} {}", self.kind.kind, self.key.name)
    }
}

/// The targets of a manifest.
pub fn targets(manifest: Manifest, release: &Key) -> Vec<Target> {
    if manifest.unreadable > 0 {
        tracing::warn!(documents = manifest.unreadable, "part of the release's manifest cannot be read and is skipped");
    }
    manifest.objects.into_iter().filter_map(|object| target(object, release)).collect()
}

fn target(object: Object, release: &Key) -> Option<Target> {
    let (group, version) = object.api_version.split_once('/').unwrap_or(("", &object.api_version));
    let kind = GroupVersionKind::gvk(group, version, &object.kind);
    let namespace = object.namespace.as_deref().unwrap_or(&release.namespace);
    let key = Key::new(namespace, object.name.as_str());
    let is_named = !object.api_version.is_empty() && !object.name.is_empty();
    is_named.then_some(Target { kind, key, object, release: release.clone() })
}

/// Where kinds are served; asked once per kind, for as long as a release has objects of it.
#[derive(Default)]
pub struct Discovered(Mutex<HashMap<GroupVersionKind, (ApiResource, Scope)>>);

impl Discovered {
    /// No release has objects of this kind any more. A later one may find it served elsewhere.
    pub fn forget(&self, kind: &GroupVersionKind) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(kind);
    }

    async fn api(&self, acting: &Acting<'_>, target: &Target) -> Result<Api<DynamicObject>, Error> {
        let (resource, scope) = self.place(acting, target).await?;
        let client = acting.client.clone();
        Ok(match scope {
            Scope::Cluster => Api::all_with(client, &resource),
            Scope::Namespaced => Api::namespaced_with(client, &target.key.namespace, &resource),
        })
    }

    /// The targets as watches know them: those of kinds without namespaces have none. What the server does not know the
    /// kind of went with its definition, and hides none of the others.
    pub async fn located(&self, acting: &Acting<'_>, targets: Vec<Target>) -> Result<Vec<Target>, Error> {
        let mut located = Vec::with_capacity(targets.len());
        for mut target in targets {
            match self.place(acting, &target).await {
                Ok((_, Scope::Cluster)) => target.key = Key::new("", target.key.name.clone()),
                Ok(_) => {}
                Err(error) if is_undefined(&error) => {
                    tracing::debug!(object = target.title(), "the API server does not know the kind");
                    continue;
                }
                Err(error) => return Err(error),
            }
            located.push(target);
        }
        Ok(located)
    }

    async fn place(&self, acting: &Acting<'_>, target: &Target) -> Result<(ApiResource, Scope), Error> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&target.kind).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let (resource, capabilities) = acting.ask(discovery::pinned_kind(&acting.client, &target.kind)).await?;
        let found = (resource, capabilities.scope);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(target.kind.clone(), found.clone());
        Ok(found)
    }

    /// Whether the server still serves the kind of an object. Asked anew: with its definition all of a kind goes, and
    /// nothing that is done to an object of it would succeed.
    async fn is_served(&self, acting: &Acting<'_>, target: &Target) -> Result<bool, Error> {
        self.forget(&target.kind);
        match self.place(acting, target).await {
            Ok(_) => Ok(true),
            Err(error) if is_undefined(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The first thing that a removal of the targets needs and the acting account may not do.
    pub async fn undeletable(&self, acting: &Acting<'_>, targets: &[Target]) -> Result<Option<String>, Error> {
        let mut asked = HashSet::new();
        for target in targets {
            let (resource, scope) = match self.place(acting, target).await {
                Ok(place) => place,
                // With its definition all of a kind is gone.
                Err(error) if is_undefined(&error) => continue,
                Err(error) => return Err(error),
            };
            let namespace = matches!(scope, Scope::Namespaced).then(|| target.key.namespace.to_string());
            for verb in ["get", "delete"] {
                if !asked.insert((verb, resource.group.clone(), resource.plural.clone(), namespace.clone())) {
                    continue;
                }
                let attributes = ResourceAttributes {
                    verb: Some(verb.to_owned()),
                    group: Some(resource.group.clone()),
                    resource: Some(resource.plural.clone()),
                    namespace: namespace.clone(),
                    ..ResourceAttributes::default()
                };
                if !acting.ask(is_allowed(&acting.client, attributes)).await? && self.is_served(acting, target).await? {
                    let place = namespace.map(|namespace| format!(" in namespace {namespace}")).unwrap_or_default();
                    return Ok(Some(format!("{verb} {}{place}", resource.plural)));
                }
            }
        }
        Ok(None)
    }

    /// What differs, by asking the server what an apply would change.
    pub async fn drift(
        &self,
        acting: &Acting<'_>,
        targets: &[Target],
        ignore: &[DriftIgnore],
    ) -> Result<Vec<Difference>, Error> {
        let (mut found, mut failure) = (Vec::new(), None);
        for target in targets {
            match self.drift_of(acting, target, ignore).await {
                Ok(what) => found.extend(what.map(|what| Difference { object: target.title(), what })),
                // One that cannot be looked at hides none of the others.
                Err(error) if is_answer(&error) => failure = Some(error),
                Err(other) => return Err(other),
            }
        }
        match failure {
            Some(error) if found.is_empty() => Err(error),
            _ => Ok(found),
        }
    }

    async fn drift_of(
        &self,
        acting: &Acting<'_>,
        target: &Target,
        ignore: &[DriftIgnore],
    ) -> Result<Option<String>, Error> {
        let api = self.api(acting, target).await?;
        let live = match live(acting, &api, target).await {
            Ok(Some(live)) => live,
            Ok(None) => return Ok(self.is_served(acting, target).await?.then(|| "missing".to_owned())),
            // The server does not know the kind any more; or it does, and something in front of it answered.
            Err(error) if error.is_not_served() && !self.is_served(acting, target).await? => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(desired) = target.desired().await else { return Ok(None) };
        let applied = apply(acting, &api, &target.key.name, &desired, true).await?;
        let found = storage::with_trees([&applied, &live], |trees| difference(target, trees, ignore)).await;
        // It may differ: what is said of it must not depend on how much another client adds to it.
        Ok(found.unwrap_or_else(|| Some("too large to be compared".to_owned())))
    }

    /// Sets the named objects back.
    pub async fn correct(
        &self,
        acting: &Acting<'_>,
        targets: &[Target],
        drifted: &[Difference],
        ignore: &[DriftIgnore],
    ) -> Result<(), Error> {
        let mut failure = None;
        let drifted: HashSet<_> = drifted.iter().map(|difference| difference.object.as_str()).collect();
        for target in targets.iter().filter(|target| drifted.contains(target.title().as_str())) {
            match self.correct_one(acting, target, ignore).await {
                Ok(()) => {}
                // One that is refused keeps none of the others from being set back.
                Err(error) if is_about_object(&error) => failure = failure.or(Some(error)),
                Err(other) => return Err(other),
            }
        }
        failure.map_or(Ok(()), Err)
    }

    async fn correct_one(&self, acting: &Acting<'_>, target: &Target, ignore: &[DriftIgnore]) -> Result<(), Error> {
        let api = self.api(acting, target).await?;
        let live = live(acting, &api, target).await?;
        // Ignored fields stay as they are, unless the object is made anew.
        let desired = match live.filter(|_| paths(target, ignore).next().is_some()) {
            Some(live) => target.desired_beside(&live, ignore).await,
            None => target.desired().await,
        };
        let Some(desired) = desired else { return Ok(()) };
        apply(acting, &api, &target.key.name, &desired, false).await.map(drop)
    }

    /// Replicas of the Deployments and StatefulSets, and the schedules; those that are gone are left out, and those that
    /// the chart itself suspends.
    pub async fn replicas(&self, acting: &Acting<'_>, targets: &[Target]) -> Result<Vec<StoppedWorkload>, Error> {
        let mut found = Vec::new();
        for target in targets.iter().filter(|target| is_workload(target)) {
            let api = self.api(acting, target).await?;
            if is_schedule(target) && target.is_suspended().await {
                continue;
            }
            let Some(replicas) = replicas(acting, &api, target).await? else { continue };
            let (kind, name) = (target.kind.kind.clone(), target.key.name.to_string());
            found.push(StoppedWorkload { kind, name, replicas, revision: None });
        }
        Ok(found)
    }

    pub async fn scale(
        &self,
        acting: &Acting<'_>,
        targets: &[Target],
        workloads: &[StoppedWorkload],
        manager: &str,
    ) -> Result<(), Error> {
        for workload in workloads {
            let is_it = |t: &&Target| is_workload(t) && t.kind.kind == workload.kind && *t.key.name == *workload.name;
            let Some(target) = targets.iter().find(is_it) else { continue };
            let api = self.api(acting, target).await?;
            let (name, replicas) = (&target.key.name, workload.replicas);
            let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
            if is_schedule(target) {
                let patch = Patch::Merge(json!({ "spec": { "suspend": replicas == 0 } }));
                acting.ask(api.patch(name, &params, &patch)).await?;
            } else {
                let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
                acting.ask(api.patch_scale(name, &params, &patch)).await?;
            }
        }
        Ok(())
    }
}

/// The text of the object as it is; `None` only where the API server itself says that there is none. It may be of any kind
/// and size, and a tree takes a hundred times its text.
async fn live(acting: &Acting<'_>, api: &Api<DynamicObject>, target: &Target) -> Result<Option<String>, Error> {
    let request = Request::new(api.resource_url()).get(&target.key.name, &GetParams::default());
    match acting.ask(text(&acting.client, request)).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// How many a workload shall have; `None` if it is gone. A CronJob has one, or none while it is suspended.
async fn replicas(acting: &Acting<'_>, api: &Api<DynamicObject>, target: &Target) -> Result<Option<i32>, Error> {
    if is_schedule(target) {
        return Ok(live(acting, api, target).await?.map(|live| i32::from(!is_suspended(&live))));
    }
    match acting.ask(api.get_scale(&target.key.name)).await {
        Ok(scale) => Ok(Some(scale.spec.and_then(|spec| spec.replicas).unwrap_or(0))),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_suspended(schedule: &str) -> bool {
    #[derive(Deserialize)]
    struct Schedule {
        spec: Option<Spec>,
    }
    #[derive(Deserialize)]
    struct Spec {
        suspend: Option<bool>,
    }
    let found = serde_json::from_str::<Schedule>(schedule).ok().and_then(|schedule| schedule.spec?.suspend);
    found == Some(true)
}

/// Applies as Helm does. What was changed in the key of a list cannot be applied beside it, and is replaced.
async fn apply(
    acting: &Acting<'_>,
    api: &Api<DynamicObject>,
    name: &str,
    desired: &RawValue,
    dry_run: bool,
) -> Result<String, Error> {
    let (params, requests) =
        (PatchParams { dry_run, ..PatchParams::apply(HELM).force() }, Request::new(api.resource_url()));
    match acting.ask(text(&acting.client, requests.patch(name, &params, &Patch::Apply(desired)))).await {
        Err(error) if error.status().is_some_and(|status| status.code == 422) => {
            let params = PatchParams { dry_run, field_manager: Some(HELM.to_owned()), ..PatchParams::default() };
            acting.ask(text(&acting.client, requests.patch(name, &params, &Patch::Merge(desired)))).await
        }
        result => result,
    }
}

async fn text(
    client: &Client,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<String, kube::Error> {
    let text = client.request_text(request.map_err(kube::Error::BuildRequest)?).await?;
    // Something in front of the server may answer with a page of its own.
    serde_json::from_str::<IgnoredAny>(&text).map_err(kube::Error::SerdeError)?;
    Ok(text)
}

fn is_workload(target: &Target) -> bool {
    let is_scaled = target.kind.group == "apps" && matches!(target.kind.kind.as_str(), "Deployment" | "StatefulSet");
    is_scaled || is_schedule(target)
}

/// It is suspended where others are scaled to zero.
fn is_schedule(target: &Target) -> bool {
    target.kind.group == "batch" && target.kind.kind == "CronJob"
}

/// The first place where an apply would change something.
fn difference(target: &Target, [applied, live]: [Value; 2], ignore: &[DriftIgnore]) -> Option<String> {
    let [applied, live] = [applied, live].map(|mut value| {
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.retain(|field, _| !NOTED_BY_SERVER.contains(&field.as_str()));
        }
        value.as_object_mut().map(|object| object.remove("status"));
        paths(target, ignore).for_each(|path| remove(&mut value, path));
        value
    });
    differs(&applied, &live)
}

/// The ignored paths of one object.
fn paths<'a>(target: &Target, ignore: &'a [DriftIgnore]) -> impl Iterator<Item = &'a str> {
    let (kind, name) = (target.kind.kind.clone(), target.key.name.clone());
    let applies = move |rule: &&DriftIgnore| {
        rule.target.as_ref().is_none_or(|target| {
            target.kind.as_ref().is_none_or(|wanted| *wanted == kind)
                && target.name.as_deref().is_none_or(|wanted| *wanted == *name)
        })
    };
    ignore.iter().filter(applies).flat_map(|rule| rule.paths.iter().map(String::as_str))
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    use http::{Method, Request, Response};
    use kube::client::Body;
    use process::Clock;
    use runtime::Leadership;
    use tokio::sync::Notify;

    use super::{super::storage, *};

    /// A server with a ConfigMap `b` that has drifted, one that is `large`, a `c` that it refuses to change, and Widgets for
    /// as long as they are defined. Every request that changes something is noted. A proxy in front of it may answer for
    /// objects. With `unanswered` it notifies of each PATCH and never answers one.
    #[derive(Clone, Default)]
    struct Server {
        is_defined: Arc<AtomicBool>,
        is_behind_proxy: Arc<AtomicBool>,
        changed: Arc<Mutex<Vec<String>>>,
        unanswered: Option<Arc<Notify>>,
    }

    impl Server {
        fn answer(&self, request: &Request<Body>) -> (u16, Value) {
            let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
            let kind = |name: &str, kind: &str| json!({ "resources": [{ "name": name, "singularName": "", "namespaced": true, "kind": kind, "verbs": [] }] });
            let unserved = (404, json!({ "message": "not found", "code": 404 }));
            let is_defined = self.is_defined.load(Ordering::Relaxed);
            match path {
                "/api/v1" => {
                    (200, json!({ "groupVersion": "v1", "resources": kind("configmaps", "ConfigMap")["resources"] }))
                }
                "/apis/test.dev/v1" if is_defined => {
                    (200, json!({ "groupVersion": "test.dev/v1", "resources": kind("widgets", "Widget")["resources"] }))
                }
                _ if self.is_behind_proxy.load(Ordering::Relaxed) => unserved,
                _ if path.contains("/widgets/") && is_defined => {
                    (404, json!({ "message": "not found", "reason": "NotFound", "code": 404 }))
                }
                _ if request.method() == Method::PATCH && path.ends_with("/c") => {
                    (403, json!({ "message": "no", "code": 403 }))
                }
                _ if path.contains("/configmaps/") => {
                    let name = path.rsplit('/').next().unwrap_or_default();
                    let is_change = request.method() == Method::PATCH && !query.contains("dryRun");
                    if is_change {
                        self.changed.lock().unwrap().push(name.to_owned());
                    }
                    let wanted = match (request.method(), name) {
                        (&Method::GET, "large") => json!(vec![0; 60_000]),
                        (&Method::GET, _) => json!("drifted"),
                        _ => json!("wanted"),
                    };
                    (
                        200,
                        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "k": wanted } }),
                    )
                }
                _ => unserved,
            }
        }

        fn client(&self) -> Client {
            let server = self.clone();
            let service = tower::service_fn(move |request: Request<Body>| {
                let unanswered = server.unanswered.clone().filter(|_| request.method() == Method::PATCH);
                let (code, body) = server.answer(&request);
                let answer = Response::builder().status(code).body(Body::from(body.to_string().into_bytes())).unwrap();
                async move {
                    if let Some(unanswered) = unanswered {
                        unanswered.notify_one();
                        std::future::pending::<()>().await;
                    }
                    Ok::<_, kube::Error>(answer)
                }
            });
            Client::new(service, "team")
        }
    }

    async fn objects(text: &str) -> Vec<Target> {
        let manifest = storage::manifest(storage::tests::record(text), storage::Detail::Whole).await.unwrap();
        targets(manifest, &Key::new("team", "web"))
    }

    const MAPS: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\n";

    #[tokio::test]
    async fn what_went_with_its_definition_is_no_drift() {
        let (server, discovered) = (Server::default(), Discovered::default());
        let fence = Fence::of_lead(Leadership::always(Clock::default()), Duration::from_mins(1));
        let acting = Acting { client: server.client(), fence: &fence, timeout: Duration::from_secs(10) };
        let widget = "apiVersion: test.dev/v1\nkind: Widget\nmetadata: {name: a}\n";
        server.is_defined.store(true, Ordering::Relaxed);
        let targets = discovered.located(&acting, objects(widget).await).await.unwrap();
        let gone = Difference { object: "Widget a".into(), what: "missing".into() };
        assert_eq!(discovered.drift(&acting, &targets, &[]).await.unwrap(), [gone]);
        server.is_defined.store(false, Ordering::Relaxed);
        assert!(discovered.drift(&acting, &targets, &[]).await.unwrap().is_empty());
        assert!(discovered.located(&acting, targets).await.unwrap().is_empty(), "nor is it looked at again");
    }

    #[tokio::test]
    async fn a_proxy_that_finds_nothing_does_not_make_an_object_missing() {
        let (server, discovered) = (Server::default(), Discovered::default());
        let fence = Fence::of_lead(Leadership::always(Clock::default()), Duration::from_mins(1));
        let acting = Acting { client: server.client(), fence: &fence, timeout: Duration::from_secs(10) };
        server.is_behind_proxy.store(true, Ordering::Relaxed);
        let targets = objects(MAPS).await;
        assert!(discovered.drift(&acting, &targets, &[]).await.unwrap_err().is_not_served());
        let drifted = [Difference { object: "ConfigMap b".into(), what: "data.k".into() }];
        assert!(discovered.correct(&acting, &targets, &drifted, &[]).await.unwrap_err().is_not_served());
        assert!(server.changed.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn one_object_that_is_refused_keeps_no_other_from_being_set_back() {
        let (server, discovered) = (Server::default(), Discovered::default());
        let fence = Fence::of_lead(Leadership::always(Clock::default()), Duration::from_mins(1));
        let acting = Acting { client: server.client(), fence: &fence, timeout: Duration::from_secs(10) };
        let drifted = ["c", "b"].map(|name| Difference { object: format!("ConfigMap {name}"), what: "data.k".into() });
        let refused = discovered.correct(&acting, &objects(MAPS).await, &drifted, &[]).await.unwrap_err();
        assert_eq!(refused.status().map(|status| status.code), Some(403));
        assert_eq!(*server.changed.lock().unwrap(), ["b"]);
    }

    #[tokio::test]
    async fn a_live_object_that_would_take_much_memory_is_not_compared_and_named() {
        let (server, discovered) = (Server::default(), Discovered::default());
        let fence = Fence::of_lead(Leadership::always(Clock::default()), Duration::from_mins(1));
        let acting = Acting { client: server.client(), fence: &fence, timeout: Duration::from_secs(10) };
        let both = MAPS.replace("name: c", "name: large");
        let found = discovered.drift(&acting, &objects(&both).await, &[]).await.unwrap();
        let found: Vec<_> = found.into_iter().map(|Difference { object, what }| format!("{object}: {what}")).collect();
        assert_eq!(found, ["ConfigMap large: too large to be compared", "ConfigMap b: data.k"]);
    }

    #[tokio::test]
    async fn a_request_without_answer_delays_no_large_object_of_another_release() {
        let data = "x".repeat(storage::LARGE_OBJECT);
        let large = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: b}}\ndata:\n  k: {data}\n");
        let (first, second) = (objects(&large).await, objects(&large).await);
        let (asked, discovered) = (Arc::new(Notify::new()), Discovered::default());
        let hanging = Server { unanswered: Some(asked.clone()), ..Server::default() };
        let fence = Fence::of_lead(Leadership::always(Clock::default()), Duration::from_mins(1));
        let acting =
            |server: &Server| Acting { client: server.client(), fence: &fence, timeout: Duration::from_secs(10) };
        let (hanging, sound) = (acting(&hanging), acting(&Server::default()));
        let mut waiting = std::pin::pin!(discovered.drift(&hanging, &first, &[]));
        tokio::select! {
            answer = &mut waiting => panic!("the PATCH was answered: {answer:?}"),
            () = asked.notified() => {}
        }
        let found = tokio::time::timeout(Duration::from_secs(10), discovered.drift(&sound, &second, &[])).await;
        assert_eq!(found.expect("it waits for the other release").unwrap().len(), 1);
        assert!(futures::poll!(&mut waiting).is_pending(), "the first is still not answered");
    }

    #[tokio::test]
    async fn ignored_fields_are_applied_as_they_are_in_the_object_that_was_read() {
        let named = "named: [{name: one, c: 1}, {name: two, c: 1}]";
        let spec = "replicas: 3, paused: true, a/b: 1, list: [{c: 1, d: 1}], minReadySeconds: 0, map: {e: 1, f: 1}";
        let spec = format!("{{{spec}, {named}}}");
        let text = format!("apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec: {spec}\n");
        let live = json!({
            "metadata": { "name": "web", "uid": "u", "resourceVersion": "7", "labels": { "a": "b" } },
            "spec": { "replicas": 5, "a/b": 2, "list": [{ "c": 2, "d": 2 }], "minReadySeconds": 9, "other": 4,
                "map": { "e": 2, "g": 2 }, "named": [{ "name": "other", "c": 3 }, { "name": "one", "c": 2 }] },
        });
        let fields = ["/spec/replicas", "/spec/paused", "/spec/a~1b", "/spec/other", "/spec/map", "bad"];
        let paths = [&fields[..], &["/spec/list/0/c", "/spec/named/0/c", "/spec/named/1/c"]].concat();
        let ignore = [DriftIgnore { paths: paths.into_iter().map(str::to_owned).collect(), target: None }];
        let desired = objects(&text).await[0].desired_beside(&live.to_string(), &ignore).await.unwrap();
        let desired: Value = serde_json::from_str(desired.get()).unwrap();
        // What the live object lacks is left out, and what the chart does not set is not made Helm's.
        let (list, named) =
            (json!([{ "c": 2, "d": 1 }]), json!([{ "name": "one", "c": 2 }, { "name": "two", "c": 1 }]));
        let expected = json!({
            "replicas": 5, "a/b": 2, "list": list, "minReadySeconds": 0, "map": { "e": 2 }, "named": named,
        });
        assert_eq!(desired["spec"], expected);
        let metadata = &desired["metadata"];
        assert_eq!((&metadata["uid"], &metadata["resourceVersion"]), (&json!("u"), &json!("7")));
        assert_eq!(metadata["labels"], json!({ "app.kubernetes.io/managed-by": "Helm" }));
    }

    #[tokio::test]
    async fn a_target_carries_the_marks_that_helm_puts_on_it() {
        let text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n---\nkind: List\n";
        let manifest = storage::manifest(storage::tests::record(text), storage::Detail::Whole).await.unwrap();
        let targets = targets(manifest, &Key::new("team", "web"));
        assert_eq!(targets.len(), 1);
        assert_eq!(targets[0].key, Key::new("team", "web"));
        let desired = targets[0].desired().await.unwrap();
        let desired: Value = serde_json::from_str(desired.get()).unwrap();
        assert_eq!(desired["metadata"]["annotations"]["meta.helm.sh/release-name"], "web");
    }
}
