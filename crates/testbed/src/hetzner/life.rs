//! Carries actions out: time passes, machines change, servers change their state.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::{sync::watch, time::sleep};

use super::{
    Shared,
    action::Effect,
    fault::Kind,
    server::{Server, Status},
    state::{Project, Record, World},
};

/// What a fault does to the actions of one request.
pub(super) enum Fate {
    Well,
    /// Until the faults are cleared.
    Stuck(watch::Receiver<u64>),
    Failed,
}

impl Fate {
    pub fn of(shared: &Shared, fault: Option<&Kind>) -> Self {
        match fault {
            Some(Kind::StuckAction) => Self::Stuck(shared.faults.clearings()),
            Some(Kind::FailedAction) => Self::Failed,
            _ => Self::Well,
        }
    }
}

impl Shared {
    /// Goes on where an earlier simulator with the same file ended.
    pub(super) fn resume(self: &Arc<Self>) {
        let state = self.state();
        for (name, project) in &state.projects {
            let running = || project.actions.values().filter(|action| action.is_running());
            let mut chains: Vec<i64> = running().map(|action| action.chain).collect();
            chains.dedup();
            for chain in chains {
                let actions = running().filter(|action| action.chain == chain).map(|action| action.id).collect();
                self.carry_out(name, actions, Fate::Well);
            }
            for server in project.servers.values().filter(|server| server.status == Status::Running) {
                let (shared, machine) = (Arc::clone(self), server.machine());
                self.spawn(async move {
                    if let Err(error) = shared.options.machines.power_on(&machine).await {
                        tracing::warn!(machine.name, error, "a machine did not come back");
                    }
                });
            }
        }
    }

    /// One after another: a server starts when it has been created.
    pub(super) fn carry_out(self: &Arc<Self>, project: &str, actions: Vec<i64>, fate: Fate) {
        if actions.is_empty() {
            return;
        }
        let (shared, project) = (Arc::clone(self), project.to_owned());
        self.spawn(async move {
            let mut error = None;
            match fate {
                Fate::Well => {}
                // The sender lives as long as the simulator.
                Fate::Stuck(mut clearings) => drop(clearings.changed().await),
                Fate::Failed => error = Some("the simulator was asked for a failure".to_owned()),
            }
            for action in actions {
                sleep(shared.options.action_time).await;
                error = match error {
                    None => shared.run(&project, action).await.err(),
                    failed => failed,
                };
                shared.end(&project, action, error.as_deref());
            }
        });
    }

    /// The machine's part.
    async fn run(&self, project: &str, action: i64) -> Result<(), String> {
        let (effect, machine) = {
            let mut state = self.state();
            let world = state.world(project);
            let Some(action) = world.project.actions.get(&action) else { return Ok(()) };
            let effect = action.effect.clone();
            let server = server_of(&effect).and_then(|id| world.project.servers.get_mut(&id));
            let Some(server) = server else { return Ok(()) };
            match effect {
                // The network's change is the machine's to see.
                Effect::Attach { network, .. } => set_up(server, network, true),
                Effect::Detach { network, .. } => set_up(server, network, false),
                Effect::Start(_) => server.status = Status::Starting,
                _ => {}
            }
            (effect, server.machine())
        };
        let machines = &self.options.machines;
        match effect {
            Effect::Create(_) => machines.created(&machine).await,
            Effect::Start(_) => machines.power_on(&machine).await,
            Effect::Stop(_) => machines.power_off(&machine).await,
            Effect::Reboot(_) => machines.reboot(&machine).await,
            Effect::Rebuild(_) => machines.rebuild(&machine).await,
            Effect::Delete(_) => machines.deleted(&machine).await,
            Effect::Attach { .. } | Effect::Detach { .. } => machines.network_changed(&machine).await,
            Effect::Nothing | Effect::ImageReady(_) => Ok(()),
        }
    }

    fn end(&self, project: &str, action: i64, error: Option<&str>) {
        let mut state = self.state();
        let mut world = state.world(project);
        let Some(ended) = world.project.actions.get_mut(&action) else { return };
        let effect = ended.effect.clone();
        ended.end(error.map(|message| ("action_failed".to_owned(), message.to_owned())), Timestamp::now());
        apply(&mut world, &effect, error.is_some());
        forget_old(world.project);
        self.changed(&mut state);
    }
}

/// The API forgets actions after weeks; a simulator that runs for days must not keep every one either.
fn forget_old(project: &mut Project) {
    /// Many times what a test or a day of `dev` looks back to.
    const KEPT: usize = 10_000;
    while project.actions.len() > KEPT {
        let Some(oldest) = project.actions.values().find(|action| !action.is_running()).map(|action| action.id) else {
            return;
        };
        project.actions.remove(&oldest);
    }
}

fn server_of(effect: &Effect) -> Option<i64> {
    match effect {
        Effect::Create(id)
        | Effect::Start(id)
        | Effect::Stop(id)
        | Effect::Reboot(id)
        | Effect::Rebuild(id)
        | Effect::Delete(id)
        | Effect::Attach { server: id, .. }
        | Effect::Detach { server: id, .. } => Some(*id),
        Effect::Nothing | Effect::ImageReady(_) => None,
    }
}

fn set_up(server: &mut Server, network: i64, is_up: bool) {
    server.private.iter_mut().filter(|net| net.network == network).for_each(|net| net.is_up = is_up);
}

fn apply(world: &mut World<'_>, effect: &Effect, has_failed: bool) {
    let project: &mut Project = world.project;
    let mut set = |id: &i64, status| {
        if let Ok(server) = Server::find_mut(project, *id) {
            server.status = status;
        }
    };
    match effect {
        Effect::Create(id) => set(id, Status::Off),
        Effect::Start(id) | Effect::Rebuild(id) => set(id, if has_failed { Status::Off } else { Status::Running }),
        Effect::Stop(id) => set(id, if has_failed { Status::Running } else { Status::Off }),
        Effect::Delete(id) if has_failed => set(id, Status::Off),
        Effect::Delete(id) => Server::remove(world, *id),
        Effect::Attach { server, network } | Effect::Detach { server, network } => {
            let is_gone = matches!(effect, Effect::Detach { .. }) != has_failed;
            if is_gone && let Ok(server) = Server::find_mut(project, *server) {
                server.private.retain(|net| net.network != *network);
            }
        }
        Effect::ImageReady(id) => {
            if let Some(image) = project.images.get_mut(id) {
                image.is_available = !has_failed;
            }
        }
        Effect::Nothing | Effect::Reboot(_) => {}
    }
}
