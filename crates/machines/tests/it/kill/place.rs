//! One pool on its way from nothing to nothing.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use testbed::{Random, kwok::Behaviour};

use super::{delete_pod, world::World};
use crate::scene::Scene;

pub const SHARDS: [&str; 2] = ["a", "b"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Create,
    Grow,
    Shrink,
    /// The provider takes an instance away.
    Notice,
    /// A Pod asks for a machine of the group.
    OnDemand,
    /// The Pod goes.
    Release,
    Delete,
}

impl Stage {
    pub const ALL: [Self; 7] =
        [Self::Create, Self::Grow, Self::Shrink, Self::Notice, Self::OnDemand, Self::Release, Self::Delete];

    /// Members at its end.
    pub fn size(self) -> usize {
        match self {
            Self::Grow => 3,
            Self::Delete => 0,
            Self::Create | Self::Shrink | Self::Notice | Self::OnDemand | Self::Release => 2,
        }
    }

    /// Machines that the provider makes for it.
    pub fn makes(self) -> usize {
        match self {
            Self::Create => 2,
            Self::Grow | Self::Notice | Self::OnDemand => 1,
            Self::Shrink | Self::Release | Self::Delete => 0,
        }
    }

    /// About as many as the operator has effects in it, events included: points beyond the last one are counted apart.
    pub fn effects(self) -> u64 {
        match self {
            Self::Create | Self::Delete => 40,
            Self::Notice => 30,
            Self::Grow | Self::Shrink => 20,
            Self::OnDemand | Self::Release => 14,
        }
    }

    /// Whether there are pods on the Nodes meanwhile.
    fn drains(self) -> bool {
        matches!(self, Self::Shrink | Self::Notice | Self::Delete)
    }
}

pub struct Place {
    /// Also the name of the pool.
    pub group: String,
    /// The members before the stage.
    before: BTreeSet<String>,
    /// Every instance there ever was.
    pub ever: BTreeSet<String>,
    /// The instance that its provider takes away.
    pub victim: String,
    /// By the instance whose Node it is on.
    pods: BTreeMap<String, String>,
}

impl Place {
    pub fn new(cycle: usize, number: usize) -> Self {
        // No part of another's: instances have no hyphens, and numbers have their end.
        let group = format!("kill-{cycle}-{number}-pool");
        Self { group, before: BTreeSet::new(), ever: BTreeSet::new(), victim: String::new(), pods: BTreeMap::new() }
    }

    pub fn job(&self) -> String {
        format!("{}-job", self.group)
    }

    pub async fn prepare(&mut self, stage: Stage, scene: &Scene, random: &mut Random) -> Result<()> {
        if stage == Stage::Notice {
            let index = random.below(self.before.len());
            self.victim.clone_from(self.before.iter().nth(index).context("it has members")?);
        }
        self.pods.retain(|instance, _| self.before.contains(instance));
        for instance in self.before.iter().filter(|_| stage.drains()) {
            if self.pods.contains_key(instance) {
                continue;
            }
            let name = format!("{}-{instance}", self.group);
            let pod = json!({
                "metadata": { "name": name },
                "spec": {
                    "nodeName": instance, "terminationGracePeriodSeconds": 1,
                    "tolerations": [{ "operator": "Exists" }],
                    "containers": [{ "name": "main", "image": Behaviour::Ready.image() }],
                },
            });
            scene.api::<Pod>().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
            self.pods.insert(instance.clone(), name);
        }
        Ok(())
    }

    pub async fn trigger(&self, stage: Stage, scene: &Scene) -> Result<()> {
        let group = self.group.as_str();
        match stage {
            Stage::Create => scene.create_pool(group, &SHARDS, Some(2)).await,
            Stage::Grow => scene.scale(group, 3).await,
            Stage::Shrink => scene.scale(group, 2).await,
            Stage::Notice => {
                scene.zones.cloud.give_notice(&self.victim);
                Ok(())
            }
            Stage::OnDemand => self.ask(scene).await,
            Stage::Release => delete_pod(scene, &self.job()).await,
            Stage::Delete => {
                scene.capi("MachinePool").delete(group, &DeleteParams::default()).await?;
                Ok(())
            }
        }
    }

    /// A Pod that fits on no node.
    async fn ask(&self, scene: &Scene) -> Result<()> {
        let pod = json!({
            "metadata": { "name": self.job(), "annotations": { "on-demand.nstance.dev/group": self.group } },
            "spec": {
                "containers": [{ "name": "a", "image": Behaviour::Ready.image() }],
                "nodeSelector": { "strata.test/room": "none" },
                "terminationGracePeriodSeconds": 0,
            },
        });
        scene.api::<Pod>().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        Ok(())
    }

    /// Which instances went and came is what the stage asked for, and no other pod was evicted.
    pub fn check(&mut self, stage: Stage, world: &World) -> Result<()> {
        let after = world.instances_of(&self.group);
        let (before, group) = (&self.before, &self.group);
        let is_right = match stage {
            Stage::Create | Stage::Delete => true,
            Stage::Grow => before.is_subset(&after),
            Stage::Shrink => after.is_subset(before),
            Stage::Notice => {
                before.iter().all(|id| (*id == self.victim) != after.contains(id)) && !after.contains(&self.victim)
            }
            Stage::OnDemand | Stage::Release => *before == after,
        };
        ensure!(is_right, "{group}: {before:?} became {after:?}");
        for (instance, pod) in self.pods.iter().filter(|(instance, _)| after.contains(*instance)) {
            ensure!(world.has_pod(pod), "{group}: pod {pod} of {instance}, which stays, was evicted");
        }
        self.ever.extend(world.all_instances_of(group));
        self.before = after;
        Ok(())
    }
}
