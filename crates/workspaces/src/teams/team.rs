//! Rounds of Workspaces.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use api::workspace::{HelmRelease, User, Workspace, WorkspaceSpec};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Namespace, Secret},
    discovery::v1::EndpointSlice,
};
use plan::{
    Plan,
    workspaces::{
        Action, Body, ObjectId, Objects, Outcome, Round,
        team::{self, Endpoint, Source, Surroundings},
    },
};
use runtime::{Clock, Error, Executed, Json, Key, Kind, Layer, Metadata, Recorder, Writer};
use serde_json::json;

use super::{
    Concerns, Releases, Secrets,
    kept::{Owned, Stored},
    shelf::Shelves,
    source::{Known, Look},
    subject::{Statuses, Subject},
};

pub struct TeamLayer {
    pub workspaces: Arc<Kind<Json<Workspace>, Workspace>>,
    pub releases: Arc<Releases>,
    pub users: Arc<Kind<Json<User>, User>>,
    pub sets: Arc<Kind<Json<StatefulSet>, Stored>>,
    pub secrets: Arc<Secrets>,
    pub namespaces: Arc<Kind<Metadata<Namespace>, bool>>,
    pub endpoints: Arc<Kind<Json<EndpointSlice>, Vec<Endpoint>>>,
    pub shelves: Arc<Shelves>,
    pub concerns: Concerns,
    pub writer: Writer,
    /// What configs take from other Secrets, by Workspace.
    pub contents: Mutex<HashMap<Key, Known>>,
    pub events: Recorder,
    pub clock: Clock,
}

/// One Workspace and its surroundings, at the beginning of a round.
pub struct Observed {
    subject: Subject<Workspace>,
    surroundings: team::Observed,
}

impl Layer for TeamLayer {
    const CONTROLLER: &'static str = "workspace";
    type Observed = Observed;
    type Action = Action;
    type Outcome = Outcome;

    fn span(key: &Key) -> tracing::Span {
        tracing::info_span!("round", workspace = %key, namespace = %key.namespace)
    }

    async fn gather(&self, key: &Key) -> Result<Option<Observed>, Error> {
        self.workspaces.settle(key).await?;
        let Some(workspace) = self.workspaces.get(key) else {
            self.contents().remove(key);
            return Ok(None);
        };
        let subject = Subject::new(workspace);
        let workspace = subject.object();
        let others = self.concerns.workspaces_of.keys(&key.namespace);
        let others: Vec<_> = others.iter().filter_map(|other| self.workspaces.get(other)).collect();
        let rival = team::rival(&workspace.metadata, others.iter().map(|other| &other.value.metadata));
        // A rival may do nothing, so it reads nothing either.
        let spec = workspace.spec.as_ref().filter(|_| rival.is_none());
        let surroundings = Surroundings { api_server: self.api_server(), sources: self.sources(key, spec).await? };
        let derived = team::derive(workspace, &surroundings);
        let mut objects = self.shelves.owned(&key.namespace, subject.uid()).await?;
        if let Ok(derived) = &derived {
            self.shelves.add_wanted(&mut objects, &key.namespace, derived).await?;
        }
        let is_namespace_terminating = is_terminating(&self.namespaces, &key.namespace);
        let referrers = if has_former_configs(&objects, &derived) { self.referrers(key) } else { Vec::new() };
        let surroundings = team::Observed { rival, is_namespace_terminating, derived, objects, referrers };
        Ok(Some(Observed { subject, surroundings }))
    }

    fn plan(&self, observed: &Observed, _: Timestamp) -> Plan<Action> {
        team::plan(observed.subject.object(), &observed.surroundings)
    }

    async fn execute(&self, key: &Key, observed: &Observed, action: &Action) -> Executed<Outcome> {
        observed.subject.execute(&self.workspaces, &self.shelves, key, action).await
    }

    fn keys(&self) -> Vec<Key> {
        self.workspaces.store().keys()
    }

    async fn report(
        &self,
        key: &Key,
        observed: &Observed,
        plan: &Plan<Action>,
        outcomes: &[Outcome],
    ) -> Result<bool, Error> {
        let Observed { subject, surroundings } = observed;
        let workspace = subject.object();
        let round = Round { object: workspace, observed: surroundings, plan, outcomes };
        let after = team::status(&round, self.clock.now());
        tracing::info!(phase = ?after.phase, actions = plan.actions.len(), "reconciled");
        let statuses =
            Statuses { before: workspace.status.as_ref(), after: &after, conditions: |status| &status.conditions };
        subject.report(&self.workspaces, &self.events, key, statuses, (plan, outcomes)).await
    }
}

impl TeamLayer {
    fn contents(&self) -> MutexGuard<'_, HashMap<Key, Known>> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn api_server(&self) -> Vec<Endpoint> {
        let mut all = Vec::new();
        self.endpoints.store().for_each(|_, endpoints| all.extend(endpoints.iter().cloned()));
        all.sort();
        all
    }

    /// The Secrets that configs take from, read when they are new or changed.
    async fn sources(&self, key: &Key, spec: Option<&WorkspaceSpec>) -> Result<BTreeMap<String, Source>, Error> {
        let configs = spec.into_iter().flat_map(|spec| spec.configs.values());
        let names: BTreeSet<_> = configs.filter_map(|config| Some(&config.from_secret.as_ref()?.name)).collect();
        // After a failure all of them are read again.
        let mut look = Look::new(self.contents().remove(key).unwrap_or_default());
        let mut sources = BTreeMap::new();
        for name in names {
            let source = self.source(&mut look, &Key::new(key.namespace.clone(), name.as_str())).await?;
            sources.insert(name.clone(), source);
        }
        if !look.known.is_empty() {
            self.contents().insert(key.clone(), look.known);
        }
        Ok(sources)
    }

    async fn source(&self, look: &mut Look, secret: &Key) -> Result<Source, Error> {
        self.secrets.settle(secret).await?;
        let Some(version) = self.secrets.store().version(secret) else { return Ok(Source::Missing) };
        if let Some(source) = look.find(&secret.name, version) {
            return Ok(source);
        }
        let Some(read) = self.writer.read::<Secret>("secrets", secret).await? else { return Ok(Source::Missing) };
        let encoded = read.data.unwrap_or_default().into_iter().map(|(name, bytes)| (name, json!(bytes)));
        let content = encoded.filter_map(|(name, text)| Some((name, text.as_str()?.to_owned()))).collect();
        Ok(look.add(&secret.name, version, content))
    }

    /// Whatever in the namespace may name a config, but for what the Workspace owns, which is known anyway.
    fn referrers(&self, key: &Key) -> Vec<Body> {
        let mut referrers = Vec::new();
        let is_near = |other: &Key| other.namespace == key.namespace;
        let is_own = |owner: Option<super::kept::Owner<'_>>| {
            owner.is_some_and(|owner| owner.kind == Workspace::KIND && *owner.name == *key.name)
        };
        self.releases.store().for_each(|other, release: &HelmRelease| {
            if is_near(other) && !is_own(release.owner()) {
                referrers.push(Body(json!(release.spec)));
            }
        });
        self.users.store().for_each(|other, user: &User| {
            if is_near(other) && !is_own(user.owner()) {
                referrers.push(Body(json!(user.spec)));
            }
        });
        self.sets.store().for_each(|other, set| {
            if is_near(other) {
                referrers.push(Body(set.content()));
            }
        });
        referrers
    }
}

pub fn is_terminating(namespaces: &Kind<Metadata<Namespace>, bool>, name: &str) -> bool {
    namespaces.get(&Key::new("", name)).is_some_and(|is_going| is_going.value)
}

/// Whether there is something to collect, if nobody refers to it.
fn has_former_configs(objects: &Objects, derived: &Result<Vec<plan::workspaces::Derived>, plan::Why>) -> bool {
    let is_wanted =
        |id: &ObjectId| derived.as_ref().is_ok_and(|derived| derived.iter().any(|derived| derived.id == *id));
    objects.keys().any(|id| id.kind.is_config() && !is_wanted(id))
}
