//! What a start reports to the user who waits for it; crosses a pipe when the work is done in the background.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::session::Session;
use crate::Failure;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Event {
    /// A step began, or is further on.
    Step {
        step: String,
        detail: String,
    },
    Done {
        step: String,
        detail: String,
    },
    Note(String),
    Up(Box<Session>),
    /// Another process has taken the place.
    Busy,
    Failed {
        message: String,
        hint: Option<String>,
    },
}

/// Where events go.
#[derive(Clone)]
pub struct Report(Arc<dyn Fn(Event) + Send + Sync>);

impl Report {
    pub fn new(sink: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(sink))
    }

    pub fn send(&self, event: Event) {
        (self.0)(event);
    }

    pub fn step(&self, step: impl Into<String>, detail: impl Into<String>) {
        self.send(Event::Step { step: step.into(), detail: detail.into() });
    }

    pub fn done(&self, step: impl Into<String>, detail: impl Into<String>) {
        self.send(Event::Done { step: step.into(), detail: detail.into() });
    }

    pub fn note(&self, text: impl Into<String>) {
        self.send(Event::Note(text.into()));
    }
}

impl From<Failure> for Event {
    fn from(Failure { message, hint }: Failure) -> Self {
        Self::Failed { message, hint }
    }
}

/// Builds of missing programs are one step each.
impl testbed::tools::Progress for Report {
    fn report(&self, step: &testbed::tools::Step<'_>) {
        let name = format!("{} {}", step.program, step.version);
        let left = match step.left {
            0 => "the last one".to_owned(),
            left => format!("{left} more to build"),
        };
        match step.state {
            testbed::tools::State::Waiting => self.step(name, "another process is building it"),
            testbed::tools::State::Building => self.step(name, format!("building, {left}")),
            testbed::tools::State::Built => self.done(name, format!("built, {left}")),
        }
    }
}
