//! Compiles the protocol without protoc: protox parses, tonic generates.

use std::{env, fs, path::PathBuf};

use protox::prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = ["operator", "registration", "agent"].map(|name| format!("nstance/v1/{name}.proto"));
    let descriptors = protox::compile(files, ["proto"])?;
    // A test prints the table of names and numbers from it.
    #[expect(clippy::disallowed_methods, reason = "cargo passes a build script's folder in the environment")]
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    fs::write(out.join("nstance.v1.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        // Written by hand, for groups that are encoded once and sent often.
        .extern_path(".nstance.v1.ListGroupsResponse", "crate::wire::ListGroupsResponse")
        // Ordered maps, so that equal messages have equal bytes.
        .btree_map(".")
        // Tells reports of other versions of agents apart.
        .codec_path("crate::wire::codec::Codec")
        .compile_fds(descriptors)?;
    Ok(())
}
