//! The answer to `ListGroups`, written by hand: a server that is polled sends groups that it encoded before.

use bytes::{Buf, BufMut, Bytes};
use prost::{
    DecodeError, Message,
    encoding::{DecodeContext, WireType, bytes as raw, message, skip_field},
};

use super::GroupStatus;

/// The field's number.
const GROUPS: u32 = 1;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListGroupsResponse {
    /// What a client reads.
    pub groups: Vec<GroupStatus>,
    /// What a server sends after those: each is a `GroupStatus` as it is on the wire.
    pub encoded: Vec<Bytes>,
}

impl Message for ListGroupsResponse {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        message::encode_repeated(GROUPS, &self.groups, buffer);
        // A message and its bytes are the same on the wire.
        raw::encode_repeated(GROUPS, &self.encoded, buffer);
    }

    fn merge_field(
        &mut self,
        number: u32,
        kind: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        match number {
            GROUPS => message::merge_repeated(kind, &mut self.groups, buffer, context),
            _ => skip_field(kind, number, buffer, context),
        }
    }

    fn encoded_len(&self) -> usize {
        message::encoded_len_repeated(GROUPS, &self.groups) + raw::encoded_len_repeated(GROUPS, &self.encoded)
    }

    fn clear(&mut self) {
        self.groups.clear();
        self.encoded.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_encoded_before_is_read_as_if_it_were_not() {
        let group = |key: &str| GroupStatus { key: key.to_owned(), size: 3, ..GroupStatus::default() };
        let encoded = ["a", ""].map(|key| group(key).encode_to_vec().into()).to_vec();
        let sent = ListGroupsResponse { groups: vec![group("first")], encoded };
        let plain = ListGroupsResponse { groups: ["first", "a", ""].map(group).to_vec(), encoded: vec![] };
        assert_eq!(sent.encode_to_vec(), plain.encode_to_vec());
        assert_eq!(ListGroupsResponse::decode(&*sent.encode_to_vec()).unwrap(), plain);
        // A field that is not known is passed over.
        let mut bytes = sent.encode_to_vec();
        bytes.extend([0x10, 0x07]);
        assert_eq!(ListGroupsResponse::decode(&*bytes).unwrap(), plain);
    }
}
