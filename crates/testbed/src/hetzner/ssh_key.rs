//! SSH keys.

use base64::{Engine, engine::general_purpose::STANDARD};
use md5::{Digest, Md5};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    query::Query,
    refusal::Refusal,
    selector::Labels,
    state::{Base, Call, Outcome, Project, Record, Reply, World, in_table},
};

const ALGORITHMS: [&str; 5] =
    ["ssh-rsa", "ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"];

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SshKey {
    pub base: Base,
    public_key: String,
    fingerprint: String,
}

#[derive(Default, Deserialize)]
struct Input {
    name: Option<String>,
    public_key: Option<String>,
    labels: Option<Labels>,
}

/// MD5 of the key itself, as the vendor shows it and `hcloud server create --ssh-key FILE` looks for it.
fn fingerprint(public_key: &str) -> Option<String> {
    let mut words = public_key.split_whitespace();
    let algorithm = words.next().filter(|word| ALGORITHMS.contains(word))?;
    let key = STANDARD.decode(words.next()?).ok()?;
    // The key names its algorithm too; what follows is the algorithm's own.
    let (name, rest) = string(&key)?;
    if name != algorithm.as_bytes() || string(rest).is_none_or(|(part, _)| part.is_empty()) {
        return None;
    }
    let pairs: Vec<String> = Md5::digest(&key).iter().map(|byte| format!("{byte:02x}")).collect();
    Some(pairs.join(":"))
}

/// A string of the SSH protocol, which is behind its length, and what follows it.
fn string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)
}

impl Record for SshKey {
    in_table!("ssh_keys", "ssh_key", ssh_keys);

    fn view(&self, _: &Project) -> Value {
        self.base.view(json!({ "public_key": self.public_key, "fingerprint": self.fingerprint }))
    }

    fn is_wanted(&self, query: &Query) -> bool {
        query.admits("fingerprint", &self.fingerprint)
    }

    fn create(world: &mut World<'_>, call: &Call) -> Outcome {
        let input: Input = call.read()?;
        let name = world.name::<Self>(input.name, None)?;
        let public_key = input.public_key.unwrap_or_default();
        let fingerprint =
            fingerprint(&public_key).ok_or_else(|| Refusal::invalid("public_key", "is not a valid SSH public key"))?;
        if world.project.ssh_keys.values().any(|key| key.fingerprint == fingerprint) {
            return Err(Refusal::not_unique("public_key", "SSH key with the same fingerprint already exists"));
        }
        let key = Self { base: world.base(name, input.labels)?, public_key, fingerprint };
        let view = key.view(world.project);
        world.project.ssh_keys.insert(key.base.id, key);
        Ok(Reply::created(json!({ "ssh_key": view })))
    }

    fn delete(world: &mut World<'_>, id: i64) -> Outcome {
        world.project.ssh_keys.remove(&id);
        Ok(Reply::empty())
    }

    fn act(_: &mut World<'_>, _: &Call, _: i64, _: &str) -> Outcome {
        Err(Refusal::no_route())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_that_of_ssh_keygen() {
        // `ssh-keygen -E md5 -l` of this key.
        let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f key@host";
        assert_eq!(fingerprint(key).as_deref(), Some("0f:a2:0a:d7:38:3e:65:45:08:6b:63:84:1c:ff:dc:ba"));
        let (_, body) = key.split_once(' ').unwrap();
        let bad = ["ssh-dss AAAA", "ssh-rsa", "ssh-ed25519 AAAAnokey", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA"];
        for key in bad.map(str::to_owned).into_iter().chain([format!("ssh-rsa {body}")]) {
            assert_eq!(fingerprint(&key), None, "{key}");
        }
    }
}
