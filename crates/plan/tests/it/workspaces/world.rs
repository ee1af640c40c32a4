//! A small API server for one namespace: it stores derived objects and runs the rounds of a Workspace and its Users.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::workspace::{User, UserStatus, Workspace, WorkspaceStatus};
use jiff::Timestamp;
use plan::event::Event;
use plan::fact::{Class, Fact};
use plan::round::{Inputs, Plan, Progress, Round};
use plan::workspaces::{
    Accepted, Action, Body, Content, Data, Derived, Digested, Done, Found, ObjectId, ObjectKind, Objects,
    data_of_config, data_of_password, user, workspace,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

pub type WorkspacePlan = Plan<Action, workspace::SourceAsk>;

pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

pub fn workspace(spec: Value) -> Workspace {
    serde_json::from_value(json!({
        "metadata": { "name": "team", "namespace": "ns", "uid": "team-uid", "generation": 1, "resourceVersion": "1" },
        "spec": spec,
    }))
    .unwrap()
}

pub fn chart(name: &str) -> Value {
    json!({ "repo": "https://charts.example", "name": name, "version": "1.0.0" })
}

/// Two services and two users.
pub fn basic() -> Value {
    json!({
        "domain": "example.com",
        "services": {
            "db": { "chart": chart("db") },
            "web": { "chart": chart("web"), "dependsOn": ["db"], "expose": { "service": "web", "port": 80 } },
        },
        "users": [
            { "slug": "ana", "email": "ana@example.com", "permissions": ["code-server"] },
            { "slug": "bob", "email": "bob@example.com" },
        ],
    })
}

pub struct World {
    pub workspace: Workspace,
    pub objects: Objects,
    pub api_server: Vec<workspace::Endpoint>,
    /// Secrets that configs may take from, with their versions.
    pub sources: BTreeMap<String, (u64, Data)>,
    /// Whether Secrets can be read now.
    pub are_sources_readable: bool,
    /// The content of the Secrets that were made.
    pub contents: BTreeMap<ObjectId, Data>,
    pub note: workspace::Note,
    pub rival: Option<String>,
    pub is_namespace_terminating: bool,
    pub now: Timestamp,
    pub events: Vec<Event>,
    /// What the server answers to an apply of these.
    pub refusals: BTreeMap<ObjectId, Progress<Done>>,
    /// Every action that was tried, in words.
    pub done: Vec<String>,
    pub referred_to: BTreeSet<String>,
    count: u32,
}

impl World {
    pub fn new(spec: Value) -> Self {
        Self {
            workspace: workspace(spec),
            objects: Objects::new(),
            api_server: vec![workspace::Endpoint { address: "192.0.2.1".into(), port: 6443 }],
            sources: BTreeMap::new(),
            are_sources_readable: true,
            contents: BTreeMap::new(),
            note: workspace::Note::default(),
            rival: None,
            is_namespace_terminating: false,
            now: at(0),
            events: Vec::new(),
            refusals: BTreeMap::new(),
            done: Vec::new(),
            referred_to: BTreeSet::new(),
            count: 0,
        }
    }

    /// A world in which everything is ready.
    pub fn ready(spec: Value) -> Self {
        let mut world = Self::new(spec);
        world.settle();
        world.done.clear();
        world.events.clear();
        world
    }

    pub fn status(&self) -> WorkspaceStatus {
        self.workspace.status.clone().unwrap_or_default()
    }

    /// `Ready=True Succeeded: …` of one condition of the Workspace.
    pub fn condition(&self, kind: &str) -> String {
        let status = self.status();
        let found = status.conditions.iter().find(|c| c.kind.as_str() == kind).unwrap();
        format!("{:?} {}: {}", found.status, found.reason, found.message)
    }

    pub fn change(&mut self, change: impl FnOnce(&mut Value)) {
        let mut spec = serde_json::to_value(&self.workspace.spec).unwrap();
        change(&mut spec);
        self.workspace.spec = serde_json::from_value(spec).unwrap();
        self.workspace.metadata.generation = self.workspace.metadata.generation.map(|g| g + 1);
    }

    pub fn delete(&mut self) {
        self.workspace.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(self.now));
    }

    pub fn names(&self, kind: ObjectKind) -> Vec<&str> {
        self.objects.keys().filter(|id| id.kind == kind).map(|id| id.name.as_str()).collect()
    }

    pub fn object(&mut self, kind: ObjectKind, name: &str) -> &mut Found {
        self.objects.get_mut(&ObjectId::new(kind, name)).unwrap()
    }

    pub fn has_finalizer(&self) -> bool {
        self.workspace.metadata.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty())
    }

    /// As gathering finds them: with the digests that are remembered.
    pub fn surroundings(&self) -> workspace::Surroundings {
        let configs = self.workspace.spec.iter().flat_map(|spec| spec.configs.values());
        let names = configs.filter_map(|config| config.from_secret.as_ref()).map(|source| source.name.clone());
        let source = |name: String| {
            let source = match self.sources.get(&name) {
                Some((version, _)) => self.note.source(&name, *version),
                None => workspace::Source::Missing,
            };
            (name, source)
        };
        workspace::Surroundings { api_server: self.api_server.clone(), sources: names.map(source).collect() }
    }

    pub fn workspace_observed(&self) -> workspace::Observed {
        workspace::Observed {
            rival: self.rival.clone(),
            is_namespace_terminating: self.is_namespace_terminating,
            surroundings: self.surroundings(),
            objects: self.objects.clone(),
            unreferred: self.unreferred(),
        }
    }

    fn unreferred(&self) -> BTreeSet<String> {
        let configs = self.objects.keys().filter(|id| matches!(id.kind, ObjectKind::ConfigMap | ObjectKind::Secret));
        configs.map(|id| id.name.clone()).filter(|name| !self.referred_to.contains(name)).collect()
    }

    /// What is derived when everything is known.
    pub fn derived(&self) -> Vec<Derived> {
        let mut surroundings = self.surroundings();
        for (name, (version, data)) in &self.sources {
            let source = workspace::Source::Present { resource_version: *version, content: Some(Digested::of(data)) };
            surroundings.sources.insert(name.clone(), source);
        }
        workspace::derive(&self.workspace, &surroundings).unwrap()
    }

    pub fn workspace_plan(&self) -> WorkspacePlan {
        self.workspace_plan_on(&self.workspace_observed()).1
    }

    /// Plans until all that it asks for is answered, as runtime does.
    fn workspace_plan_on(&self, observed: &workspace::Observed) -> (workspace::InputsOf, WorkspacePlan) {
        let mut inputs = workspace::InputsOf { note: self.note.clone(), ..workspace::InputsOf::default() };
        loop {
            let plan = self.same_from_file(&self.workspace, observed, &inputs, workspace::plan);
            let missing = plan.wants.iter().filter(|want| inputs.facts.get(&want.ask).is_none());
            let missing: Vec<_> = missing.map(|want| want.ask.clone()).collect();
            if missing.is_empty() {
                return (inputs, plan);
            }
            for ask in missing {
                let fact = self.fetch(&ask);
                inputs.facts.insert(ask, fact);
            }
        }
    }

    fn fetch(&self, ask: &workspace::SourceAsk) -> Fact<Option<Digested>> {
        if !self.are_sources_readable {
            let why = plan::fact::Failure { class: Class::Transient, message: "no answer".to_owned() };
            return Fact::Unknown { why, last: None };
        }
        let found = self.sources.get(&ask.name).map(|(_, data)| Digested::of(data));
        Fact::Known { value: found, age: Duration::ZERO }
    }

    /// Plans, and plans the same from what a file holds of the input; no content of Secrets is in either.
    #[track_caller]
    pub fn same_from_file<K, O, I, Q>(
        &self,
        object: &K,
        observed: &O,
        inputs: &I,
        plan: impl Fn(&K, &O, &I) -> Plan<Action, Q>,
    ) -> Plan<Action, Q>
    where
        K: Serialize + DeserializeOwned,
        O: Serialize + DeserializeOwned,
        I: Serialize + DeserializeOwned,
        Plan<Action, Q>: PartialEq + std::fmt::Debug,
    {
        let planned = plan(object, observed, inputs);
        let object = serde_json::to_string(object).unwrap();
        let file = serde_json::to_string(&(observed, inputs)).unwrap();
        let bodies = planned.actions().map(|action| match action {
            Action::Apply { body, content, .. } => format!("{} {content:?}", body.0),
            other => format!("{other:?}"),
        });
        for text in bodies.chain([file.clone()]) {
            for value in
                self.contents.values().chain(self.sources.values().map(|(_, data)| data)).flat_map(Data::values)
            {
                // Shorter ones are found by accident.
                assert!(value.len() < 12 || !text.contains(value.as_str()), "the content of a Secret is in {text}");
            }
        }
        let (observed, inputs): (O, I) = serde_json::from_str(&file).unwrap();
        let again = plan(&serde_json::from_str(&object).unwrap(), &observed, &inputs);
        assert_eq!(again, planned, "from a file it plans the same");
        planned
    }

    /// One round of the Workspace; whether it did or said anything.
    pub fn workspace_round(&mut self) -> bool {
        let observed = self.workspace_observed();
        let (inputs, plan) = self.workspace_plan_on(&observed);
        let progress = self.execute(&plan, None);
        let round =
            Round { object: &self.workspace, observed: &observed, inputs: &inputs, plan: &plan, progress: &progress };
        let report = workspace::report(&round, self.now);
        self.events.extend(report.done.into_iter().chain(report.transitions));
        self.note = report.note;
        let is_news = report.status != self.status();
        self.workspace.status = Some(report.status);
        is_news || !plan.steps.is_empty()
    }

    pub fn user(&self, slug: &str) -> User {
        let found = &self.objects[&ObjectId::new(ObjectKind::User, slug)];
        let mut object = found.content.0.clone();
        object["status"] = found.status.clone();
        object["metadata"]["uid"] = json!(found.uid);
        object["metadata"]["generation"] = json!(found.generation);
        serde_json::from_value(object).unwrap()
    }

    pub fn user_observed(&self, user: &User) -> user::Observed {
        user::Observed {
            is_namespace_terminating: self.is_namespace_terminating,
            is_listed: user::is_listed(user, Some(&self.workspace)),
            objects: self.objects.clone(),
            pod: None,
        }
    }

    pub fn user_plan(&self, user: &User, observed: &user::Observed) -> Plan<Action> {
        self.same_from_file(user, observed, &(), |user, observed, ()| user::plan(user, observed))
    }

    pub fn user_status(
        &self,
        user: &User,
        observed: &user::Observed,
        plan: &Plan<Action>,
        progress: &[Progress<Done>],
    ) -> UserStatus {
        let inputs = Inputs::<Accepted>::default();
        user::report(&Round { object: user, observed, inputs: &inputs, plan, progress }, self.now).status
    }

    /// One round of a User; whether it did or said anything.
    pub fn user_round(&mut self, slug: &str) -> bool {
        let user = self.user(slug);
        let observed = self.user_observed(&user);
        let plan = self.user_plan(&user, &observed);
        let progress = self.execute(&plan, Some(slug));
        let after = self.user_status(&user, &observed, &plan, &progress);
        let before: UserStatus = user.status.clone().unwrap_or_default();
        let Some(found) = self.objects.get_mut(&ObjectId::new(ObjectKind::User, slug)) else { return true };
        found.status = serde_json::to_value(&after).unwrap();
        after != before || !plan.steps.is_empty()
    }

    /// Rounds until none acts or reports, with helm and the StatefulSet controller at work in between.
    pub fn settle(&mut self) {
        for _ in 0..20 {
            let mut is_busy = self.workspace_round();
            let slugs: Vec<_> = self.names(ObjectKind::User).into_iter().map(str::to_owned).collect();
            for slug in slugs {
                is_busy |= self.user_round(&slug);
            }
            self.run_controllers();
            if !is_busy {
                return;
            }
        }
        panic!("not settled after 20 rounds: {:?}", self.done);
    }

    /// Helm, and Kubernetes' own controllers: everything becomes what its spec says; what goes is gone.
    fn run_controllers(&mut self) {
        let present: Vec<_> = self.objects.values().map(|found| found.uid.clone()).collect();
        self.objects.retain(|_, found| {
            let is_orphan = found.owner_uid.as_ref().is_some_and(|uid| uid != "team-uid" && !present.contains(uid));
            !found.is_going && !is_orphan
        });
        for (id, found) in &mut self.objects {
            let generation = found.generation;
            match id.kind {
                ObjectKind::HelmRelease if found.status["failed"].is_null() => {
                    found.status["observedGeneration"] = json!(generation);
                    found.status["lastAppliedRevision"] = json!("1.0.0");
                    found.status["holdsData"] = json!(id.name == "db");
                    found.status["conditions"] = condition("True", "InstallSucceeded", "installed");
                }
                ObjectKind::StatefulSet => {
                    let replicas = found.content.0["spec"]["replicas"].clone();
                    found.status = json!({
                        "observedGeneration": generation, "replicas": replicas, "readyReplicas": replicas,
                        "updatedReplicas": replicas,
                    });
                }
                _ => {}
            }
        }
    }

    /// A step whose needs are not done is skipped, as runtime does it.
    fn execute<Q>(&mut self, plan: &Plan<Action, Q>, user: Option<&str>) -> Vec<Progress<Done>> {
        let mut progress: Vec<Progress<Done>> = Vec::new();
        for step in &plan.steps {
            let is_due = step.needs.iter().all(|need| progress[need.index()].is_done());
            progress.push(if is_due { self.carry_out(&step.action, user) } else { Progress::Skipped });
        }
        progress
    }

    fn carry_out(&mut self, action: &Action, user: Option<&str>) -> Progress<Done> {
        self.done.push(word(action));
        if let Action::Apply { id, .. } | Action::Patch { id, .. } | Action::Delete { id, .. } = action
            && let Some(refusal) = self.refusals.get(id)
        {
            return refusal.clone();
        }
        match action {
            Action::AddFinalizer { finalizers } | Action::ReleaseFinalizer { finalizers } => match user {
                Some(slug) => {
                    self.object(ObjectKind::User, slug).content.0["metadata"]["finalizers"] = json!(finalizers);
                }
                None => self.workspace.metadata.finalizers = Some(finalizers.clone()),
            },
            Action::Apply { id, body, content } => {
                if let Some(content) = content {
                    let Some(data) = self.read(id, content) else { return outdated() };
                    self.contents.insert(id.clone(), data);
                }
                self.apply(id, body.0.clone());
            }
            Action::Patch { id, patch, .. } => merge(&mut self.objects.get_mut(id).unwrap().content.0, &patch.0),
            Action::Delete { id, uid, .. } => {
                let found = self.objects.get_mut(id).unwrap();
                assert_eq!(found.uid, *uid);
                assert!(!found.is_going, "{id} deleted again");
                found.is_going = true;
            }
        }
        Progress::Done(None)
    }

    /// What the executor reads and checks.
    fn read(&self, id: &ObjectId, content: &Content) -> Option<Data> {
        match content {
            Content::FromSecret { name, digest } => {
                let (_, data) = self.sources.get(name)?;
                (Digested::of(data).digest == *digest).then(|| data.clone())
            }
            Content::FromConfig { name } => Some(data_of_config(&self.workspace.spec.as_ref()?.configs[name])),
            Content::NewPassword => {
                (!self.objects.contains_key(id)).then(|| data_of_password(format!("password-{}", self.count)))
            }
        }
    }

    fn apply(&mut self, id: &ObjectId, mut body: Value) {
        let present = self.objects.get(id);
        assert_eq!(present.map(|found| found.uid.as_str()), body["metadata"]["uid"].as_str(), "{id} in the way");
        body["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        self.count += 1;
        let uid = present.map_or_else(|| format!("uid-{}", self.count), |found| found.uid.clone());
        let owner = body["metadata"]["ownerReferences"][0]["uid"].as_str().map(str::to_owned);
        self.objects.insert(
            id.clone(),
            Found {
                uid,
                resource_version: self.count.to_string(),
                owner_uid: owner,
                is_going: false,
                generation: Some(i64::from(self.count)),
                status: present.map(|found| found.status.clone()).unwrap_or_default(),
                content: Body(body),
                accepted: None,
            },
        );
    }

    pub fn stranger(&mut self, kind: ObjectKind, name: &str, content: Value) {
        let found = Found {
            uid: "stranger".into(),
            resource_version: "1".into(),
            owner_uid: None,
            is_going: false,
            generation: None,
            content: Body(content),
            status: Value::Null,
            accepted: None,
        };
        self.objects.insert(ObjectId::new(kind, name), found);
    }
}

pub fn condition(status: &str, reason: &str, message: &str) -> Value {
    json!([{ "type": "Ready", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z" }])
}

pub fn outdated() -> Progress<Done> {
    Progress::Failed { class: Class::Conflict, retry: None, message: "what was planned on has changed".to_owned() }
}

fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else { return object.clone_from(patch) };
    for (name, field) in fields {
        merge(&mut object[name], field);
    }
}

fn word(action: &Action) -> String {
    match action {
        Action::AddFinalizer { .. } => "add finalizer".to_owned(),
        Action::Apply { id, .. } => format!("apply {id}"),
        Action::Patch { id, .. } => format!("patch {id}"),
        Action::Delete { id, .. } => format!("delete {id}"),
        Action::ReleaseFinalizer { .. } => "release finalizer".to_owned(),
    }
}

/// The bodies, without the digest that changes with each of them.
pub fn golden(derived: &[Derived]) -> Vec<Value> {
    let body = |derived: &Derived| match &derived.wish {
        plan::workspaces::Wish::Apply(body) => {
            let mut body = body.0.clone();
            body["metadata"]["annotations"].as_object_mut().unwrap().remove("workspaces.strata.dev/digest");
            if let Some(content) = &derived.content {
                body["content"] = json!(format!("{content:?}"));
            }
            body
        }
        wish => json!({ derived.id.to_string(): format!("{wish:?}") }),
    };
    derived.iter().map(body).collect()
}
