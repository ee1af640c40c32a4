//! Waiting for what an operator does with a change, and showing it meanwhile on standard error.

use std::{io::IsTerminal, time::Duration};

use api::condition::{Condition, ConditionStatus, Reason};
use clap::Args;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use kube::api::DynamicObject;
use tokio::time::Instant;

use crate::{Failure, config::duration, explained, objects::Objects, output::one_line};

/// Reads instead of a watch, which would need one more right; twice a second is at once to a person.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Smooth to the eye.
const SPINNER_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, Args)]
pub struct WaitFlags {
    /// Wait until the operator is done; exit 1 if that fails
    #[arg(long)]
    pub wait: bool,
    /// How long to wait at most
    #[arg(long, value_parser = duration, default_value = "5m", value_name = "DURATION")]
    pub timeout: Duration,
}

/// How an object stands towards what was asked for.
pub struct Standing {
    /// The condition, for people.
    pub summary: String,
    pub verdict: Verdict,
}

pub enum Verdict {
    /// The operator has not taken the change in.
    Unseen,
    Moving,
    Done,
    Failed(Failure),
}

/// Whether waiting may help, because the user does not have to correct anything: a repository that is down may be up
/// again.
pub fn may_pass(reason: Reason) -> bool {
    reason.is_progress() || reason == Reason::ChartUnavailable
}

/// `True UpgradeSucceeded: revision 2 …`.
pub fn summary(condition: Option<&Condition>) -> String {
    condition.map_or_else(
        || "no Ready condition yet".to_owned(),
        |condition| {
            let Condition { status, reason, message, .. } = condition;
            let status = match status {
                ConditionStatus::True => "ready",
                ConditionStatus::False => "not ready",
                ConditionStatus::Unknown => "under way",
            };
            format!("{status}, {reason}: {}", one_line(message))
        },
    )
}

/// What is waited for, one line each: live on a terminal, a plain line per change elsewhere.
pub struct Progress {
    live: Option<MultiProgress>,
}

impl Progress {
    pub fn new() -> Self {
        Self { live: std::io::stderr().is_terminal().then(MultiProgress::new) }
    }

    pub fn line(&self, text: &str) {
        match &self.live {
            // Fails only when standard error is gone, and then the message has no reader.
            Some(live) => drop(live.println(text)),
            None => anstream::eprintln!("{text}"),
        }
    }

    fn open(&self, name: &str) -> Line<'_> {
        let spinner = self.live.as_ref().map(|live| {
            let style = ProgressStyle::with_template("{spinner:.cyan} {wide_msg} {elapsed:>4}");
            let style = style.expect("a constant template");
            let spinner = live.add(ProgressBar::new_spinner().with_style(style));
            spinner.enable_steady_tick(SPINNER_INTERVAL);
            spinner
        });
        Line { progress: self, spinner, name: name.to_owned(), shown: String::new() }
    }
}

struct Line<'a> {
    progress: &'a Progress,
    spinner: Option<ProgressBar>,
    name: String,
    shown: String,
}

impl Line<'_> {
    fn show(&mut self, text: &str) {
        if self.shown == text {
            return;
        }
        text.clone_into(&mut self.shown);
        match &self.spinner {
            Some(spinner) => spinner.set_message(format!("{}: {text}", self.name)),
            None => self.progress.line(&format!("{}: {text}", self.name)),
        }
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
    }
}

/// How long, and how to report.
pub struct Waiting<'a> {
    pub objects: &'a Objects,
    pub progress: &'a Progress,
    pub timeout: Duration,
    pub deadline: Instant,
}

impl Waiting<'_> {
    /// The object once it is as it should be.
    pub async fn until(
        &self,
        name: &str,
        judge: &dyn Fn(&DynamicObject) -> Result<Standing, Failure>,
    ) -> Result<DynamicObject, Failure> {
        self.until_seen(name, async || self.objects.try_get(name).await, judge).await
    }

    /// The same for what takes several reads to see.
    pub async fn until_seen<T>(
        &self,
        name: &str,
        look: impl AsyncFn() -> kube::Result<T>,
        judge: &dyn Fn(&T) -> Result<Standing, Failure>,
    ) -> Result<T, Failure> {
        let mut line = self.progress.open(name);
        let mut is_seen = false;
        loop {
            match tokio::time::timeout_at(self.deadline, look()).await {
                Ok(Ok(object)) => {
                    let Standing { summary, verdict } = judge(&object)?;
                    is_seen = !matches!(verdict, Verdict::Unseen);
                    let seen = if is_seen { "" } else { "the operator has not seen the change; before: " };
                    line.show(&format!("{seen}{summary}"));
                    match verdict {
                        Verdict::Done => return Ok(object),
                        Verdict::Failed(failure) => return Err(failure),
                        Verdict::Unseen | Verdict::Moving => {}
                    }
                }
                // It goes, was taken away from us, or never was there: waiting changes nothing.
                Ok(Err(error @ kube::Error::Api(_))) if !is_passing(&error) => {
                    return Err(self.objects.failure(&error, "get", name));
                }
                Ok(Err(error)) => line.show(&format!("cannot be read: {}", explained(&error))),
                Err(_) => {}
            }
            let next = tokio::time::sleep(LOOK_EVERY);
            if tokio::time::timeout_at(self.deadline, next).await.is_err() {
                return Err(self.too_late(name, &line.shown, is_seen));
            }
        }
    }

    fn too_late(&self, name: &str, last: &str, is_seen: bool) -> Failure {
        let hint = if last.is_empty() {
            "check that the API server answers, with `kubectl get --raw /readyz`, or wait longer with --timeout"
                .to_owned()
        } else if is_seen {
            format!(
                "the operator continues; check again with {}, or wait longer with --timeout",
                self.objects.status_command(name)
            )
        } else {
            "is the operator running? `kubectl get deployments -A -l app.kubernetes.io/name=strata` shows it".to_owned()
        };
        let last = if last.is_empty() { "the API server did not answer" } else { last };
        let waited = api::workspace::Span(self.timeout);
        Failure::new(format!("{name} is not done after {waited}; last: {last}")).hint(hint)
    }
}

/// A server that is overloaded or restarts.
fn is_passing(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 429 || status.code >= 500)
}
