//! Generates the gRPC code without protoc: protox compiles the .proto files to a descriptor set, which the real
//! tonic's generator or, under `--cfg madsim`, the simulated one turns into Rust.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 2] = ["verdict/v1/verdict.proto", "verdict/peer/v1/peer.proto"];
const ROOT: &str = "proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={ROOT}");
    let descriptors = protox::compile(FILES, [ROOT])?;
    let path = PathBuf::from(env::var("OUT_DIR")?).join("verdict.descriptors");
    fs::write(&path, descriptors.encode_to_vec())?;
    if env::var_os("CARGO_CFG_MADSIM").is_some() {
        madsim_tonic_build::configure()
            .bytes(["."])
            .file_descriptor_set_path(&path)
            .skip_protoc_run()
            .compile_protos(&FILES, &[ROOT])?;
    } else {
        tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    }
    Ok(())
}
