//! Fences travel as metadata, so that the messages stay those of the original.

use tonic::{
    Status,
    metadata::{Ascii, MetadataMap, MetadataValue},
};

const EPOCH: &str = "strata-epoch";
const GENERATION: &str = "strata-generation";
const REQUEST_ID: &str = "strata-request-id";

/// A request id is a UUID or a name of that length; a server remembers many of them.
const REQUEST_ID_LIMIT: usize = 64;

/// Guards a call that changes something: a server refuses an epoch or a generation older than the newest it saw for the
/// same subject, and repeats its answer to a known request id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fence {
    /// Of the lease the caller holds.
    pub epoch: Option<u64>,
    /// Of the object that caused the call.
    pub generation: Option<u64>,
    pub request_id: Option<String>,
}

impl Fence {
    /// Adds the fence to a request's metadata.
    pub fn write(&self, metadata: &mut MetadataMap) -> Result<(), Status> {
        let numbers = [(EPOCH, self.epoch), (GENERATION, self.generation)];
        for (name, number) in numbers.into_iter().filter_map(|(name, number)| Some((name, number?))) {
            metadata.insert(name, MetadataValue::from(number));
        }
        if let Some(id) = &self.request_id {
            metadata.insert(REQUEST_ID, checked_id(id)?);
        }
        Ok(())
    }

    /// Reads what a caller sent; stock callers send nothing.
    pub fn read(metadata: &MetadataMap) -> Result<Self, Status> {
        let request_id = metadata.get(REQUEST_ID).map(|value| value.to_str().map(str::to_owned));
        let request_id = request_id.transpose().map_err(|_| malformed(REQUEST_ID))?;
        if let Some(id) = &request_id {
            checked_id(id)?;
        }
        Ok(Self { epoch: number(metadata, EPOCH)?, generation: number(metadata, GENERATION)?, request_id })
    }
}

fn number(metadata: &MetadataMap, name: &'static str) -> Result<Option<u64>, Status> {
    let Some(value) = metadata.get(name) else { return Ok(None) };
    value.to_str().ok().and_then(|text| text.parse().ok()).map(Some).ok_or_else(|| malformed(name))
}

fn checked_id(id: &str) -> Result<MetadataValue<Ascii>, Status> {
    let fits = !id.is_empty() && id.len() <= REQUEST_ID_LIMIT && id.bytes().all(|byte| byte.is_ascii_graphic());
    if !fits {
        return Err(malformed(REQUEST_ID));
    }
    id.parse().map_err(|_| malformed(REQUEST_ID))
}

fn malformed(name: &str) -> Status {
    let expected =
        if name == REQUEST_ID { "1 to 64 visible ASCII characters" } else { "a decimal number of at most 64 bits" };
    Status::invalid_argument(format!("metadata {name}: expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_survives_the_metadata() {
        for fence in [
            Fence::default(),
            Fence { epoch: Some(7), generation: Some(u64::MAX), request_id: Some("0197-a".to_owned()) },
        ] {
            let mut metadata = MetadataMap::new();
            fence.write(&mut metadata).unwrap();
            assert_eq!(Fence::read(&metadata).unwrap(), fence);
        }
    }

    #[test]
    fn a_malformed_fence_is_refused_by_name() {
        for (name, value) in
            [(EPOCH, "-1"), (EPOCH, ""), (GENERATION, "1e3"), (REQUEST_ID, ""), (REQUEST_ID, &"x".repeat(65))]
        {
            let mut metadata = MetadataMap::new();
            metadata.insert(name, value.parse().unwrap());
            let status = Fence::read(&metadata).unwrap_err();
            assert_eq!(status.code(), tonic::Code::InvalidArgument);
            assert!(status.message().contains(name), "{status}");
        }
    }
}
