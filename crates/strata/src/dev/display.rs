//! Progress on standard error: live on a terminal, plain lines elsewhere.

use std::{
    collections::BTreeMap,
    io::IsTerminal,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tokio::time::Instant;

use super::event::{Event, Report};

/// A step that goes on says so this often in a log: life is seen, the log is not filled.
const PLAIN_INTERVAL: Duration = Duration::from_secs(15);
/// Smooth to the eye.
const SPINNER_INTERVAL: Duration = Duration::from_millis(100);

/// Shows events to a person.
pub fn display() -> Report {
    let steps = Mutex::new(Steps {
        live: std::io::stderr().is_terminal().then(|| Arc::new(MultiProgress::new())),
        open: BTreeMap::new(),
    });
    Report::new(move |event| steps.lock().unwrap_or_else(PoisonError::into_inner).show(event))
}

struct Steps {
    live: Option<Arc<MultiProgress>>,
    open: BTreeMap<String, Step>,
}

struct Step {
    began: Instant,
    shown: Instant,
    spinner: Option<ProgressBar>,
}

impl Steps {
    fn show(&mut self, event: Event) {
        match event {
            Event::Step { step, detail } => self.go_on(&step, &detail),
            Event::Done { step, detail } => self.finish(&step, &detail),
            Event::Note(text) => self.line(&text),
            // The caller reports how the work ended; half-done steps would only blur that.
            Event::Up(_) | Event::Busy | Event::Failed { .. } => self.clear(),
        }
    }

    fn go_on(&mut self, step: &str, detail: &str) {
        let text = format!("{step}: {detail}");
        let now = Instant::now();
        match self.open.get_mut(step) {
            Some(Step { spinner: Some(spinner), .. }) => spinner.set_message(text),
            Some(open) if now - open.shown < PLAIN_INTERVAL => {}
            Some(open) => {
                open.shown = now;
                let seconds = (now - open.began).as_secs();
                self.line(&format!("  {text} ({seconds} s)"));
            }
            None => {
                let spinner = self.live.as_ref().map(|live| spin(live, &text));
                if spinner.is_none() {
                    self.line(&format!("  {text}"));
                }
                self.open.insert(step.to_owned(), Step { began: now, shown: now, spinner });
            }
        }
    }

    fn finish(&mut self, step: &str, detail: &str) {
        let took = match self.open.remove(step) {
            Some(open) => {
                if let Some(spinner) = open.spinner {
                    spinner.finish_and_clear();
                }
                format!(" ({:.1} s)", open.began.elapsed().as_secs_f64())
            }
            None => String::new(),
        };
        self.line(&format!("✔ {step}: {detail}{took}"));
    }

    fn line(&self, text: &str) {
        match &self.live {
            // Fails only when standard error is gone, and then the message has no reader.
            Some(live) => drop(live.println(text)),
            None => anstream::eprintln!("{text}"),
        }
    }

    fn clear(&mut self) {
        for (_, step) in std::mem::take(&mut self.open) {
            if let Some(spinner) = step.spinner {
                spinner.finish_and_clear();
            }
        }
    }
}

fn spin(live: &MultiProgress, text: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner:.cyan} {wide_msg} {elapsed:>4}").expect("a constant template");
    let spinner = live.add(ProgressBar::new_spinner().with_style(style).with_message(text.to_owned()));
    spinner.enable_steady_tick(SPINNER_INTERVAL);
    spinner
}
