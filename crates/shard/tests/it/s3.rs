//! The S3 store against a server that speaks S3, on loopback.

use std::{convert::Infallible, sync::Arc, time::Duration};

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use s3s::{auth::SimpleAuth, service::S3ServiceBuilder};
use s3s_fs::FileSystem;
use shard::store::{Expect, S3Options, S3Store, Store, StoreError, conformance};
use tokio::{net::TcpListener, sync::Mutex};

/// Starts the server in this process. One lock is around it: its conditional writes are not atomic by themselves.
async fn start(root: &std::path::Path) -> S3Options {
    std::fs::create_dir_all(root.join("bucket")).expect("a temporary folder");
    let mut builder = S3ServiceBuilder::new(FileSystem::new(root).expect("a folder"));
    builder.set_auth(SimpleAuth::from_single("access", "secret"));
    let service = builder.build();
    let lock = Arc::new(Mutex::new(()));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (service, lock) = (service.clone(), Arc::clone(&lock));
            tokio::spawn(async move {
                let answer = hyper::service::service_fn(move |request| {
                    let (service, lock) = (service.clone(), Arc::clone(&lock));
                    async move {
                        let _one = lock.lock_owned().await;
                        let answer = hyper::service::Service::call(&service, request).await;
                        Ok::<_, Infallible>(answer.expect("the server answers"))
                    }
                });
                let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), answer).await;
            });
        }
    });
    options(endpoint)
}

fn options(endpoint: String) -> S3Options {
    let text = str::to_owned;
    S3Options {
        endpoint,
        region: text("us-east-1"),
        bucket: text("bucket"),
        prefix: text("some/prefix/"),
        access_key: text("access"),
        secret_key: text("secret"),
    }
}

fn provider() {
    // Another test of this process may have been first.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

#[tokio::test]
async fn the_s3_store_conforms() {
    provider();
    let folder = tempfile::tempdir().unwrap();
    let store = S3Store::open(&start(folder.path()).await).unwrap();
    conformance::check(&store, "s3").await.unwrap();
}

#[tokio::test]
async fn wrong_credentials_are_an_outage_and_not_an_empty_store() {
    provider();
    let folder = tempfile::tempdir().unwrap();
    let mut options = start(folder.path()).await;
    S3Store::open(&options).unwrap().put("a/b", b"1".to_vec(), Expect::Absent).await.unwrap();
    options.secret_key = "wrong".to_owned();
    let store = S3Store::open(&options).unwrap();
    assert!(store.get("a/b").await.is_err());
    assert!(store.list("a/").await.is_err());
    assert!(!store.put("a/b", b"2".to_vec(), Expect::Absent).await.unwrap_err().is_conflict());
}

#[tokio::test(start_paused = true)]
async fn a_service_that_says_nothing_is_unavailable() {
    provider();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let store = S3Store::open(&options(format!("http://{}", silent.local_addr().unwrap()))).unwrap();
    let asked = tokio::time::timeout(Duration::from_mins(5), store.get("a"));
    let error = asked.await.expect("it has a deadline").unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
}
