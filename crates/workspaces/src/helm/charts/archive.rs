//! What is inside a chart, packed or as a directory. Read as a stream: a chart comes from outside and may be large.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

use flate2::read::GzDecoder;
use serde::Deserialize;
use sha2::{Digest, Sha256};

/// Unpacked, and many times the largest charts there are: a small archive that unpacks without end must not keep a
/// thread for ever.
const UNPACKED_BYTES: u64 = 512 << 20;
/// A Chart.yaml of any length that people write.
const METADATA_BYTES: u64 = 1 << 20;
/// Values in it: dependencies, maintainers, keywords and annotations.
const METADATA_VALUES: usize = 10_000;
/// What an archive says about its next file beside the header: a path, hardly ever over a kilobyte. It is held in
/// memory.
const EXTENSION_BYTES: u64 = 64 << 10;

/// Names and versions of charts are held for as long as the chart, and shown in status, events and the log. Helm takes
/// names of 250 characters; versions that people write are shorter.
const LONGEST_WORD: usize = 250;

/// The part of Chart.yaml that matters here.
#[derive(Debug, Deserialize, PartialEq, Eq)]
pub(super) struct Metadata {
    pub name: String,
    pub version: String,
}

pub(super) fn metadata(chart: &Path) -> io::Result<Metadata> {
    let mut text = String::new();
    visit(chart, &mut |name, content| {
        let is_it = name == "Chart.yaml";
        if is_it {
            content.take(METADATA_BYTES).read_to_string(&mut text)?;
        }
        Ok(!is_it)
    })?;
    // Says nothing of the content: it may be any file.
    let metadata: Metadata = crate::yaml::read(&text, METADATA_VALUES, 2 * text.len())
        .map_err(|_| io::Error::other("it has no Chart.yaml with a name and a version"))?;
    for (field, word) in [("name", &metadata.name), ("version", &metadata.version)] {
        // Those of a semantic version, and of a file's name.
        let is_word = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-+_".contains(&byte));
        if !is_word || word.is_empty() || word.len() > LONGEST_WORD {
            return Err(io::Error::other(format!(
                "the {field} in its Chart.yaml must have 1 to {LONGEST_WORD} letters, digits and . - + _; correct it"
            )));
        }
    }
    Ok(metadata)
}

/// The CustomResourceDefinitions of a chart and its subcharts, each file as text, for the policy `createReplace`; helm
/// itself never changes an existing one. Fails when they are larger than `limit` bytes together.
pub fn crds(chart: &Path, limit: u64) -> io::Result<Vec<String>> {
    let mut files = Vec::new();
    let mut left = limit;
    visit(chart, &mut |name, content| {
        if is_crd(name) {
            let mut text = String::new();
            content.take(left + 1).read_to_string(&mut text)?;
            let too_large = || io::Error::other(format!("its CRDs are larger than {limit} bytes"));
            left = left.checked_sub(text.len() as u64).ok_or_else(too_large)?;
            files.push(text);
        }
        Ok(true)
    })?;
    Ok(files)
}

/// `crds/…` of the chart itself or of a chart below `charts/`.
fn is_crd(name: &str) -> bool {
    let mut rest = name;
    while let Some(below) = rest.strip_prefix("charts/").and_then(|below| below.split_once('/')) {
        rest = below.1;
    }
    rest.starts_with("crds/") && [".yaml", ".yml", ".json"].iter().any(|end| rest.ends_with(end))
}

/// A digest of a chart directory: names and contents, in order.
pub(super) fn directory_digest(chart: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    visit(chart, &mut |name, content| {
        let mut of_file = Sha256::new();
        io::copy(content, &mut Hashing(&mut of_file))?;
        hash.update(name.len().to_be_bytes());
        hash.update(name);
        hash.update(of_file.finalize());
        Ok(true)
    })?;
    Ok(hex(hash))
}

pub fn file_digest(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    io::copy(&mut File::open(path)?, &mut Hashing(&mut hash))?;
    Ok(hex(hash))
}

pub(super) fn hex(hash: Sha256) -> String {
    use std::fmt::Write;
    hash.finalize().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

struct Hashing<'a>(&'a mut Sha256);

impl io::Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Gets a file's name below the chart and its content; says whether to go on.
type Visitor<'a> = &'a mut dyn FnMut(&str, &mut dyn Read) -> io::Result<bool>;

fn visit(chart: &Path, visitor: Visitor<'_>) -> io::Result<()> {
    if chart.is_dir() {
        return visit_directory(chart, "", visitor).map(|_| ());
    }
    let mut archive = tar::Archive::new(GzDecoder::new(File::open(chart)?).take(UNPACKED_BYTES));
    let mut long_path = None;
    // Raw, since otherwise extensions of any length are read into memory.
    for entry in archive.entries()?.raw(true) {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        if kind.is_gnu_longname() || kind.is_pax_local_extensions() {
            long_path = path_of_extension(&mut entry)?.or(long_path);
            continue;
        }
        if kind.is_gnu_longlink() || kind.is_pax_global_extensions() {
            continue;
        }
        let path = long_path.take().unwrap_or_else(|| entry.path_bytes().into_owned());
        let path = String::from_utf8_lossy(&path);
        // All of it is in one directory, named after the chart.
        let name = path.trim_start_matches("./").split_once('/').map(|(_, name)| name);
        if kind.is_file()
            && let Some(name) = name
            && !visitor(name, &mut entry)?
        {
            break;
        }
    }
    Ok(())
}

/// The path of the next file, where it is too long for a header.
fn path_of_extension(entry: &mut tar::Entry<'_, impl Read>) -> io::Result<Option<Vec<u8>>> {
    let mut content = Vec::new();
    let is_path = entry.header().entry_type().is_gnu_longname();
    if entry.take(EXTENSION_BYTES + 1).read_to_end(&mut content)? as u64 > EXTENSION_BYTES {
        return Err(io::Error::other(format!("it names a file in more than {EXTENSION_BYTES} bytes")));
    }
    if is_path {
        let end = content.iter().position(|byte| *byte == 0).unwrap_or(content.len());
        content.truncate(end);
        return Ok(Some(content));
    }
    let mut path = None;
    for extension in tar::PaxExtensions::new(&content) {
        let extension = extension?;
        match extension.key_bytes() {
            b"path" => path = Some(extension.value_bytes().to_vec()),
            // It would say where the next file ends, and only those above 8 GiB need it.
            b"size" => return Err(io::Error::other("it has a file larger than any chart")),
            _ => {}
        }
    }
    Ok(path)
}

fn visit_directory(directory: &Path, prefix: &str, visitor: Visitor<'_>) -> io::Result<bool> {
    let mut entries = fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let kind = entry.file_type()?;
        let goes_on = if kind.is_dir() {
            visit_directory(&entry.path(), &format!("{name}/"), visitor)?
        } else if kind.is_file() {
            visitor(&name, &mut File::open(entry.path())?)?
        } else {
            true
        };
        if !goes_on {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
pub(super) mod tests {
    use flate2::{Compression, write::GzEncoder};

    use super::*;

    const FILES: [(&str, &str); 4] = [
        ("Chart.yaml", "apiVersion: v2\nname: web\nversion: 1.2.3\n"),
        ("charts/sub/crds/b.yaml", "b"),
        ("crds/a.yaml", "a"),
        ("templates/crds/c.yaml", "c"),
    ];

    pub fn directory(parent: &Path) -> std::path::PathBuf {
        let chart = parent.join("web");
        for (name, content) in FILES {
            fs::create_dir_all(chart.join(name).parent().unwrap()).unwrap();
            fs::write(chart.join(name), content).unwrap();
        }
        chart
    }

    pub fn packed(chart: &Path) -> std::path::PathBuf {
        let path = chart.with_extension("tgz");
        let mut archive = tar::Builder::new(GzEncoder::new(File::create(&path).unwrap(), Compression::fast()));
        archive.append_dir_all("web", chart).unwrap();
        archive.into_inner().unwrap().finish().unwrap();
        path
    }

    #[test]
    fn a_chart_reads_the_same_packed_and_unpacked() {
        let parent = tempfile::tempdir().unwrap();
        let chart = directory(parent.path());
        for path in [packed(&chart), chart.clone()] {
            assert_eq!(metadata(&path).unwrap(), Metadata { name: "web".into(), version: "1.2.3".into() });
            let mut found = crds(&path, 100).unwrap();
            found.sort();
            assert_eq!(found, ["a", "b"]);
            assert!(crds(&path, 1).is_err());
        }
        let before = directory_digest(&chart).unwrap();
        assert_eq!(before, directory_digest(&chart).unwrap());
        fs::write(chart.join("values.yaml"), "").unwrap();
        assert_ne!(before, directory_digest(&chart).unwrap());
    }

    /// An archive of entries as they are.
    fn raw(parent: &Path, entries: &[(tar::EntryType, &str, &[u8])]) -> std::path::PathBuf {
        let path = parent.join("raw.tgz");
        let mut archive = tar::Builder::new(GzEncoder::new(File::create(&path).unwrap(), Compression::fast()));
        for (kind, name, content) in entries {
            let mut header = tar::Header::new_ustar();
            header.set_entry_type(*kind);
            header.set_size(content.len() as u64);
            header.set_path(name).unwrap();
            header.set_cksum();
            archive.append(&header, *content).unwrap();
        }
        archive.into_inner().unwrap().finish().unwrap();
        path
    }

    #[test]
    fn long_paths_are_read_and_endless_ones_are_not() {
        use tar::EntryType::{GNULongLink, GNULongName, Regular, XHeader};
        let parent = tempfile::tempdir().unwrap();
        let long = format!("web/charts/{}/crds/a.yaml", "x".repeat(150));
        let pax = |key: &str, value: &str| {
            let text = format!(" {key}={value}\n");
            // The length counts its own digits, three here.
            format!("{}{text}", text.len() + 3)
        };
        let path = pax("path", &long);
        for extension in [(GNULongName, "x", long.as_bytes()), (XHeader, "x", path.as_bytes())] {
            let chart = raw(parent.path(), &[extension, (Regular, "y", b"a"), (Regular, "web/crds/b.yaml", b"b")]);
            assert_eq!(crds(&chart, 100).unwrap(), ["a", "b"]);
        }
        let endless = vec![b'x'; 1 + usize::try_from(EXTENSION_BYTES).unwrap()];
        for kind in [GNULongName, XHeader] {
            let chart = raw(parent.path(), &[(kind, "x", &endless), (Regular, "web/crds/b.yaml", b"b")]);
            assert!(crds(&chart, 100).unwrap_err().to_string().contains("65536"));
        }
        let chart = raw(parent.path(), &[(GNULongLink, "x", &endless), (Regular, "web/crds/b.yaml", b"b")]);
        assert_eq!(crds(&chart, 100).unwrap(), ["b"], "where a link leads does not matter");
        let size = pax("size", &"0".repeat(100));
        let chart = raw(parent.path(), &[(XHeader, "x", size.as_bytes()), (Regular, "web/crds/b.yaml", b"b")]);
        assert!(crds(&chart, 100).is_err());
    }

    #[test]
    fn a_name_and_a_version_are_words_of_reasonable_length() {
        let parent = tempfile::tempdir().unwrap();
        let chart = directory(parent.path());
        let read = |name: &str, version: &str| {
            fs::write(chart.join("Chart.yaml"), format!("name: \"{name}\"\nversion: \"{version}\"\n")).unwrap();
            metadata(&packed(&chart)).map_err(|error| error.to_string())
        };
        let long = "1".repeat(LONGEST_WORD);
        assert_eq!(read("my_chart.x", "v1.2.3-rc.1+b").unwrap().version, "v1.2.3-rc.1+b");
        assert_eq!(read("web", &long).unwrap().version, long);
        for (name, version, field) in [
            ("web", format!("{long}1").as_str(), "version"),
            ("web", "1.0.0\\n{\\\"level\\\":1}", "version"),
            ("web", "", "version"),
            ("../web", "1.0.0", "name"),
        ] {
            let error = read(name, version).unwrap_err();
            assert!(error.contains(&format!("the {field} in its Chart.yaml")) && error.len() < 200, "{error}");
        }
    }

    #[test]
    fn what_is_no_chart_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("x.tgz");
        fs::write(&path, "not an archive").unwrap();
        assert!(metadata(&path).is_err());
        assert!(metadata(parent.path()).is_err());
    }
}
