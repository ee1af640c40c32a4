//! Rounds of Users.

use std::{fs::File, io::Read, sync::Arc};

use api::workspace::{User, Workspace};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use plan::{
    Plan,
    workspaces::{
        Action, ObjectId, ObjectKind, Outcome, Round,
        user::{self, PodFacts},
    },
};
use runtime::{Clock, Error, Executed, Json, Key, Kind, Layer, Metadata, Recorder};

use super::{
    kept::Owned,
    shelf::Shelves,
    subject::{Statuses, Subject},
    team::is_terminating,
};

pub struct UserLayer {
    pub workspaces: Arc<Kind<Json<Workspace>, Workspace>>,
    pub users: Arc<Kind<Json<User>, User>>,
    pub pods: Arc<Kind<Json<Pod>, PodFacts>>,
    pub namespaces: Arc<Kind<Metadata<Namespace>, bool>>,
    pub shelves: Arc<Shelves>,
    pub events: Recorder,
    pub clock: Clock,
}

/// One User and its surroundings, at the beginning of a round.
pub struct Observed {
    subject: Subject<User>,
    surroundings: user::Observed,
}

impl Layer for UserLayer {
    const CONTROLLER: &'static str = "user";
    type Observed = Observed;
    type Action = Action;
    type Outcome = Outcome;

    fn span(key: &Key) -> tracing::Span {
        tracing::info_span!("round", user = %key, namespace = %key.namespace)
    }

    async fn gather(&self, key: &Key) -> Result<Option<Observed>, Error> {
        self.users.settle(key).await?;
        let Some(user) = self.users.get(key) else { return Ok(None) };
        let subject = Subject::new(user);
        let user = subject.object();
        let mut objects = self.shelves.owned(&key.namespace, subject.uid()).await?;
        let derived = user::derive(user, &objects, new_password);
        if let Ok(derived) = &derived {
            self.shelves.add_wanted(&mut objects, &key.namespace, derived).await?;
        }
        let slug = user.spec.as_ref().map(|spec| spec.slug.as_str()).unwrap_or_default();
        let in_namespace = |name: String| Key::new(key.namespace.clone(), name);
        for (kind, name) in [
            (ObjectKind::StatefulSet, user::object_name(slug)),
            (ObjectKind::PersistentVolumeClaim, user::claim_name(slug)),
        ] {
            self.shelves.add(&mut objects, ObjectId::new(kind, name.as_str()), &in_namespace(name)).await?;
        }
        let workspace = match user.owner().filter(|owner| owner.kind == Workspace::KIND) {
            Some(owner) => {
                let owner = in_namespace(owner.name.to_owned());
                self.workspaces.settle(&owner).await?;
                self.workspaces.get(&owner)
            }
            None => None,
        };
        let surroundings = user::Observed {
            is_listed: user::is_listed(user, workspace.as_ref().map(|workspace| &workspace.value)),
            is_namespace_terminating: is_terminating(&self.namespaces, &key.namespace),
            derived,
            objects,
            pod: self.pods.get(&in_namespace(user::pod_name(slug))).map(|pod| pod.value.clone()),
        };
        Ok(Some(Observed { subject, surroundings }))
    }

    fn plan(&self, observed: &Observed, _: Timestamp) -> Plan<Action> {
        user::plan(observed.subject.object(), &observed.surroundings)
    }

    async fn execute(&self, key: &Key, observed: &Observed, action: &Action) -> Executed<Outcome> {
        observed.subject.execute(&self.users, &self.shelves, key, action).await
    }

    fn keys(&self) -> Vec<Key> {
        self.users.store().keys()
    }

    async fn report(
        &self,
        key: &Key,
        observed: &Observed,
        plan: &Plan<Action>,
        outcomes: &[Outcome],
    ) -> Result<bool, Error> {
        let Observed { subject, surroundings } = observed;
        let user = subject.object();
        let round = Round { object: user, observed: surroundings, plan, outcomes };
        let after = user::status(&round, self.clock.now());
        tracing::info!(phase = ?after.phase, actions = plan.actions.len(), "reconciled");
        let statuses =
            Statuses { before: user.status.as_ref(), after: &after, conditions: |status| &status.conditions };
        subject.report(&self.users, &self.events, key, statuses, (plan, outcomes)).await
    }
}

/// 128 bits from the kernel: nobody guesses them, and 32 characters can still be typed.
fn new_password() -> String {
    let mut bytes = [0; 16];
    let random = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes));
    random.expect("the kernel gives random bytes");
    format!("{:032x}", u128::from_be_bytes(bytes))
}
