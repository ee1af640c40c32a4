//! Workspaces and Users: gather, execute and report; every decision is in `plan::workspaces`.

mod controller;
mod derived;
pub(crate) mod projection;
mod secret;
mod user;

use std::{
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use api::workspace::{HelmRelease, LABEL_MANAGED_BY, LABEL_USER, MANAGED_BY, User, Workspace};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount},
    discovery::v1::EndpointSlice,
    networking::v1::{Ingress, NetworkPolicy},
    rbac::v1::{Role, RoleBinding},
};
use plan::workspaces::ObjectKind;
use runtime::{Change, Index, Json, Key, Kind, Metadata, Operator, Parts, Queue, Selection, View, Writer};

use self::{
    derived::{DerivedKind, DerivedKinds},
    projection::{Owned, Stored},
};
use crate::{
    MANAGER,
    release::{self, SecretFacts},
};

/// How the layer works; every interval is here, so that tests shorten it instead of waiting.
#[derive(Clone, Debug)]
pub struct Config {
    /// Rounds of Workspaces, and of Users, that run at once.
    pub concurrency: usize,
    /// Period of the drift check.
    pub resync: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { concurrency: 10, resync: Duration::from_mins(2) }
    }
}

pub type Releases = Kind<Parts<HelmRelease>, HelmRelease>;
pub(crate) type Secrets = Kind<Metadata<Secret>, SecretFacts>;
pub(crate) type ConfigMaps = Kind<Metadata<ConfigMap>, Stored>;

/// Kinds that releases and Workspaces both look at. All Secrets and ConfigMaps, since values and configs may be taken from
/// any; their content is never held.
pub struct Shared {
    pub releases: Arc<Releases>,
    pub(crate) secrets: Arc<Secrets>,
    pub(crate) config_maps: Arc<ConfigMaps>,
}

impl Shared {
    pub fn new(writer: &Writer) -> Self {
        Self {
            releases: Kind::new("helmreleases", writer.clone(), projection::release),
            secrets: Kind::new("secrets", writer.clone(), release::project_secret),
            config_maps: Kind::new("configmaps", writer.clone(), projection::metadata),
        }
    }
}

type OnChangeOf<T> = Box<dyn Fn(&Change<'_, T>) + Send + Sync>;

/// To be called with every change of the shared kinds.
pub(crate) struct OnChange {
    pub release: OnChangeOf<HelmRelease>,
    pub secret: OnChangeOf<SecretFacts>,
    pub config_map: OnChangeOf<Stored>,
}

/// Whom a change concerns.
#[derive(Clone)]
struct Concerns {
    workspaces: Arc<Queue>,
    users: Arc<Queue>,
    /// Workspaces and Users by namespace.
    workspaces_of: Arc<Index<Arc<str>>>,
    users_of: Arc<Index<Arc<str>>>,
    /// Users by the slug that their objects are named by.
    slugs: Arc<Index<Key>>,
    /// Workspaces by the Secrets that their configs take from.
    sources: Arc<Index<Key>>,
}

impl Concerns {
    /// The rounds of an object's owner, before and after the change.
    fn owners<T: Owned>(&self, change: &Change<'_, T>) {
        for owner in [change.before, change.after].into_iter().flatten().filter_map(Owned::owner) {
            let key = Key::new(change.key.namespace.clone(), owner.name);
            match owner.kind {
                Workspace::KIND => self.workspaces.changed(&key),
                User::KIND => self.users.changed(&key),
                _ => {}
            }
        }
    }

    fn namespace(&self, name: &Arc<str>) {
        self.workspaces_of.keys(name).iter().for_each(|key| self.workspaces.changed(key));
        self.users_of.keys(name).iter().for_each(|key| self.users.changed(key));
    }
}

/// Adds Workspaces and Users to an operator, without releases: those are only written.
pub fn install_alone(operator: &mut Operator, config: &Config) -> Arc<Releases> {
    let shared = Shared::new(&operator.writer(MANAGER));
    let on_change = install(operator, &shared, config);
    operator.watch(&shared.releases, on_change.release);
    operator.watch(&shared.secrets, on_change.secret);
    operator.watch(&shared.config_maps, on_change.config_map);
    shared.releases
}

/// Adds Workspaces and Users to an operator. The caller watches the shared kinds and passes every change on.
pub(crate) fn install(operator: &mut Operator, shared: &Shared, config: &Config) -> OnChange {
    let (workspaces, users) = (operator.queue(config.resync), operator.queue(config.resync));
    let concerns = Concerns {
        workspaces: workspaces.clone(),
        users: users.clone(),
        workspaces_of: Arc::default(),
        users_of: Arc::default(),
        slugs: Arc::default(),
        sources: Arc::default(),
    };
    let kinds = Kinds::new(operator, &concerns);
    let [owned_releases, owned_secrets, owned_maps] = std::array::from_fn(|_| Arc::<Index<Box<str>>>::default());
    let of_shared = [
        (ObjectKind::HelmRelease, DerivedKind::of(&shared.releases, &owned_releases, false)),
        (ObjectKind::Secret, DerivedKind::of(&shared.secrets, &owned_secrets, false)),
        (ObjectKind::ConfigMap, DerivedKind::of(&shared.config_maps, &owned_maps, false)),
    ];
    let derived_kinds = Arc::new(DerivedKinds::new(kinds.derived(of_shared), operator.writer(MANAGER)));
    let workspace = controller::WorkspaceController {
        workspaces: kinds.workspaces.clone(),
        releases: shared.releases.clone(),
        users: kinds.users.clone(),
        sets: kinds.sets.0.clone(),
        secrets: shared.secrets.clone(),
        namespaces: kinds.namespaces.clone(),
        endpoints: kinds.endpoints.clone(),
        derived_kinds: derived_kinds.clone(),
        concerns: concerns.clone(),
        writer: operator.writer(MANAGER),
        looks: AtomicUsize::default(),
    };
    let user = user::UserController {
        workspaces: kinds.workspaces.clone(),
        users: kinds.users.clone(),
        pods: kinds.pods.clone(),
        namespaces: kinds.namespaces.clone(),
        derived_kinds,
    };
    operator.control(workspace, workspaces, config.concurrency);
    operator.control(user, users, config.concurrency);
    let (of_releases, of_secrets, of_maps) = (concerns.clone(), concerns.clone(), concerns);
    OnChange {
        release: Box::new(move |change| {
            index(&owned_releases, change);
            // Also what was learnt from an answer: others write releases, and wait for what becomes of them.
            of_releases.owners(change);
        }),
        secret: Box::new(move |change| {
            index(&owned_secrets, change);
            if change.from_watch {
                of_secrets.owners(change);
                of_secrets.sources.keys(change.key).iter().for_each(|key| of_secrets.workspaces.changed(key));
            }
        }),
        config_map: Box::new(move |change| {
            index(&owned_maps, change);
            if change.from_watch {
                of_maps.owners(change);
            }
        }),
    }
}

type Watched<W, T> = (Arc<Kind<W, T>>, Arc<Index<Box<str>>>);

/// Every kind that is looked at, watched.
struct Kinds {
    workspaces: Arc<Kind<Parts<Workspace>, Workspace>>,
    users: Arc<Kind<Parts<User>, User>>,
    owned_users: Arc<Index<Box<str>>>,
    namespaces: Arc<Kind<Metadata<Namespace>, bool>>,
    endpoints: Arc<Kind<EndpointSlice, Vec<plan::workspaces::workspace::Endpoint>>>,
    pods: Arc<Kind<Json<Pod>, plan::workspaces::user::PodFacts>>,
    claims: Watched<Metadata<PersistentVolumeClaim>, Stored>,
    sets: Watched<Json<StatefulSet>, Stored>,
    services: Watched<Json<Service>, Stored>,
    accounts: Watched<Json<ServiceAccount>, Stored>,
    roles: Watched<Json<Role>, Stored>,
    bindings: Watched<Json<RoleBinding>, Stored>,
    policies: Watched<Json<NetworkPolicy>, Stored>,
    ingresses: Watched<Json<Ingress>, Stored>,
}

impl Kinds {
    fn new(operator: &mut Operator, concerns: &Concerns) -> Self {
        let owned_users = Arc::<Index<Box<str>>>::default();
        Self {
            workspaces: watch_workspaces(operator, concerns),
            users: watch_users(operator, concerns, &owned_users),
            owned_users,
            namespaces: watch_namespaces(operator, concerns),
            endpoints: watch_endpoints(operator, concerns),
            pods: watch_pods(operator, concerns),
            claims: watch_derived(operator, concerns, "persistentvolumeclaims", projection::metadata),
            sets: watch_derived(operator, concerns, "statefulsets", projection::with_status),
            services: watch_derived(operator, concerns, "services", projection::whole),
            accounts: watch_derived(operator, concerns, "serviceaccounts", projection::whole),
            roles: watch_derived(operator, concerns, "roles", projection::whole),
            bindings: watch_derived(operator, concerns, "rolebindings", projection::whole),
            policies: watch_derived(operator, concerns, "networkpolicies", projection::whole),
            ingresses: watch_derived(operator, concerns, "ingresses", projection::whole),
        }
    }

    fn derived(&self, shared: [(ObjectKind, DerivedKind); 3]) -> Vec<(ObjectKind, DerivedKind)> {
        fn selected<W: View>((kind, owned): &Watched<W, Stored>) -> DerivedKind {
            DerivedKind::of(kind, owned, true)
        }
        let own = [
            (ObjectKind::User, DerivedKind::of(&self.users, &self.owned_users, false)),
            (ObjectKind::PersistentVolumeClaim, selected(&self.claims)),
            (ObjectKind::StatefulSet, selected(&self.sets)),
            (ObjectKind::Service, selected(&self.services)),
            (ObjectKind::ServiceAccount, selected(&self.accounts)),
            (ObjectKind::Role, selected(&self.roles)),
            (ObjectKind::RoleBinding, selected(&self.bindings)),
            (ObjectKind::NetworkPolicy, selected(&self.policies)),
            (ObjectKind::Ingress, selected(&self.ingresses)),
        ];
        shared.into_iter().chain(own).collect()
    }
}

fn watch_workspaces(operator: &mut Operator, concerns: &Concerns) -> Arc<Kind<Parts<Workspace>, Workspace>> {
    let kind = Kind::new("workspaces", operator.writer(MANAGER), projection::workspace);
    let concerns = concerns.clone();
    operator.watch(&kind, move |change| {
        let namespace = &change.key.namespace;
        concerns.workspaces_of.set(change.key, change.after.map(|_| namespace.clone()));
        let spec = change.after.and_then(|workspace| workspace.spec.as_ref());
        let sources =
            spec.iter().flat_map(|spec| spec.configs.values()).filter_map(|config| config.from_secret.as_ref());
        concerns.sources.set(change.key, sources.map(|source| Key::new(namespace.clone(), source.name.as_str())));
        if change.from_watch {
            concerns.workspaces.changed(change.key);
        }
        // One that comes or goes may give the namespace to another.
        if change.before.is_some() != change.after.is_some() {
            concerns.workspaces_of.keys(namespace).iter().for_each(|key| concerns.workspaces.changed(key));
        }
    });
    kind
}

fn watch_users(
    operator: &mut Operator,
    concerns: &Concerns,
    owned: &Arc<Index<Box<str>>>,
) -> Arc<Kind<Parts<User>, User>> {
    let kind = Kind::new("users", operator.writer(MANAGER), projection::user);
    let (concerns, owned) = (concerns.clone(), owned.clone());
    operator.watch(&kind, move |change| {
        index(&owned, change);
        let namespace = &change.key.namespace;
        concerns.users_of.set(change.key, change.after.map(|_| namespace.clone()));
        let spec = change.after.and_then(|user| user.spec.as_ref());
        concerns.slugs.set(change.key, spec.map(|spec| Key::new(namespace.clone(), spec.slug.as_str())));
        // Also what was learnt from an answer: Workspaces write Users, and wait for what Users report.
        concerns.users.changed(change.key);
        concerns.owners(change);
    });
    kind
}

fn watch_namespaces(operator: &mut Operator, concerns: &Concerns) -> Arc<Kind<Metadata<Namespace>, bool>> {
    let kind = Kind::new("namespaces", operator.writer(MANAGER), projection::is_going);
    let concerns = concerns.clone();
    operator.watch(&kind, move |change| {
        if change.before != change.after {
            concerns.namespace(&change.key.name);
        }
    });
    kind
}

/// Those of the API server alone.
fn watch_endpoints(
    operator: &mut Operator,
    concerns: &Concerns,
) -> Arc<Kind<EndpointSlice, Vec<plan::workspaces::workspace::Endpoint>>> {
    let kind = Kind::new("endpointslices", operator.writer(MANAGER), projection::endpoints);
    let selection = Selection {
        labels: Some("kubernetes.io/service-name=kubernetes".to_owned()),
        fields: Some("metadata.namespace=default".to_owned()),
        ..Selection::default()
    };
    let (concerns, workspaces) = (concerns.clone(), concerns.workspaces.clone());
    operator.watch_selected(&kind, selection, move |change| {
        if change.before != change.after {
            concerns.workspaces_of.all().iter().for_each(|key| workspaces.changed(key));
        }
    });
    kind
}

fn watch_pods(operator: &mut Operator, concerns: &Concerns) -> Arc<Kind<Json<Pod>, plan::workspaces::user::PodFacts>> {
    let kind = Kind::new("pods", operator.writer(MANAGER), projection::pod);
    let labels = Some(format!("{LABEL_MANAGED_BY}={MANAGED_BY},{LABEL_USER}"));
    let concerns = concerns.clone();
    operator.watch_selected(&kind, Selection { labels, ..Selection::default() }, move |change| {
        let slug = plan::workspaces::user::slug_of_pod(&change.key.name);
        let slug = slug.map(|slug| Key::new(change.key.namespace.clone(), slug));
        for key in slug.iter().flat_map(|slug| concerns.slugs.keys(slug)) {
            concerns.users.changed(&key);
        }
    });
    kind
}

/// A kind of which only derived objects are looked at.
fn watch_derived<W: View<DynamicType: Default>>(
    operator: &mut Operator,
    concerns: &Concerns,
    resource: &'static str,
    project: fn(W) -> Option<Stored>,
) -> Watched<W, Stored> {
    let kind = Kind::new(resource, operator.writer(MANAGER), project);
    let owned = Arc::<Index<Box<str>>>::default();
    let labels = Some(format!("{LABEL_MANAGED_BY}={MANAGED_BY}"));
    let (concerns, index_of) = (concerns.clone(), owned.clone());
    operator.watch_selected(&kind, Selection { labels, ..Selection::default() }, move |change| {
        index(&index_of, change);
        if change.from_watch {
            concerns.owners(change);
        }
    });
    (kind, owned)
}

/// Keeps the way from an owner to its objects.
fn index<T: Owned>(owned: &Index<Box<str>>, change: &Change<'_, T>) {
    owned.set(change.key, change.after.and_then(Owned::owner).map(|owner| owner.uid.into()));
}
