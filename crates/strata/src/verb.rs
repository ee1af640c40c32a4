//! Changes of objects that an operator then carries out: all of them first, then the wait for each.

use std::process::ExitCode;

use clap::Args;
use futures::{StreamExt, stream};
use kube::api::DynamicObject;
use serde_json::Value;

use crate::{
    Failure,
    objects::{Objects, name_of},
    output::{OutputFlags, Shown, View, print_objects},
    tell,
    wait::{Progress, Standing, WaitFlags, Waiting},
};

/// Requests at once: enough to be quick with hundreds of objects, and no burden to the API server.
const CONCURRENCY: usize = 8;

#[derive(Debug, Args)]
pub struct ChangeFlags {
    #[command(flatten)]
    pub wait: WaitFlags,
    #[command(flatten)]
    pub output: OutputFlags,
}

/// One change of any number of objects.
pub struct Verb<'a> {
    pub objects: &'a Objects,
    pub view: &'a View,
    /// What is printed for each: `suspended`.
    pub summary: &'a str,
    /// The merge patch, or why this object cannot have it.
    pub patch: &'a dyn Fn(&DynamicObject) -> Result<Value, Failure>,
    pub judge: &'a dyn Fn(&DynamicObject) -> Result<Standing, Failure>,
}

impl Verb<'_> {
    /// A failure with one object does not keep the others from being changed.
    pub async fn run(&self, names: &[String], flags: &ChangeFlags) -> Result<ExitCode, Failure> {
        let changed = stream::iter(names).map(|name| self.change(name)).buffered(CONCURRENCY);
        let changed: Vec<_> = changed.collect().await;
        let progress = Progress::new();
        let waiting = waiting(self.objects, &progress, &flags.wait);
        let ended = stream::iter(changed).map(|object| async { self.await_end(object?, &waiting, flags).await });
        let ended: Vec<_> = ended.buffered(CONCURRENCY).collect().await;
        let mut objects = Vec::new();
        let mut failures = Vec::new();
        for one in ended {
            match one {
                Ok(object) => objects.push(object),
                Err(failure) => failures.push(failure),
            }
        }
        if flags.output.output.is_some() {
            let shown = match objects.pop() {
                Some(object) if names.len() == 1 => Shown::One(Box::new(object)),
                last => Shown::Several { items: objects.into_iter().chain(last).collect(), of_all_namespaces: false },
            };
            print_objects(shown, self.view, &flags.output)?;
        }
        failures.iter().for_each(tell);
        Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    async fn change(&self, name: &str) -> Result<DynamicObject, Failure> {
        let patch = (self.patch)(&self.objects.get(name).await?)?;
        self.objects.patch(name, &patch).await
    }

    async fn await_end(
        &self,
        object: DynamicObject,
        waiting: &Waiting<'_>,
        flags: &ChangeFlags,
    ) -> Result<DynamicObject, Failure> {
        let name = name_of(&object).to_owned();
        waiting.progress.line(&format!("{} {name} {}", self.objects.noun(), self.summary));
        if !flags.wait.wait {
            return Ok(object);
        }
        let object = waiting.until(&name, self.judge).await?;
        waiting.progress.line(&format!("✔ {name}"));
        Ok(object)
    }
}

pub fn waiting<'a>(objects: &'a Objects, progress: &'a Progress, flags: &WaitFlags) -> Waiting<'a> {
    let deadline = process::Clock::default().instant() + flags.timeout;
    Waiting { objects, progress, timeout: flags.timeout, deadline }
}
