//! Whole lists, read page by page once for all who want them.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Mutex, time::Instant};

use crate::{
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

/// The last look of one kind. The holder of the lock reads; other callers wait for its result.
#[derive(Debug)]
pub struct Slot<R>(Mutex<Kept<R>>);

impl<R> Default for Slot<R> {
    fn default() -> Self {
        Self(Mutex::new(None))
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
        let mut kept = R::slot(&self.inner.looks).0.lock().await;
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
        for _ in 0..READS {
            if let Some(items) = self.read_once::<R>().await? {
                return Ok(items);
            }
        }
        Err(Error::new(format!("GET /{}", R::MANY), Cause::ListChanged))
    }

    /// `None` where the list changed between its pages: something may have moved from one not yet read to one already
    /// read.
    async fn read_once<R: Resource>(&self) -> Result<Option<Vec<R>>, Error> {
        let mut items: Vec<R> = Vec::new();
        let (mut next, mut total) = (Some(1), None);
        while let Some(page) = next {
            let path = format!("/{}?page={page}&per_page={PER_PAGE}&sort=id:asc", R::MANY);
            let read = self.read(&path, decode_page::<R>).await?;
            if page > 1 && read.total != total {
                return Ok(None);
            }
            // A server that repeats itself would keep us here for ever.
            next = read.next.filter(|next| *next == page + 1 && !read.items.is_empty());
            total = read.total;
            items.extend(read.items);
        }
        let is_whole = total.is_none_or(|total| u64::try_from(items.len()) == Ok(total));
        Ok(is_whole.then_some(items))
    }
}
