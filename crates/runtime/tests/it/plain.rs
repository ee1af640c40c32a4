//! A controller without facts, actions or status: what it does when it gathers is the test's.

use std::sync::Arc;

use api::performer::{Performer, PerformerStatus};
use futures::future::BoxFuture;
use jiff::Timestamp;
use plan::{
    fact::Never,
    round::{Plan, Report},
};
use runtime::{Controller, Error, InputsOf, Json, Key, Kind, Operator, RoundOf, Turn};

pub type Performers = Arc<Kind<Json<Performer>, Performer>>;

type Gather = Box<dyn Fn(Key) -> BoxFuture<'static, ()> + Send + Sync>;

pub struct Plain {
    performers: Performers,
    gather: Gather,
}

/// A kind that is not watched, with objects of these names in the namespace `n`.
pub fn kind<'a>(operator: &Operator, names: impl IntoIterator<Item = &'a str>) -> Performers {
    let performers: Performers = Kind::new("performers", operator.writer("test"), |_| None);
    for name in names {
        performers.store().observe(Key::new("n", name), 1, Performer::default());
    }
    performers
}

impl Plain {
    pub fn new<F>(performers: Performers, gather: impl Fn(Key) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self { performers, gather: Box::new(move |key| Box::pin(gather(key))) }
    }
}

impl Controller for Plain {
    const NAME: &'static str = "plain";
    type View = Json<Performer>;
    type Object = Performer;
    type Kept = Performer;
    type Status = PerformerStatus;
    type Observed = ();
    type Action = ();
    type Done = ();
    type Note = ();
    type Ask = Never;
    type Answer = Never;

    fn kind(&self) -> &Performers {
        &self.performers
    }

    fn span(_: &Key) -> tracing::Span {
        tracing::Span::none()
    }

    async fn gather(&self, key: &Key, _: &Performer, (): &()) -> Result<(), Error> {
        (self.gather)(key.clone()).await;
        Ok(())
    }

    fn plan(&self, _: &Performer, (): &(), _: &InputsOf<Self>) -> Plan<()> {
        Plan::default()
    }

    async fn execute(&self, _: &Turn<'_, Self>, (): &()) -> Result<(), Error> {
        Ok(())
    }

    fn report(&self, _: &RoundOf<'_, Self>, _: Timestamp) -> Report<PerformerStatus> {
        Report {
            status: PerformerStatus::default(),
            fallback: None,
            is_provisional: false,
            done: Vec::new(),
            transitions: Vec::new(),
            discriminator: String::new(),
            phase: String::new(),
            note: (),
        }
    }
}
