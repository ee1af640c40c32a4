//! How long what is waited for has lasted.
//!
//! No wall clock of ours decides: one that is behind would stretch every wait, one that is stepped forward would end all
//! of them at once. An age begins at the moment this process first sees the state, with what the API server's own clock
//! says of it then; from there on it grows by the monotonic clock. So a wait is over
//!
//! - after its delay since the state was first seen, at the latest, whatever any clock shows;
//! - not before the server's clock and our monotonic one together have counted the delay.
//!
//! Times that a node has written may be off by that node's clock: they count from the pod's creation on, which the
//! server has written, and not at all where they lie ahead. While the server's time is not known, nothing has lasted
//! before it was seen: a restart then makes a wait longer, by no more than its delay.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::Clocks;
use crate::fact::Class;
use crate::round::Progress;

use super::decide::{ended_at, has_edited_image};
use super::{Created, PodFacts, PodPhase, Scheduled, ServiceFacts, Slot};

/// Something about a pod or Service that a decision waits on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum State {
    /// The pod ended.
    Ended,
    /// The pod has a node and has not started.
    Starting,
    /// The pod is there; asked for only of one that ended or was edited.
    Existing,
    /// The container ended that often.
    Crashed(u32),
    /// The pod is being deleted until then.
    PodGoing(Timestamp),
    /// The Service is being deleted until then.
    ServiceGoing(Timestamp),
    /// Every round ends at something that the API server is unable to do.
    Unable,
}

/// The ages of what is waited on, as one round saw them. A settled Performer has none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ages {
    /// [`Clocks::uptime`] of that round.
    at: Duration,
    lasting: Vec<Lasting>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Lasting {
    uid: Box<str>,
    state: State,
    age: Duration,
}

impl Ages {
    /// The ages now; `former` are those of the process's last round for the same Performer.
    pub fn of(pod: &Slot<PodFacts>, service: &Slot<ServiceFacts>, former: &Self, clocks: Clocks) -> Self {
        let passed = clocks.uptime.saturating_sub(former.at);
        let of_pod = pod
            .ours()
            .into_iter()
            .flat_map(|pod| states(pod).into_iter().map(|(state, since)| (&pod.uid, state, since.max(pod.created_at))));
        let of_service = service.ours().and_then(|service| {
            let deletion = service.deletion?;
            Some((&service.uid, State::ServiceGoing(deletion.at), Some(deletion.asked_at())))
        });
        let lasting = of_pod.chain(of_service).map(|(uid, state, since)| {
            let known = former.lasting.iter().find(|known| known.uid == *uid && known.state == state);
            let age = known.map_or_else(|| clocks.since(since), |known| known.age.saturating_add(passed));
            Lasting { uid: uid.clone(), state, age }
        });
        let mut lasting: Vec<_> = lasting.collect();
        let carried = former.lasting.iter().filter(|known| known.state == State::Unable);
        lasting.extend(carried.map(|known| Lasting { age: known.age.saturating_add(passed), ..known.clone() }));
        Self { at: clocks.uptime, lasting }
    }

    /// What the next round begins with: these ages, and what became of this round's steps.
    #[must_use]
    pub fn after(&self, progress: &[Progress<Created>]) -> Self {
        let mut after = self.clone();
        let is_unable = |progress: &Progress<_>| matches!(progress, Progress::Failed { class: Class::Transient, .. });
        // A conflict speaks neither for nor against: the next try may end where the one before did.
        let is_open = |progress: &Progress<_>| matches!(progress, Progress::Failed { .. } | Progress::Skipped);
        if progress.iter().any(is_unable) {
            if !self.lasting.iter().any(|known| known.state == State::Unable) {
                after.lasting.push(Lasting { uid: Box::default(), state: State::Unable, age: Duration::ZERO });
            }
        } else if !progress.iter().any(is_open) {
            after.lasting.retain(|known| known.state != State::Unable);
        }
        after
    }

    /// Whether nothing is waited on.
    pub fn is_empty(&self) -> bool {
        self.lasting.is_empty()
    }

    /// How long the state has lasted; what was never seen begins now.
    pub(super) fn age(&self, state: State) -> Duration {
        self.lasting.iter().find(|known| known.state == state).map_or(Duration::ZERO, |known| known.age)
    }
}

/// What of this pod may be waited on, and since when its writer says so.
fn states(pod: &PodFacts) -> Vec<(State, Option<Timestamp>)> {
    if let Some(deletion) = pod.deletion {
        return vec![(State::PodGoing(deletion.at), Some(deletion.asked_at()))];
    }
    let mut states = Vec::new();
    if pod.phase.has_ended() {
        states.push((State::Ended, ended_at(pod)));
    }
    if let (PodPhase::Pending, Scheduled::Yes(since)) = (pod.phase, &pod.scheduled) {
        states.push((State::Starting, *since));
    }
    if pod.phase.has_ended() || !pod.is_selected || has_edited_image(pod) {
        states.push((State::Existing, pod.created_at));
    }
    if let Some(exit) = pod.exit.as_ref().filter(|_| !pod.is_ready) {
        states.push((State::Crashed(pod.restarts), exit.finished_at));
    }
    states
}
