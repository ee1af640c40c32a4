//! Volumes.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    action::Effect,
    catalogue::Location,
    query::Query,
    refusal::Refusal,
    selector::Labels,
    server::Server,
    state::{Base, Call, IdOrName, Outcome, Project, Record, Reply, World, in_table},
};

/// Gigabytes that a volume may have.
const SIZES: std::ops::RangeInclusive<u32> = 10..=10_240;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Volume {
    base: Base,
    size: u32,
    location: String,
    format: Option<String>,
    pub server: Option<i64>,
}

#[derive(Default, Deserialize)]
struct Input {
    name: Option<String>,
    labels: Option<Labels>,
    size: Option<u32>,
    location: Option<IdOrName>,
    format: Option<String>,
    server: Option<i64>,
}

fn size(size: Option<u32>) -> Result<u32, Refusal> {
    let fits = size.filter(|size| SIZES.contains(size));
    fits.ok_or_else(|| Refusal::invalid("size", format!("must be between {} and {}", SIZES.start(), SIZES.end())))
}

/// Volume and server must be at one location.
fn attachable<'a>(project: &'a Project, server: i64, location: Option<&str>) -> Result<&'a Server, Refusal> {
    let found = Server::find(project, server).map_err(|_| Refusal::invalid("server", "server not found"))?;
    if location.is_some_and(|location| found.location != location) {
        return Err(Refusal::invalid("server", "must be in the same location as the volume"));
    }
    Ok(found)
}

impl Record for Volume {
    in_table!("volumes", "volume", volumes);

    fn view(&self, _: &Project) -> Value {
        self.base.view(json!({
            "server": self.server, "status": "available", "size": self.size, "format": self.format,
            "location": Location::named(&self.location).map(Location::view),
            "linux_device": format!("/dev/disk/by-id/scsi-0HC_Volume_{}", self.base.id),
        }))
    }

    fn is_wanted(&self, query: &Query) -> bool {
        query.admits("status", "available")
    }

    fn create(world: &mut World<'_>, call: &Call) -> Outcome {
        let input: Input = call.read()?;
        let name = world.name::<Self>(input.name, None)?;
        let size = size(input.size)?;
        let location = match (&input.server, &input.location) {
            (Some(server), None) => attachable(world.project, *server, None)?.location.clone(),
            (None, Some(IdOrName::Name(name))) if Location::named(name).is_some() => name.clone(),
            (None, Some(IdOrName::Id(id))) if Location::named(&id.to_string()).is_some() => {
                Location::named(&id.to_string()).map(|at| at.name.to_owned()).unwrap_or_default()
            }
            _ => return Err(Refusal::invalid("location", "one of location and server is required")),
        };
        let base = world.base(name, input.labels)?;
        let volume = Self { base, size, location, format: input.format, server: input.server };
        let (id, view) = (volume.base.id, volume.view(world.project));
        world.project.volumes.insert(id, volume);
        let action = world.begin("create_volume", &[("volume", id)], Effect::Nothing);
        let next =
            input.server.map(|to| world.begin("attach_volume", &[("volume", id), ("server", to)], Effect::Nothing));
        Ok(Reply::created(json!({ "volume": view, "action": action, "next_actions": Vec::from_iter(next) })))
    }

    fn delete(world: &mut World<'_>, id: i64) -> Outcome {
        if Self::find(world.project, id)?.server.is_some() {
            return Err(Refusal::conflict("resource_in_use", "volume is still attached to a server"));
        }
        world.project.volumes.remove(&id);
        Ok(Reply::empty())
    }

    fn act(world: &mut World<'_>, call: &Call, id: i64, command: &str) -> Outcome {
        let input: Input = call.read()?;
        let volume = Self::find(world.project, id)?.clone();
        let mut resources = vec![("volume", id)];
        let command = match command {
            "attach" => {
                if volume.server.is_some() {
                    return Err(Refusal::conflict("volume_already_attached", "volume is already attached to a server"));
                }
                let server = input.server.ok_or_else(|| Refusal::invalid("server", "is required"))?;
                attachable(world.project, server, Some(&volume.location))?;
                Self::find_mut(world.project, id)?.server = Some(server);
                resources.push(("server", server));
                "attach_volume"
            }
            "detach" => {
                let detached = Self::find_mut(world.project, id)?.server.take();
                let refused =
                    || Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "service_error", "volume is not attached");
                resources.push(("server", detached.ok_or_else(refused)?));
                "detach_volume"
            }
            "resize" => {
                let size = size(input.size)?;
                if size < volume.size {
                    return Err(Refusal::invalid("size", "must not be smaller than the current size"));
                }
                Self::find_mut(world.project, id)?.size = size;
                "resize_volume"
            }
            _ => return Err(Refusal::no_route()),
        };
        let action = world.begin(command, &resources, Effect::Nothing);
        Ok(Reply::created(json!({ "action": action })))
    }
}
