//! What a drain shows: a table of what would become of each pod, and a line for each change.

use std::collections::BTreeMap;

use plan::drain::{Name, Plan, Standing};

use crate::{output::Table, wait};

/// What would become of each pod.
pub fn table(plan: &Plan) -> String {
    let mut table = Table::new(["NAMESPACE", "POD", "ACTION", "WHY"]);
    for (pod, standing) in &plan.pods {
        let (action, why) = match standing {
            Standing::Holds(holds) => ("evict", holds.to_string()),
            Standing::Stays(stays) => ("leave", stays.to_string()),
        };
        let is_alone = plan.unmanaged.contains(pod);
        let why = if is_alone { format!("{why}; nothing creates it again (--force)") } else { why };
        table.add([pod.namespace.clone(), pod.name.clone(), action.to_owned(), why]);
    }
    table.render(true)
}

/// Prints what is new, on standard error.
pub struct Reporter {
    node: String,
    output: wait::Progress,
    is_cordoned: bool,
    /// What was said last of each pod that goes.
    said: BTreeMap<Name, String>,
    gone: usize,
    unknown: Vec<String>,
    volumes: Vec<String>,
}

impl Reporter {
    pub fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            output: wait::Progress::new(),
            is_cordoned: false,
            said: BTreeMap::new(),
            gone: 0,
            unknown: Vec::new(),
            volumes: Vec::new(),
        }
    }

    pub fn line(&self, text: &str) {
        self.output.line(text);
    }

    /// How many pods have gone.
    pub fn gone(&self) -> usize {
        self.gone
    }

    pub fn report(&mut self, plan: &Plan) {
        // Before the first look there is nothing to say, and what is not known is not gone.
        if plan.cordon.is_some() || plan.pods.is_empty() && plan.end.is_none() && self.said.is_empty() {
            return;
        }
        if !self.is_cordoned {
            self.is_cordoned = true;
            self.line(&format!("node {} is cordoned", self.node));
        }
        if plan.unknown != self.unknown {
            plan.unknown.iter().for_each(|unknown| self.line(&format!("cannot be read at the moment: {unknown}")));
            self.unknown.clone_from(&plan.unknown);
        }
        let now: BTreeMap<Name, String> = plan.left().map(|(pod, holds)| (pod.clone(), holds.to_string())).collect();
        for (pod, text) in &now {
            if self.said.get(pod) != Some(text) {
                self.line(&format!("{pod}: {text}"));
            }
        }
        for pod in self.said.keys().filter(|pod| !now.contains_key(pod)) {
            self.line(&format!("{pod}: gone"));
            self.gone += 1;
        }
        if plan.volumes != self.volumes {
            plan.volumes.iter().for_each(|volume| self.line(&format!("volume {volume}: still attached")));
            self.volumes.clone_from(&plan.volumes);
        }
        self.said = now;
    }
}
