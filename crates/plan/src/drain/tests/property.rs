//! Whole drains of random nodes, against a server that judges evictions as the real one does.

use std::collections::BTreeSet;

use proptest::{collection::vec, prelude::*};

use super::*;

#[derive(Clone, Debug)]
struct World {
    pods: Vec<Pod>,
    budgets: Vec<Budget>,
    /// Ready pods of the same label on other nodes.
    elsewhere: BTreeMap<String, i32>,
}

fn any_pod() -> impl Strategy<Value = Pod> {
    let owner = prop_oneof![4 => Just(Owner::Other), 1 => Just(Owner::DaemonSet), 1 => Just(Owner::Nothing)];
    let phase = prop_oneof![6 => Just(Phase::Running), 1 => Just(Phase::Pending), 1 => Just(Phase::Completed)];
    let priority = prop_oneof![4 => 0..10, 1 => Just(2_000_000_000), 1 => Just(2_000_001_000)];
    let label = prop_oneof![8 => Just(""), 1 => Just("skip")];
    (owner, phase, priority, label, 0..3_usize, any::<bool>(), -5..8_i64).prop_map(
        |(owner, phase, priority, label, app, is_ready, bound)| {
            let mut labels = Labels::from([("app".to_owned(), ["a", "b", "c"][app].to_owned())]);
            if !label.is_empty() {
                labels.insert(POD_LABEL.to_owned(), label.to_owned());
            }
            Pod { owner, phase, priority, labels, is_ready, bound_at: Some(at(bound)), ..pod("x") }
        },
    )
}

fn any_world() -> impl Strategy<Value = World> {
    let wanted = (0..3_usize, 1..4_i32);
    (vec(any_pod(), 0..12), vec(wanted, 0..3), 0..5_i32).prop_map(|(mut pods, wanted, spare)| {
        for (number, pod) in pods.iter_mut().enumerate() {
            pod.name.name = format!("pod-{number:02}");
            pod.uid = format!("uid-{number}");
        }
        let mut apps = BTreeSet::new();
        let mut budgets = Vec::new();
        for (app, desired) in wanted.into_iter().filter(|(app, _)| apps.insert(*app)) {
            let app = ["a", "b", "c"][app];
            let selector = serde_json::from_value(json!({"matchLabels": {"app": app}})).unwrap();
            budgets.push(Budget { selector, desired, ..budget(app, 0) });
        }
        let elsewhere = ["a", "b", "c"].map(|app| (app.to_owned(), spare)).into();
        World { pods, budgets, elsewhere }
    })
}

impl World {
    /// As the disruption controller counts.
    fn observed(&self) -> Observed {
        let mut budgets = self.budgets.clone();
        for budget in &mut budgets {
            let app = &budget.name.name;
            let is_healthy = |pod: &&Pod| {
                pod.labels["app"] == *app && pod.is_ready && pod.phase == Phase::Running && pod.ends_at.is_none()
            };
            let here = i32::try_from(self.pods.iter().filter(is_healthy).count()).unwrap();
            budget.healthy = here + self.elsewhere[app];
            budget.allowed = (budget.healthy - budget.desired).max(0);
        }
        observed(self.pods.clone(), budgets)
    }

    /// The server accepts what was planned; the kubelet ends one pod, and its controller replaces it elsewhere.
    fn apply(&mut self, plan: &Plan) {
        for eviction in &plan.evictions {
            let pod = self.pods.iter_mut().find(|pod| pod.uid == eviction.uid).unwrap();
            pod.ends_at = Some(at(100));
        }
        if let Some(place) = self.pods.iter().position(|pod| pod.ends_at.is_some()) {
            let gone = self.pods.remove(place);
            *self.elsewhere.get_mut(&gone.labels["app"]).unwrap() += i32::from(gone.owner == Owner::Other);
        }
    }
}

proptest! {
    #[test]
    fn every_pod_that_goes_is_asked_once_in_its_tier_and_within_its_budget(world in any_world()) {
        let mut world = world;
        let mut asked = BTreeSet::new();
        // Each turn ends a pod or the drain.
        for turn in 0.. {
            prop_assert!(turn < 40, "it does not end: {world:?}");
            let observed = world.observed();
            let plan = planned(&observed);
            if plan.end == Some(End::Drained) {
                prop_assert!(plan.left().next().is_none());
                break;
            }
            if plan.evictions.is_empty() && world.pods.iter().all(|pod| pod.ends_at.is_none()) {
                // Only a budget that the pods elsewhere do not satisfy holds a drain for ever.
                prop_assert!(plan.blocked().is_some(), "{plan:?}");
                return Ok(());
            }
            let mut order: Vec<i32> = Vec::new();
            for eviction in &plan.evictions {
                prop_assert!(asked.insert(eviction.uid.clone()), "asked twice: {eviction:?}");
                let pod = world.pods.iter().find(|pod| pod.uid == eviction.uid).unwrap();
                let stays = pod.owner == Owner::DaemonSet || pod.phase == Phase::Completed
                    || pod.bound_at > Some(at(2)) || pod.labels.contains_key(POD_LABEL);
                prop_assert!(!stays, "{pod:?}");
                order.push(pod.priority / 1000);
            }
            order.dedup();
            prop_assert!(order.iter().filter(|class| **class >= 2_000_000).count() + usize::from(order.contains(&0)) <= 1);
            for budget in observed.budgets.known().unwrap() {
                let spends = |eviction: &&Eviction| eviction.spends.as_ref().is_some_and(|it| it.budget == budget.name);
                let spent = plan.evictions.iter().filter(spends).count();
                prop_assert!(spent <= usize::try_from(budget.allowed).unwrap());
            }
            // What was sent and has no answer yet is not sent again.
            let sent = plan.evictions.iter().map(|eviction| {
                let attempt = Attempt { outcome: Outcome::Sent, wait: Duration::MAX, spends: eviction.spends.clone() };
                (eviction.uid.clone(), attempt)
            });
            let mut spent = observed.clone();
            if let Fact::Known { value, .. } = &mut spent.budgets {
                for budget in value {
                    let spends = |it: &&Eviction| it.spends.as_ref().is_some_and(|it| it.budget == budget.name);
                    budget.spent = u32::try_from(plan.evictions.iter().filter(spends).count()).unwrap();
                }
            }
            prop_assert!(super::plan(&super::order(), &spent, &sent.collect(), None).evictions.is_empty());
            world.apply(&plan);
        }
        let left = world.pods.iter().all(|pod| {
            pod.owner == Owner::DaemonSet || pod.phase == Phase::Completed || pod.bound_at > Some(at(2))
                || pod.labels.contains_key(POD_LABEL)
        });
        prop_assert!(left, "{world:?}");
    }

    #[test]
    fn the_order_of_what_is_observed_changes_nothing(world in any_world(), seed in 0..7_usize) {
        let mut turned = world.clone();
        if !turned.pods.is_empty() {
            let middle = seed % turned.pods.len();
            turned.pods.rotate_left(middle);
        }
        turned.budgets.reverse();
        prop_assert_eq!(planned(&turned.observed()), planned(&world.observed()));
    }
}
