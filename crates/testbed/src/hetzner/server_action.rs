//! What can be done to a server.

use std::net::Ipv4Addr;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    action::Effect,
    catalogue::SERVER_TYPES,
    image::{self, Image},
    network::Network,
    placement_group::PlacementGroup,
    refusal::Refusal,
    selector::{Labels, check_labels},
    server::{PrivateNet, Server, Status},
    state::{Call, IdOrName, Outcome, Record, Reply, World},
};

/// What any of the commands may have in its body.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Input {
    network: Option<i64>,
    ip: Option<String>,
    ip_range: Option<String>,
    alias_ips: Vec<Ipv4Addr>,
    image: Option<IdOrName>,
    user_data: Option<String>,
    server_type: Option<IdOrName>,
    r#type: Option<String>,
    description: Option<String>,
    labels: Option<Labels>,
    ssh_keys: Vec<IdOrName>,
    placement_group: Option<i64>,
}

/// What a command does: the action's name, its other resource, its effect and what else the answer has.
struct Begun {
    command: &'static str,
    with: Option<(&'static str, i64)>,
    effect: Effect,
    extra: Map<String, Value>,
}

fn begun(command: &'static str, effect: Effect) -> Begun {
    Begun { command, with: None, effect, extra: Map::new() }
}

pub(super) fn act(world: &mut World<'_>, call: &Call, id: i64, command: &str) -> Outcome {
    if world.project.is_locked("server", id) {
        return Err(Refusal::locked("server"));
    }
    let input: Input = call.read()?;
    let password = || Map::from_iter([("root_password".to_owned(), json!(format!("simulated-{id}")))]);
    let server = Server::find_mut(world.project, id)?;
    let begun = match command {
        "poweron" => set(server, Status::Starting, begun("start_server", Effect::Start(id))),
        "poweroff" => set(server, Status::Stopping, begun("stop_server", Effect::Stop(id))),
        "shutdown" => set(server, Status::Stopping, begun("shutdown_server", Effect::Stop(id))),
        "reboot" => running(server, begun("reboot_server", Effect::Reboot(id)))?,
        "reset" => running(server, begun("reset_server", Effect::Reboot(id)))?,
        "enable_rescue" => {
            known_keys(world, &input)?;
            Server::find_mut(world.project, id)?.has_rescue = true;
            Begun { extra: password(), ..begun("enable_rescue", Effect::Nothing) }
        }
        "disable_rescue" => {
            server.has_rescue = false;
            begun("disable_rescue", Effect::Nothing)
        }
        "enable_backup" => {
            server.backup_window = Some("22-02".to_owned());
            begun("enable_backup", Effect::Nothing)
        }
        "disable_backup" => {
            server.backup_window = None;
            begun("disable_backup", Effect::Nothing)
        }
        "reset_password" => Begun { extra: password(), ..running(server, begun("reset_password", Effect::Nothing))? },
        "change_dns_ptr" => begun("change_dns_ptr", Effect::Nothing),
        "rebuild" => Begun { extra: password(), ..rebuild(world, input, id)? },
        "create_image" => create_image(world, input, id)?,
        "change_type" => change_type(server, &input)?,
        "attach_to_network" => attach(world, &input, id)?,
        "detach_from_network" => detach(server, &input, id)?,
        "change_alias_ips" => {
            let network = input.network.unwrap_or_default();
            private(server, network)?.alias_ips = input.alias_ips;
            Begun { with: Some(("network", network)), ..begun("change_alias_ips", Effect::Nothing) }
        }
        "add_to_placement_group" => add_to_group(world, &input, id)?,
        "remove_from_placement_group" => {
            server.placement_group = None;
            begun("remove_from_placement_group", Effect::Nothing)
        }
        _ => return Err(Refusal::no_route()),
    };
    let resources: Vec<_> = [("server", id)].into_iter().chain(begun.with).collect();
    let action = world.begin(begun.command, &resources, begun.effect);
    let mut body = begun.extra;
    body.insert("action".to_owned(), action);
    Ok(Reply::created(Value::Object(body)))
}

/// Powering on what is on changes nothing; its action succeeds all the same.
fn set(server: &mut Server, status: Status, begun: Begun) -> Begun {
    let settled = if status == Status::Starting { Status::Running } else { Status::Off };
    if server.status == settled {
        return Begun { effect: Effect::Nothing, ..begun };
    }
    server.status = status;
    begun
}

fn running(server: &Server, begun: Begun) -> Result<Begun, Refusal> {
    let is_running = server.status == Status::Running;
    is_running.then_some(begun).ok_or_else(|| unprocessable("server_error", "server is not running"))
}

fn unprocessable(code: &'static str, message: &str) -> Refusal {
    Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, code, message)
}

fn known_keys(world: &World<'_>, input: &Input) -> Result<(), Refusal> {
    let keys = &world.project.ssh_keys;
    let has = |wanted: &IdOrName| keys.values().any(|key| wanted.is(key.base.id, &key.base.name));
    let is_fine = input.ssh_keys.iter().all(has);
    is_fine.then_some(()).ok_or_else(|| Refusal::invalid("ssh_keys", "SSH key not found"))
}

fn rebuild(world: &mut World<'_>, input: Input, id: i64) -> Result<Begun, Refusal> {
    let server = Server::find(world.project, id)?;
    if server.base.is_protected {
        return Err(Refusal::new(StatusCode::LOCKED, "protected", "server rebuild is protected"));
    }
    let architecture = server.offered().architecture;
    let wanted = input.image.ok_or_else(|| Refusal::invalid("image", "is required"))?;
    let found = image::find(world.project, &wanted, architecture);
    let found = found.filter(|image| image.architecture == architecture && image.is_available);
    let found = found.ok_or_else(|| Refusal::invalid("image", "image not found for this architecture"))?;
    let server = Server::find_mut(world.project, id)?;
    server.image = (found.id, found.name);
    server.user_data = input.user_data.unwrap_or_else(|| server.user_data.clone());
    server.status = Status::Rebuilding;
    Ok(begun("rebuild_server", Effect::Rebuild(id)))
}

fn create_image(world: &mut World<'_>, input: Input, id: i64) -> Result<Begun, Refusal> {
    if input.r#type.as_deref().is_some_and(|kind| kind != "snapshot") {
        return Err(Refusal::invalid("type", "only snapshots are simulated"));
    }
    input.labels.as_ref().map_or(Ok(()), check_labels)?;
    let base = world.base(String::new(), input.labels)?;
    let server = Server::find(world.project, id)?;
    let image = Image {
        description: input.description.unwrap_or_else(|| server.base.name.clone()),
        architecture: server.offered().architecture.to_owned(),
        disk: server.offered().disk,
        server: (id, server.base.name.clone()),
        is_available: false,
        base,
    };
    let number = image.base.id;
    let extra = Map::from_iter([("image".to_owned(), image.view(world.project))]);
    world.project.images.insert(number, image);
    Ok(Begun { extra, with: Some(("image", number)), ..begun("create_image", Effect::ImageReady(number)) })
}

fn change_type(server: &mut Server, input: &Input) -> Result<Begun, Refusal> {
    if server.status != Status::Off {
        return Err(unprocessable("server_not_stopped", "server must be stopped"));
    }
    let wanted = input.server_type.as_ref().ok_or_else(|| Refusal::invalid("server_type", "is required"))?;
    let kind = SERVER_TYPES.iter().find(|kind| wanted.is(kind.id, kind.name));
    let kind = kind.filter(|kind| kind.architecture == server.offered().architecture);
    let refused = || unprocessable("invalid_server_type", "server type is unknown or does not fit the server");
    kind.ok_or_else(refused)?.name.clone_into(&mut server.kind);
    Ok(begun("change_server_type", Effect::Nothing))
}

fn attach(world: &mut World<'_>, input: &Input, id: i64) -> Result<Begun, Refusal> {
    let network = input.network.ok_or_else(|| Refusal::invalid("network", "is required"))?;
    let server = Server::find(world.project, id)?;
    if server.private.iter().any(|net| net.network == network) {
        return Err(Refusal::conflict("server_already_attached", "server is already attached to network"));
    }
    let (ip, range) = (input.ip.as_deref(), input.ip_range.as_deref());
    let ip = Network::address(world.project, network, server.zone(), ip, range)?;
    let net = PrivateNet { network, ip, alias_ips: input.alias_ips.clone(), is_up: false };
    Server::find_mut(world.project, id)?.private.push(net);
    let effect = Effect::Attach { server: id, network };
    Ok(Begun { with: Some(("network", network)), ..begun("attach_to_network", effect) })
}

fn detach(server: &mut Server, input: &Input, id: i64) -> Result<Begun, Refusal> {
    let network = input.network.ok_or_else(|| Refusal::invalid("network", "is required"))?;
    private(server, network)?;
    let effect = Effect::Detach { server: id, network };
    Ok(Begun { with: Some(("network", network)), ..begun("detach_from_network", effect) })
}

fn private(server: &mut Server, network: i64) -> Result<&mut PrivateNet, Refusal> {
    let found = server.private.iter_mut().find(|net| net.network == network);
    found.ok_or_else(|| Refusal::invalid("network", "server is not attached to network"))
}

fn add_to_group(world: &mut World<'_>, input: &Input, id: i64) -> Result<Begun, Refusal> {
    let group = input.placement_group.ok_or_else(|| Refusal::invalid("placement_group", "is required"))?;
    PlacementGroup::check(world.project, group)?;
    let server = Server::find_mut(world.project, id)?;
    if server.status != Status::Off {
        return Err(unprocessable("server_not_stopped", "server must be stopped"));
    }
    server.placement_group = Some(group);
    Ok(begun("add_to_placement_group", Effect::Nothing))
}
