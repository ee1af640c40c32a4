//! Whole lists, read page by page once for all who want them.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Mutex, time::Instant};

use crate::{
    budget::Urgency,
    client::Client,
    decode::decode_page,
    error::{Cause, Error},
    resource::{
        Certificate, Firewall, Image, LoadBalancer, LoadBalancerType, Location, Network, PlacementGroup, Resource,
        Server, ServerType, SshKey, Volume,
    },
};

/// The most the API gives.
const PER_PAGE: u32 = 50;
/// A list that changes each time it is read changes all the time: more tries do not help.
const READS: u32 = 3;

/// Everything of one kind in the project.
#[derive(Clone, Debug)]
pub struct Look<R> {
    pub items: Arc<Vec<R>>,
    /// What happened after this may not be in it.
    pub began_at: Instant,
}

/// How old a look may be.
#[derive(Clone, Copy, Debug)]
pub enum Since {
    /// Begun no longer ago than this.
    Within(Duration),
    /// Begun after this, such as one's own last change.
    At(Instant),
}

type Kept<R> = Option<(Instant, Result<Arc<Vec<R>>, Error>)>;

/// The last looks of one kind. The holder of a lock reads; other callers wait for its result, urgent ones not for one who may
/// be waiting for requests that they need not wait for.
#[derive(Debug)]
pub struct Slot<R> {
    routine: Mutex<Kept<R>>,
    urgent: Mutex<Kept<R>>,
}

impl<R> Default for Slot<R> {
    fn default() -> Self {
        Self { routine: Mutex::new(None), urgent: Mutex::new(None) }
    }
}

impl<R> Slot<R> {
    fn of(&self, urgency: Urgency) -> &Mutex<Kept<R>> {
        match urgency {
            Urgency::Routine => &self.routine,
            Urgency::Urgent => &self.urgent,
        }
    }
}

macro_rules! looks {
    ($($field:ident: $type:ty),* $(,)?) => {
        #[derive(Debug, Default)]
        pub struct Looks {
            $($field: Slot<$type>,)*
        }

        $(impl Listed for $type {
            fn slot(looks: &Looks) -> &Slot<Self> {
                &looks.$field
            }
        })*
    };
}

looks! {
    servers: Server,
    networks: Network,
    load_balancers: LoadBalancer,
    firewalls: Firewall,
    placement_groups: PlacementGroup,
    ssh_keys: SshKey,
    certificates: Certificate,
    volumes: Volume,
    images: Image,
    server_types: ServerType,
    load_balancer_types: LoadBalancerType,
    locations: Location,
}

/// A kind whose lists are shared. The slots cannot be named outside, so no other crate can add one.
pub trait Listed: Resource {
    #[doc(hidden)]
    fn slot(looks: &Looks) -> &Slot<Self>;
}

impl Client {
    /// The project's whole list of one kind: the last one if it is young enough, else a new one, which all who ask
    /// meanwhile share. An error is shared in the same way.
    ///
    /// A resource that is missing from a list of several pages may have been moved across a page by a deletion: ask
    /// for it by id ([`Client::get`]) before acting on its absence.
    pub async fn look<R: Listed>(&self, since: Since) -> Result<Look<R>, Error> {
        let now = Instant::now();
        let oldest = match since {
            Since::Within(age) => now.checked_sub(age),
            Since::At(at) => Some(at),
        };
        let mut kept = R::slot(&self.inner.looks).of(self.urgency).lock().await;
        if let Some((began_at, result)) = &*kept {
            // An error answers those who waited for it, and not those who come later.
            let is_young = oldest.is_none_or(|oldest| *began_at >= oldest) && (result.is_ok() || *began_at >= now);
            if is_young {
                return result.clone().map(|items| Look { items, began_at: *began_at });
            }
        }
        let began_at = Instant::now();
        let result = self.read_all::<R>().await.map(Arc::new);
        *kept = Some((began_at, result.clone()));
        result.map(|items| Look { items, began_at })
    }

    async fn read_all<R: Resource>(&self) -> Result<Vec<R>, Error> {
        let mut before = None;
        for _ in 0..READS {
            let Some((items, is_counted)) = self.read_once::<R>().await? else { continue };
            let ids: Vec<i64> = items.iter().map(Resource::id).collect();
            if is_counted || before.as_ref() == Some(&ids) {
                return Ok(items);
            }
            before = Some(ids);
        }
        Err(Error::new(format!("GET /{}", R::MANY), Cause::ListChanged))
    }

    /// `None` where the list changed between its pages: something may have moved from one not yet read to one already
    /// read. Whether that is known: the API need not say how many there are, and then only another read shows it.
    async fn read_once<R: Resource>(&self) -> Result<Option<(Vec<R>, bool)>, Error> {
        let mut items: Vec<R> = Vec::new();
        let (mut next, mut total, mut is_counted) = (Some(1), None, true);
        let shown = format!("GET /{}", R::MANY);
        while let Some(page) = next {
            let path = format!("/{}?page={page}&per_page={PER_PAGE}&sort=id:asc", R::MANY);
            let read = self.read(&path, decode_page::<R>).await?;
            if page > 1 && read.total != total {
                return Ok(None);
            }
            // A server that repeats itself would keep us here for ever, and one that leaves pages out is not the API.
            if let Some(next) = read.next.filter(|next| *next != page + 1 || read.items.is_empty()) {
                let why = format!("after page {page} it names page {next}");
                return Err(Error::new(shown, Cause::Undecodable { why, is_cut_short: false }));
            }
            (next, total) = (read.next, read.total);
            is_counted = total.is_some() || (page == 1 && next.is_none());
            items.extend(read.items);
        }
        let is_whole = total.is_none_or(|total| u64::try_from(items.len()) == Ok(total));
        Ok(is_whole.then_some((items, is_counted)))
    }
}
