//! What the simulator knows, and what all kinds of resources have in common.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use http::{Method, StatusCode};
use jiff::Timestamp;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    action::{Action, Effect, seconds},
    balancer::Balancer,
    certificate::Certificate,
    cidr::Cidr,
    firewall::Firewall,
    image::Image,
    network::Network,
    placement_group::PlacementGroup,
    query::{Listed, Page, Pagination, Query},
    refusal::Refusal,
    selector::{Labels, Selector, check_labels},
    server::Server,
    ssh_key::SshKey,
    volume::Volume,
};

pub(super) type Table<T> = BTreeMap<i64, T>;

/// One project: tokens of another see nothing of it.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Project {
    pub servers: Table<Server>,
    pub networks: Table<Network>,
    pub balancers: Table<Balancer>,
    pub firewalls: Table<Firewall>,
    pub placement_groups: Table<PlacementGroup>,
    pub ssh_keys: Table<SshKey>,
    pub certificates: Table<Certificate>,
    pub volumes: Table<Volume>,
    pub images: Table<Image>,
    pub actions: Table<Action>,
}

impl Project {
    /// An action on it has not ended.
    pub fn is_locked(&self, kind: &str, id: i64) -> bool {
        self.actions.values().any(|action| action.is_running() && action.concerns(kind, id))
    }
}

/// Public addresses of servers and load balancers, of all projects.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Pool {
    range: Cidr,
    used: BTreeSet<Ipv4Addr>,
    last: Option<Ipv4Addr>,
}

impl Pool {
    pub fn new(range: Cidr) -> Self {
        Self { range, used: BTreeSet::new(), last: None }
    }

    /// The next free one: an address that was given back is not given out at once.
    pub fn take(&mut self) -> Result<Ipv4Addr, Refusal> {
        let is_free = |address: &Ipv4Addr| !self.used.contains(address);
        let later = self.range.hosts().filter(|address| self.last.is_none_or(|last| *address > last)).find(is_free);
        let address = later.or_else(|| self.range.hosts().find(is_free));
        let address = address.ok_or_else(|| Refusal::limit("primary_ip_limit", "no public address is left"))?;
        self.used.insert(address);
        self.last = Some(address);
        Ok(address)
    }

    pub fn release(&mut self, address: Ipv4Addr) {
        self.used.remove(&address);
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct State {
    pub next_id: i64,
    pub pool: Pool,
    pub projects: BTreeMap<String, Project>,
}

impl State {
    pub fn new(range: Cidr) -> Self {
        Self { next_id: 1, pool: Pool::new(range), projects: BTreeMap::new() }
    }

    pub fn world(&mut self, project: &str) -> World<'_> {
        let project = self.projects.entry(project.to_owned()).or_default();
        World { project, next_id: &mut self.next_id, pool: &mut self.pool, now: Timestamp::now(), chain: Vec::new() }
    }
}

/// One request's view of its project.
pub(super) struct World<'a> {
    pub project: &'a mut Project,
    next_id: &'a mut i64,
    pub pool: &'a mut Pool,
    pub now: Timestamp,
    /// Actions that this request began, in order.
    pub chain: Vec<i64>,
}

impl World<'_> {
    pub fn id(&mut self) -> i64 {
        let id = *self.next_id;
        *self.next_id += 1;
        id
    }

    pub fn base(&mut self, name: String, labels: Option<Labels>) -> Result<Base, Refusal> {
        let labels = labels.unwrap_or_default();
        check_labels(&labels)?;
        Ok(Base { id: self.id(), name, labels, created: self.now, is_protected: false })
    }

    pub fn begin(&mut self, command: &str, resources: &[(&str, i64)], effect: Effect) -> Value {
        let id = self.id();
        let first = self.chain.first().copied().unwrap_or(id);
        let action = Action::new(id, first, command, resources, effect, self.now);
        let view = action.view();
        self.project.actions.insert(id, action);
        self.chain.push(id);
        view
    }

    /// The name of a new or renamed resource: given, fit, and not in use.
    pub fn name<R: Record>(&self, name: Option<String>, own: Option<i64>) -> Result<String, Refusal> {
        let name = name.filter(|name| !name.is_empty()).ok_or_else(|| Refusal::invalid("name", "is required"))?;
        if !R::is_name(&name) {
            return Err(Refusal::invalid("name", "is not correctly formatted"));
        }
        let is_used = |other: &R| other.base().name == name && Some(other.base().id) != own;
        if R::table(self.project).values().any(is_used) {
            return Err(Refusal::not_unique("name", format!("{} name is already used", R::ONE.replace('_', " "))));
        }
        Ok(name)
    }
}

/// What every resource has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Base {
    pub id: i64,
    pub name: String,
    pub labels: Labels,
    pub created: Timestamp,
    /// Against deletion.
    pub is_protected: bool,
}

impl Base {
    /// The common fields and those of the kind.
    pub fn view(&self, own: Value) -> Value {
        let mut view = json!({
            "id": self.id, "name": self.name, "labels": self.labels, "created": seconds(self.created),
            "protection": { "delete": self.is_protected },
        });
        if let (Value::Object(view), Value::Object(own)) = (&mut view, own) {
            view.extend(own);
        }
        view
    }
}

/// A request to one project.
#[derive(Debug)]
pub(super) struct Call {
    pub method: Method,
    pub query: Query,
    pub body: Value,
}

impl Call {
    pub fn read<T: DeserializeOwned + Default>(&self) -> Result<T, Refusal> {
        if self.body.is_null() {
            return Ok(T::default());
        }
        let invalid = |error| Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_input", format!("{error}"));
        T::deserialize(&self.body).map_err(invalid)
    }
}

/// A successful answer.
#[derive(Debug)]
pub(super) struct Reply {
    pub status: StatusCode,
    /// JSON, or nothing.
    pub body: String,
    pub pagination: Option<Pagination>,
}

impl Reply {
    #[expect(clippy::needless_pass_by_value, reason = "callers make the body for the answer alone")]
    fn new(status: StatusCode, body: Value) -> Self {
        Self { status, body: body.to_string(), pagination: None }
    }

    pub fn ok(body: Value) -> Self {
        Self::new(StatusCode::OK, body)
    }

    pub fn created(body: Value) -> Self {
        Self::new(StatusCode::CREATED, body)
    }

    pub fn empty() -> Self {
        Self { status: StatusCode::NO_CONTENT, body: String::new(), pagination: None }
    }

    /// A part of a list.
    pub fn page<T: Serialize>(name: &str, page: &Page<T>) -> Outcome {
        let body = serde_json::to_string(&Listed { name, page });
        let broken = |error: serde_json::Error| {
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", error.to_string())
        };
        Ok(Self { status: StatusCode::OK, body: body.map_err(broken)?, pagination: Some(page.pagination) })
    }
}

pub(super) type Outcome = Result<Reply, Refusal>;

/// A resource by number or by name.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum IdOrName {
    Id(i64),
    Name(String),
}

impl IdOrName {
    pub fn is(&self, id: i64, name: &str) -> bool {
        match self {
            Self::Id(number) => *number == id,
            Self::Name(text) => text == name || text.parse() == Ok(id),
        }
    }
}

/// A kind of resource.
pub(super) trait Record: Sized {
    const MANY: &'static str;
    const ONE: &'static str;

    fn table(project: &Project) -> &Table<Self>;
    fn table_mut(project: &mut Project) -> &mut Table<Self>;
    fn base(&self) -> &Base;
    fn base_mut(&mut self) -> &mut Base;
    fn view(&self, project: &Project) -> Value;

    /// The answer to a list. A kind with long lists shows its page at once, without what each of its records costs.
    fn show(project: &Project, page: Page<&Self>) -> Outcome {
        let items: Vec<Value> = page.items.iter().map(|record| record.view(project)).collect();
        Reply::page(Self::MANY, &Page { items, pagination: page.pagination })
    }

    fn is_name(name: &str) -> bool {
        name.chars().count() <= 128
    }

    /// Filters of this kind alone.
    fn is_wanted(&self, _query: &Query) -> bool {
        true
    }

    fn create(world: &mut World<'_>, call: &Call) -> Outcome;
    fn delete(world: &mut World<'_>, id: i64) -> Outcome;
    fn act(world: &mut World<'_>, call: &Call, id: i64, command: &str) -> Outcome;

    fn find(project: &Project, id: i64) -> Result<&Self, Refusal> {
        Self::table(project).get(&id).ok_or_else(|| Refusal::not_found(Self::ONE, id))
    }

    fn find_mut(project: &mut Project, id: i64) -> Result<&mut Self, Refusal> {
        Self::table_mut(project).get_mut(&id).ok_or_else(|| Refusal::not_found(Self::ONE, id))
    }
}

/// One kind's part of the API; `rest` is the path behind the kind.
pub(super) fn route<R: Record>(world: &mut World<'_>, call: &Call, rest: &[&str]) -> Outcome {
    let number = |text: &str| text.parse().map_err(|_| Refusal::not_found(R::ONE, text));
    match (&call.method, rest) {
        (&Method::GET, []) => list::<R>(world.project, &call.query),
        (&Method::POST, []) => R::create(world, call),
        (&Method::GET, ["actions", rest @ ..]) => {
            actions(world.project, &call.query, rest, |action| action.is_about(R::ONE))
        }
        (&Method::GET, [id]) => {
            let found = R::find(world.project, number(id)?)?;
            Ok(Reply::ok(json!({ R::ONE: found.view(world.project) })))
        }
        (&Method::PUT, [id]) => update::<R>(world, call, number(id)?),
        (&Method::DELETE, [id]) => {
            let id = number(id)?;
            if R::find(world.project, id)?.base().is_protected {
                return Err(Refusal::protected(R::ONE));
            }
            R::delete(world, id)
        }
        (&Method::GET, [id, "actions", rest @ ..]) => {
            let id = number(id)?;
            R::find(world.project, id)?;
            actions(world.project, &call.query, rest, |action| action.concerns(R::ONE, id))
        }
        (&Method::POST, [id, "actions", "change_protection"]) => protect::<R>(world, call, number(id)?),
        (&Method::POST, [id, "actions", command]) => {
            let id = number(id)?;
            R::find(world.project, id)?;
            R::act(world, call, id, command)
        }
        _ => Err(Refusal::no_route()),
    }
}

fn list<R: Record>(project: &Project, query: &Query) -> Outcome {
    let selector = Selector::parse(query.first("label_selector").unwrap_or_default())?;
    let wanted = R::table(project).values().filter(|record| {
        let base = record.base();
        query.admits("name", &base.name) && selector.matches(&base.labels) && record.is_wanted(query)
    });
    let key_of = |record: &&R, key: &str| {
        let base = record.base();
        match key {
            "id" => json!(base.id),
            "created" => json!(seconds(base.created)),
            _ => json!(base.name),
        }
    };
    R::show(project, query.page_of(wanted.collect(), &["id", "name", "created"], key_of)?)
}

fn update<R: Record>(world: &mut World<'_>, call: &Call, id: i64) -> Outcome {
    #[derive(Default, Deserialize)]
    struct Input {
        name: Option<String>,
        labels: Option<Labels>,
    }
    let input: Input = call.read()?;
    R::find(world.project, id)?;
    let name = input.name.map(|name| world.name::<R>(Some(name), Some(id))).transpose()?;
    input.labels.as_ref().map_or(Ok(()), check_labels)?;
    let base = R::find_mut(world.project, id)?.base_mut();
    base.name = name.unwrap_or_else(|| base.name.clone());
    // All labels are replaced, as the vendor does it.
    base.labels = input.labels.unwrap_or_else(|| base.labels.clone());
    Ok(Reply::ok(json!({ R::ONE: R::find(world.project, id)?.view(world.project) })))
}

fn protect<R: Record>(world: &mut World<'_>, call: &Call, id: i64) -> Outcome {
    #[derive(Default, Deserialize)]
    struct Input {
        delete: Option<bool>,
    }
    let input: Input = call.read()?;
    let base = R::find_mut(world.project, id)?.base_mut();
    base.is_protected = input.delete.unwrap_or(base.is_protected);
    let action = world.begin("change_protection", &[(R::ONE, id)], Effect::Nothing);
    Ok(Reply::created(json!({ "action": action })))
}

/// `/actions` and those below a kind or a resource.
pub(super) fn actions(project: &Project, query: &Query, rest: &[&str], is_in: impl Fn(&Action) -> bool) -> Outcome {
    match rest {
        [] => {
            let wanted = project.actions.values().filter(|action| {
                let view = action.view();
                let status = view["status"].as_str().unwrap_or_default();
                is_in(action)
                    && !action.is_hidden
                    && query.admits("id", &action.id.to_string())
                    && query.admits("status", status)
            });
            let views = wanted.map(Action::view).collect();
            let sortable = ["id", "command", "status", "started", "finished"];
            Reply::page("actions", &query.page(views, &sortable)?)
        }
        [id] => {
            let found = id
                .parse()
                .ok()
                .and_then(|id| project.actions.get(&id))
                .filter(|action| is_in(action) && !action.is_hidden);
            let action = found.ok_or_else(|| Refusal::not_found("action", id))?;
            Ok(Reply::ok(json!({ "action": action.view() })))
        }
        _ => Err(Refusal::no_route()),
    }
}

/// The names of a kind's table and its base, which every kind spells the same way.
macro_rules! in_table {
    ($many:literal, $one:literal, $table:ident) => {
        const MANY: &'static str = $many;
        const ONE: &'static str = $one;

        fn table(project: &$crate::hetzner::state::Project) -> &$crate::hetzner::state::Table<Self> {
            &project.$table
        }

        fn table_mut(project: &mut $crate::hetzner::state::Project) -> &mut $crate::hetzner::state::Table<Self> {
            &mut project.$table
        }

        fn base(&self) -> &$crate::hetzner::state::Base {
            &self.base
        }

        fn base_mut(&mut self) -> &mut $crate::hetzner::state::Base {
            &mut self.base
        }
    };
}
pub(super) use in_table;
