//! Placement groups: servers of one group run on different hosts.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    refusal::Refusal,
    selector::Labels,
    state::{Base, Call, Outcome, Project, Record, Reply, World, in_table},
};

/// A spread group holds no more.
const MOST_SERVERS: usize = 10;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PlacementGroup {
    base: Base,
}

#[derive(Default, Deserialize)]
struct Input {
    name: Option<String>,
    labels: Option<Labels>,
    r#type: Option<String>,
}

impl PlacementGroup {
    fn servers(project: &Project, id: i64) -> Vec<i64> {
        let members = project.servers.values().filter(|server| server.placement_group == Some(id));
        members.map(|server| server.base.id).collect()
    }

    /// Whether one more server fits.
    pub fn check(project: &Project, id: i64) -> Result<(), Refusal> {
        Self::find(project, id).map_err(|_| Refusal::invalid("placement_group", "placement group not found"))?;
        if Self::servers(project, id).len() >= MOST_SERVERS {
            let message = format!("placement group is full: it can hold {MOST_SERVERS} servers");
            return Err(Refusal::conflict("placement_error", message));
        }
        Ok(())
    }
}

impl Record for PlacementGroup {
    in_table!("placement_groups", "placement_group", placement_groups);

    fn view(&self, project: &Project) -> Value {
        self.base.view(json!({ "servers": Self::servers(project, self.base.id), "type": "spread" }))
    }

    fn create(world: &mut World<'_>, call: &Call) -> Outcome {
        let input: Input = call.read()?;
        let name = world.name::<Self>(input.name, None)?;
        if input.r#type.as_deref() != Some("spread") {
            return Err(Refusal::invalid("type", "must be spread"));
        }
        let group = Self { base: world.base(name, input.labels)? };
        let view = group.view(world.project);
        world.project.placement_groups.insert(group.base.id, group);
        Ok(Reply::created(json!({ "placement_group": view, "action": null })))
    }

    fn delete(world: &mut World<'_>, id: i64) -> Outcome {
        // Its servers stay where they are.
        for server in world.project.servers.values_mut().filter(|server| server.placement_group == Some(id)) {
            server.placement_group = None;
        }
        world.project.placement_groups.remove(&id);
        Ok(Reply::empty())
    }

    fn act(_: &mut World<'_>, _: &Call, _: i64, _: &str) -> Outcome {
        Err(Refusal::no_route())
    }
}
