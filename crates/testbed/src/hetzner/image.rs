//! Images: the vendor's and a project's snapshots.

use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use super::{
    catalogue::{IMAGES, TEXTS},
    query::Query,
    refusal::Refusal,
    selector::{Labels, Selector, check_labels},
    state::{Base, Call, IdOrName, Outcome, Project, Record, Reply, World, in_table},
};

/// A snapshot; its name is empty, as the vendor's snapshots have none.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Image {
    pub base: Base,
    pub description: String,
    pub architecture: String,
    pub disk: u32,
    pub server: (i64, String),
    pub is_available: bool,
}

/// An image of either sort, as far as a server needs it.
pub(super) struct Found {
    pub id: i64,
    pub name: String,
    pub architecture: String,
    pub is_available: bool,
}

/// By id, or by name for an architecture.
pub(super) fn find(project: &Project, wanted: &IdOrName, architecture: &str) -> Option<Found> {
    let by_id =
        matches!(wanted, IdOrName::Id(_)) || matches!(wanted, IdOrName::Name(name) if name.parse::<i64>().is_ok());
    let system = IMAGES.iter().filter(|image| by_id || image.architecture == architecture);
    let system = system.into_iter().find(|image| wanted.is(image.id, image.name)).map(|image| Found {
        id: image.id,
        name: image.name.to_owned(),
        architecture: image.architecture.to_owned(),
        is_available: true,
    });
    let own = || project.images.values().find(|image| by_id && wanted.is(image.base.id, ""));
    system.or_else(|| {
        own().map(|image| Found {
            id: image.base.id,
            name: image.description.clone(),
            architecture: image.architecture.clone(),
            is_available: image.is_available,
        })
    })
}

fn view_of(project: &Project, id: i64) -> Value {
    let own = || project.images.get(&id).map(|image| image.view(project));
    IMAGES.iter().find(|image| image.id == id).map(super::catalogue::SystemImage::view).or_else(own).unwrap_or_default()
}

/// As a server shows it.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Shown {
    System(&'static RawValue),
    /// Null where it was deleted since.
    Own(Value),
}

impl Shown {
    pub fn of(project: &Project, id: i64) -> Self {
        match TEXTS.images.get(&id) {
            Some(text) => Self::System(text),
            None => Self::Own(view_of(project, id)),
        }
    }
}

/// Listing and reading see both sorts, the rest snapshots only.
pub(super) fn route(world: &mut World<'_>, call: &Call, rest: &[&str]) -> Outcome {
    match (&call.method, rest) {
        (&Method::GET, []) => list(world.project, &call.query),
        (&Method::GET, [id]) => {
            let view = id.parse().map(|id| view_of(world.project, id)).unwrap_or_default();
            if view.is_null() { Err(Refusal::not_found("image", id)) } else { Ok(Reply::ok(json!({ "image": view }))) }
        }
        (&Method::DELETE, [id]) if IMAGES.iter().any(|image| *id == image.id.to_string()) => {
            Err(Refusal::protected("image"))
        }
        (&Method::PUT, [id]) => describe(world, call, id),
        _ => super::state::route::<Image>(world, call, rest),
    }
}

fn list(project: &Project, query: &Query) -> Outcome {
    let selector = Selector::parse(query.first("label_selector").unwrap_or_default())?;
    let system = IMAGES.iter().filter(|_| selector.matches(&Labels::new())).map(super::catalogue::SystemImage::view);
    let own = project.images.values().filter(|image| selector.matches(&image.base.labels));
    let all = system.chain(own.map(|image| image.view(project)));
    let wanted = all.filter(|view| {
        let field = |name: &str| view[name].as_str().unwrap_or_default();
        let bound = view["bound_to"].as_i64().map(|id| id.to_string()).unwrap_or_default();
        ["name", "type", "status", "architecture"].iter().all(|name| query.admits(name, field(name)))
            && query.admits("bound_to", &bound)
    });
    Reply::page("images", &query.page(wanted.collect(), &["id", "name", "created"])?)
}

fn describe(world: &mut World<'_>, call: &Call, id: &str) -> Outcome {
    #[derive(Default, Deserialize)]
    struct Input {
        description: Option<String>,
        labels: Option<Labels>,
    }
    let input: Input = call.read()?;
    input.labels.as_ref().map_or(Ok(()), check_labels)?;
    let id = id.parse().map_err(|_| Refusal::not_found("image", id))?;
    let image = Image::find_mut(world.project, id)?;
    image.description = input.description.unwrap_or_else(|| image.description.clone());
    image.base.labels = input.labels.unwrap_or_else(|| image.base.labels.clone());
    Ok(Reply::ok(json!({ "image": Image::find(world.project, id)?.view(world.project) })))
}

impl Record for Image {
    in_table!("images", "image", images);

    fn view(&self, _: &Project) -> Value {
        let (server, server_name) = &self.server;
        self.base.view(json!({
            "name": null, "type": "snapshot", "status": if self.is_available { "available" } else { "creating" },
            "description": self.description, "image_size": if self.is_available { json!(1.0) } else { Value::Null },
            "disk_size": self.disk, "created_from": { "id": server, "name": server_name }, "bound_to": null,
            "os_flavor": "unknown", "os_version": null, "architecture": self.architecture, "rapid_deploy": false,
            "deleted": null, "deprecated": null, "deprecation": null,
        }))
    }

    fn create(_: &mut World<'_>, _: &Call) -> Outcome {
        Err(Refusal::no_route())
    }

    fn delete(world: &mut World<'_>, id: i64) -> Outcome {
        world.project.images.remove(&id);
        Ok(Reply::empty())
    }

    fn act(_: &mut World<'_>, _: &Call, _: i64, _: &str) -> Outcome {
        Err(Refusal::no_route())
    }
}
