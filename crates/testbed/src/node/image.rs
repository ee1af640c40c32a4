//! Images of one static program, as an OCI image layout in a tar archive.

use std::{
    fmt::Write as _,
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// Tar counts in blocks of this size.
const BLOCK: usize = 512;

pub(super) struct Image<'a> {
    name: &'a str,
    program: &'a Path,
    args: Vec<&'a str>,
}

impl<'a> Image<'a> {
    pub(super) fn new(name: &'a str, program: &'a Path) -> Self {
        Self { name, program, args: Vec::new() }
    }

    /// Arguments that always come first; those of a pod follow.
    pub(super) fn args(mut self, args: impl IntoIterator<Item = &'a str>) -> Self {
        self.args.extend(args);
        self
    }

    pub(super) fn name(&self) -> &str {
        self.name
    }

    pub(super) fn write(&self, archive: &File) -> io::Result<()> {
        let mut layer = Vec::new();
        append(&mut layer, "program", 0o755, &std::fs::read(self.program)?)?;
        finish(&mut layer)?;
        let config = self.config(&layer).to_string().into_bytes();
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": descriptor(CONFIG, &config), "layers": [descriptor(LAYER, &layer)],
        })
        .to_string()
        .into_bytes();
        let mut entry = descriptor(MANIFEST, &manifest);
        entry["annotations"] = json!({ "io.containerd.image.name": self.name });
        let index = json!({ "schemaVersion": 2, "manifests": [entry] }).to_string();

        let mut archive = BufWriter::new(archive);
        append(&mut archive, "oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        append(&mut archive, "index.json", 0o644, index.as_bytes())?;
        for blob in [&config, &manifest, &layer] {
            append(&mut archive, &format!("blobs/sha256/{}", digest(blob)), 0o644, blob)?;
        }
        finish(&mut archive)?;
        archive.flush()
    }

    fn config(&self, layer: &[u8]) -> Value {
        let entrypoint: Vec<&str> = std::iter::once("/program").chain(self.args.iter().copied()).collect();
        json!({
            "architecture": architecture(), "os": "linux",
            // A program can tell which image it runs from, and no two images are the same.
            "config": { "Entrypoint": entrypoint, "Env": [format!("IMAGE={}", self.name)] },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", digest(layer))] },
        })
    }
}

/// In the words of Go, which are those of OCI.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn descriptor(media_type: &str, blob: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": format!("sha256:{}", digest(blob)), "size": blob.len() })
}

fn digest(blob: &[u8]) -> String {
    Sha256::digest(blob).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// One file in the ustar format: a header of one block, then the content in whole blocks.
fn append(archive: &mut impl Write, name: &str, mode: u32, content: &[u8]) -> io::Result<()> {
    let mut header = [0_u8; BLOCK];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, &format!("{mode:07o}"));
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{:011o}", content.len()));
    put(136, "00000000000");
    // The checksum is taken with blanks in its own place.
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    archive.write_all(&header)?;
    archive.write_all(content)?;
    archive.write_all(&[0; BLOCK][..content.len().next_multiple_of(BLOCK) - content.len()])
}

/// Two empty blocks end an archive.
fn finish(archive: &mut impl Write) -> io::Result<()> {
    archive.write_all(&[0; 2 * BLOCK])
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// The system's tar reads what we write, and the digests lead from the index to the program.
    #[test]
    fn the_archive_is_a_whole_image() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("some-program");
        std::fs::write(&program, "content of a program").unwrap();
        let archive = folder.path().join("image.tar");
        Image::new("docker.io/local/x:1", &program).args(["a"]).write(&File::create(&archive).unwrap()).unwrap();
        let unpack = |archive: &Path| {
            assert!(Command::new("tar").arg("-xf").arg(archive).current_dir(&folder).status().unwrap().success());
        };
        unpack(&archive);
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap().trim_start_matches("sha256:").to_owned();
            let path = folder.path().join("blobs/sha256").join(&digest);
            assert_eq!(super::digest(&std::fs::read(&path).unwrap()), digest);
            path
        };
        let read = |path: &Path| serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap();
        let index = read(&folder.path().join("index.json"));
        let manifest = read(&blob(&index["manifests"][0]));
        let config = read(&blob(&manifest["config"]));
        assert_eq!(config["config"], json!({ "Entrypoint": ["/program", "a"], "Env": ["IMAGE=docker.io/local/x:1"] }));
        unpack(&blob(&manifest["layers"][0]));
        assert_eq!(std::fs::read_to_string(folder.path().join("program")).unwrap(), "content of a program");
    }
}
