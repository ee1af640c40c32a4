//! The operator is killed at seeded writes while Workspaces come, change, stop, start and go. Some of the writes are
//! helm's own. Nobody helps: in the end everything is as it is without a kill, and nothing more is there.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use api::workspace::Workspace;
use futures::future::try_join_all;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    config::Kubeconfig,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use testbed::{
    ControlPlane, Random,
    charts::{Access, ChartRepository},
    fault::{ApiRequest, Calls, Fault, FaultProxy, Injected, Verb},
    process::Child,
};

use crate::{
    campaign::setting,
    releases::operator,
    space::{HelmRole, OWN, Space, eventually, lent, operator_user, until},
};

/// Places where a step is struck at once, each at a write of its own.
const PLACES: usize = 4;

/// All that a Workspace and its charts make, as lists of the API.
const LISTS: [&str; 12] = [
    "apis/workspaces.strata.dev/v1alpha1 workspaces",
    "apis/workspaces.strata.dev/v1alpha1 helmreleases",
    "apis/workspaces.strata.dev/v1alpha1 users",
    "apis/apps/v1 deployments",
    "apis/apps/v1 statefulsets",
    "apis/networking.k8s.io/v1 ingresses",
    "apis/networking.k8s.io/v1 networkpolicies",
    "apis/rbac.authorization.k8s.io/v1 roles",
    "api/v1 serviceaccounts",
    "api/v1 services",
    "api/v1 configmaps",
    "api/v1 secrets",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create,
    Change,
    Stop,
    Start,
    Remove,
    Delete,
}

const STEPS: [Step; 6] = [Step::Create, Step::Change, Step::Stop, Step::Start, Step::Remove, Step::Delete];

/// One Workspace in its namespace.
struct Place<'a> {
    space: Space<'a>,
    workspaces: Api<Workspace>,
}

impl<'a> Place<'a> {
    async fn new(control_plane: &'a ControlPlane, charts: String, prefix: &str) -> Result<Self> {
        let space = Space::new(control_plane, charts, prefix).await?;
        let workspaces = Api::namespaced(space.client.clone(), &space.namespace);
        Ok(Self { space, workspaces })
    }

    async fn trigger(&self, step: Step) -> Result<()> {
        let user = |slug: &str| json!({ "slug": slug, "email": "a@example.com", "permissions": ["code-server"] });
        let four = |note: &str| json!({ "chart": self.space.chart("four", "1.0.0"), "values": { "note": note, "replicas": 1 } });
        let spec = match step {
            Step::Create => json!({
                "domain": "example.com", "configs": { "settings": { "data": { "a": "1" } } },
                "services": { "web": four("a"), "old": four("a") }, "users": [user("ana"), user("bob")],
            }),
            Step::Change => json!({
                "domain": "example.org", "services": { "web": four("b"), "new": four("a") },
                "users": [user("ana"), user("bob"), user("cyd")],
            }),
            Step::Stop => json!({ "stopped": true }),
            Step::Start => json!({ "stopped": false }),
            Step::Remove => {
                json!({ "services": { "old": null }, "users": [user("ana"), user("cyd")], "configs": null })
            }
            Step::Delete => {
                self.workspaces.delete("team", &DeleteParams::default()).await?;
                return Ok(());
            }
        };
        if step == Step::Create {
            let workspace = serde_json::from_value(json!({ "metadata": { "name": "team" }, "spec": spec }))?;
            self.workspaces.create(&PostParams::default(), &workspace).await?;
        } else {
            let patch = Patch::Merge(json!({ "spec": spec }));
            self.workspaces.patch("team", &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }

    /// Waits until the operator says that a step is done, and what it removes is gone.
    async fn finished(&self, step: Step) -> Result<()> {
        if step != Step::Delete {
            let phase = if step == Step::Stop { "Stopped" } else { "Ready" };
            until(&self.workspaces, "team", phase, |workspace| {
                let status = json!(workspace.status);
                status["phase"] == phase && status["observedGeneration"] == json!(workspace.metadata.generation)
            })
            .await?;
        }
        let gone: &[&str] = match step {
            Step::Remove => &["old", "bob", "settings"],
            Step::Delete => &["team", "web", "old", "new", "ana", "bob", "cyd"],
            _ => &[],
        };
        eventually("what was removed is gone", || async {
            Ok(!self.objects().await?.iter().any(|object| gone.iter().any(|name| object.contains(name))))
        })
        .await
    }

    /// All objects by kind and name, and where each release stands.
    async fn objects(&self) -> Result<BTreeSet<String>> {
        let mut objects = BTreeSet::new();
        for list in LISTS {
            let (version, kind) = list.split_once(' ').context("a version and a kind")?;
            let path = format!("/{version}/namespaces/{}/{kind}", self.space.namespace);
            let found: Value = self.space.client.request(http::Request::get(path).body(Vec::new())?).await?;
            for object in found["items"].as_array().into_iter().flatten() {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let labels = &object["metadata"]["labels"];
                // A password is named by its content, and an interrupted operation has a revision, too.
                objects.insert(match (kind, labels["owner"].as_str()) {
                    ("secrets", Some("helm")) => format!("release {}", labels["name"]),
                    ("secrets", _) => format!("secrets {}", name.rsplit_once('-').map_or(name, |(start, _)| start)),
                    _ => format!("{kind} {name} {}", object["spec"]["replicas"]),
                });
            }
        }
        Ok(objects)
    }

    /// Waits until there is exactly what there should be, and no helm operation is left half done.
    async fn until_like(&self, calm: &BTreeSet<String>) -> Result<()> {
        let is_like = || async { Ok(self.objects().await? == *calm) };
        if let Err(error) = eventually("it is as without a kill", is_like).await {
            let now = self.objects().await?;
            let (more, less): (Vec<_>, Vec<_>) = (now.difference(calm).collect(), calm.difference(&now).collect());
            return Err(error.context(format!("too much: {more:?}, missing: {less:?}")));
        }
        for release in calm.iter().filter_map(|object| object.strip_prefix("helmreleases ")?.split(' ').next()) {
            let history = self.space.history(release).await?;
            let last = history.last().context("a revision")?;
            ensure!(last.1 == "deployed", "{release}: {history:?}");
            ensure!(history.iter().all(|(_, state)| !state.starts_with("pending")), "{release}: {history:?}");
        }
        Ok(())
    }

    async fn claims(&self) -> Result<BTreeSet<String>> {
        let path = format!("/api/v1/namespaces/{}/persistentvolumeclaims", self.space.namespace);
        let found: Value = self.space.client.request(http::Request::get(path).body(Vec::new())?).await?;
        let claims = found["items"].as_array().into_iter().flatten();
        Ok(claims.map(|claim| claim["metadata"]["uid"].to_string()).collect())
    }
}

/// A kind of write; the first of it is struck.
type Point = (Verb, String);

fn point(request: &ApiRequest) -> Option<Point> {
    let subresource = request.subresource.as_ref().map(|name| format!("/{name}")).unwrap_or_default();
    // Events are recorded, not relied on.
    let counts = Verb::WRITES.contains(&request.verb) && request.resource != "events";
    counts.then(|| (request.verb, format!("{}{subresource}", request.resource)))
}

struct Campaign<'a> {
    operator: Child,
    proxy: FaultProxy,
    /// Of the operator's logs and helm's files.
    directory: TempDir,
    calm: Place<'a>,
    struck: Vec<Place<'a>>,
    random: Random,
    kills: usize,
    tried: BTreeSet<String>,
}

impl Campaign<'_> {
    async fn step(&mut self, step: Step) -> Result<()> {
        let before = self.proxy.requests().len();
        self.calm.trigger(step).await?;
        self.calm.finished(step).await.context("without a kill")?;
        let is_calm = |request: &&ApiRequest| request.namespace.as_ref() == Some(&self.calm.space.namespace);
        let seen = self.proxy.requests();
        let mut points: Vec<Point> =
            seen[before..].iter().map(|seen| &seen.request).filter(is_calm).filter_map(point).collect();
        points.sort_by_key(|(verb, pattern)| format!("{verb:?} {pattern}"));
        points.dedup();
        let claims = try_join_all(self.struck.iter().map(Place::claims)).await?;
        let mut held: Vec<(Injected, String)> = Vec::new();
        for place in &self.struck {
            let (verb, pattern) = points.swap_remove(self.random.below(points.len()));
            let fault = [Fault::HoldBeforeCommit, Fault::HoldAfterCommit][self.random.below(2)];
            let calls = Calls::of(verb, &pattern).in_namespace(&place.space.namespace).nth(1);
            held.push((self.proxy.inject(calls, fault), format!("{step:?}: {fault:?} {verb:?} {pattern}")));
            place.trigger(step).await?;
        }
        for (held, what) in &held {
            held.reached().await.with_context(|| what.clone())?;
        }
        self.operator.kill().await?;
        self.kills += 1;
        for (held, _) in &held {
            held.cut();
        }
        let kubeconfig = self.proxy.kubeconfig_path();
        self.operator = operator(self.directory.path(), &kubeconfig, &format!("operator-{}.log", self.kills)).await?;
        for ((place, (held, what)), claims) in self.struck.iter().zip(&held).zip(&claims) {
            let context = || format!("killed at {what}\n{}", self.operator.log_tail());
            place.finished(step).await.with_context(context)?;
            place.until_like(&self.calm.objects().await?).await.with_context(context)?;
            ensure!(place.claims().await?.is_superset(claims), "a volume is lost, killed at {what}");
            held.end();
        }
        self.tried.extend(held.into_iter().map(|(_, what)| what));
        Ok(())
    }
}

#[tokio::test]
async fn w27_killed_at_any_write_while_workspaces_change_they_reach_their_end_and_nothing_is_orphaned() -> Result<()> {
    let (control_plane, directory) = (lent(OWN, HelmRole::Bound).await?, tempfile::tempdir()?);
    let charts = ChartRepository::start(Access::Anyone).await?;
    let kubeconfig = control_plane.kubeconfig_as(&operator_user()).await?;
    let proxy = FaultProxy::start(Kubeconfig::read_from(&kubeconfig)?, 7).await?;
    let place = |prefix| Place::new(&control_plane, charts.url(), prefix);
    let mut campaign = Campaign {
        operator: operator(directory.path(), &proxy.kubeconfig_path(), "operator-0.log").await?,
        calm: place("calm").await?,
        struck: try_join_all((0..PLACES).map(|_| place("struck"))).await?,
        directory,
        proxy,
        random: Random(setting("STRATA_CAMPAIGN_SEED").unwrap_or(1)),
        kills: 0,
        tried: BTreeSet::new(),
    };
    for step in STEPS {
        campaign.step(step).await?;
    }
    println!("{:#?}", campaign.tried);
    Ok(())
}
