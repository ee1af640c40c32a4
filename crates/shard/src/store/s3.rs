//! A store in a bucket of an S3-compatible service, through object_store and the HTTP client of this process.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::TryStreamExt;
use http_body_util::BodyExt;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::{
    client::legacy::{Client, Error as ClientError, connect::HttpConnector as Tcp},
    rt::TokioExecutor,
};
use jiff::Timestamp;
use object_store::{
    ClientOptions, Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, RetryConfig, UpdateVersion,
    aws::{AmazonS3, AmazonS3Builder},
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
    },
    path::Path,
};

use super::{Etag, Expect, Object, Store, StoreError, check_body, check_key};

/// One retry hides a dropped connection; more would hold up an election that has its own patience.
const RETRIES: usize = 1;

/// For one request and its whole answer. A silent service is an unavailable one, also for callers without a deadline of
/// their own.
const DEADLINE: Duration = Duration::from_secs(30);

/// Where the bucket is and who asks.
#[derive(Clone)]
pub struct S3Options {
    /// With scheme: `https://s3.example`. Plain http is for a service on the same machine.
    pub endpoint: String,
    pub region: String,
    pub bucket: String,
    /// Before every key; empty for none.
    pub prefix: String,
    pub access_key: String,
    pub secret_key: String,
}

#[derive(Clone, Debug)]
pub struct S3Store {
    client: Arc<AmazonS3>,
    prefix: String,
}

impl S3Store {
    pub fn open(options: &S3Options) -> Result<Self, StoreError> {
        let client = AmazonS3Builder::new()
            .with_endpoint(&options.endpoint)
            .with_allow_http(options.endpoint.starts_with("http://"))
            .with_region(&options.region)
            .with_bucket_name(&options.bucket)
            .with_access_key_id(&options.access_key)
            .with_secret_access_key(&options.secret_key)
            .with_retry(RetryConfig { max_retries: RETRIES, ..RetryConfig::default() })
            .with_http_connector(Hyper)
            .build()
            .map_err(|error| StoreError::unavailable(&options.bucket, error))?;
        Ok(Self { client: Arc::new(client), prefix: options.prefix.clone() })
    }

    fn path(&self, key: &str) -> Path {
        Path::from(format!("{}{key}", self.prefix))
    }
}

#[async_trait]
impl Store for S3Store {
    async fn get(&self, key: &str) -> Result<Option<Object>, StoreError> {
        check_key(key)?;
        let read = async {
            let result = self.client.get(&self.path(key)).await?;
            let etag = result.meta.e_tag.clone();
            let modified = Timestamp::from_second(result.meta.last_modified.timestamp()).ok();
            Ok((result.bytes().await?, etag, modified))
        };
        match read.await {
            Ok((body, Some(etag), modified)) => Ok(Some(Object { body: body.to_vec(), etag: Etag(etag), modified })),
            Ok((_, None, _)) => Err(StoreError::unavailable(key, "the service sent no etag")),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(StoreError::unavailable(key, error)),
        }
    }

    async fn put(&self, key: &str, body: Vec<u8>, expect: Expect) -> Result<Etag, StoreError> {
        check_key(key)?;
        check_body(key, &body)?;
        let mode = match expect {
            Expect::Absent => PutMode::Create,
            Expect::Content(etag) => PutMode::Update(UpdateVersion { e_tag: Some(etag.0), version: None }),
        };
        match self.client.put_opts(&self.path(key), body.into(), PutOptions::from(mode)).await {
            Ok(result) => {
                result.e_tag.map(Etag).ok_or_else(|| StoreError::unavailable(key, "the service sent no etag"))
            }
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotFound { .. }) => {
                Err(StoreError::conflict(key))
            }
            Err(error) => Err(StoreError::unavailable(key, error)),
        }
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        check_key(key)?;
        match self.client.delete(&self.path(key)).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(StoreError::unavailable(key, error)),
        }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        check_key(prefix.trim_end_matches('/'))?;
        let found: Vec<_> = self
            .client
            .list(Some(&self.path(prefix)))
            .map_ok(|meta| meta.location.to_string())
            .try_collect()
            .await
            .map_err(|error| StoreError::unavailable(prefix, error))?;
        let keys = found.iter().filter_map(|path| path.strip_prefix(&self.prefix));
        let ours = keys.filter(|key| key.starts_with(prefix) && check_key(key).is_ok());
        let mut keys: Vec<_> = ours.map(str::to_owned).collect();
        keys.sort();
        Ok(keys)
    }
}

/// object_store's requests over the client that the tree has anyway.
#[derive(Debug)]
struct Hyper;

#[derive(Debug)]
struct Service(Client<hyper_rustls::HttpsConnector<Tcp>, object_store::client::HttpRequestBody>);

impl HttpConnector for Hyper {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let roots = HttpsConnectorBuilder::new().with_native_roots();
        let roots = roots.map_err(|error| Error::Generic { store: "S3", source: error.into() })?;
        let client = Client::builder(TokioExecutor::new()).build(roots.https_or_http().enable_http1().build());
        Ok(HttpClient::new(Service(client)))
    }
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answer = async {
            let response = self.0.request(request).await.map_err(|error| HttpError::new(kind(&error), error))?;
            let (parts, body) = response.into_parts();
            let body = body.collect().await.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error))?;
            Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(body.to_bytes())))
        };
        let late = |error| HttpError::new(HttpErrorKind::Timeout, error);
        tokio::time::timeout(DEADLINE, answer).await.map_err(late)?
    }
}

fn kind(error: &ClientError) -> HttpErrorKind {
    if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Interrupted }
}
