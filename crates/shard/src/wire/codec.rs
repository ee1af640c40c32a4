//! How messages are written and read: as prost does it, but for reports of agents that number the fields otherwise, and
//! with an eye on lists of ten thousand instances.

use std::any::TypeId;

use bytes::{Buf, Bytes};
use prost::{
    Message,
    encoding::{DecodeContext, decode_key, skip_field},
};
use tonic::{
    Status,
    codec::{Codec as GrpcCodec, DecodeBuf, Decoder as GrpcDecoder, EncodeBuf, Encoder as GrpcEncoder},
};

use super::HealthReportRequest;

/// Fields that only reports of the first published agents have, which give the numbers from 5 on other meanings.
const FIRST_VERSION: std::ops::RangeInclusive<u32> = 10..=14;

pub struct Codec<T, U>(std::marker::PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(std::marker::PhantomData)
    }
}

impl<T, U> GrpcCodec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = Encoder<T>;
    type Decoder = Decoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        Encoder(std::marker::PhantomData)
    }

    fn decoder(&mut self) -> Self::Decoder {
        Decoder(std::marker::PhantomData)
    }
}

pub struct Encoder<T>(std::marker::PhantomData<T>);

impl<T: Message> GrpcEncoder for Encoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, message: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        // At once: a buffer that grows with a long message copies it several times.
        buffer.reserve(message.encoded_len());
        message.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

pub struct Decoder<U>(std::marker::PhantomData<U>);

impl<U: Message + Default + 'static> GrpcDecoder for Decoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // Handed over, not copied: a plain slice is read more quickly than tonic's buffer, field by field.
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        if TypeId::of::<U>() == TypeId::of::<HealthReportRequest>() {
            check_report(&bytes)?;
        }
        U::decode(&*bytes).map(Some).map_err(|error| malformed(&error))
    }
}

/// As gRPC maps what cannot be parsed.
fn malformed(error: &prost::DecodeError) -> Status {
    Status::internal(error.to_string())
}

/// Refuses a report that has fields of another version, or whose own do not parse, as one of another version; by its name,
/// which every version has in the first field.
fn check_report(report: &Bytes) -> Result<(), Status> {
    if is_ours(report.clone()).unwrap_or(false) && HealthReportRequest::decode(report.clone()).is_ok() {
        return Ok(());
    }
    let version = version(report.clone()).unwrap_or_else(|| "unknown".to_owned());
    Err(Status::failed_precondition(format!(
        "agent version {version:?} numbers the fields of its health report otherwise; install an agent of version 2 of \
         the protocol"
    )))
}

fn is_ours(mut report: Bytes) -> Result<bool, prost::DecodeError> {
    while report.has_remaining() {
        let (number, kind) = decode_key(&mut report)?;
        if FIRST_VERSION.contains(&number) {
            return Ok(false);
        }
        skip_field(kind, number, &mut report, DecodeContext::default())?;
    }
    Ok(true)
}

/// What the first field says, if it is a text that can be shown.
fn version(report: Bytes) -> Option<String> {
    #[derive(Clone, PartialEq, Message)]
    struct First {
        #[prost(string, tag = "1")]
        version: String,
    }
    let first = First::decode(report).ok()?;
    Some(first.version.chars().filter(|letter| !letter.is_control()).take(64).collect())
}

#[cfg(test)]
mod tests {
    use prost::encoding::{int64, message, string};
    use prost_types::Timestamp;

    use super::*;

    /// A report as the first published agents send it: the same first fields, then a start time and a hash at 14.
    fn first_version() -> Bytes {
        let mut bytes = Vec::new();
        string::encode(1, &"v0.1.0".to_owned(), &mut bytes);
        string::encode(2, &"web01".to_owned(), &mut bytes);
        message::encode(3, &Timestamp { seconds: 1, nanos: 0 }, &mut bytes);
        int64::encode(4, &1, &mut bytes);
        message::encode(5, &Timestamp { seconds: 1_700_000_000, nanos: 0 }, &mut bytes);
        string::encode(14, &"hash".to_owned(), &mut bytes);
        bytes.into()
    }

    #[track_caller]
    fn refused(report: &Bytes, version: &str) {
        let status = check_report(report).unwrap_err();
        assert_eq!(status.code(), tonic::Code::FailedPrecondition);
        assert!(status.message().contains(version), "{status}");
    }

    #[test]
    fn reports_of_the_first_version_are_told_apart_and_not_misread() {
        refused(&first_version(), "v0.1.0");
        let mut short = first_version().to_vec();
        short.truncate(short.len() - 6);
        refused(&short.into(), "v0.1.0");
        refused(&Bytes::from_static(b"\xff\xff"), "unknown");
        let ours =
            HealthReportRequest { version: "2.0.0".to_owned(), config_hash: "h".to_owned(), ..Default::default() };
        check_report(&ours.encode_to_vec().into()).unwrap();
        check_report(&Bytes::new()).unwrap();
    }
}
