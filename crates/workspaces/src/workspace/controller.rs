//! Rounds of Workspaces.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use api::workspace::{ChartValues, User, Workspace, WorkspaceSpec, WorkspaceStatus};
use jiff::Timestamp;
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Namespace, discovery::v1::EndpointSlice};
use plan::{
    fact::Failure,
    round::{Plan, Report},
    workspaces::{
        Action, Derived, Digested, Done, Found, ObjectId, Objects,
        workspace::{self, Endpoint, Note, Observed, Source, SourceAsk, Surroundings},
    },
};
use runtime::{
    Controller, Error, Fence, InputsOf, Json, Key, Kind, Metadata, Parts, RoundOf, Turn, Versioned, View, Writer,
};
use serde::Serialize;

use super::{
    Concerns, Releases, Secrets,
    derived::{DerivedKinds, accept},
    projection::{Owned, Stored},
    secret,
};

/// Each is looked for in every object of the namespace. Hardly any Workspace has as many at once; the others go in later
/// rounds.
const MOST_FORMER: usize = 100;

pub struct WorkspaceController {
    pub workspaces: Arc<Kind<Parts<Workspace>, Workspace>>,
    pub releases: Arc<Releases>,
    pub users: Arc<Kind<Parts<User>, User>>,
    pub sets: Arc<Kind<Json<StatefulSet>, Stored>>,
    pub secrets: Arc<Secrets>,
    pub namespaces: Arc<Kind<Metadata<Namespace>, bool>>,
    pub endpoints: Arc<Kind<EndpointSlice, Vec<Endpoint>>>,
    pub derived_kinds: Arc<DerivedKinds>,
    pub concerns: Concerns,
    pub writer: Writer,
    /// How often former configs were looked for.
    pub looks: AtomicUsize,
}

impl Controller for WorkspaceController {
    const NAME: &'static str = "workspace";
    type View = Parts<Workspace>;
    type Object = Workspace;
    type Kept = Workspace;
    type Status = WorkspaceStatus;
    type Observed = Observed;
    type Action = Action;
    type Done = Done;
    type Note = Note;
    type Ask = SourceAsk;
    type Answer = Option<Digested>;

    fn kind(&self) -> &Arc<Kind<Parts<Workspace>, Workspace>> {
        &self.workspaces
    }

    fn span(key: &Key) -> tracing::Span {
        tracing::info_span!("round", workspace = %key, namespace = %key.namespace)
    }

    async fn gather(&self, key: &Key, workspace: &Workspace, note: &Note) -> Result<Observed, Error> {
        let others = self.concerns.workspaces_of.keys(&key.namespace);
        let others: Vec<_> = others.iter().filter_map(|other| self.workspaces.get(other)).collect();
        let rival = workspace::rival(&workspace.metadata, others.iter().map(|other| &other.value.metadata));
        // A rival may do nothing, so it looks at nothing either.
        let spec = workspace.spec.as_ref().filter(|_| rival.is_none());
        let sources = self.sources(key, spec, note).await?;
        let surroundings = Surroundings { api_server: self.api_server(), sources };
        // Only for the names: the objects that have them are to be known.
        let derived = workspace::derive(workspace, &surroundings).unwrap_or_default();
        let uid = workspace.metadata.uid.as_deref().unwrap_or_default();
        let mut objects = self.derived_kinds.owned(&key.namespace, uid).await?;
        self.derived_kinds.add_wanted(&mut objects, &key.namespace, &derived).await?;
        accept(&mut objects, &note.accepted);
        let look = self.looks.fetch_add(1, Ordering::Relaxed);
        Ok(Observed {
            rival,
            is_namespace_terminating: is_terminating(&self.namespaces, &key.namespace),
            surroundings,
            unreferred: self.unreferred(key, &former_configs(&objects, &derived, look)).await,
            objects,
        })
    }

    fn plan(&self, workspace: &Workspace, observed: &Observed, inputs: &InputsOf<Self>) -> Plan<Action, SourceAsk> {
        workspace::plan(workspace, observed, inputs)
    }

    async fn execute(&self, turn: &Turn<'_, Self>, action: &Action) -> Result<Done, Error> {
        self.derived_kinds.execute(turn, &self.workspaces, turn.subject.object().spec.as_ref(), action).await
    }

    fn report(&self, round: &RoundOf<'_, Self>, now: Timestamp) -> Report<WorkspaceStatus, Note> {
        workspace::report(round, now)
    }

    async fn fetch(&self, ask: &SourceAsk, _: &Fence) -> Result<Option<Digested>, Failure> {
        let read = secret::read(&self.writer, &Key::new(ask.namespace.as_str(), ask.name.as_str())).await;
        match read {
            Ok(data) => Ok(data.as_ref().map(Digested::of)),
            Err(error) => Err(Failure { class: error.class(), message: error.to_string() }),
        }
    }
}

impl WorkspaceController {
    fn api_server(&self) -> Vec<Endpoint> {
        let mut all = Vec::new();
        self.endpoints.store().for_each(|_, endpoints| all.extend(endpoints.iter().cloned()));
        all.sort();
        all
    }

    /// The Secrets that configs take from.
    async fn sources(
        &self,
        key: &Key,
        spec: Option<&WorkspaceSpec>,
        note: &Note,
    ) -> Result<BTreeMap<String, Source>, Error> {
        let configs = spec.into_iter().flat_map(|spec| spec.configs.values());
        let names: BTreeSet<_> = configs.filter_map(|config| Some(&config.from_secret.as_ref()?.name)).collect();
        let mut sources = BTreeMap::new();
        for name in names {
            let secret = Key::new(key.namespace.clone(), name.as_str());
            self.secrets.settle(&secret).await?;
            let version = self.secrets.store().version(&secret);
            let source = version.map_or(Source::Missing, |version| note.source(name, version));
            sources.insert(name.clone(), source);
        }
        Ok(sources)
    }

    /// Which of these configs nothing in the namespace names that the Workspace does not own; what it owns is known
    /// anyway. Others' caches are not locked meanwhile, nor a thread kept: a namespace may hold many large objects.
    async fn unreferred(&self, key: &Key, configs: &[&ObjectId]) -> BTreeSet<String> {
        let mut unreferred: BTreeSet<String> = configs.iter().map(|config| config.name.clone()).collect();
        if configs.is_empty() {
            return unreferred;
        }
        let mut search = |text: &str| {
            // Names with a hash in them are not found by accident, so the text alone decides.
            unreferred.retain(|name| !text.contains(name.as_str()));
            tokio::task::yield_now()
        };
        let is_own = |owner: Option<super::projection::Owner<'_>>| {
            owner.is_some_and(|owner| owner.kind == Workspace::KIND && *owner.name == *key.name)
        };
        for release in near(&self.releases, key).filter(|release| !is_own(release.value.owner())) {
            search(&text(&release.value.spec)).await;
            // What is not kept may name any of them.
            if release.value.spec.as_ref().is_some_and(|spec| spec.values == Some(ChartValues::TooMany)) {
                let all: Vec<_> = configs.iter().map(|config| config.name.as_str()).collect();
                search(&all.join(" ")).await;
            }
        }
        for user in near(&self.users, key).filter(|user| !is_own(user.value.owner())) {
            search(&text(&user.value.spec)).await;
        }
        for set in near(&self.sets, key) {
            search(set.value.text()).await;
        }
        unreferred
    }
}

/// The objects of one kind in the namespace of `key`.
fn near<W: View, T: Send + Sync + 'static>(kind: &Kind<W, T>, key: &Key) -> impl Iterator<Item = Arc<Versioned<T>>> {
    let keys = kind.store().keys().into_iter().filter(move |other| other.namespace == key.namespace);
    keys.filter_map(move |other| kind.get(&other))
}

fn text(spec: &impl Serialize) -> String {
    serde_json::to_string(spec).expect("plain data has a JSON form")
}

pub fn is_terminating(namespaces: &Kind<Metadata<Namespace>, bool>, name: &str) -> bool {
    namespaces.get(&Key::new("", name)).is_some_and(|is_going| is_going.value)
}

/// What is to be collected, if nothing refers to it. Of very many each look takes others: what is referred to may stay for
/// long.
fn former_configs<'a>(objects: &'a Objects, derived: &[Derived], look: usize) -> Vec<&'a ObjectId> {
    let is_wanted = |id: &ObjectId| derived.iter().any(|derived| derived.id == *id);
    let is_former = |(id, found): &(&ObjectId, &Found)| id.kind.is_config() && !found.is_going && !is_wanted(id);
    let mut former: Vec<_> = objects.iter().filter(is_former).map(|(id, _)| id).collect();
    if former.len() > MOST_FORMER {
        let start = look.wrapping_mul(MOST_FORMER) % former.len();
        former.rotate_left(start);
        former.truncate(MOST_FORMER);
    }
    former
}

#[cfg(test)]
mod tests {
    use plan::workspaces::{Body, ObjectKind};
    use serde_json::Value;

    use super::*;

    #[test]
    fn of_very_many_former_configs_each_look_takes_others_and_none_that_goes() {
        let found = |is_going: bool| Found {
            uid: String::new(),
            resource_version: String::new(),
            owner_uid: None,
            is_going,
            generation: None,
            content: Body(Value::Null),
            status: Value::Null,
            accepted: None,
        };
        let id = |number: usize| ObjectId::new(ObjectKind::Secret, format!("former-{number:03}"));
        let mut objects: Objects = (0..250).map(|number| (id(number), found(false))).collect();
        objects.insert(id(999), found(true));
        let mut seen = BTreeSet::new();
        for look in 0..3 {
            let former = former_configs(&objects, &[], look);
            assert_eq!(former.len(), MOST_FORMER);
            seen.extend(former.into_iter().cloned());
        }
        assert_eq!(seen.len(), 250);
    }
}
