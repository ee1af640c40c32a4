//! The whole status of a Workspace.

use api::condition::{Condition, ConditionStatus, ConditionType, Reason};
use api::workspace::{
    HelmReleaseStatus, ServiceSummary, UserStatus, UserSummary, Workspace, WorkspacePhase, WorkspaceSpec,
    WorkspaceStatus,
};
use jiff::Timestamp;

use super::config::is_awaited;
use super::derive::{enabled, service_host, validate};
use super::network::is_isolated;
use super::{Note, Observed, SourceAsk, Surroundings};
use crate::Why;
use crate::message::steady;
use crate::round::{Report, Round};
use crate::workspaces::derived::{Action, Done, Found, ObjectId, ObjectKind, inventory};
use crate::workspaces::ingress::url;
use crate::workspaces::report::{Attempts, Conditions, Problem};
use crate::workspaces::secret::Digested;

/// The word for what has been written and not been worked on.
const PROGRESSING: &str = "Progressing";
/// As many as are read; status lists them all.
const NAMES_SHOWN: usize = 5;

/// A round as the controller sees it.
pub type RoundOf<'a> = Round<'a, Workspace, Observed, Action, Done, Note, SourceAsk, Option<Digested>>;

/// The whole report of a round.
pub fn report(round: &RoundOf<'_>, now: Timestamp) -> Report<WorkspaceStatus, Note> {
    let attempts = Attempts::new(round);
    let workspace = round.object;
    let former = workspace.status.clone().unwrap_or_default();
    let namespace = workspace.metadata.namespace.as_deref().unwrap_or_default();
    let surroundings = round.observed.surroundings.with(namespace, &round.inputs.facts);
    let status = status(round, &attempts, &surroundings, &former, now);
    let note = Note { accepted: attempts.accepted(&round.observed.objects), sources: surroundings.sources };
    let (conditions, phase) = (status.conditions.clone(), status.phase);
    attempts.report(status, [&former.conditions, &conditions], phase, note)
}

/// The status to store; equal to the stored one when there is nothing to report to.
fn status(
    round: &RoundOf<'_>,
    attempts: &Attempts<'_>,
    surroundings: &Surroundings,
    former: &WorkspaceStatus,
    now: Timestamp,
) -> WorkspaceStatus {
    let (workspace, observed) = (round.object, round.observed);
    let uid = workspace.metadata.uid.as_deref().unwrap_or_default();
    let spec = validate(workspace).ok().filter(|_| observed.rival.is_none());
    // Nothing can be said of a spec before it is known what it stands for.
    let is_awaited = spec.is_some_and(|spec| is_awaited(spec, surroundings, uid, &observed.objects));
    if attempts.is_mute() || observed.is_namespace_terminating || is_awaited {
        return former.clone();
    }
    let is_going = workspace.metadata.deletion_timestamp.is_some();
    let view = View { round, attempts, uid, problems: attempts.problems(), is_going };
    let (services, users) = match spec {
        Some(spec) => (view.services(spec, &former.services), view.users(spec)),
        // What there is stays as it is, and so does what was said of it.
        None => (summaries(&former.services), summaries(&former.users)),
    };
    let conditions = Conditions { former: &former.conditions, generation: workspace.metadata.generation, now };
    WorkspaceStatus {
        observed_generation: workspace.metadata.generation,
        phase: Some(view.phase(&services, &users)),
        conditions: view.conditions(&conditions, &services, &users),
        services_ready: Some(services.share()),
        users_ready: Some(users.share()),
        services: services.all,
        users: users.all,
        inventory: inventory(uid, &observed.objects, attempts.applied()),
    }
}

/// Services or users in short, with those that are counted.
struct Summaries<T> {
    all: Vec<T>,
    ready: usize,
    counted: usize,
    /// Name and reason of those that are not ready.
    unready: Vec<String>,
    has_failed: bool,
}

impl<T> Summaries<T> {
    fn share(&self) -> String {
        format!("{}/{}", self.ready, self.counted)
    }

    fn are_ready(&self) -> bool {
        self.unready.is_empty()
    }

    fn add(&mut self, name: &str, state: &State, summary: T) {
        self.all.push(summary);
        match state {
            State::Ready => self.ready += 1,
            State::Unready { reason, has_failed, .. } => {
                self.unready.push(format!("{name} ({reason})"));
                self.has_failed |= has_failed;
            }
            State::Uncounted(_) => return,
        }
        self.counted += 1;
    }
}

impl<T> Default for Summaries<T> {
    fn default() -> Self {
        Self { all: Vec::new(), ready: 0, counted: 0, unready: Vec::new(), has_failed: false }
    }
}

fn summaries<T: Clone>(former: &[T]) -> Summaries<T> {
    Summaries { all: former.to_vec(), ..Summaries::default() }
}

/// How one service or user is doing.
enum State {
    Ready,
    Unready {
        reason: String,
        message: Option<String>,
        has_failed: bool,
    },
    /// There is nothing that could be ready, for this reason.
    Uncounted(String),
}

impl State {
    fn progressing() -> Self {
        Self::Unready { reason: PROGRESSING.to_owned(), message: None, has_failed: false }
    }

    /// How it is doing is unknown, which is not the same as on its way.
    fn unreadable(id: &ObjectId) -> Self {
        let message = format!(
            "the status of {id} cannot be read; a newer operator may have written it: upgrade this one, or correct the status"
        );
        Self::Unready { reason: Reason::StateUnknown.to_string(), message: Some(message), has_failed: false }
    }

    fn words(self) -> (Option<String>, Option<String>) {
        match self {
            Self::Ready => (None, None),
            Self::Unready { reason, message, .. } => (Some(reason), message),
            Self::Uncounted(reason) => (Some(reason), None),
        }
    }
}

struct View<'a> {
    round: &'a RoundOf<'a>,
    attempts: &'a Attempts<'a>,
    uid: &'a str,
    problems: Vec<Problem>,
    is_going: bool,
}

impl View<'_> {
    fn services(&self, spec: &WorkspaceSpec, former: &[ServiceSummary]) -> Summaries<ServiceSummary> {
        let mut summaries = Summaries::default();
        for (name, service) in enabled(spec) {
            let id = ObjectId::new(ObjectKind::HelmRelease, name);
            let (state, version) = self.state(&id, |found| {
                let status: HelmReleaseStatus = found.read_status()?;
                let ready = status.condition(ConditionType::Ready).cloned();
                Some((ready, status.observed_generation, status.last_applied_revision))
            });
            let host =
                service_host(self.round.object.metadata.name.as_deref().unwrap_or_default(), spec, name, service);
            let url = host.map(|host| url(&host, spec.ingress.as_ref()));
            summaries.add_service(name, state, version, url);
        }
        for problem in self.problems.iter().filter(|problem| problem.why.reason == Reason::DataProtected) {
            let Some(id) = problem.id.as_ref().filter(|id| !spec.services.contains_key(&id.name)) else { continue };
            let state = State::Unready {
                reason: problem.why.reason.to_string(),
                message: Some(problem.why.message.clone()),
                has_failed: true,
            };
            summaries.add_service(&id.name, state, None, None);
        }
        for summary in &mut summaries.all {
            // As in the conditions: other numbers are no news in the server's words.
            let is_refused = summary.reason.as_deref() == Some(Reason::ObjectRejected.as_str());
            let is_same = |f: &&ServiceSummary| is_refused && f.name == summary.name && f.reason == summary.reason;
            let said = former.iter().find(is_same).and_then(|former| former.message.as_deref());
            summary.message = summary.message.take().map(|message| steady(said, message));
        }
        summaries
    }

    fn users(&self, spec: &WorkspaceSpec) -> Summaries<UserSummary> {
        let mut summaries = Summaries::default();
        for user in &spec.users {
            let id = ObjectId::new(ObjectKind::User, user.slug.as_str());
            let (state, url) = self.state(&id, |found| {
                let status: UserStatus = found.read_status()?;
                Some((status.condition(ConditionType::Ready).cloned(), status.observed_generation, status.url))
            });
            let state = match state {
                State::Ready if !user.has_code_server() => State::Uncounted(Reason::Disabled.to_string()),
                state => state,
            };
            let ready = matches!(state, State::Ready);
            let slug = user.slug.clone();
            summaries.add(&user.slug, &state, UserSummary { slug, ready, reason: None, url });
            if let Some(summary) = summaries.all.last_mut() {
                summary.reason = state.words().0;
            }
        }
        summaries
    }

    /// How a derived object is doing by its own Ready condition, and one more thing that its status says.
    fn state<E>(
        &self,
        id: &ObjectId,
        read: impl FnOnce(&Found) -> Option<(Option<Condition>, Option<i64>, Option<E>)>,
    ) -> (State, Option<E>) {
        if let Some(problem) = self.problems.iter().find(|problem| problem.id.as_ref() == Some(id)) {
            let (reason, message) = (problem.why.reason.to_string(), Some(problem.why.message.clone()));
            return (State::Unready { reason, message, has_failed: true }, None);
        }
        let found = self.round.observed.objects.get(id).filter(|found| found.is_of(self.uid) && !found.is_going);
        let Some(found) = found.filter(|_| !self.attempts.changed().contains(id)) else {
            return (State::progressing(), None);
        };
        let Some((ready, observed_generation, more)) = read(found) else { return (State::unreadable(id), None) };
        let state = match ready.filter(|_| observed_generation == found.generation) {
            Some(ready) if ready.status == ConditionStatus::True => State::Ready,
            Some(ready) => State::Unready {
                reason: ready.reason.to_string(),
                message: Some(ready.message),
                has_failed: !ready.reason.is_progress(),
            },
            None => State::progressing(),
        };
        (state, more)
    }

    fn phase(&self, services: &Summaries<ServiceSummary>, users: &Summaries<UserSummary>) -> WorkspacePhase {
        if self.is_going {
            WorkspacePhase::Terminating
        } else if !self.problems.is_empty() || services.has_failed || users.has_failed {
            WorkspacePhase::Failed
        } else if !services.are_ready() || !users.are_ready() || self.attempts.unfinished().next().is_some() {
            WorkspacePhase::Progressing
        } else if self.is_stopped() {
            WorkspacePhase::Stopped
        } else {
            WorkspacePhase::Ready
        }
    }

    fn is_stopped(&self) -> bool {
        self.round.object.spec.as_ref().is_some_and(|spec| spec.stopped == Some(true))
    }

    fn conditions(
        &self,
        conditions: &Conditions<'_>,
        services: &Summaries<ServiceSummary>,
        users: &Summaries<UserSummary>,
    ) -> Vec<Condition> {
        let parts = [
            (ConditionType::ServicesReady, self.part(services, Reason::ServicesNotReady, "services")),
            (ConditionType::UsersReady, self.part(users, Reason::UsersNotReady, "users")),
            (ConditionType::NetworkReady, self.network()),
        ];
        let ready = self.ready(&parts);
        let all = std::iter::once((ConditionType::Ready, ready)).chain(parts);
        all.map(|(kind, (status, why))| conditions.make(kind, status, why)).collect()
    }

    fn ready(&self, parts: &[(ConditionType, (ConditionStatus, Why))]) -> (ConditionStatus, Why) {
        let problem = self.problems.first().map(|problem| problem.why.clone());
        let unready = || parts.iter().find(|(_, (status, _))| *status != ConditionStatus::True);
        if let Some(why) = problem {
            (ConditionStatus::False, why)
        } else if self.is_going {
            (ConditionStatus::False, terminating())
        } else if let Some((_, (_, why))) = unready() {
            (ConditionStatus::False, why.clone())
        } else if let Some((_, why)) = self.attempts.unfinished().next() {
            (ConditionStatus::False, why)
        } else if self.is_stopped() {
            let message =
                "Everything is scaled to zero because spec.stopped is true; releases and data are kept".to_owned();
            (ConditionStatus::True, Why { reason: Reason::Stopped, message })
        } else {
            (
                ConditionStatus::True,
                Why { reason: Reason::Succeeded, message: "Everything matches the spec".to_owned() },
            )
        }
    }

    /// What is in the way of everything, if something is.
    fn whole(&self) -> Option<(ConditionStatus, Why)> {
        let whole = self.problems.iter().find(|problem| problem.id.is_none());
        let problem = whole.map(|problem| (ConditionStatus::Unknown, problem.why.clone()));
        problem.or_else(|| self.is_going.then(|| (ConditionStatus::False, terminating())))
    }

    fn part<T>(&self, summaries: &Summaries<T>, reason: Reason, noun: &str) -> (ConditionStatus, Why) {
        if let Some(whole) = self.whole() {
            return whole;
        }
        let (ready, counted) = (summaries.ready, summaries.counted);
        if summaries.are_ready() {
            let message = format!("{ready} of {counted} {noun} are ready");
            return (ConditionStatus::True, Why { reason: Reason::Succeeded, message });
        }
        let mut names = summaries.unready[..summaries.unready.len().min(NAMES_SHOWN)].join(", ");
        if summaries.unready.len() > NAMES_SHOWN {
            names.push_str(", …");
        }
        (
            ConditionStatus::False,
            Why { reason, message: format!("{ready} of {counted} {noun} are ready; not so: {names}") },
        )
    }

    fn network(&self) -> (ConditionStatus, Why) {
        let is_network = |kind| matches!(kind, ObjectKind::NetworkPolicy | ObjectKind::Ingress);
        if let Some(whole) = self.whole() {
            return whole;
        }
        let of_network = |problem: &&Problem| problem.id.as_ref().is_some_and(|id| is_network(id.kind));
        if let Some(problem) = self.problems.iter().find(of_network) {
            return (ConditionStatus::False, problem.why.clone());
        }
        if let Some((_, why)) = self.attempts.unfinished().find(|(id, _)| is_network(id.kind)) {
            return (ConditionStatus::Unknown, why);
        }
        if self.round.object.spec.as_ref().is_some_and(|spec| !is_isolated(spec)) {
            let message =
                "The workspace is open to other namespaces because spec.network.isolation is false".to_owned();
            return (ConditionStatus::True, Why { reason: Reason::NotIsolated, message });
        }
        let message = "All network policies and Ingresses are in place".to_owned();
        (ConditionStatus::True, Why { reason: Reason::Succeeded, message })
    }
}

impl Summaries<ServiceSummary> {
    fn add_service(&mut self, name: &str, state: State, version: Option<String>, url: Option<String>) {
        let ready = matches!(state, State::Ready);
        let summary = ServiceSummary { name: name.to_owned(), ready, reason: None, message: None, version, url };
        self.add(name, &state, summary);
        if let Some(summary) = self.all.last_mut() {
            (summary.reason, summary.message) = state.words();
        }
    }
}

fn terminating() -> Why {
    Why { reason: Reason::Terminating, message: "Users and releases are being removed".to_owned() }
}
