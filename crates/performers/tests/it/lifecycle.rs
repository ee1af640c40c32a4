//! Create, settle, repair, delete.

use anyhow::Result;

use crate::harness::{World, spec};

#[tokio::test]
async fn a_performer_becomes_ready_and_leaves_nothing_behind() -> Result<()> {
    let space = World::calm().await.space("lifecycle").await;
    space.create_ready("a", spec()).await?;
    space.delete_and_wait("a").await?;
    assert!(space.pods.get_opt("performer-a").await?.is_none());
    assert!(space.services.get_opt("performer-a").await?.is_none());
    Ok(())
}
