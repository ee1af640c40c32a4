//! The content of Secrets: read, checked and made where it is needed, and never held.

use std::{fs::File, io::Read, sync::Arc};

use api::workspace::WorkspaceSpec;
use k8s_openapi::api::core::v1::Secret;
use plan::workspaces::{Content, Data, Digested, ObjectId, data_of_config, data_of_password, encoded};
use runtime::{Error, Key, Writer};

use super::shelf::Shelves;

/// The data of a Secret as the server has it now. `None`: there is none.
pub async fn read(writer: &Writer, secret: &Key) -> Result<Option<Data>, Error> {
    let read = writer.read::<Secret>("secrets", secret).await?;
    let data = |secret: Secret| secret.data.unwrap_or_default().into_iter().map(|(key, bytes)| (key, encoded(bytes.0)));
    Ok(read.map(|secret| data(secret).collect()))
}

/// The data for a derived Secret, provided that it still is what was planned on.
pub async fn data(
    writer: &Writer,
    shelves: &Shelves,
    (namespace, id): (&Arc<str>, &ObjectId),
    spec: Option<&WorkspaceSpec>,
    content: &Content,
) -> Result<Data, Error> {
    match content {
        Content::FromSecret { name, digest } => {
            let data = read(writer, &Key::new(namespace.clone(), name.as_str())).await?;
            data.filter(|data| is_same(data, digest)).ok_or(Error::Outdated)
        }
        Content::FromConfig { name } => {
            let config = spec.and_then(|spec| spec.configs.get(name));
            config.map(data_of_config).ok_or(Error::Outdated)
        }
        Content::NewPassword if shelves.has(namespace, id) => Err(Error::Outdated),
        Content::NewPassword => Ok(data_of_password(new_password())),
    }
}

fn is_same(data: &Data, digest: &str) -> bool {
    Digested::of(data).digest == digest
}

/// 128 bits from the kernel: nobody guesses them, and 32 characters can still be typed.
fn new_password() -> String {
    let mut bytes = [0; 16];
    let random = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes));
    random.expect("the kernel gives random bytes");
    format!("{:032x}", u128::from_be_bytes(bytes))
}
