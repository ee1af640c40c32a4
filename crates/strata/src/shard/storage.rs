//! Where a cluster of shards keeps what it must not lose, as a user names it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use plan::shard::{
    config::{Config, Findings, Problem},
    election::Lock,
};
use shard::{
    config::parse_own,
    identity::{ClusterKeys, SealingKey},
    store::{FileStore, S3Options, S3Store, Store, StoreError, layout::ShardLayout},
};

use crate::{Failure, explained};

#[derive(Debug, Args)]
pub struct StorageFlags {
    /// A folder, or s3://BUCKET/PREFIX [default: that of the environment of `strata dev` that is up]
    #[arg(long, env = "STRATA_SHARD_STORAGE", value_name = "PLACE", global = true)]
    storage: Option<String>,
    /// Where the S3-compatible service is; its keys are read from `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`
    #[arg(long, env = "AWS_ENDPOINT_URL", value_name = "URL", global = true)]
    s3_endpoint: Option<String>,
    /// The bucket's region
    #[arg(long, env = "AWS_REGION", default_value = "us-east-1", value_name = "REGION", global = true)]
    s3_region: String,
    // From the environment: arguments are seen by every user of the machine.
    #[arg(long, env = "AWS_ACCESS_KEY_ID", hide = true, hide_env_values = true, global = true)]
    s3_access_key: Option<String>,
    #[arg(long, env = "AWS_SECRET_ACCESS_KEY", hide = true, hide_env_values = true, global = true)]
    s3_secret_key: Option<String>,
    /// File with the key that seals the cluster's keys: 32 bytes, or 64 hexadecimal digits
    #[arg(long, env = "STRATA_SHARD_ENCRYPTION_KEY_FILE", value_name = "FILE", global = true)]
    encryption_key_file: Option<PathBuf>,
    #[cfg(feature = "dev")]
    #[command(flatten)]
    dev: DevFlags,
}

/// Where the environment of `strata dev` is, by the variable that `strata dev` reads.
#[cfg(feature = "dev")]
#[derive(Debug, Args)]
struct DevFlags {
    #[arg(long, env = "STRATA_DEV_DIR", hide = true, global = true)]
    dev_dir: Option<PathBuf>,
    #[arg(long, env = "XDG_STATE_HOME", hide = true, global = true)]
    state_home: Option<PathBuf>,
}

/// What to do without a storage.
const UNNAMED: &str = if cfg!(feature = "dev") {
    "name a folder or a bucket (--storage DIR or --storage s3://BUCKET/PREFIX), or start an environment with `strata dev up`"
} else {
    "name a folder or a bucket: --storage DIR or --storage s3://BUCKET/PREFIX"
};

impl StorageFlags {
    /// The storage, whose folder is made if it is missing.
    pub fn make(&self) -> Result<Arc<dyn Store>, Failure> {
        self.store(|_| Ok(()))
    }

    /// The storage, which must be there: a folder that was mistyped is not made and shown as one without shards.
    pub fn open(&self) -> Result<Arc<dyn Store>, Failure> {
        self.store(|folder| if folder.is_dir() { Ok(()) } else { Err("there is no such folder") })
    }

    fn store(&self, check: impl FnOnce(&Path) -> Result<(), &'static str>) -> Result<Arc<dyn Store>, Failure> {
        let place = match self.storage.as_deref().filter(|place| !place.is_empty()) {
            Some(place) => place.to_owned(),
            None => self.dev_storage()?,
        };
        let cannot = |why: String| Failure::new(format!("cannot use the storage {place}: {why}"));
        if let Some(bucket) = place.strip_prefix("s3://") {
            return Ok(Arc::new(self.bucket(bucket)?));
        }
        if place.contains("://") {
            return Err(cannot("its kind is not supported".to_owned()).hint("use a folder or s3://BUCKET/PREFIX"));
        }
        check(Path::new(&place)).map_err(|why| {
            cannot(why.to_owned()).hint("name the folder that `strata shard init` was given; that command makes one")
        })?;
        Ok(Arc::new(FileStore::open(&place).map_err(|error| cannot(error.to_string()))?))
    }

    /// The storage of the environment of `strata dev` that is up.
    #[cfg(feature = "dev")]
    fn dev_storage(&self) -> Result<String, Failure> {
        let DevFlags { dev_dir, state_home } = &self.dev;
        let folder = crate::dev::storage(dev_dir.clone(), state_home.clone());
        let folder =
            folder.map_err(|failure| Failure::new(format!("no storage is named, and {failure}")).hint(UNNAMED))?;
        Ok(folder.to_string_lossy().into_owned())
    }

    #[cfg(not(feature = "dev"))]
    #[expect(clippy::unused_self, reason = "only builds with `strata dev` look for an environment")]
    fn dev_storage(&self) -> Result<String, Failure> {
        Err(Failure::new("no storage is named").hint(UNNAMED))
    }

    fn bucket(&self, place: &str) -> Result<S3Store, Failure> {
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        let prefix = prefix.trim_matches('/');
        let need = |value: &Option<String>, name: &str| {
            let value = value.clone().filter(|value| !value.is_empty());
            value.ok_or_else(|| Failure::new(format!("S3 needs {name}")).hint("set it in the environment"))
        };
        let options = S3Options {
            endpoint: need(&self.s3_endpoint, "AWS_ENDPOINT_URL")?,
            region: self.s3_region.clone(),
            bucket: bucket.to_owned(),
            prefix: if prefix.is_empty() { String::new() } else { format!("{prefix}/") },
            access_key: need(&self.s3_access_key, "AWS_ACCESS_KEY_ID")?,
            secret_key: need(&self.s3_secret_key, "AWS_SECRET_ACCESS_KEY")?,
        };
        Ok(S3Store::open(&options)?)
    }

    pub fn sealing(&self) -> Result<Option<SealingKey>, Failure> {
        let Some(file) = &self.encryption_key_file else { return Ok(None) };
        let cannot = |why: String| Failure::new(format!("cannot use the key file {}: {why}", file.display()));
        let content = std::fs::read(file).map_err(|error| cannot(error.to_string()))?;
        SealingKey::read(&content).map(Some).map_err(|error| cannot(error.to_string()))
    }

    pub async fn keys(&self, store: &dyn Store, cluster: &str) -> Result<ClusterKeys, Failure> {
        let sealing = self.sealing()?;
        ClusterKeys::load(store, cluster, sealing.as_ref()).await.map_err(|error| Failure::new(explained(&error)))
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::new(format!("storage: {}", explained(&error)))
    }
}

/// The shards that have a configuration.
pub async fn shards(store: &dyn Store) -> Result<Vec<String>, Failure> {
    let keys = store.list("shard/").await?;
    let name = |key: &String| Some(key.strip_prefix("shard/")?.strip_suffix("/config.jsonc")?.to_owned());
    Ok(keys.iter().filter_map(name).filter(|name| !name.contains('/')).collect())
}

/// The text of a shard's configuration and what is wrong with it.
pub async fn findings(store: &dyn Store, shard: &str) -> Result<(Option<Config>, Findings), Failure> {
    plan::shard::id::check("shard", shard).map_err(|refusal| Failure::new(refusal.message))?;
    let Some(object) = store.get(&ShardLayout::new(shard).config()).await? else {
        return Err(unknown_shard(shard, &shards(store).await?));
    };
    Ok(String::from_utf8(object.body).map_or_else(|_| not_text(), |text| parse_own(&text, shard, None)))
}

fn unknown_shard(shard: &str, known: &[String]) -> Failure {
    let makes = format!("`strata shard init {shard} --cluster ID` makes it");
    let hint = match known {
        [] => makes,
        known => format!("name one that is there ({}), or {makes}", known.join(", ")),
    };
    Failure::new(format!("the storage has no shard {shard:?}")).hint(hint)
}

/// What is wrong with a configuration that has no text.
fn not_text() -> (Option<Config>, Findings) {
    let message = "is not text; write it anew, or restore it from a backup of the storage".to_owned();
    let problem = Problem { field: "config".to_owned(), message };
    (None, Findings { problems: vec![problem], warnings: Vec::new() })
}

/// A shard's lock, or why it cannot be read.
pub async fn lock(store: &dyn Store, shard: &str) -> Result<Result<Option<Lock>, String>, Failure> {
    let key = ShardLayout::new(shard).lock();
    let Some(object) = store.get(&key).await? else { return Ok(Ok(None)) };
    let remedy = "restore it, or stop every server of the shard and remove it";
    let read = serde_json::from_slice(&object.body).map(Some);
    Ok(read.map_err(|error| format!("{key} is damaged: {error}; {remedy}")))
}

/// A shard's configuration, if it can be used.
pub async fn config(store: &dyn Store, shard: &str) -> Result<Config, Failure> {
    match findings(store, shard).await? {
        (Some(config), findings) if findings.problems.is_empty() => Ok(config),
        (_, findings) => {
            let first = findings.problems.first();
            let why = first.map(|first| format!("{}: {}", first.field, first.message)).unwrap_or_default();
            Err(Failure::new(format!("the configuration of shard {shard:?} cannot be used: {why}"))
                .hint("`strata shard validate` names every problem"))
        }
    }
}

/// The cluster that the storage is of: every shard's configuration names it.
pub async fn cluster(store: &dyn Store) -> Result<String, Failure> {
    for shard in shards(store).await? {
        if let (Some(config), _) = findings(store, &shard).await? {
            return Ok(config.cluster.id);
        }
    }
    Err(Failure::new("the storage has no shard with a readable configuration").hint("`strata shard init` makes one"))
}
