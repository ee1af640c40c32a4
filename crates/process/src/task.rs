//! Tasks that must live as long as the process.

use std::net::SocketAddr;

use tokio::task::JoinSet;

use crate::admin;

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct ListenError {
    pub address: SocketAddr,
    pub source: std::io::Error,
}

#[derive(Default)]
pub struct Tasks {
    set: JoinSet<String>,
}

impl Tasks {
    pub fn spawn(&mut self, name: impl Into<String>, task: impl Future<Output = ()> + Send + 'static) {
        let name = name.into();
        self.set.spawn(async move {
            task.await;
            name
        });
    }

    /// Answers `routes` on an admin port; the address is the one it got.
    pub async fn listen(
        &mut self,
        name: &'static str,
        address: SocketAddr,
        routes: axum::Router,
    ) -> Result<SocketAddr, ListenError> {
        let (listener, bound) = admin::bind(address).await.map_err(|source| ListenError { address, source })?;
        self.spawn(name, admin::serve(listener, routes));
        Ok(bound)
    }

    /// The name of the first task that ended or panicked.
    pub async fn any_ended(&mut self) -> String {
        match self.set.join_next().await {
            Some(Ok(name)) => name,
            Some(Err(error)) => error.to_string(),
            None => std::future::pending().await,
        }
    }
}
