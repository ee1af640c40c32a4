//! Each fault of the proxy, on the real API server.

use std::{collections::BTreeMap, time::Duration};

use futures::{Stream, StreamExt};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::{client::legacy, rt::TokioExecutor};
use k8s_openapi::api::{
    authentication::v1::SelfSubjectReview,
    core::v1::{ConfigMap, Namespace},
};
use kube::{
    Api, Client, Config, Error, ResourceExt,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
    runtime::watcher,
};
use testbed::{
    ControlPlane, User,
    fault::{ApiRequest, Calls, Fault, FaultProxy, Verb},
    tools,
};

use crate::PATIENCE;

/// A proxy, the same namespace seen through it and directly.
struct Scene {
    proxy: FaultProxy,
    through: Api<ConfigMap>,
    direct: Api<ConfigMap>,
    namespace: String,
}

async fn admin() -> Kubeconfig {
    Kubeconfig::read_from(ControlPlane::shared().await.unwrap().kubeconfig()).unwrap()
}

async fn client(kubeconfig: Kubeconfig) -> Client {
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

async fn scene() -> Scene {
    let kubeconfig = admin().await;
    let admin = client(kubeconfig.clone()).await;
    let namespace = ControlPlane::shared().await.unwrap().namespace("fault").await.unwrap();
    let proxy = FaultProxy::start(kubeconfig, 42).await.unwrap();
    Scene {
        through: Api::namespaced(proxy.client().await.unwrap(), &namespace),
        direct: Api::namespaced(admin, &namespace),
        proxy,
        namespace,
    }
}

impl Scene {
    async fn create(&self, name: &str) -> Result<ConfigMap, Error> {
        self.through.create(&PostParams::default(), &config_map(name, "1")).await
    }

    async fn exists(&self, name: &str) -> bool {
        self.direct.get_opt(name).await.unwrap().is_some()
    }

    fn creates(&self) -> Calls {
        Calls::of(Verb::Create, "configmaps").in_namespace(&self.namespace)
    }

    /// A call through the proxy that runs while the test looks at it.
    fn creating(&self, name: &str) -> tokio::task::JoinHandle<Result<ConfigMap, Error>> {
        let (api, object) = (self.through.clone(), config_map(name, "1"));
        tokio::spawn(async move { api.create(&PostParams::default(), &object).await })
    }

    async fn change(&self, name: &str, value: &str) {
        let patch = Patch::Apply(config_map(name, value));
        self.direct.patch(name, &PatchParams::apply("test"), &patch).await.unwrap();
    }

    async fn watch(&self) -> impl Stream<Item = Result<WatchEvent<ConfigMap>, Error>> + Unpin {
        let start = self.direct.list(&kube::api::ListParams::default()).await.unwrap();
        let version = start.metadata.resource_version.unwrap();
        Box::pin(self.through.watch(&WatchParams::default().timeout(60), &version).await.unwrap())
    }
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        data: Some(BTreeMap::from([("value".to_owned(), value.to_owned())])),
        ..ConfigMap::default()
    }
}

fn code(result: Result<ConfigMap, Error>) -> u16 {
    match result {
        Err(Error::Api(status)) => status.code,
        other => panic!("the server should have refused, got {other:?}"),
    }
}

/// The next event as `ADDED name=value`, or the error's code, or how the stream ended.
async fn next_event(events: &mut (impl Stream<Item = Result<WatchEvent<ConfigMap>, Error>> + Unpin)) -> String {
    let text = |kind: &str, object: &ConfigMap| {
        let value = object.data.as_ref().and_then(|data| data.get("value")).cloned();
        format!("{kind} {}={}", object.name_any(), value.unwrap_or_default())
    };
    match tokio::time::timeout(PATIENCE, events.next()).await.expect("an event in time") {
        Some(Ok(WatchEvent::Added(object))) => text("added", &object),
        Some(Ok(WatchEvent::Modified(object))) => text("modified", &object),
        Some(Ok(WatchEvent::Deleted(object))) => text("deleted", &object),
        Some(Ok(WatchEvent::Bookmark(_))) => "bookmark".to_owned(),
        Some(Ok(WatchEvent::Error(status))) => format!("error {}", status.code),
        // The client hides whether a stream was finished or broke off.
        Some(Err(_)) | None => "end".to_owned(),
    }
}

/// On a busy machine a server takes longer to answer than an operator waits.
#[tokio::test]
async fn a_call_is_committed_and_meets_its_fault_although_its_client_gave_up() {
    let scene = scene().await;
    let behind = FaultProxy::start(scene.proxy.kubeconfig(), 42).await.unwrap();
    let slow = scene.proxy.inject(scene.creates(), Fault::HoldBeforeCommit);
    let fault = behind.inject(scene.creates(), Fault::CutAfterCommit);
    let api: Api<ConfigMap> = Api::namespaced(behind.client().await.unwrap(), &scene.namespace);
    let object = config_map("given-up", "1");
    let params = PostParams::default();
    tokio::select! {
        answer = api.create(&params, &object) => panic!("it was held: {answer:?}"),
        reached = slow.reached() => drop(reached.unwrap()),
    }
    drop(api);
    slow.release();
    fault.reached().await.unwrap();
    assert!(scene.exists("given-up").await);
}

#[tokio::test]
async fn injected_answers_never_reach_the_server() {
    let scene = scene().await;
    for wanted in [409, 500, 503] {
        let fault = scene.proxy.inject(scene.creates().at_most(1), Fault::Status(wanted));
        assert_eq!(code(scene.create("refused").await), wanted);
        assert_eq!(fault.hits(), 1);
    }
    assert!(!scene.exists("refused").await);
    scene.create("refused").await.expect("all faults are used up");
}

#[tokio::test]
async fn too_many_requests_carries_retry_after() {
    let scene = scene().await;
    let calls = Calls::of(Verb::Get, "configmaps").named("any");
    scene.proxy.inject(calls, Fault::TooManyRequests { retry_after_seconds: 7 });
    let path = format!("/api/v1/namespaces/{}/configmaps/any", scene.namespace);
    let request = http::Request::get(path).body(kube::client::Body::empty()).unwrap();
    let answer = scene.proxy.client().await.unwrap().send(request).await.unwrap();
    assert_eq!((answer.status().as_u16(), &answer.headers()["retry-after"]), (429, &"7".parse().unwrap()));
}

#[tokio::test]
async fn only_the_nth_call_of_its_subresource_is_hit() {
    let scene = scene().await;
    let second = scene.proxy.inject(scene.creates().nth(2), Fault::Status(500));
    let never = scene.proxy.inject(Calls::writes("configmaps/status"), Fault::Status(500));
    scene.create("a").await.unwrap();
    assert_eq!(code(scene.create("b").await), 500);
    scene.create("c").await.unwrap();
    assert_eq!((second.hits(), never.hits()), (1, 0));
    let hit = second.reached().await.unwrap();
    assert_eq!(hit.name.as_deref(), Some("b"));
}

#[tokio::test]
async fn latency_delays_and_then_forwards() {
    let scene = scene().await;
    let latency = Duration::from_millis(300);
    scene.proxy.inject(scene.creates(), Fault::Latency(latency));
    let start = std::time::Instant::now();
    scene.create("late").await.unwrap();
    assert!(start.elapsed() >= latency);
}

#[tokio::test]
async fn cuts_before_and_after_the_commit_differ_only_on_the_server() {
    let scene = scene().await;
    for (name, fault, committed) in [("before", Fault::CutBeforeCommit, false), ("after", Fault::CutAfterCommit, true)]
    {
        scene.proxy.inject(scene.creates().named(name), fault);
        let result = scene.create(name).await;
        assert!(!matches!(result, Ok(_) | Err(Error::Api(_))), "no answer: {result:?}");
        assert_eq!(scene.exists(name).await, committed, "{name}");
    }
}

#[tokio::test]
async fn held_calls_stand_on_either_side_of_the_commit() {
    let scene = scene().await;
    let before = scene.proxy.inject(scene.creates().named("before"), Fault::HoldBeforeCommit);
    let after = scene.proxy.inject(scene.creates().named("after"), Fault::HoldAfterCommit);
    let (first, second) = (scene.creating("before"), scene.creating("after"));
    before.reached().await.unwrap();
    after.reached().await.unwrap();
    assert!(!scene.exists("before").await && scene.exists("after").await);
    assert!(!first.is_finished() && !second.is_finished());
    before.release();
    after.cut();
    first.await.unwrap().expect("a released call is carried out");
    second.await.unwrap().expect_err("a cut call has no answer");
    assert!(scene.exists("before").await);
}

#[tokio::test]
async fn a_held_call_ends_with_its_client() {
    let scene = scene().await;
    let hold = scene.proxy.inject(scene.creates(), Fault::HoldBeforeCommit);
    let client = scene.creating("orphan");
    hold.reached().await.unwrap();
    client.abort();
    client.await.unwrap_err();
    hold.cut();
    scene.proxy.clear();
    scene.create("next").await.unwrap();
    assert!(!scene.exists("orphan").await);
}

#[tokio::test]
async fn held_events_arrive_after_release_and_in_order() {
    let scene = scene().await;
    let mut events = scene.watch().await;
    scene.change("a", "1").await;
    assert_eq!(next_event(&mut events).await, "added a=1");

    let held = scene.proxy.hold_events("configmaps");
    scene.change("a", "2").await;
    scene.change("a", "3").await;
    // Both changes are committed: half a second is long for what otherwise takes a millisecond.
    let quiet = tokio::time::timeout(Duration::from_millis(500), events.next()).await;
    assert!(quiet.is_err(), "held: {quiet:?}");
    held.release();
    assert_eq!(next_event(&mut events).await, "modified a=2");
    assert_eq!(next_event(&mut events).await, "modified a=3");
}

#[tokio::test]
async fn past_events_are_replayed_into_a_live_watch() {
    let scene = scene().await;
    let mut events = scene.watch().await;
    scene.change("a", "1").await;
    scene.change("a", "2").await;
    scene.direct.delete("a", &DeleteParams::default()).await.unwrap();
    for expected in ["added a=1", "modified a=2", "deleted a=2"] {
        assert_eq!(next_event(&mut events).await, expected);
    }
    let replayed = scene.proxy.replay_events("configmaps", |event| event["type"] == "MODIFIED");
    assert_eq!(replayed, 1);
    assert_eq!(next_event(&mut events).await, "modified a=2");
    scene.change("b", "1").await;
    assert_eq!(next_event(&mut events).await, "added b=1");
}

#[tokio::test]
async fn live_watches_are_cut_and_expired() {
    let scene = scene().await;
    let mut events = scene.watch().await;
    assert_eq!(scene.proxy.cut_watches("configmaps"), 1);
    assert_eq!(next_event(&mut events).await, "end");

    let mut events = scene.watch().await;
    assert_eq!(scene.proxy.cut_watches("pods"), 0);
    assert_eq!(scene.proxy.expire_watches("configmaps"), 1);
    assert_eq!(next_event(&mut events).await, "error 410");
    assert_eq!(next_event(&mut events).await, "end");
}

#[tokio::test]
async fn new_watches_are_refused_expired_or_cut_after_events() {
    let scene = scene().await;
    let watches = || Calls::of(Verb::Watch, "configmaps").at_most(1);
    scene.proxy.inject(watches(), Fault::Status(410));
    let refused = scene.through.watch(&WatchParams::default(), "0").await;
    assert!(matches!(refused.err(), Some(Error::Api(status)) if status.code == 410));

    scene.proxy.inject(watches(), Fault::WatchExpired);
    assert_eq!(next_event(&mut scene.watch().await).await, "error 410");

    scene.proxy.inject(watches(), Fault::WatchCutAfter(1));
    let mut events = scene.watch().await;
    scene.change("a", "1").await;
    assert_eq!(next_event(&mut events).await, "added a=1");
    assert_eq!(next_event(&mut events).await, "end");
}

#[tokio::test]
async fn a_streaming_list_passes_and_recovers_from_faults() {
    let scene = scene().await;
    scene.change("a", "1").await;
    let config = watcher::Config::default().streaming_lists();
    let mut events = Box::pin(watcher(scene.through.clone(), config));
    wait_for_list(&mut events).await;
    assert_eq!(scene.proxy.expire_watches("configmaps"), 1);
    wait_for_list(&mut events).await;
    let lists = scene.proxy.requests();
    assert!(lists.iter().all(|seen| seen.request.verb == Verb::Watch), "{lists:?}");
}

/// The end of an initial list is known by a bookmark.
async fn wait_for_list(events: &mut (impl Stream<Item = Result<watcher::Event<ConfigMap>, watcher::Error>> + Unpin)) {
    let done = events.filter(|event| std::future::ready(matches!(event, Ok(watcher::Event::InitDone))));
    tokio::time::timeout(PATIENCE, Box::pin(done).next()).await.expect("a list in time").unwrap().unwrap();
}

#[tokio::test]
async fn the_log_tells_what_happened() {
    let scene = scene().await;
    scene.proxy.inject(scene.creates().nth(2), Fault::CutAfterCommit);
    scene.create("a").await.unwrap();
    scene.create("b").await.unwrap_err();
    let request = |name: &str| ApiRequest {
        verb: Verb::Create,
        group: String::new(),
        resource: "configmaps".to_owned(),
        subresource: None,
        namespace: Some(scene.namespace.clone()),
        name: Some(name.to_owned()),
    };
    let seen: Vec<_> = scene.proxy.requests().into_iter().map(|seen| (seen.request, seen.fault, seen.code)).collect();
    assert_eq!(seen, [(request("a"), None, Some(201)), (request("b"), Some(Fault::CutAfterCommit), None),]);
}

#[tokio::test]
async fn http2_and_kubectl_pass() {
    let scene = scene().await;
    let http2 = legacy::Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Empty<Bytes>>();
    let url = format!("{}/api/v1/namespaces/{}", scene.proxy.url(), scene.namespace);
    let answer = http2.get(url.parse().unwrap()).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.version()), (200, http::Version::HTTP_2));
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(serde_json::from_slice::<Namespace>(&body).unwrap().name_any(), scene.namespace);

    scene.proxy.inject(scene.creates().nth(1), Fault::Status(500));
    let kubectl = tools::path("kubectl").await.unwrap();
    let kubectl = |arguments: &'static str| {
        let mut command = tokio::process::Command::new(&kubectl);
        command.arg("--kubeconfig").arg(scene.proxy.kubeconfig_path());
        command.args(["--namespace", &scene.namespace]).args(arguments.split(' '));
        async move { command.output().await.unwrap() }
    };
    let create = "create configmap by-kubectl --from-literal=value=1";
    let refused = kubectl(create).await;
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("injected fault"), "{refused:?}");
    assert!(kubectl(create).await.status.success());
    let got = kubectl("get configmap by-kubectl -o name").await;
    assert_eq!(String::from_utf8_lossy(&got.stdout), "configmap/by-kubectl\n");
}

#[tokio::test]
async fn without_a_credential_of_its_own_the_clients_token_passes() {
    let control_plane = ControlPlane::shared().await.unwrap();
    let namespace = control_plane.namespace("fault").await.unwrap();
    let mut bare = admin().await;
    bare.auth_infos[0].auth_info = Some(AuthInfo::default());
    let proxy = FaultProxy::start(bare, 42).await.unwrap();
    let account = User::service_account(&namespace, "default");
    let account = Kubeconfig::read_from(control_plane.kubeconfig_as(&account).await.unwrap()).unwrap();
    let mut with_token = proxy.kubeconfig();
    with_token.auth_infos = account.auth_infos;
    with_token.auth_infos[0].name.clone_from(&proxy.kubeconfig().auth_infos[0].name);

    let me = SelfSubjectReview::default();
    let reviews: Api<SelfSubjectReview> = Api::all(client(with_token).await);
    let review = reviews.create(&PostParams::default(), &me).await.unwrap();
    let name = review.status.unwrap().user_info.unwrap().username.unwrap();
    assert_eq!(name, format!("system:serviceaccount:{namespace}:default"));
    let anonymous: Api<SelfSubjectReview> = Api::all(proxy.client().await.unwrap());
    let refused = anonymous.create(&PostParams::default(), &me).await;
    assert!(matches!(refused, Err(Error::Api(status)) if matches!(status.code, 401 | 403)));
}
