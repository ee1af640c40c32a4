//! KWOK's configuration: which nodes it plays, and one stage per thing that can happen to a node or pod.

use serde_json::{Value, json};

use super::{AGENT_NODE_LABEL, BEHAVIOUR_ANNOTATION, Behaviour, NODE_LABEL};

/// Whether, after the selector of a stage, one of `values` must or must not come out of `key`.
struct Rule {
    key: String,
    operator: &'static str,
    values: Vec<&'static str>,
}

fn is_in(key: impl Into<String>, values: &[&'static str]) -> Rule {
    Rule { key: key.into(), operator: "In", values: values.to_vec() }
}

fn not_in(key: impl Into<String>, values: &[&'static str]) -> Rule {
    Rule { key: key.into(), operator: "NotIn", values: values.to_vec() }
}

const DELETED_AT: &str = ".metadata.deletionTimestamp";
const GRACE: &str = ".metadata.deletionGracePeriodSeconds";
const PHASE: &str = ".status.phase";
const WAITING_REASON: &str = ".status.containerStatuses[0].state.waiting.reason";
/// `Running/True/running`: phase, readiness and the state of the first container.
const STATE: &str = r#"[.status.phase,
  ([.status.conditions[]? | select(.type == "Ready") | .status][0] // "none"),
  ((.status.containerStatuses[0].state // {}) | keys[0] // "none")] | join("/")"#;
const ENDED: [&str; 2] = ["Failed", "Succeeded"];

/// The annotation, else the last part of the image's name, without tag and digest.
fn behaviour() -> String {
    format!(
        r#".metadata.annotations["{BEHAVIOUR_ANNOTATION}"]
  // (.spec.containers[0].image | split("@")[0] | split("/") | last | split(":")[0])"#
    )
}

fn behaves(behaviours: &[Behaviour]) -> Rule {
    let names: Vec<_> = behaviours.iter().map(|behaviour| behaviour.as_str()).collect();
    is_in(behaviour(), &names)
}

fn behaves_otherwise(behaviours: &[Behaviour]) -> Rule {
    Rule { operator: "NotIn", ..behaves(behaviours) }
}

/// Whose nodes a KWOK plays pods for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Played {
    /// Those with [`NODE_LABEL`], and the nodes themselves.
    Nodes,
    /// Those with [`AGENT_NODE_LABEL`], which agents keep.
    AgentNodes,
}

/// The whole configuration file: several documents, each JSON, which is YAML.
pub(crate) fn configuration(played: Played) -> String {
    let node = match played {
        Played::Nodes => node_initialise(),
        Played::AgentNodes => node_never(),
    };
    let mut documents = vec![options(played), node];
    documents.extend(pod_stages());
    documents.into_iter().fold(String::new(), |text, document| text + "---\n" + &document.to_string() + "\n")
}

fn options(played: Played) -> Value {
    // The ranges are apart from each other and from the Services', and wide enough for every pod to have an address of
    // its own. A Lease of 40 s is a kubelet's: the controller-manager gives up on a node after 50 s without. With Leases
    // on, KWOK plays only pods of nodes whose Lease it holds, and an agent's node has the agent's.
    let (selector, cidr, lease_seconds) = match played {
        Played::Nodes => (format!("{NODE_LABEL}=true"), "10.128.0.1/9", 40),
        Played::AgentNodes => (AGENT_NODE_LABEL.to_owned(), "10.0.0.1/10", 0),
    };
    json!({
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": {
            "manageAllNodes": false,
            "manageNodesWithLabelSelector": selector,
            "cidr": cidr,
            "nodeIP": "10.127.0.1",
            "nodeLeaseDurationSeconds": lease_seconds,
            // Thousands of pods start together; each step is one request that mostly waits.
            "podPlayStageParallelism": 16,
            // KWOK's own, which a configuration file must repeat.
            "nodePlayStageParallelism": 4,
            "nodeLeaseParallelism": 4,
            "podsOnNodeSyncParallelism": 4,
        },
    })
}

fn stage(kind: &str, name: &str, rules: Vec<Rule>, delay_ms: u64, next: &Value) -> Value {
    let rules: Vec<_> = rules.into_iter().map(Rule::into_json).collect();
    json!({
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": { "name": name },
        "spec": {
            "resourceRef": { "apiGroup": "v1", "kind": kind },
            "selector": { "matchExpressions": rules },
            "delay": { "durationMilliseconds": delay_ms },
            "next": next,
        },
    })
}

impl Rule {
    fn into_json(self) -> Value {
        if self.values.is_empty() {
            return json!({ "key": self.key, "operator": self.operator });
        }
        json!({ "key": self.key, "operator": self.operator, "values": self.values })
    }
}

fn node_initialise() -> Value {
    let ready = r#".status.conditions[]? | select(.type == "Ready") | .status"#;
    let template = r#"
phase: Running
addresses:
- { type: InternalIP, address: {{ NodeIP | Quote }} }
- { type: Hostname, address: {{ .metadata.name | Quote }} }
conditions:
{{ range NodeConditions }}
- type: {{ .type | Quote }}
  status: {{ .status | Quote }}
  reason: {{ .reason | Quote }}
  message: {{ .message | Quote }}
  lastHeartbeatTime: {{ Now | Quote }}
  lastTransitionTime: {{ Now | Quote }}
{{ end }}
nodeInfo:
  architecture: amd64
  bootID: ""
  containerRuntimeVersion: kwok
  kernelVersion: kwok
  kubeProxyVersion: ""
  kubeletVersion: v0.0.0-kwok
  machineID: ""
  operatingSystem: linux
  osImage: kwok
  systemUUID: ""
"#;
    stage("Node", "node-initialise", vec![not_in(ready, &["True"])], 0, &json!({ "statusTemplate": template }))
}

/// Without any stage for nodes KWOK plays no pod: this one never matches.
fn node_never() -> Value {
    let nameless = Rule { key: ".metadata.name".to_owned(), operator: "DoesNotExist", values: vec![] };
    stage("Node", "node-never", vec![nameless], 0, &json!({}))
}

fn pod_stages() -> Vec<Value> {
    let is_deleted = Rule { key: DELETED_AT.to_owned(), operator: "Exists", values: vec![] };
    let is_released = behaves_otherwise(&[Behaviour::HeldDeletion]);
    // KWOK's own deletion shows first as a grace period of nothing. It deletes by name: a second time it would meet the
    // next pod of that name.
    let is_waiting = not_in(format!("{GRACE} | tostring"), &["0"]);
    let delete = stage("Pod", "pod-delete", vec![is_deleted, is_released, is_waiting], 0, &json!({ "delete": true }));
    [running_stages(), image_stages(), ended_stages(), vec![delete]].concat()
}

fn running_stages() -> Vec<Value> {
    use Behaviour::{
        CrashLoop, Failed, ImageNameInvalid, ImageNeverPulled, ImagePullFailed, NotReady, SlowStart, Succeeded,
    };
    let others =
        [ImagePullFailed, ImageNameInvalid, ImageNeverPulled, CrashLoop, NotReady, SlowStart, Failed, Succeeded];
    let crash_loop = || behaves(&[CrashLoop]);
    let back_off = ["CrashLoopBackOff"];
    let ready = vec![behaves_otherwise(&others), not_in(STATE, &["Running/True/running"])];
    let not_ready = vec![behaves(&[NotReady, SlowStart]), not_in(STATE, &["Running/False/running"])];
    vec![
        pod("ready", ready, 0, &running(true)),
        pod("not-ready", not_ready, 0, &running(false)),
        pod("crash", vec![crash_loop(), not_in(WAITING_REASON, &back_off)], 300, &crashed()),
        pod("crash-restart", vec![crash_loop(), is_in(WAITING_REASON, &back_off)], 3000, &running(false)),
    ]
}

fn image_stages() -> Vec<Value> {
    use Behaviour::{ImageNameInvalid, ImageNeverPulled, ImagePullFailed};
    let failure = |behaviour: Behaviour, reasons: &[&'static str]| {
        let rules = vec![behaves(&[behaviour]), not_in(WAITING_REASON, reasons)];
        pod(behaviour.as_str(), rules, 0, &waiting(reasons[0]))
    };
    let back_off = vec![behaves(&[ImagePullFailed]), is_in(WAITING_REASON, &["ErrImagePull"])];
    vec![
        failure(ImagePullFailed, &["ErrImagePull", "ImagePullBackOff"]),
        pod("image-pull-back-off", back_off, 500, &waiting("ImagePullBackOff")),
        failure(ImageNameInvalid, &["InvalidImageName"]),
        failure(ImageNeverPulled, &["ErrImageNeverPull"]),
    ]
}

fn ended_stages() -> Vec<Value> {
    vec![
        pod("failed", vec![behaves(&[Behaviour::Failed])], 0, &ended("Failed", "Error", 1)),
        pod("succeeded", vec![behaves(&[Behaviour::Succeeded])], 0, &ended("Succeeded", "Completed", 0)),
    ]
}

/// A stage of a pod that is neither ended nor being deleted.
fn pod(name: &str, mut rules: Vec<Rule>, delay_ms: u64, template: &str) -> Value {
    rules.push(Rule { key: DELETED_AT.to_owned(), operator: "DoesNotExist", values: vec![] });
    rules.push(not_in(PHASE, &ENDED));
    stage("Pod", &format!("pod-{name}"), rules, delay_ms, &json!({ "statusTemplate": template }))
}

fn running(is_ready: bool) -> String {
    let state = "{ running: { startedAt: {{ Now | Quote }} } }";
    status("Running", is_ready, &containers(is_ready, "{{ $restarts }}", state, "{{ $last }}"))
}

fn waiting(reason: &str) -> String {
    let state = format!("{{ waiting: {{ reason: {reason}, message: simulated }} }}");
    status("Pending", false, &containers(false, "{{ $restarts }}", &state, "{{ $last }}"))
}

fn crashed() -> String {
    let state = "{ waiting: { reason: CrashLoopBackOff, message: simulated } }";
    status("Running", false, &containers(false, "{{ add1 $restarts }}", state, &terminated("Error", 1)))
}

fn ended(phase: &str, reason: &str, exit_code: i32) -> String {
    status(phase, false, &containers(false, "{{ $restarts }}", &terminated(reason, exit_code), "{{ $last }}"))
}

fn terminated(reason: &str, exit_code: i32) -> String {
    format!(
        "{{ terminated: {{ reason: {reason}, exitCode: {exit_code}, \
         startedAt: {{{{ Now | Quote }}}}, finishedAt: {{{{ Now | Quote }}}} }} }}"
    )
}

/// One entry per container; restarts and last state are carried over from the present status.
fn containers(is_ready: bool, restarts: &str, state: &str, last: &str) -> String {
    format!(
        r#"
containerStatuses:
{{{{ $present := .status.containerStatuses }}}}
{{{{ range $container := .spec.containers }}}}
{{{{ $restarts := 0 }}}}
{{{{ $last := "{{}}" }}}}
{{{{ range $present }}}}
{{{{ if eq .name $container.name }}}}
{{{{ $restarts = .restartCount }}}}
{{{{ with .lastState }}}}{{{{ $last = toJson . }}}}{{{{ end }}}}
{{{{ end }}}}
{{{{ end }}}}
- name: {{{{ $container.name | Quote }}}}
  image: {{{{ $container.image | Quote }}}}
  imageID: ""
  ready: {is_ready}
  started: {is_ready}
  restartCount: {restarts}
  state: {state}
  lastState: {last}
{{{{ end }}}}
"#
    )
}

fn status(phase: &str, is_ready: bool, containers: &str) -> String {
    let ready = if is_ready { "True" } else { "False" };
    let reason = if phase == "Succeeded" { "PodCompleted" } else { "ContainersNotReady" };
    let condition = |kind: &str, status: &str| {
        let reason = if status == "True" { "" } else { reason };
        format!(
            "- {{ type: {kind}, status: \"{status}\", reason: \"{reason}\", lastTransitionTime: {{{{ Now | Quote }}}} }}\n"
        )
    };
    let conditions = [
        condition("PodReadyToStartContainers", "True"),
        condition("Initialized", "True"),
        condition("ContainersReady", ready),
        condition("Ready", ready),
    ];
    let start = "startTime: {{ or .status.startTime Now | Quote }}";
    format!("\nphase: {phase}\n{start}\nconditions:\n{}{ADDRESSES}{containers}", conditions.concat())
}

const ADDRESSES: &str = r"
hostIP: {{ NodeIPWith .spec.nodeName | Quote }}
hostIPs:
- ip: {{ NodeIPWith .spec.nodeName | Quote }}
{{ with .status.podIP }}
podIP: {{ . | Quote }}
podIPs:
- ip: {{ . | Quote }}
{{ else }}
{{ $address := PodIPWith .spec.nodeName ( or .spec.hostNetwork false ) .metadata.uid .metadata.name .metadata.namespace }}
podIP: {{ $address | Quote }}
podIPs:
- ip: {{ $address | Quote }}
{{ end }}
";
