//! What a chart repository offers, and the `index.yaml` that tells of it.

use std::collections::BTreeMap;

use axum::body::Bytes;
use serde_json::{Value, json};

use super::{Archive, Error, hexadecimal};

/// Any time does; always the same, so that the same offer has the same ETag.
const CREATED: &str = "2026-01-01T00:00:00Z";

/// A file and its ETag.
#[derive(Clone)]
pub(super) struct Document {
    pub content: Bytes,
    pub etag: String,
}

impl Document {
    fn new(content: Vec<u8>) -> Self {
        Self { etag: format!("\"{}\"", hexadecimal(&content)), content: content.into() }
    }
}

#[derive(Default)]
pub(super) struct Offer {
    archives: BTreeMap<(String, String), (Archive, Document)>,
    /// Entries of charts that nobody wants.
    padding: Vec<Value>,
    /// Made when it is first asked for after a change.
    index: Option<Document>,
}

impl Offer {
    pub(super) fn publish(&mut self, archive: &Archive) -> Result<(), Error> {
        let document = Document::new(std::fs::read(&archive.path)?);
        self.archives.insert((archive.name.clone(), archive.version.clone()), (archive.clone(), document));
        self.index = None;
        Ok(())
    }

    pub(super) fn withdraw(&mut self, name: &str, version: &str) -> bool {
        self.index = None;
        self.archives.remove(&(name.to_owned(), version.to_owned())).is_some()
    }

    /// Makes the index at least this large.
    pub(super) fn enlarge(&mut self, bytes: usize) {
        // Some entries are longer; none is shorter than the first.
        let shortest = padding(0).to_string().len();
        self.padding = (0..bytes.div_ceil(shortest)).map(padding).collect();
        self.index = None;
    }

    pub(super) fn find(&mut self, path: &str) -> Option<Document> {
        if path == "/index.yaml" {
            return Some(self.index());
        }
        let file = path.strip_prefix("/archives/")?;
        self.archives.values().find(|(archive, _)| archive.file_name() == file).map(|(_, document)| document.clone())
    }

    /// JSON, which is YAML. The addresses of archives are relative to the index's own.
    fn index(&mut self) -> Document {
        if let Some(index) = &self.index {
            return index.clone();
        }
        let mut entries: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for (archive, _) in self.archives.values() {
            let mut entry = archive.description.clone();
            entry.insert("urls".to_owned(), json!([format!("archives/{}", archive.file_name())]));
            entry.insert("digest".to_owned(), archive.digest.as_str().into());
            entry.insert("created".to_owned(), CREATED.into());
            entries.entry(&archive.name).or_default().push(entry.into());
        }
        if !self.padding.is_empty() {
            entries.insert("padding", self.padding.clone());
        }
        let index = json!({ "apiVersion": "v1", "generated": CREATED, "entries": entries });
        self.index.insert(Document::new(index.to_string().into_bytes())).clone()
    }
}

fn padding(number: usize) -> Value {
    json!({
        "apiVersion": "v2",
        "name": "padding",
        "version": format!("0.0.{number}"),
        "description": "One of very many versions of a chart, of which a large repository's index is full",
        "urls": [format!("archives/padding-0.0.{number}.tgz")],
        "created": CREATED,
    })
}
