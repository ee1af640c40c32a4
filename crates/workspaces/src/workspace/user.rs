//! Rounds of Users.

use std::sync::Arc;

use api::workspace::{User, UserStatus, Workspace};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use plan::{
    fact::Never,
    round::{Plan, Report},
    workspaces::{
        Accepted, Action, Done, ObjectId, ObjectKind,
        user::{self, Observed, PodFacts},
    },
};
use runtime::{Controller, Error, InputsOf, Json, Key, Kind, Metadata, Parts, RoundOf, Turn};

use super::{
    controller::is_terminating,
    derived::{DerivedKinds, accept},
    projection::Owned,
};

pub struct UserController {
    pub workspaces: Arc<Kind<Parts<Workspace>, Workspace>>,
    pub users: Arc<Kind<Parts<User>, User>>,
    pub pods: Arc<Kind<Json<Pod>, PodFacts>>,
    pub namespaces: Arc<Kind<Metadata<Namespace>, bool>>,
    pub derived_kinds: Arc<DerivedKinds>,
}

impl Controller for UserController {
    const NAME: &'static str = "user";
    type View = Parts<User>;
    type Object = User;
    type Kept = User;
    type Status = UserStatus;
    type Observed = Observed;
    type Action = Action;
    type Done = Done;
    type Note = Accepted;
    type Ask = Never;
    type Answer = Never;

    fn kind(&self) -> &Arc<Kind<Parts<User>, User>> {
        &self.users
    }

    fn span(key: &Key) -> tracing::Span {
        tracing::info_span!("round", user = %key, namespace = %key.namespace)
    }

    async fn gather(&self, key: &Key, user: &User, accepted: &Accepted) -> Result<Observed, Error> {
        let uid = user.metadata.uid.as_deref().unwrap_or_default();
        let mut objects = self.derived_kinds.owned(&key.namespace, uid).await?;
        let slug = user.spec.as_ref().map(|spec| spec.slug.as_str()).unwrap_or_default();
        let in_namespace = |name: String| Key::new(key.namespace.clone(), name);
        for (kind, name) in [
            (ObjectKind::StatefulSet, user::object_name(slug)),
            (ObjectKind::PersistentVolumeClaim, user::claim_name(slug)),
        ] {
            self.derived_kinds.add(&mut objects, ObjectId::new(kind, name.as_str()), &in_namespace(name)).await?;
        }
        // Only for the names: the objects that have them are to be known.
        let derived = user::derive(user, &objects).unwrap_or_default();
        self.derived_kinds.add_wanted(&mut objects, &key.namespace, &derived).await?;
        accept(&mut objects, accepted);
        let workspace = match user.owner().filter(|owner| owner.kind == Workspace::KIND) {
            Some(owner) => {
                let owner = in_namespace(owner.name.to_owned());
                self.workspaces.settle(&owner).await?;
                self.workspaces.get(&owner)
            }
            None => None,
        };
        Ok(Observed {
            is_listed: user::is_listed(user, workspace.as_ref().map(|workspace| &workspace.value)),
            is_namespace_terminating: is_terminating(&self.namespaces, &key.namespace),
            objects,
            pod: self.pods.get(&in_namespace(user::pod_name(slug))).map(|pod| pod.value.clone()),
        })
    }

    fn plan(&self, user: &User, observed: &Observed, _: &InputsOf<Self>) -> Plan<Action> {
        user::plan(user, observed)
    }

    async fn execute(&self, turn: &Turn<'_, Self>, action: &Action) -> Result<Done, Error> {
        self.derived_kinds.execute(turn, &self.users, None, action).await
    }

    fn report(&self, round: &RoundOf<'_, Self>, now: Timestamp) -> Report<UserStatus, Accepted> {
        user::report(round, now)
    }
}
