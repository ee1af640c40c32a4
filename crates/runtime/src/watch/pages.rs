//! A list in pages, bounded in objects and in bytes.

use http_body_util::{BodyExt, LengthLimitError, Limited};
use kube::{
    Client,
    api::{ListParams, Request},
};
use tokio::time::timeout;

use super::{
    ANSWER, Watcher,
    error::{WatchError, decode},
};
use crate::raw::Page;

/// As client-go: a page of ordinary objects is some megabytes.
const PAGE: u32 = 500;
/// Objects may be large (a Secret or ConfigMap has up to a megabyte): what is longer is asked for in smaller pages. A
/// page is held in memory while it is decoded, beside those of the other kinds, in a process with some hundred megabytes.
pub(super) const LONGEST_PAGE: usize = 32 << 20;
/// A page that is too long has been read in vain up to its limit: a few steps lead from [`PAGE`] to one object.
const SMALLER: u32 = 4;
/// The server keeps the version that pages are of for some minutes. Pages that took longer are read again with fewer
/// requests, each of this many objects: what client-go then asks for in one answer of any length.
const HURRIED_PAGE: u32 = 10 * PAGE;

impl Watcher {
    pub(super) async fn pages(&mut self, client: &Client) -> Result<(), WatchError> {
        let selection = self.followers.target.selection.clone();
        let params =
            ListParams { label_selector: selection.labels, field_selector: selection.fields, ..Default::default() };
        let (mut params, mut limit, mut is_hurried) = (params, PAGE, false);
        self.followers.begin_list();
        loop {
            params.limit = Some(limit);
            let body = match self.page(client, &params).await {
                Err(WatchError::PageTooLong) if limit > 1 => {
                    limit = (limit / SMALLER).max(1);
                    continue;
                }
                Err(error) if error.is_expired() && params.continue_token.is_some() && !is_hurried => {
                    (limit, params.continue_token, is_hurried) = (HURRIED_PAGE, None, true);
                    self.followers.begin_list();
                    continue;
                }
                page => page?,
            };
            let page = decode::<Page<'_>>("list", &body)?;
            self.followers.in_touch(self.clock.instant());
            page.objects().for_each(|object| self.followers.listed(&object));
            if page.metadata.next.is_empty() {
                return self.end_list(&page.metadata.resource_version);
            }
            params.continue_token = Some(page.metadata.next);
            tokio::task::yield_now().await;
        }
    }

    pub(super) async fn page(&self, client: &Client, params: &ListParams) -> Result<Vec<u8>, WatchError> {
        let request = Request::new(self.followers.target.place());
        let request =
            if self.followers.target.is_metadata { request.list_metadata(params) } else { request.list(params) };
        let request = request.map_err(|error| WatchError::lost("list")(kube::Error::BuildRequest(error)))?;
        let answer = async {
            let body = Limited::new(self.send("list", client, request).await?, LONGEST_PAGE);
            let body = body.collect().await.map_err(|error| {
                let is_too_long = error.is::<LengthLimitError>();
                if is_too_long {
                    WatchError::PageTooLong
                } else {
                    WatchError::lost("list")(kube::Error::Service(error))
                }
            })?;
            Ok(body.to_bytes().to_vec())
        };
        timeout(ANSWER, answer).await.map_err(|_| WatchError::Silent { verb: "list", limit: ANSWER })?
    }
}
