//! The messages of the machine API, generated from `proto/`.

pub mod google {
    pub mod rpc {
        #![allow(clippy::pedantic, reason = "generated")]
        tonic::include_proto!("google.rpc");
    }
}

pub mod common {
    #![allow(clippy::pedantic, reason = "generated")]
    tonic::include_proto!("common");
}

pub mod machine {
    #![allow(clippy::pedantic, reason = "generated")]
    tonic::include_proto!("machine");
}
