//! Gather, execute and report for Performers; every decision is in `plan::performers`.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use api::performer::{Performer, PerformerStatus, Phase};
use jiff::Timestamp;
use plan::{
    Plan,
    performers::{
        self as performer, Action, Ages, Capabilities, Clocks, Outcome, PodFacts, Policy, Round, ServiceFacts, Slot,
    },
};
use runtime::{Clock, Error, Executed, Key, Kind, Layer, Recorder, ServerClock, Subject, Versioned, View};
use serde_json::json;
use tokio::time::Instant;

use crate::view::{PerformerView, PodView, ServiceView, owned_key};

pub(crate) struct PerformerLayer {
    pub performers: Arc<Kind<PerformerView, Performer>>,
    pub pods: Arc<Kind<PodView, PodFacts>>,
    pub services: Arc<Kind<ServiceView, ServiceFacts>>,
    pub policy: Policy,
    pub events: Recorder,
    pub clock: Clock,
    pub server_clock: ServerClock,
    pub started: Instant,
    /// How long what is waited on has lasted; only of Performers for which something is.
    pub ages: Mutex<HashMap<Key, Ages>>,
    /// Replacement counts of pods that are on their way out; see `Observed::replacements`.
    pub replacements: Mutex<HashMap<Key, u32>>,
    /// When the server last refused the phase `Unknown`: an old CRD is installed.
    pub unknown_refused_at: Mutex<Option<Instant>>,
}

/// One Performer and its surroundings, at the beginning of a round.
pub(crate) struct Observed {
    subject: Subject<Performer>,
    surroundings: performer::Observed,
}

impl Layer for PerformerLayer {
    const CONTROLLER: &'static str = "performer";
    type Observed = Observed;
    type Action = Action;
    type Outcome = Outcome;

    fn span(key: &Key) -> tracing::Span {
        tracing::info_span!("round", performer = %key, namespace = %key.namespace)
    }

    async fn gather(&self, key: &Key) -> Result<Option<Observed>, Error> {
        let owned = owned_key(key);
        self.performers.settle(key).await?;
        self.pods.settle(&owned).await?;
        self.services.settle(&owned).await?;
        let is_old = |performer: Arc<Versioned<Performer>>| {
            self.pods.get(&owned).is_some_and(|pod| pod.value.is_newer_than(&performer.value))
        };
        let is_performer_read = self.performers.get(key).is_some_and(is_old);
        if is_performer_read {
            self.performers.refresh(key).await?;
        }
        let Some(performer) = self.performers.get(key) else {
            self.replacements().remove(key);
            self.ages.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
            return Ok(None);
        };
        let subject = Subject::new(performer);
        let uid = subject.uid();
        let pod = slot(&self.pods, &owned, |pod| Slot::of_pod(pod, uid));
        let service = slot(&self.services, &owned, |service| Slot::of_service(service, uid));
        let surroundings = performer::Observed {
            ages: self.ages(key, &pod, &service),
            pod,
            service,
            is_performer_read,
            replacements: self.replacements().get(key).copied().unwrap_or(0),
        };
        Ok(Some(Observed { subject, surroundings }))
    }

    fn plan(&self, observed: &Observed, _: Timestamp) -> Plan<Action> {
        performer::plan(observed.subject.object(), &observed.surroundings, &self.policy)
    }

    async fn execute(&self, key: &Key, observed: &Observed, action: &Action) -> Executed<Outcome> {
        let owned = owned_key(key);
        let result = match action {
            Action::AddFinalizer { finalizers, .. } | Action::ReleaseFinalizer { finalizers, .. } => {
                let patch = json!({ "metadata": { "finalizers": finalizers } });
                observed.subject.patch(&self.performers, key, None, patch).await
            }
            Action::CreatePod(pod) => {
                let image = pod.spec.as_ref().and_then(|spec| spec.containers[0].image.as_deref());
                tracing::debug!(podName = %owned.name, image, "creating pod");
                let created = self.pods.create(&owned, pod).await.map(drop);
                if created.is_ok() {
                    self.replacements().remove(key);
                }
                created
            }
            Action::DeletePod { uid, resource_version, cause, replacements } => {
                tracing::debug!(podName = %owned.name, ?cause, "deleting pod");
                let deleted = self.pods.delete(&owned, uid, resource_version).await.map(drop);
                if deleted.is_ok() && *replacements > 0 {
                    self.replacements().insert(key.clone(), *replacements);
                }
                deleted
            }
            Action::CreateService(service) => {
                let port = service.spec.as_ref().and_then(|spec| spec.ports.as_ref()).map(|ports| ports[0].port);
                tracing::debug!(serviceName = %owned.name, port, "creating service");
                self.services.create(&owned, service).await.map(drop)
            }
            Action::RepairService { patch } => {
                tracing::debug!(serviceName = %owned.name, "repairing service");
                self.services.patch(&owned, None, patch).await.map(drop)
            }
            Action::DeleteService { uid, resource_version } => {
                tracing::debug!(serviceName = %owned.name, "deleting service");
                self.services.delete(&owned, uid, resource_version).await.map(drop)
            }
        };
        executed(action, result)
    }

    fn keys(&self) -> Vec<Key> {
        self.performers.store().keys()
    }

    async fn report(
        &self,
        key: &Key,
        observed: &Observed,
        plan: &Plan<Action>,
        outcomes: &[Outcome],
    ) -> Result<bool, Error> {
        self.keep(key, observed.surroundings.ages.after(outcomes));
        let before = observed.subject.object().status.as_ref();
        let after = self.status(observed, plan, outcomes);
        let phase = after.phase.map_or("", Phase::as_str);
        let is_released =
            plan.actions.iter().zip(outcomes).any(|(action, outcome)| {
                matches!(action, Action::ReleaseFinalizer { .. }) && *outcome == Outcome::Done
            });
        // Nothing reported so far and nothing to report are the same.
        let is_news = after != before.cloned().unwrap_or_default();
        let is_due = is_news && !is_released;
        let written = if is_due { self.write_status(key, observed, plan, outcomes, after).await } else { Ok(after) };
        // A transition is told when it is stored; what was done is told in any case.
        let told = written.as_ref().ok().or(before).cloned().unwrap_or_default();
        let pod = self.pods.get(&owned_key(key)).map(|pod| pod.value.uid.clone()).unwrap_or_default();
        let events = performer::events(before, &told, plan, outcomes);
        observed.subject.tell(&self.events, key, &pod, events);
        tracing::info!(phase, ready = told.ready, actions = plan.actions.len(), "reconciled");
        written.map(|_| is_due)
    }
}

impl PerformerLayer {
    fn ages(&self, key: &Key, pod: &Slot<PodFacts>, service: &Slot<ServiceFacts>) -> Ages {
        let uptime = self.clock.instant().saturating_duration_since(self.started);
        let clocks = Clocks { server: self.server_clock.now(), uptime };
        let former = self.ages.lock().unwrap_or_else(PoisonError::into_inner).remove(key).unwrap_or_default();
        let ages = Ages::of(pod, service, &former, clocks);
        self.keep(key, ages.clone());
        ages
    }

    fn keep(&self, key: &Key, ages: Ages) {
        let mut all = self.ages.lock().unwrap_or_else(PoisonError::into_inner);
        if ages.is_empty() {
            all.remove(key)
        } else {
            all.insert(key.clone(), ages)
        };
    }

    fn replacements(&self) -> std::sync::MutexGuard<'_, HashMap<Key, u32>> {
        self.replacements.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self, observed: &Observed, plan: &Plan<Action>, outcomes: &[Outcome]) -> PerformerStatus {
        let now = self.clock.now();
        let round = Round {
            performer: observed.subject.object(),
            observed: &observed.surroundings.after(plan, outcomes, now),
            plan,
            outcomes,
            policy: &self.policy,
        };
        performer::status(&round, now, Capabilities { phase_unknown: self.may_say_unknown() })
    }

    /// False for a while after the server refused it; the CRD may be updated any time.
    fn may_say_unknown(&self) -> bool {
        const ASK_AGAIN: Duration = Duration::from_mins(10);
        let refused_at = *self.unknown_refused_at.lock().unwrap_or_else(PoisonError::into_inner);
        refused_at.is_none_or(|at| self.clock.instant().saturating_duration_since(at) > ASK_AGAIN)
    }

    /// Stores the status, or what of it the installed CRD can hold. Returns what is stored.
    async fn write_status(
        &self,
        key: &Key,
        observed: &Observed,
        plan: &Plan<Action>,
        outcomes: &[Outcome],
        after: PerformerStatus,
    ) -> Result<PerformerStatus, Error> {
        match self.patch_status(key, observed, &after).await {
            Err(error) if after.phase == Some(Phase::Unknown) && is_about_phase(&error) => {
                tracing::warn!(
                    "the installed Performer CRD refuses phase Unknown; writing Failed instead. Update the CRD: strata crd | kubectl apply -f -"
                );
                *self.unknown_refused_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.clock.instant());
                let poorer = self.status(observed, plan, outcomes);
                if observed.subject.object().status.as_ref() != Some(&poorer) {
                    self.patch_status(key, observed, &poorer).await?;
                }
                Ok(poorer)
            }
            result => result.map(|()| after),
        }
    }

    async fn patch_status(&self, key: &Key, observed: &Observed, after: &PerformerStatus) -> Result<(), Error> {
        let before = observed.subject.object().status.clone().unwrap_or_default();
        observed.subject.report(&self.performers, key, &before, after).await
    }
}

/// Whether the server refused a status because of its phase.
fn is_about_phase(error: &Error) -> bool {
    let causes = error.status().and_then(|status| status.details.as_ref()).map(|details| details.causes.as_slice());
    causes.is_some_and(|causes| causes.iter().any(|cause| cause.field == "status.phase"))
}

/// Whose object a key names; a cache that is not filled yet says nothing about it.
fn slot<W: View, T: Clone + Send + Sync + 'static>(
    kind: &Kind<W, T>,
    key: &Key,
    sort: impl FnOnce(Option<T>) -> Slot<T>,
) -> Slot<T> {
    if kind.store().is_synced() { sort(kind.get(key).map(|found| found.value.clone())) } else { Slot::Unknown }
}

/// Sorts a result into what the report must know and what ends the round.
fn executed(action: &Action, result: Result<(), Error>) -> Executed<Outcome> {
    let error = match result {
        Ok(()) => return Executed { outcome: Outcome::Done, error: None },
        Err(error) => error,
    };
    // The Performer itself is gone; so there is nothing left to hold.
    if matches!(action, Action::ReleaseFinalizer { .. }) && error.is_not_found() {
        return Executed { outcome: Outcome::Done, error: None };
    }
    let makes = matches!(action, Action::CreatePod(_) | Action::CreateService(_) | Action::RepairService { .. });
    let outcome = match error.status() {
        Some(_) if error.is_namespace_terminating() => Outcome::NamespaceTerminating,
        // Whose it is, the refreshed cache tells the next round.
        Some(_) if error.is_already_exists() => Outcome::Failed,
        Some(status) if makes && matches!(status.code, 400 | 403 | 422) => {
            Outcome::Rejected { message: status.message.clone() }
        }
        Some(status) if status.code == 429 || status.code >= 500 => Outcome::Unable { message: status.message.clone() },
        None if let Error::TimedOut { limit, .. } = &error => {
            Outcome::Unable { message: format!("no answer within {limit:?}; see whether an admission webhook hangs") }
        }
        _ => Outcome::Failed,
    };
    Executed { outcome, error: Some(error) }
}
