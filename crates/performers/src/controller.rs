//! Gather and execute for Performers; every decision is in `plan::performers`.

use std::sync::Arc;

use api::performer::{Performer, PerformerStatus};
use jiff::Timestamp;
use plan::{
    fact::Never,
    performers::{self as performer, Action, Ages, Created, Note, Observed, PodFacts, Policy, ServiceFacts, Slot},
    round::{Plan, Report},
};
use runtime::{Controller, Error, InputsOf, Key, Kind, Packed, RoundOf, ServerClock, Turn, View};
use serde_json::json;

use crate::view::{PerformerView, PodView, ServiceView, owned_key};

pub(crate) struct PerformerController {
    pub performers: Arc<Kind<PerformerView, Packed<Performer>>>,
    pub pods: Arc<Kind<PodView, PodFacts>>,
    pub services: Arc<Kind<ServiceView, ServiceFacts>>,
    pub policy: Policy,
    pub server_clock: ServerClock,
}

impl Controller for PerformerController {
    const NAME: &'static str = "performer";
    type View = PerformerView;
    type Object = Performer;
    type Kept = Packed<Performer>;
    type Status = PerformerStatus;
    type Observed = Observed;
    type Action = Action;
    type Done = Created;
    type Note = Note;
    type Ask = Never;
    type Answer = Never;

    fn kind(&self) -> &Arc<Kind<PerformerView, Packed<Performer>>> {
        &self.performers
    }

    fn span(key: &Key) -> tracing::Span {
        tracing::info_span!("round", performer = %key, namespace = %key.namespace)
    }

    async fn gather(&self, key: &Key, performer: &Performer, note: &Note) -> Result<Observed, Error> {
        let owned = owned_key(key);
        self.pods.settle(&owned).await?;
        self.services.settle(&owned).await?;
        let is_newer = |pod: &PodFacts| pod.is_newer_than(performer);
        let is_performer_read = self.pods.get(&owned).is_some_and(|pod| is_newer(&pod.value));
        if is_performer_read {
            self.performers.refresh(key).await?;
            let found = self.performers.store().version(key).map(|version| version.to_string());
            // The next round begins with what was found.
            if found != performer.metadata.resource_version {
                return Err(Error::Outdated);
            }
        }
        let uid = performer.metadata.uid.as_deref().unwrap_or_default();
        let pod = slot(&self.pods, &owned, |pod| Slot::of_pod(pod, uid));
        let service = slot(&self.services, &owned, |service| Slot::of_service(service, uid));
        let ages = Ages::of(&pod, &service, &note.ages, self.server_clock.clocks());
        Ok(Observed { pod, service, ages, is_performer_read, replacements: note.replacements })
    }

    fn plan(&self, performer: &Performer, observed: &Observed, _: &InputsOf<Self>) -> Plan<Action> {
        performer::plan(performer, observed, &self.policy)
    }

    async fn execute(&self, turn: &Turn<'_, Self>, action: &Action) -> Result<Created, Error> {
        let owned = owned_key(turn.key);
        match action {
            Action::AddFinalizer { finalizers } => {
                let patch = json!({ "metadata": { "finalizers": finalizers } });
                turn.subject.patch(&self.performers, turn.key, None, patch).await?;
            }
            Action::ReleaseFinalizer { finalizers } => {
                turn.subject.release_finalizer(&self.performers, turn.key, finalizers).await?;
            }
            Action::CreatePod(pod) => {
                let image = pod.spec.as_ref().and_then(|spec| spec.containers[0].image.as_deref());
                tracing::debug!(podName = %owned.name, image, "creating pod");
                self.pods.create(&owned, pod).await?;
                return Ok(self.pods.get(&owned).map(|pod| pod.value.uid.clone()));
            }
            Action::DeletePod { uid, resource_version, cause, .. } => {
                tracing::debug!(podName = %owned.name, ?cause, "deleting pod");
                self.pods.delete(&owned, uid, resource_version).await?;
            }
            Action::CreateService(service) => {
                let port = service.spec.as_ref().and_then(|spec| spec.ports.as_ref()).map(|ports| ports[0].port);
                tracing::debug!(serviceName = %owned.name, port, "creating service");
                self.services.create(&owned, service).await?;
            }
            Action::RepairService { patch } => {
                tracing::debug!(serviceName = %owned.name, "repairing service");
                self.services.patch(&owned, None, patch).await?;
            }
            Action::DeleteService { uid, resource_version } => {
                tracing::debug!(serviceName = %owned.name, "deleting service");
                self.services.delete(&owned, uid, resource_version).await?;
            }
        }
        Ok(None)
    }

    fn report(&self, round: &RoundOf<'_, Self>, now: Timestamp) -> Report<PerformerStatus, Note> {
        performer::report(round, now, &self.policy)
    }
}

/// Whose object a key names; a cache that is not filled yet says nothing about it.
fn slot<W: View, T: Clone + Send + Sync + 'static>(
    kind: &Kind<W, T>,
    key: &Key,
    sort: impl FnOnce(Option<T>) -> Slot<T>,
) -> Slot<T> {
    if kind.store().is_synced() { sort(kind.get(key).map(|found| found.value.clone())) } else { Slot::Unknown }
}
