//! The messages of the machine API, generated from `proto/`.

pub mod google {
    pub mod rpc {
        #![allow(clippy::pedantic, clippy::allow_attributes_without_reason, reason = "generated")]
        tonic::include_proto!("google.rpc");
    }
}

pub mod common {
    #![allow(clippy::pedantic, clippy::allow_attributes_without_reason, reason = "generated")]
    tonic::include_proto!("common");
}

pub mod machine {
    #![allow(clippy::pedantic, clippy::allow_attributes_without_reason, reason = "generated")]
    tonic::include_proto!("machine");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::{common::Data, machine};

    proptest! {
        #[test]
        fn no_bytes_make_a_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = machine::VersionResponse::decode(bytes.as_slice());
            let _ = machine::ServiceListResponse::decode(bytes.as_slice());
            let _ = machine::EtcdMemberListResponse::decode(bytes.as_slice());
            let _ = machine::EtcdStatusResponse::decode(bytes.as_slice());
            let _ = machine::EtcdAlarmListResponse::decode(bytes.as_slice());
            let _ = machine::ApplyConfigurationRequest::decode(bytes.as_slice());
            let _ = Data::decode(bytes.as_slice());
        }

        /// Fields and enum values of later versions are skipped, not refused.
        #[test]
        fn a_reply_of_a_later_version_is_understood(alarm in 3i32..1000, extra in 100u32..1000) {
            let alarm = machine::EtcdMemberAlarm { member_id: 7, alarm };
            let mut bytes = alarm.encode_to_vec();
            prost::encoding::string::encode(extra, &"new".to_owned(), &mut bytes);
            let read = machine::EtcdMemberAlarm::decode(bytes.as_slice()).unwrap();
            prop_assert_eq!((read.member_id, read.alarm), (7, alarm.alarm));
        }
    }
}
