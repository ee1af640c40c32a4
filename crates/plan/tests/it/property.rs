//! What holds for every spec and every state of the world.

use std::time::Duration;

use plan::performers::{
    Action, Identity, ImageWriter, Observed, PodFacts, PodPhase, Scheduled, ServiceFacts, Slot, avs_label, pod,
    validate,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::world::{World, at, going, performer};

fn map() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-z]{1,3}", "[a-z]{0,3}", 0..4).prop_map(|m| json!(m))
}

prop_compose! {
    fn spec()(
        address in ".{0,80}", image in "[a-z]{1,3}:[0-9]", version in "[0-9]?", port in 0..65535,
        environment in map(), selector in map(), labels in map(), args in prop::collection::vec("[a-z]{0,3}", 0..3),
        gpus in 0..3, tee in any::<bool>(), kind in "sgx|sev|tdx|x",
    ) -> Value {
        json!({
            "avsAddress": address, "image": image, "version": version,
            "config": { "grpcPort": port, "environment": environment, "args": args },
            "scheduling": { "nodeSelector": selector },
            "hardwareRequirements": {
                "gpuCount": gpus, "teeRequired": tee, "teeType": kind, "customLabels": labels,
            },
        })
    }
}

prop_compose! {
    /// Any pod: ours or not, of any age and kind.
    fn any_pod()(
        owner in prop_oneof![Just(None), Just(Some("stranger")), Just(Some(crate::world::UID))],
        phase in prop_oneof![
            Just(PodPhase::Pending), Just(PodPhase::Running), Just(PodPhase::Failed), Just(PodPhase::Succeeded),
            Just(PodPhase::Unknown),
        ],
        age in 0..10_000_i64, is_ready in any::<bool>(), is_going in any::<bool>(), is_selected in any::<bool>(),
        has_finalizers in any::<bool>(), hash in prop::option::of("[a-f]{4}"), replacements in 0..40_u32,
        is_scheduled in any::<bool>(), is_edited in any::<bool>(),
    ) -> PodFacts {
        PodFacts {
            uid: "pod-0".into(), resource_version: "1".into(), owner_uid: owner.map(Into::into),
            created_at: Some(at(-age)), phase, is_ready, is_selected, has_finalizers, replacements,
            image_writer: if is_edited { ImageWriter::SomeoneElse } else { ImageWriter::Us },
            deletion: is_going.then(|| going(at(0), 0)), input_hash: hash.map(Into::into),
            scheduled: if is_scheduled { Scheduled::Yes(Some(at(-age))) } else { Scheduled::NotYet },
            image: "other:1".into(), ..PodFacts::default()
        }
    }
}

fn is_label_value(text: &str) -> bool {
    let is_edge = |c: char| c.is_ascii_alphanumeric();
    text.len() <= 63
        && text.chars().all(|c| is_edge(c) || "-_.".contains(c))
        && text.starts_with(is_edge) == text.ends_with(is_edge)
        && (text.is_empty() || text.starts_with(is_edge))
}

proptest! {
    #[test]
    fn p07_every_address_gives_a_valid_label(address in ".*") {
        prop_assert!(is_label_value(&avs_label(&address)), "{}", avs_label(&address));
    }

    #[test]
    fn p11_two_builds_are_byte_identical_and_leave_the_spec_alone(spec in spec()) {
        let performer = performer(spec);
        let before = performer.clone();
        let build = || {
            let desired = validate(&performer).unwrap();
            serde_json::to_vec(&pod(&desired, &Identity::of(&performer), 0)).unwrap()
        };
        prop_assert_eq!(build(), build());
        prop_assert_eq!(&performer, &before);
    }

    #[test]
    fn hash_does_not_depend_on_the_order_of_maps(spec in spec()) {
        fn reversed(value: &Value) -> String {
            match value {
                Value::Object(entries) => {
                    let entries: Vec<_> = entries.iter().rev().map(|(k, v)| format!("{}:{}", json!(k), reversed(v))).collect();
                    format!("{{{}}}", entries.join(","))
                }
                other => other.to_string(),
            }
        }
        let mut other = performer(json!({}));
        other.spec = serde_json::from_str(&reversed(&spec)).unwrap();
        let hash = |p: &api::performer::Performer| validate(p).unwrap().hash();
        prop_assert_eq!(hash(&performer(spec)), hash(&other));
    }

    /// From any state to a settled one by actions alone, and then nothing more is planned.
    #[test]
    fn every_world_converges(first in spec(), second in spec(), rounds in 0..6, found in prop::option::of(any_pod())) {
        let mut world = World::new(first);
        world.pod = found;
        for _ in 0..rounds {
            world.step();
        }
        world.performer.spec = serde_json::from_value(second).unwrap();
        world.performer.metadata.generation = Some(2);
        world.settle();
        world.advance(Duration::from_hours(2));
        world.settle();
        prop_assert!(world.plan().steps.is_empty());
        let is_foreign = world.pod.as_ref().is_some_and(|p| p.owner_uid.as_deref() != Some(crate::world::UID));
        if !is_foreign {
            world.start_pod();
            world.settle();
            prop_assert!(world.status().ready);
        }
        world.delete();
        world.settle();
        prop_assert!(!world.has_finalizer());
        prop_assert_eq!(world.pod.is_some(), is_foreign);
    }

    #[test]
    fn strangers_and_unknowns_are_never_touched(
        spec in spec(), found in any_pod(), is_deletion in any::<bool>(), pod_slot in 0..4, service_slot in 0..4,
    ) {
        let mut world = World::new(spec);
        world.performer.metadata.finalizers = Some(vec![api::performer::FINALIZER.to_owned()]);
        if is_deletion {
            world.delete();
        }
        let foreign = || Some("stranger".into());
        let observed = Observed {
            pod: match pod_slot { 0 => Slot::Unknown, 1 => Slot::Absent, 2 => Slot::Foreign { owner_uid: foreign() }, _ => Slot::Ours(found) },
            service: match service_slot {
                0 => Slot::Unknown, 1 => Slot::Absent, 2 => Slot::Foreign { owner_uid: foreign() },
                _ => Slot::Ours(ServiceFacts::default()),
            },
            ..Observed::default()
        };
        let plan = plan::performers::plan(&world.performer, &observed, &world.policy);
        let is_unknown = pod_slot == 0 || service_slot == 0;
        prop_assert!(!is_unknown || plan.steps.is_empty());
        for action in plan.actions() {
            match action {
                Action::DeletePod { .. } => prop_assert!(pod_slot == 3),
                Action::CreatePod(_) => prop_assert!(pod_slot == 1 || pod_slot == 3),
                Action::DeleteService { .. } | Action::RepairService { .. } => prop_assert!(service_slot == 3),
                Action::CreateService(_) => prop_assert!(service_slot == 1),
                Action::AddFinalizer { .. } | Action::ReleaseFinalizer { .. } => {}
            }
        }
    }
}
