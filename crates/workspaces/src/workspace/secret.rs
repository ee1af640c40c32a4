//! The content of Secrets: read and made where it is needed, and never held.

use std::{fs::File, io::Read};

use k8s_openapi::api::core::v1::Secret;
use plan::workspaces::{Data, encoded};
use runtime::{Error, Key, Writer};

/// The data of a Secret as the server has it now. `None`: there is none.
pub async fn read(writer: &Writer, secret: &Key) -> Result<Option<Data>, Error> {
    let read = writer.read::<Secret>("secrets", secret).await?;
    let data = |secret: Secret| secret.data.unwrap_or_default().into_iter().map(|(key, bytes)| (key, encoded(bytes.0)));
    Ok(read.map(|secret| data(secret).collect()))
}

/// 128 bits from the kernel cannot be guessed, and 32 characters can still be typed.
pub fn new_password() -> String {
    let mut bytes = [0; 16];
    let random = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes));
    random.expect("the kernel gives random bytes");
    format!("{:032x}", u128::from_be_bytes(bytes))
}
