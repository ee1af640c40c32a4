//! Where each object is. The cluster's objects are shared by the servers of every shard; a shard's are its own.

/// The authority's certificate, in PEM.
pub const CA_CERTIFICATE: &str = "cluster/ca.crt";

/// The authority's key, sealed.
pub const CA_KEY: &str = "cluster/secret/ca.key";

/// The key that signs nonces, sealed.
pub const NONCE_KEY: &str = "cluster/secret/registration-nonce.key";

/// The lock of the cluster's leader.
pub const CLUSTER_LOCK: &str = "cluster/leader.json";

/// The folder of operators' nonces that were used.
pub const OPERATOR_NONCES: &str = "cluster/operator-nonce/";

/// Holds the public key that used an operator's nonce, and when that nonce ends.
pub fn operator_nonce(digest: &str) -> String {
    format!("{OPERATOR_NONCES}{digest}.pem")
}

/// The folder of one shard.
#[derive(Clone, Debug)]
pub struct ShardLayout {
    folder: String,
}

impl ShardLayout {
    pub fn new(shard: &str) -> Self {
        Self { folder: format!("shard/{shard}/") }
    }

    pub fn config(&self) -> String {
        format!("{}config.jsonc", self.folder)
    }

    /// Dynamic groups.
    pub fn groups(&self) -> String {
        format!("{}groups.jsonc", self.folder)
    }

    /// Is there once the groups were stored, without any or with some: from then on a missing object is a lost one.
    pub fn groups_written(&self) -> String {
        format!("{}groups-written.json", self.folder)
    }

    /// The mark of the place where the shard's machines are.
    pub fn place(&self) -> String {
        format!("{}place.json", self.folder)
    }

    pub fn lock(&self) -> String {
        format!("{}leader.json", self.folder)
    }

    pub fn instances(&self) -> String {
        format!("{}instance/", self.folder)
    }

    /// `storage_key` is the UUID form of the id and its kind.
    pub fn instance(&self, tenant: &str, storage_key: &str) -> String {
        format!("{}instance/{tenant}.{storage_key}.json", self.folder)
    }

    /// Holds the public key that registered for an instance: it has one, whatever nonce it came with.
    pub fn agent_key(&self, instance: &str) -> String {
        format!("{}agent-nonce/{instance}.pem", self.folder)
    }

    /// The folder of these.
    pub fn agent_keys(&self) -> String {
        format!("{}agent-nonce/", self.folder)
    }

    /// The folder of the certificate log.
    pub fn certificates(&self) -> String {
        format!("{}certlog/", self.folder)
    }

    /// One entry per certificate that was issued.
    pub fn certificate(&self, tenant: &str, unix_seconds: i64, id: &str) -> String {
        format!("{}certlog/{tenant}.{unix_seconds}.{id}.json", self.folder)
    }
}
