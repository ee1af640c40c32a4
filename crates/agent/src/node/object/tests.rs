use std::time::Duration;

use kube::Client;

use super::*;

fn options() -> NodeOptions {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let config = kube::Config::new("https://127.0.0.1:1".parse().unwrap());
    NodeOptions {
        client: Client::try_from(config).unwrap(),
        instance_id: "web01".to_owned(),
        provider_id: "process:///dev-1/web01".to_owned(),
        shard: "dev-1".to_owned(),
        group: "web".to_owned(),
        labels: BTreeMap::from([("TIER".to_owned(), "gold".to_owned())]),
        addresses: ["127.0.0.1".to_owned(), String::new()],
    }
}

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// The Node after all writes, as the API server would have it.
fn carried_out(found: Option<Node>, writes: Vec<Write>) -> Node {
    let mut node = found.map_or(json!({}), |node| serde_json::to_value(node).unwrap());
    for write in writes {
        match write {
            Write::Create(object) => node = serde_json::to_value(object).unwrap(),
            Write::Patch(patch) | Write::Status(patch) => merge(&mut node, &patch),
        }
    }
    serde_json::from_value(node).unwrap()
}

fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, patch) => *into = patch.clone(),
    }
}

#[tokio::test]
async fn a_new_node_has_its_labels_its_id_and_no_taint() {
    let writes = writes(None, &options(), now());
    assert_eq!(writes.len(), 2);
    let node = carried_out(None, writes);
    let labels = node.metadata.labels.as_ref().unwrap();
    for (key, value) in [
        ("kubernetes.io/hostname", "web01"),
        ("nstance.dev/group", "web"),
        ("nstance.dev/shard", "dev-1"),
        ("topology.kubernetes.io/zone", "dev-1"),
        ("TIER", "gold"),
    ] {
        assert_eq!(labels.get(key).map(String::as_str), Some(value), "{key}");
    }
    let spec = node.spec.as_ref().unwrap();
    assert_eq!((spec.provider_id.as_deref(), &spec.taints), (Some("process:///dev-1/web01"), &None));
    let info = node.status.as_ref().unwrap().node_info.as_ref().unwrap();
    assert_eq!(info.kubelet_version, "v1.36.3");
    assert_eq!(super::writes(Some(&node), &options(), now()), [], "planning again yields nothing");
    assert!(super::writes(Some(&node), &options(), now() + Duration::from_secs(299)).is_empty());
    assert_eq!(super::writes(Some(&node), &options(), now() + Duration::from_mins(5)).len(), 1, "a heartbeat");
}

#[tokio::test]
async fn what_others_changed_is_restored_only_where_it_is_ours() {
    let node = carried_out(None, writes(None, &options(), now()));
    let change = |change: fn(&mut Value)| {
        let mut value = serde_json::to_value(&node).unwrap();
        change(&mut value);
        let changed: Node = serde_json::from_value(value).unwrap();
        let later = now() + Duration::from_mins(1);
        let writes = writes(Some(&changed), &options(), later);
        let count = writes.len();
        let after = carried_out(Some(changed), writes);
        assert_eq!(super::writes(Some(&after), &options(), later), []);
        (count, after)
    };
    let (count, after) = change(|node| node["metadata"]["labels"]["mine"] = json!("x"));
    assert_eq!((count, after.metadata.labels.unwrap().contains_key("mine")), (0, true));
    assert_eq!(change(|node| node["spec"]["unschedulable"] = json!(true)).0, 0, "a cordon stays");
    assert_eq!(change(|node| node["metadata"]["labels"]["nstance.dev/shard"] = json!("x")).0, 1);
    assert_eq!(change(|node| node["spec"]["providerID"] = Value::Null).0, 1);
    // The cluster gave up on it for a while.
    let (count, after) = change(|node| node["status"]["conditions"][3]["status"] = json!("Unknown"));
    let ready = condition(&after, "Ready").unwrap();
    assert_eq!((count, &*ready.status), (1, "True"));
    assert_eq!(ready.last_transition_time.as_ref().unwrap().0, now() + Duration::from_mins(1));
    let pressure = condition(&after, "DiskPressure").unwrap();
    assert_eq!(pressure.last_transition_time.as_ref().unwrap().0, now(), "no transition");
}

#[tokio::test]
async fn a_node_of_another_machine_is_foreign() {
    let mut node = carried_out(None, writes(None, &options(), now()));
    assert_eq!(foreign(&node, &options()), None);
    node.spec.as_mut().unwrap().provider_id = Some("aws:///z/i-1".to_owned());
    assert_eq!(foreign(&node, &options()).as_deref(), Some("aws:///z/i-1"));
    node.spec.as_mut().unwrap().provider_id = None;
    assert_eq!(foreign(&node, &options()), None);
}
