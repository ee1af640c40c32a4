//! A small API server for one namespace: it stores derived objects and runs the rounds of a Workspace and its Users.

use std::collections::BTreeMap;

use api::workspace::{User, UserStatus, Workspace, WorkspaceStatus};
use jiff::Timestamp;
use plan::Plan;
use plan::event::Event;
use plan::workspaces::{
    Action, Body, Derived, Found, ObjectId, ObjectKind, Objects, Outcome, Round, events, team, user,
};
use serde_json::{Value, json};

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
    pub surroundings: team::Surroundings,
    pub rival: Option<String>,
    pub is_namespace_terminating: bool,
    pub now: Timestamp,
    pub events: Vec<Event>,
    /// What the server answers to an apply of these.
    pub refusals: BTreeMap<ObjectId, Outcome>,
    /// Every action that was carried out, in words.
    pub done: Vec<String>,
    pub referrers: Vec<Body>,
    count: u32,
}

impl World {
    pub fn new(spec: Value) -> Self {
        Self {
            workspace: workspace(spec),
            objects: Objects::new(),
            surroundings: team::Surroundings {
                api_server: vec![team::Endpoint { address: "192.0.2.1".into(), port: 6443 }],
                ..team::Surroundings::default()
            },
            rival: None,
            is_namespace_terminating: false,
            now: at(0),
            events: Vec::new(),
            refusals: BTreeMap::new(),
            done: Vec::new(),
            referrers: Vec::new(),
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

    pub fn team_observed(&self) -> team::Observed {
        team::Observed {
            rival: self.rival.clone(),
            is_namespace_terminating: self.is_namespace_terminating,
            derived: team::derive(&self.workspace, &self.surroundings),
            objects: self.objects.clone(),
            referrers: self.referrers.clone(),
        }
    }

    pub fn team_plan(&self) -> Plan<Action> {
        team::plan(&self.workspace, &self.team_observed())
    }

    /// One round of the Workspace; whether it did or said anything.
    pub fn team_round(&mut self) -> bool {
        let observed = self.team_observed();
        let plan = team::plan(&self.workspace, &observed);
        let outcomes = self.execute(&plan, None);
        let round = Round { object: &self.workspace, observed: &observed, plan: &plan, outcomes: &outcomes };
        let after = team::status(&round, self.now);
        let before = self.status();
        self.events.extend(events(&before.conditions, &after.conditions, &plan, &outcomes));
        let is_news = after != before;
        self.workspace.status = Some(after);
        is_news || !plan.actions.is_empty()
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
        let uid = user.metadata.uid.clone();
        let owned = self.objects.iter().filter(|(_, found)| found.owner_uid == uid);
        let owned: Objects = owned.map(|(id, found)| (id.clone(), found.clone())).collect();
        user::Observed {
            is_namespace_terminating: self.is_namespace_terminating,
            is_listed: user::is_listed(user, Some(&self.workspace)),
            derived: user::derive(user, &owned, || "secret".to_owned()),
            objects: self.objects.clone(),
            pod: None,
        }
    }

    /// One round of a User; whether it did or said anything.
    pub fn user_round(&mut self, slug: &str) -> bool {
        let user = self.user(slug);
        let observed = self.user_observed(&user);
        let plan = user::plan(&user, &observed);
        let outcomes = self.execute(&plan, Some(slug));
        let round = Round { object: &user, observed: &observed, plan: &plan, outcomes: &outcomes };
        let after = user::status(&round, self.now);
        let before: UserStatus = user.status.clone().unwrap_or_default();
        let Some(found) = self.objects.get_mut(&ObjectId::new(ObjectKind::User, slug)) else { return true };
        found.status = serde_json::to_value(&after).unwrap();
        after != before || !plan.actions.is_empty()
    }

    /// Rounds until none acts or reports, with helm and the StatefulSet controller at work in between.
    pub fn settle(&mut self) {
        for _ in 0..20 {
            let mut is_busy = self.team_round();
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

    fn execute(&mut self, plan: &Plan<Action>, user: Option<&str>) -> Vec<Outcome> {
        plan.actions.iter().map(|action| self.carry_out(action, user)).collect()
    }

    fn carry_out(&mut self, action: &Action, user: Option<&str>) -> Outcome {
        self.done.push(word(action));
        match action {
            Action::AddFinalizer { finalizers } | Action::ReleaseFinalizer { finalizers } => match user {
                Some(slug) => {
                    self.object(ObjectKind::User, slug).content.0["metadata"]["finalizers"] = json!(finalizers);
                }
                None => self.workspace.metadata.finalizers = Some(finalizers.clone()),
            },
            Action::Apply { id, body } => {
                if let Some(refusal) = self.refusals.get(id) {
                    return refusal.clone();
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
        Outcome::Done
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
            body
        }
        wish => json!({ derived.id.to_string(): format!("{wish:?}") }),
    };
    derived.iter().map(body).collect()
}
