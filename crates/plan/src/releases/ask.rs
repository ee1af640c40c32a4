//! What a release asks for beyond the caches, and the answers.

use std::time::Duration;

use api::condition::Reason;
use api::workspace::{
    ChartReference, HelmRelease, HelmReleaseSpec, LABEL_WORKSPACE, OperationKind, RECONCILE_ANNOTATION, ReadValues,
    StoppedWorkload, ValuesKind, ValuesSource,
};
use serde::{Deserialize, Serialize};

use super::decide::decide;
use super::memory::is_handled;
use super::revisions::{hold_to_facts, revisions_ask};
use super::{
    Action, Ages, Chart, Desired, Difference, Drift, Failure, Identity, Job, Known, MOST_REVISIONS, Observed, Policy,
    Replicas, Stored, StoredStatus, Surroundings, Values, last_good, reference_digest, too_many_revisions, unreadable,
    validate, values,
};
use crate::fact::{Fact, Facts};
use crate::object;
use crate::round::{Inputs, Plan};

/// What was read a moment ago is as good as new: what rests on it carries uid and version of what was seen.
pub(super) const MOMENT: Duration = Duration::from_secs(5);
/// What a name with a version or uid in it stands for never changes; the cache forgets it when it runs out of room.
const FOR_EVER: Duration = Duration::from_hours(24);
/// Without a watch on a kind, a look at its objects is believed this long; a little less than the pause between two
/// looks, so that the next one is due then.
const UNWATCHED: Duration = Duration::from_secs(15);

/// A change of a live object that was too near to the last one is looked at after this.
const CHANGING: Duration = Duration::from_secs(1);

/// One fact about a release.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Ask {
    /// Helm's revisions, from the server. `after` is the operation that has ended, or when the last one was reported:
    /// what was read before that, or while it ran, is not asked for.
    Revisions {
        namespace: String,
        release: String,
        after: Option<String>,
    },
    /// The digest of one source of the values, in the version that the cache shows.
    Source {
        namespace: String,
        kind: ValuesKind,
        name: String,
        key: String,
        optional: bool,
        version: String,
    },
    /// The chart on disk. `request` is the reconcile annotation that asks for a new look at its source.
    Chart {
        namespace: String,
        release: String,
        chart: Box<ChartReference>,
        /// The version of the Secret with its credentials.
        credentials: Option<String>,
        /// A digest: the annotation may be as large as its writer likes, and questions are kept.
        request: Option<String>,
    },
    /// Whether helm may act as the account; the operator's own rights where none is named.
    Identity {
        namespace: String,
        account: Option<String>,
    },
    /// How live objects differ from the newest revision. A change of one of them makes it another question.
    Drift {
        object: ObjectRef,
        secret_uid: String,
        changes: u64,
    },
    /// The replicas of the release's workloads.
    Replicas {
        object: ObjectRef,
        secret_uid: String,
        changes: u64,
    },
    /// Whether a revision holds PersistentVolumeClaims.
    HoldsData {
        namespace: String,
        release: String,
        revision: u32,
        secret_uid: String,
    },
    NamespaceTerminating {
        namespace: String,
    },
}

/// The HelmRelease in whose name objects are looked at, in the generation that says how.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ObjectRef {
    pub namespace: String,
    pub name: String,
    pub generation: i64,
}

impl ObjectRef {
    pub(super) fn of(object: &HelmRelease) -> Self {
        let metadata = &object.metadata;
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
        }
    }
}

/// The answer to the [`Ask`] of the same name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    Revisions(Vec<Stored>),
    Source(Result<ReadValues, Values>),
    Chart(Result<Resolved, Failure>),
    Identity(Identity),
    /// What the server said against a look is an answer too.
    Drift(Result<Vec<Difference>, String>),
    Replicas(Result<Vec<StoppedWorkload>, String>),
    /// `None`: the record cannot be read.
    HoldsData(Option<bool>),
    NamespaceTerminating(bool),
}

/// The next steps for a HelmRelease, and what must be known for them.
pub fn plan(
    object: &HelmRelease,
    observed: &Observed,
    inputs: &Inputs<Note, Ask, Answer>,
    policy: &Policy,
) -> Plan<Action, Ask> {
    assess(object, observed, inputs, policy).plan
}

/// A chart that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolved {
    pub version: String,
    pub digest: String,
}

/// What is remembered between rounds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// When the version of a range was last looked up, or first believed by this process: its uptime then.
    pub looked_at: Option<Duration>,
    pub ages: Ages,
}

pub(super) type InputsOf = Inputs<Note, Ask, Answer>;

/// A release with everything that is known of it, and its plan.
pub(super) struct Assessment {
    pub surroundings: Surroundings,
    pub plan: Plan<Action, Ask>,
    pub note: Note,
    /// False while facts are missing without which nothing can be said.
    pub is_complete: bool,
}

pub(super) fn assess(object: &HelmRelease, observed: &Observed, inputs: &InputsOf, policy: &Policy) -> Assessment {
    let desired = validate(object, policy).ok();
    let mut asking =
        Asking { object, observed, facts: &inputs.facts, plan: Plan::default(), is_complete: true, unread: None };
    let is_deleting = object.metadata.deletion_timestamp.is_some();
    let storage = asking.storage();
    let values = asking.values();
    let ages = Ages::of(object.status.as_ref(), &storage, &inputs.note.ages, observed.clocks);
    let mut surroundings = Surroundings {
        storage,
        values,
        chart: Chart::Fetching,
        job: observed.job.clone(),
        dependencies: observed.dependencies.clone(),
        cycle: observed.cycle.clone(),
        identity: asking.identity(),
        drift: Drift::NotLooked,
        is_watched: observed.is_watched,
        workloads: Replicas::NotLooked,
        object_changes: observed.object_changes,
        holds_data: None,
        is_namespace_terminating: is_deleting && asking.is_namespace_terminating(),
        rival: observed.rival.clone(),
        ages,
    };
    if unreadable::is_so(object) {
        return Assessment { surroundings, plan: unreadable::plan(), note: inputs.note.clone(), is_complete: false };
    }
    asking.look(&mut surroundings, desired.as_ref());
    let mut note = Note { ages: surroundings.ages.clone(), ..inputs.note.clone() };
    if let Some(desired) = desired.as_ref().filter(|_| !is_deleting) {
        surroundings.chart = asking.chart(desired, &surroundings, &mut note, policy);
    }
    surroundings.holds_data = asking.holds_data(&surroundings);
    let is_complete = asking.is_complete;
    let mut plan = match &asking.unread {
        _ if !is_complete => Plan::default(),
        // What could not be read may be data, and is read again.
        Some(why) if is_deleting => {
            let mut plan = Plan::default();
            plan.block(Reason::StateUnknown, why.as_str());
            plan.look_within(MOMENT);
            plan
        }
        _ => decide(object, &surroundings, policy),
    };
    plan.wants.extend(asking.plan.wants);
    hold_to_facts(&mut plan, object, observed, &inputs.facts);
    if observed.is_changing {
        plan.look_within(CHANGING);
    }
    Assessment { surroundings, plan, note, is_complete }
}

struct Asking<'a> {
    object: &'a HelmRelease,
    observed: &'a Observed,
    facts: &'a Facts<Ask, Answer>,
    /// Holds the wants.
    plan: Plan<Action, Ask>,
    is_complete: bool,
    /// Why Helm's record could not be read.
    unread: Option<String>,
}

impl Asking<'_> {
    fn spec(&self) -> Option<&HelmReleaseSpec> {
        self.object.spec.as_ref()
    }

    fn namespace(&self) -> String {
        self.object.metadata.namespace.clone().unwrap_or_default()
    }

    /// Helm's revisions. The cache may lag behind what helm has just written, so after an operation, and where the
    /// cache would make us act, the server is asked.
    fn storage(&mut self) -> Known<Vec<Stored>> {
        let cached = &self.observed.revisions;
        let newest = cached.last();
        let status = self.object.status.as_ref();
        // By its uid: numbers begin anew with an install that uninstalls a failed one first.
        let known = status.and_then(|status| status.history.first());
        let is_behind = known.is_some_and(|known| {
            let is_it = |stored: &Stored| Some(&stored.uid) == known.secret_uid.as_ref();
            newest.map_or(0, |newest| newest.revision) < known.revision || !cached.iter().any(is_it)
        });
        let is_unfinished = newest.is_some_and(|newest| newest.status.is_unfinished());
        let is_leaving = self.object.metadata.deletion_timestamp.is_some();
        let is_needed = match &self.observed.job {
            Job::Finished(_) => true,
            Job::Idle => is_behind || is_leaving || is_unfinished,
            // What helm makes of the release is known when it ends; until then nothing is decided on it.
            Job::Waiting(_) | Job::Running(_) | Job::Ending(_) => false,
        };
        if cached.len() > MOST_REVISIONS {
            return Known::No(too_many_revisions(&self.observed.namespace, &self.observed.release).message);
        }
        if !is_needed {
            return Known::Yes(cached.clone());
        }
        match self.plan.want(self.facts, revisions_ask(self.object, self.observed), MOMENT) {
            Some(Fact::Known { value: Answer::Revisions(stored), .. }) => Known::Yes(stored.clone()),
            Some(Fact::Unknown { why, .. }) => {
                Known::No(format!("Helm's storage Secrets cannot be listed: {}", why.message))
            }
            _ => {
                self.is_complete = false;
                Known::No(String::new())
            }
        }
    }

    /// Digests of all sources; one is read only if it changed since status noted it.
    fn values(&mut self) -> Values {
        let Some(spec) = self.spec().cloned() else { return Values::Missing("spec".to_owned()) };
        let mut sources = Vec::new();
        for (at, source) in spec.values_from.iter().enumerate() {
            let version = self.observed.sources.get(at).cloned().flatten().unwrap_or_default();
            if let Some(noted) = self.noted(source, &version) {
                sources.push(noted);
                continue;
            }
            let ask = Ask::Source {
                namespace: self.namespace(),
                kind: source.kind,
                name: source.name.clone(),
                key: source.key().to_owned(),
                optional: source.optional.unwrap_or(false),
                version,
            };
            match self.plan.want(self.facts, ask, FOR_EVER) {
                Some(Fact::Known { value: Answer::Source(Ok(read)), .. }) => sources.push(read.clone()),
                Some(Fact::Known { value: Answer::Source(Err(why)), .. }) => return why.clone(),
                Some(Fact::Unknown { why, .. }) => return Values::Unknown(why.message.clone()),
                _ => self.is_complete = false,
            }
        }
        values(&spec, sources)
    }

    /// What status noted of a source, if that is still it. Whether what was not there may be missing is for the source
    /// to say, which may have changed.
    fn noted(&self, source: &ValuesSource, version: &str) -> Option<ReadValues> {
        let noted =
            self.object.status.as_ref()?.values_from.iter().find(|noted| {
                (noted.kind, &noted.name, noted.key.as_str()) == (source.kind, &source.name, source.key())
            })?;
        let is_settled = noted.version == version && (!noted.digest.is_empty() || source.optional.unwrap_or(false));
        is_settled.then(|| noted.clone())
    }

    fn is_namespace_terminating(&mut self) -> bool {
        let namespace = self.observed.namespace.clone();
        match self.plan.want(self.facts, Ask::NamespaceTerminating { namespace }, MOMENT) {
            Some(Fact::Known { value, .. }) => *value == Answer::NamespaceTerminating(true),
            Some(Fact::Unknown { .. }) => false,
            None => {
                self.is_complete = false;
                false
            }
        }
    }

    /// What is known of the account; asked for by the decision that needs it.
    fn identity(&self) -> Identity {
        match self.facts.get(&identity_ask(self.object)) {
            Some(Fact::Known { value: Answer::Identity(identity), .. }) => identity.clone(),
            Some(Fact::Unknown { why, .. }) => Identity::Unknown(why.message.clone()),
            _ => Identity::NotChecked,
        }
    }

    /// What is known of live objects; asked for by the decision that needs it.
    fn look(&self, surroundings: &mut Surroundings, desired: Option<&Desired>) {
        let (Some(newest), Some(_)) = (surroundings.newest(), desired) else { return };
        let (object, secret_uid, changes) =
            (ObjectRef::of(self.object), newest.uid.clone(), self.observed.object_changes);
        let drift = Ask::Drift { object: object.clone(), secret_uid: secret_uid.clone(), changes };
        let replicas = Ask::Replicas { object, secret_uid, changes };
        if let Some(fact) = self.facts.get(&drift) {
            surroundings.drift = match fact {
                Fact::Known { value: Answer::Drift(Ok(found)), .. } if found.is_empty() => Drift::None,
                Fact::Known { value: Answer::Drift(Ok(found)), .. } => Drift::Found(found.clone()),
                Fact::Known { value: Answer::Drift(Err(why)), .. } => Drift::Unknown(why.clone()),
                Fact::Unknown { why, .. } => Drift::Unknown(why.message.clone()),
                Fact::Known { .. } => Drift::NotLooked,
            };
        }
        if let Some(fact) = self.facts.get(&replicas) {
            surroundings.workloads = match fact {
                Fact::Known { value: Answer::Replicas(Ok(found)), .. } => Replicas::Live(found.clone()),
                Fact::Known { value: Answer::Replicas(Err(why)), .. } => Replicas::Unknown(why.clone()),
                Fact::Unknown { why, .. } => Replicas::Unknown(why.message.clone()),
                Fact::Known { .. } => Replicas::NotLooked,
            };
        }
    }

    /// The chart's version. Status is believed for as long as it answers the same question and is not too old; only
    /// what has to be installed must be on disk.
    fn chart(&mut self, desired: &Desired, surroundings: &Surroundings, note: &mut Note, policy: &Policy) -> Chart {
        let resolved = self.object.status.as_ref().and_then(|status| status.resolved.as_ref());
        let known = resolved.filter(|resolved| resolved.reference == reference_digest(&desired.chart));
        let request = self.request();
        let is_exact = desired.chart.exact_version().is_some();
        let now = surroundings.ages.uptime();
        let passed = now.saturating_sub(*note.looked_at.get_or_insert(now));
        let is_believed = is_exact || (request.is_none() && passed < desired.interval);
        if let Some(known) = known.filter(|_| is_believed) {
            let (version, digest) = (known.version.clone(), known.digest.clone());
            let chart = Chart::Resolved { version, digest, is_checked: true };
            let assumed = Surroundings { chart: chart.clone(), identity: Identity::Usable, ..surroundings.clone() };
            let plan = decide(self.object, &assumed, policy);
            if !plan.actions().any(is_deployment) {
                return chart;
            }
        }
        let (namespace, release) = (self.namespace(), self.observed.release.clone());
        let (chart, credentials) = (Box::new(desired.chart.clone()), self.observed.credentials.clone());
        let ask = Ask::Chart { namespace, release, chart, credentials, request };
        let max_age = policy.fetch_retry.min(desired.interval);
        match self.plan.want(self.facts, ask, max_age) {
            Some(Fact::Known { value: Answer::Chart(Ok(found)), .. }) => {
                note.looked_at = Some(now);
                let (version, digest) = (found.version.clone(), Some(found.digest.clone()));
                Chart::Resolved { version, digest, is_checked: true }
            }
            Some(Fact::Known { value: Answer::Chart(Err(failure)), .. }) => Chart::Failed(failure.clone()),
            Some(Fact::Unknown { why, .. }) => {
                Chart::Failed(Failure { class: super::FailureClass::Unreachable, message: why.message.clone() })
            }
            _ => {
                // Whether the account may act is checked meanwhile, where there is no doubt that it is to act.
                if surroundings.newest().is_none() {
                    self.plan.want(self.facts, identity_ask(self.object), IDENTITY_AGE);
                }
                Chart::Fetching
            }
        }
    }

    /// The digest of a value of the reconcile annotation that was not acted on.
    fn request(&self) -> Option<String> {
        let request = self.object.metadata.annotations.as_ref()?.get(RECONCILE_ANNOTATION)?;
        let handled = self.object.status.as_ref().and_then(|status| status.last_handled_reconcile.as_deref());
        (!is_handled(request, handled)).then(|| object::digest(&request.as_str().into()))
    }

    /// Asked when a revision was made, by us or by a former operator that did not live to see it, and when it is to go;
    /// and only for services of a Workspace, whose data is protected, and for an install that did not succeed and so may
    /// be done again.
    fn holds_data(&mut self, surroundings: &Surroundings) -> Option<bool> {
        let is_service =
            self.object.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(LABEL_WORKSPACE));
        let newest = surroundings.newest().filter(|_| !surroundings.is_at_work())?;
        let is_undone = last_good(surroundings.stored()?).is_none() && newest.status != StoredStatus::Uninstalled;
        if !is_service && !is_undone {
            return None;
        }
        let known = self.object.status.as_ref().filter(|status| status.holds_data.is_some());
        let shown = known.and_then(|status| status.history.first());
        let is_known = shown.is_some_and(|shown| shown.secret_uid.as_ref() == Some(&newest.uid));
        if is_known && !surroundings.has_ended() && self.object.metadata.deletion_timestamp.is_none() {
            return None;
        }
        let ask = Ask::HoldsData {
            namespace: self.observed.namespace.clone(),
            release: self.observed.release.clone(),
            revision: newest.revision,
            secret_uid: newest.uid.clone(),
        };
        match self.plan.want(self.facts, ask, FOR_EVER) {
            Some(Fact::Known { value: Answer::HoldsData(holds), .. }) => *holds,
            Some(Fact::Unknown { why, .. }) => {
                self.unread = Some(format!("Helm's record of the newest revision cannot be read: {}", why.message));
                None
            }
            Some(Fact::Known { .. }) => None,
            None => {
                self.is_complete = false;
                None
            }
        }
    }
}

fn is_deployment(action: &Action) -> bool {
    match action {
        Action::Start(operation) => matches!(operation.kind, OperationKind::Install | OperationKind::Upgrade),
        _ => false,
    }
}

pub(super) fn identity_ask(object: &HelmRelease) -> Ask {
    let account = object.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
    Ask::Identity { namespace: object.metadata.namespace.clone().unwrap_or_default(), account }
}

/// For how long a check of an account is believed.
pub(super) const IDENTITY_AGE: Duration = Duration::from_secs(10);

/// A step begins when its announcement is stored, for which a slow API server takes its time: what was young enough to
/// plan on serves until then, unless something newer is known.
pub(super) const UNTIL_BEGUN: Duration = Duration::from_mins(1);

/// For how long a look at live objects is believed.
pub(super) fn look_age(is_watched: bool, interval: Duration) -> Duration {
    if is_watched { interval } else { UNWATCHED }
}
