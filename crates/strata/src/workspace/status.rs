//! `strata workspace status`: one workspace on a page.

use std::process::ExitCode;

use api::workspace::Workspace;
use jiff::Timestamp;
use kube::api::DynamicObject;

use super::VIEW;
use crate::{
    Failure,
    objects::{Objects, decode, name_of},
    output::{OutputFlags, Table, conditions, facts, object_age, print_page},
};

pub async fn run(workspaces: &Objects, name: &str, flags: &OutputFlags) -> Result<ExitCode, Failure> {
    print_page(workspaces.get(name).await?, page, &VIEW, flags)?;
    Ok(ExitCode::SUCCESS)
}

fn page(object: &DynamicObject, now: Timestamp) -> Result<String, Failure> {
    let workspace: Workspace = decode(object)?;
    let (spec, status) = (workspace.spec.unwrap_or_default(), workspace.status.unwrap_or_default());
    let mut text = facts([
        ("NAME", Some(name_of(object).to_owned())),
        ("NAMESPACE", object.metadata.namespace.clone()),
        ("DOMAIN", spec.domain),
        ("PHASE", status.phase.map(|phase| format!("{phase:?}"))),
        ("STOPPED", spec.stopped.unwrap_or_default().then(|| "yes".to_owned())),
        ("AGE", Some(object_age(object, now))),
    ]);
    let mut services = Table::new(["SERVICE", "READY", "VERSION", "URL", "REASON", "MESSAGE"]);
    for service in status.services {
        let [version, url, reason, message] =
            [service.version, service.url, service.reason, service.message].map(Option::unwrap_or_default);
        services.add([service.name, yes_or_no(service.ready), version, url, reason, message]);
    }
    let mut users = Table::new(["USER", "READY", "URL", "REASON"]);
    for user in status.users {
        users.add([user.slug, yes_or_no(user.ready), user.url.unwrap_or_default(), user.reason.unwrap_or_default()]);
    }
    for table in [conditions(&status.conditions, now), services, users] {
        text.push_str(&table.section());
    }
    Ok(text)
}

/// As conditions spell it.
fn yes_or_no(is_so: bool) -> String {
    if is_so { "True" } else { "False" }.to_owned()
}
