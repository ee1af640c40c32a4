//! Whether the project has what a configuration names.

use std::time::Duration;

use hetzner::{Architecture, Class, Client, Image, Listed, Location, ServerType, Since};
use plan::shard::config::{Config, Findings, Problem};

use super::{
    Access, Environment, Settings, TIMES,
    args::{Args, Named, Part, parts},
};

/// A message with more names is too long to find the right one in it.
const MOST_NAMES: usize = 30;

/// One list of a kind serves every part of a configuration.
const AGE: Duration = Duration::from_mins(1);

/// Asks the API about every name. Without an answer the rest is a warning: the file may be good.
pub async fn verify(config: &Config, environment: &Environment, findings: &mut Findings) {
    const TOKEN: &str = "shard.provider.token_file";
    let Ok(settings) = Settings::read(&config.shard.provider) else { return };
    let opened = Access::open(&settings, environment, TIMES).and_then(|access| access.client());
    let problem = |field: &str, message: String| Problem { field: field.to_owned(), message };
    let client = match opened {
        Ok(client) => client,
        Err(error) => return findings.problems.push(problem(TOKEN, error.message)),
    };
    for part in parts(config) {
        let Ok(args) = &part.args else { continue };
        match check(&client, &part, args).await {
            Ok(problems) => findings.problems.extend(problems),
            Err(error) if error.class() == Class::Unauthorised => {
                return findings.problems.push(problem(TOKEN, error.to_string()));
            }
            Err(error) => {
                let message = format!("its names were not looked up: {error}");
                return findings.warnings.push(problem("shard.provider", message));
            }
        }
    }
}

async fn check(client: &Client, part: &Part<'_>, args: &Args) -> Result<Vec<Problem>, hetzner::Error> {
    let mut problems = Vec::new();
    let mut report = |field: &str, problem: Option<String>| {
        let field = format!("{}.{field}", part.path);
        problems.extend(problem.map(|message| Problem { field, message }));
    };
    let location = Named::Name(args.location.clone());
    report("args.location", missing::<Location>(client, &location).await?);
    report("instance_type", server_type(client, part).await?);
    if let Some(image) = &args.image {
        report("args.image", missing::<Image>(client, image).await?);
    }
    for named in &args.networks {
        report("args.networks", missing::<hetzner::Network>(client, named).await?);
    }
    for named in &args.firewalls {
        report("args.firewalls", missing::<hetzner::Firewall>(client, named).await?);
    }
    if let Some(named) = &args.placement_group {
        report("args.placement_group", missing::<hetzner::PlacementGroup>(client, named).await?);
    }
    for named in &args.ssh_keys {
        report("args.ssh_keys", missing::<hetzner::SshKey>(client, named).await?);
    }
    Ok(problems)
}

/// What to say about a name that the project does not have.
async fn missing<R: Listed>(client: &Client, named: &Named) -> Result<Option<String>, hetzner::Error> {
    let look = client.look::<R>(Since::Within(AGE)).await?;
    let is_it = |item: &R| match named {
        Named::Id(id) => item.id() == *id,
        Named::Name(name) => item.name() == name,
    };
    if look.items.iter().any(is_it) {
        return Ok(None);
    }
    let mut names: Vec<&str> = look.items.iter().map(R::name).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    names.dedup();
    names.truncate(MOST_NAMES);
    let shown = match named {
        Named::Id(id) => id.to_string(),
        Named::Name(name) => format!("{name:?}"),
    };
    let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let kind = R::ONE.replace('_', " ");
    Ok(Some(format!("the project has no {kind} {shown}; known: {known}")))
}

async fn server_type(client: &Client, part: &Part<'_>) -> Result<Option<String>, hetzner::Error> {
    // An empty one is named already.
    if part.instance_type.is_empty() {
        return Ok(None);
    }
    let unknown = missing::<ServerType>(client, &Named::Name(part.instance_type.to_owned())).await?;
    if unknown.is_some() {
        return Ok(unknown);
    }
    let look = client.look::<ServerType>(Since::Within(AGE)).await?;
    let found = look.items.iter().find(|item| item.name == part.instance_type);
    let arch = found.and_then(|found| match found.architecture {
        Architecture::X86 => Some("amd64"),
        Architecture::Arm => Some("arm64"),
        Architecture::Unknown => None,
    });
    let other = arch.filter(|arch| *arch != part.arch);
    Ok(other.map(|arch| format!("{:?} is {arch}, the template needs {}", part.instance_type, part.arch)))
}
