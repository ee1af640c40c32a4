//! A tiny model of what surrounds one Performer: enough API server to execute plans and enough
//! kubelet to move a pod along.

use std::{cell::RefCell, collections::BTreeMap, time::Duration};

use api::performer::{
    FINALIZER, GENERATION_ANNOTATION, IMAGE_ANNOTATION, INPUT_HASH_ANNOTATION, LABEL_PERFORMER, Performer,
    PerformerStatus, REPLACEMENTS_ANNOTATION, VERSION_ANNOTATION,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use plan::Clocks;
use plan::event::Event;
use plan::fact::Class;
use plan::performers::{
    Action, Ages, Created, Deletion, Note, Observed, PodFacts, PodPhase, Policy, PortFacts, Scheduled, ServiceFacts,
    ServiceType, Slot, TargetPort, report,
};
use plan::round::{Inputs, Plan, Progress, Refusal, Report, Round};
use serde_json::{Value, json};

pub const UID: &str = "uid-of-the-performer";

pub fn performer(spec: Value) -> Performer {
    serde_json::from_value(json!({
        "metadata": { "name": "p", "namespace": "ns", "uid": UID, "generation": 1, "resourceVersion": "7" },
        "spec": spec,
    }))
    .unwrap()
}

pub fn basic() -> Value {
    json!({ "avsAddress": "0xAB", "image": "repo:1", "version": "1" })
}

/// `spec` with `change` merged in.
pub fn with(mut spec: Value, change: Value) -> Value {
    merge(&mut spec, change);
    spec
}

fn merge(target: &mut Value, change: Value) {
    match change {
        Value::Object(entries) if target.is_object() => {
            for (key, value) in entries {
                merge(&mut target[key.as_str()], value);
            }
        }
        change => *target = change,
    }
}

pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

pub type Attempt = Progress<Created>;

pub fn done() -> Attempt {
    Progress::Done(None)
}

pub fn rejected(message: impl Into<String>) -> Attempt {
    Progress::Refused(Refusal::Rejected(message.into()))
}

pub fn failed() -> Attempt {
    Progress::Failed { class: Class::Conflict, retry: None, message: "it changed".to_owned() }
}

/// As when a webhook cannot be reached.
pub fn unable(message: impl Into<String>) -> Attempt {
    Progress::Failed { class: Class::Transient, retry: None, message: message.into() }
}

/// A deletion that was asked for then, with this grace period.
pub fn going(asked_at: Timestamp, seconds: u64) -> Deletion {
    let grace = Duration::from_secs(seconds);
    Deletion { at: asked_at.checked_add(grace).unwrap(), grace }
}

pub struct World {
    pub performer: Performer,
    pub pod: Option<PodFacts>,
    pub service: Option<ServiceFacts>,
    pub built: Option<Pod>,
    /// By the API server's clock.
    pub now: Timestamp,
    /// How far the operator's wall clock is ahead of it.
    pub skew: SignedDuration,
    /// Whether the operator knows the server's time.
    pub is_time_known: bool,
    uptime: Duration,
    ages: RefCell<Ages>,
    pub policy: Policy,
    pub replacements: u32,
    pub is_performer_read: bool,
    /// Every status that differed from the one before, in order.
    pub written: Vec<PerformerStatus>,
    pub events: Vec<Event>,
    /// What the API server answers to the creation of a pod.
    pub pod_creation: Attempt,
    /// … and to the creation or repair of a Service.
    pub service_write: Attempt,
    /// … and to deletions and changes of finalizers.
    pub other_write: Attempt,
    uids: u32,
}

impl World {
    pub fn new(spec: Value) -> Self {
        Self {
            performer: performer(spec),
            pod: None,
            service: None,
            built: None,
            now: at(0),
            skew: SignedDuration::ZERO,
            is_time_known: true,
            uptime: Duration::ZERO,
            ages: RefCell::default(),
            policy: Policy::default(),
            replacements: 0,
            is_performer_read: false,
            written: Vec::new(),
            events: Vec::new(),
            pod_creation: done(),
            service_write: done(),
            other_write: done(),
            uids: 0,
        }
    }

    /// A world in which the Performer runs and is ready.
    pub fn running(spec: Value) -> Self {
        let mut world = Self::new(spec);
        world.settle();
        world.start_pod();
        world.settle();
        assert!(world.status().ready);
        world.written.clear();
        world.events.clear();
        world
    }

    pub fn status(&self) -> PerformerStatus {
        self.performer.status.clone().unwrap_or_default()
    }

    pub fn edit(&mut self, change: Value) {
        let spec = serde_json::to_value(&self.performer.spec).unwrap();
        self.performer.spec = serde_json::from_value(with(spec, change)).unwrap();
        *self.performer.metadata.generation.as_mut().unwrap() += 1;
    }

    pub fn delete(&mut self) {
        self.performer.metadata.deletion_timestamp = Some(Time(self.now));
    }

    pub fn has_finalizer(&self) -> bool {
        self.performer.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER)
    }

    pub fn advance(&mut self, by: Duration) {
        self.uptime += by;
        self.now = self.now.checked_add(SignedDuration::try_from(by).unwrap()).unwrap();
    }

    /// Another process goes on: it has seen nothing yet.
    pub fn restart(&mut self) {
        self.uptime = Duration::ZERO;
        self.ages.take();
        self.replacements = 0;
    }

    /// The operator's wall clock.
    fn wall(&self) -> Timestamp {
        self.now.checked_add(self.skew).unwrap()
    }

    pub fn observed(&self) -> Observed {
        let pod = Slot::of_pod(self.pod.clone(), UID);
        let service = Slot::of_service(self.service.clone(), UID);
        let clocks = Clocks { server: self.is_time_known.then_some(self.now), uptime: self.uptime };
        let ages = Ages::of(&pod, &service, &self.ages.borrow(), clocks);
        self.ages.replace(ages.clone());
        Observed { pod, service, ages, is_performer_read: self.is_performer_read, replacements: self.replacements }
    }

    /// Plans, and plans the same from what a file holds of the input.
    #[track_caller]
    pub fn plan(&self) -> Plan<Action> {
        let observed = self.observed();
        let planned = plan::performers::plan(&self.performer, &observed, &self.policy);
        let file = serde_json::to_string(&(&self.performer, &observed)).unwrap();
        let (performer, observed): (Performer, Observed) = serde_json::from_str(&file).unwrap();
        assert_eq!(
            plan::performers::plan(&performer, &observed, &self.policy),
            planned,
            "from a file it plans the same"
        );
        planned
    }

    /// One round as the operator runs it; returns the plan.
    pub fn round(&mut self) -> Plan<Action> {
        let observed = self.observed();
        let plan = self.plan();
        let mut progress: Vec<_> = plan.steps.iter().map(|_| Progress::NotBegun).collect();
        for (at, step) in plan.steps.iter().enumerate() {
            if step.announced {
                self.announce();
            }
            let is_due = step.needs.iter().all(|need| progress[need.index()].is_done());
            progress[at] = if is_due { self.execute(&step.action) } else { Progress::Skipped };
        }
        let report = self.report(&observed, &plan, &progress);
        assert_eq!(report.note.replacements, self.replacements);
        self.ages.replace(report.note.ages.clone());
        self.events.extend(report.done.iter().cloned());
        self.store(report);
        plan
    }

    /// A round that ends when its first step has been announced.
    pub fn announce(&mut self) {
        let announcement = self.report(&self.observed(), &self.plan(), &[Progress::Begun]);
        self.store(announcement);
    }

    /// A round whose plan is of no interest.
    pub fn step(&mut self) {
        let _ = self.round();
    }

    pub fn report(
        &self,
        observed: &Observed,
        plan: &Plan<Action>,
        progress: &[Attempt],
    ) -> Report<PerformerStatus, Note> {
        let inputs = Inputs {
            note: Note { replacements: self.replacements, ages: self.ages.borrow().clone() },
            ..Inputs::default()
        };
        let round = Round { object: &self.performer, observed, inputs: &inputs, plan, progress };
        report(&round, self.wall(), &self.policy)
    }

    fn store(&mut self, report: Report<PerformerStatus, Note>) {
        self.events.extend(report.transitions);
        if report.status != self.status() {
            self.written.push(report.status.clone());
            self.performer.status = Some(report.status);
        }
    }

    /// Rounds until one neither acts nor reports nor asks to come back at once. Going pods are gone
    /// between two rounds.
    pub fn settle(&mut self) {
        for _ in 0..20 {
            let before = self.performer.status.clone();
            let plan = self.round();
            let is_going = self.pod.as_ref().is_some_and(|p| p.deletion.is_some());
            self.pod = self.pod.take().filter(|p| p.deletion.is_none());
            let is_called = plan.next_look == Some(Duration::ZERO);
            if plan.steps.is_empty() && before == self.performer.status && !is_called && !is_going {
                return;
            }
        }
        panic!("not settled after 20 rounds");
    }

    fn execute(&mut self, action: &Action) -> Attempt {
        match action {
            Action::AddFinalizer { .. }
            | Action::ReleaseFinalizer { .. }
            | Action::DeletePod { .. }
            | Action::DeleteService { .. }
                if self.other_write != done() =>
            {
                return self.other_write.clone();
            }
            Action::AddFinalizer { finalizers, .. } | Action::ReleaseFinalizer { finalizers, .. } => {
                self.performer.metadata.finalizers = Some(finalizers.clone());
            }
            Action::CreatePod(pod) => {
                assert!(self.has_finalizer(), "a pod before the finalizer");
                assert!(self.pod.is_none(), "a second pod under one name");
                if self.pod_creation != done() {
                    return self.pod_creation.clone();
                }
                self.uids += 1;
                let uid = format!("pod-{}", self.uids);
                self.pod = Some(pod_facts(pod, &uid, self.now));
                self.built = Some((**pod).clone());
                self.replacements = 0;
                return Progress::Done(Some(uid.into()));
            }
            Action::DeletePod { uid, replacements, .. } => {
                let pod = self.pod.as_mut().unwrap();
                assert_eq!(pod.uid, *uid);
                assert_eq!(pod.owner_uid.as_deref(), Some(UID), "a foreign pod deleted");
                assert!(pod.deletion.is_none(), "a dying pod deleted again");
                self.replacements = *replacements;
                let has_ended = matches!(pod.phase, PodPhase::Failed | PodPhase::Succeeded);
                pod.deletion = Some(Deletion { at: self.now, grace: Duration::ZERO });
                self.pod = self.pod.take().filter(|p| !has_ended || p.has_finalizers);
            }
            Action::CreateService(service) => {
                assert!(self.service.is_none());
                if self.service_write != done() {
                    return self.service_write.clone();
                }
                self.service = Some(service_facts(service));
            }
            Action::RepairService { .. } if self.service_write != done() => return self.service_write.clone(),
            Action::RepairService { patch } => apply_patch(self.service.as_mut().unwrap(), patch),
            Action::DeleteService { .. } => {
                let owner = self.service.take().unwrap().owner_uid;
                assert_eq!(owner.as_deref(), Some(UID), "a foreign Service deleted");
            }
        }
        done()
    }

    pub fn pod_mut(&mut self) -> &mut PodFacts {
        self.pod.as_mut().unwrap()
    }

    /// Scheduler and kubelet: the pod gets a node, starts, becomes ready.
    pub fn start_pod(&mut self) {
        let now = self.now;
        let pod = self.pod_mut();
        pod.scheduled = Scheduled::Yes(Some(now));
        pod.phase = PodPhase::Running;
        pod.waiting = None;
        self.set_ready(true);
    }

    pub fn set_ready(&mut self, is_ready: bool) {
        let now = self.now;
        let pod = self.pod_mut();
        pod.is_ready = is_ready;
        pod.ready_changed_at = Some(now);
    }

    pub fn end_pod(&mut self, phase: PodPhase) {
        self.set_ready(false);
        self.pod_mut().phase = phase;
    }
}

pub fn pod_facts(pod: &Pod, uid: &str, now: Timestamp) -> PodFacts {
    let meta = &pod.metadata;
    let annotation = |name: &str| meta.annotations.as_ref()?.get(name).map(|v| v.as_str().into());
    let image: Box<str> = pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap().into();
    let owner = &meta.owner_references.as_ref().unwrap()[0];
    PodFacts {
        uid: uid.into(),
        resource_version: "1".into(),
        owner_uid: Some(owner.uid.as_str().into()),
        created_at: Some(now),
        asked_image: annotation(IMAGE_ANNOTATION).filter(|asked| *asked != image),
        image,
        input_hash: annotation(INPUT_HASH_ANNOTATION),
        version: annotation(VERSION_ANNOTATION),
        made_for: annotation(GENERATION_ANNOTATION).map(|n: Box<str>| n.parse().unwrap()),
        replacements: annotation(REPLACEMENTS_ANNOTATION).map_or(0, |n: Box<str>| n.parse().unwrap()),
        is_selected: meta.labels.as_ref().unwrap()[LABEL_PERFORMER] == owner.name,
        ..PodFacts::default()
    }
}

pub fn service_facts(service: &Service) -> ServiceFacts {
    let spec = service.spec.as_ref().unwrap();
    let ports = spec.ports.iter().flatten().map(|p| PortFacts {
        name: p.name.clone().unwrap().into(),
        port: p.port,
        target: match p.target_port.as_ref().unwrap() {
            IntOrString::Int(number) => TargetPort::Number(*number),
            IntOrString::String(name) => TargetPort::Name(name.as_str().into()),
        },
        is_tcp: p.protocol.as_deref() == Some("TCP"),
    });
    let selector = spec.selector.iter().flatten();
    ServiceFacts {
        uid: "service-1".into(),
        resource_version: "1".into(),
        owner_uid: Some(service.metadata.owner_references.as_ref().unwrap()[0].uid.as_str().into()),
        deletion: None,
        service_type: ServiceType::read(spec.type_.as_deref()),
        selector: selector.map(|(k, v)| (k.as_str().into(), v.as_str().into())).collect(),
        ports: ports.collect(),
    }
}

/// What the API server makes of our merge patch: nulls remove, lists replace.
fn apply_patch(service: &mut ServiceFacts, patch: &Value) {
    assert_eq!(patch["metadata"]["uid"], json!(service.uid));
    assert_eq!(patch["metadata"]["resourceVersion"], json!(service.resource_version));
    let mut selector: BTreeMap<Box<str>, Box<str>> = std::mem::take(&mut service.selector).into_iter().collect();
    for (key, value) in patch["spec"]["selector"].as_object().unwrap() {
        match value.as_str() {
            Some(text) => drop(selector.insert(key.as_str().into(), text.into())),
            None => drop(selector.remove(key.as_str())),
        }
    }
    service.selector = selector.into_iter().collect();
    service.service_type = ServiceType::read(patch["spec"]["type"].as_str());
    let ports = patch["spec"]["ports"].as_array().unwrap().iter();
    service.ports = ports
        .map(|p| PortFacts {
            name: p["name"].as_str().unwrap().into(),
            port: i32::try_from(p["port"].as_i64().unwrap()).unwrap(),
            target: TargetPort::Name(p["targetPort"].as_str().unwrap().into()),
            is_tcp: p["protocol"] == "TCP",
        })
        .collect();
}
