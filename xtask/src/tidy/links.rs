//! Links between the repository's own pages.

use std::path::Path;

/// Links of the page at `path` that lead nowhere inside the repository.
pub fn check(root: &Path, path: &Path, text: &str) -> Vec<String> {
    let folder = path.parent().unwrap_or(path);
    targets(text)
        .filter(|target| !target.contains("://") && !target.starts_with('#'))
        .map(|target| target.split('#').next().unwrap_or(target))
        .filter(|target| !root.join(folder).join(target).exists())
        .map(|target| format!("{}: link to {target}, which is not there", path.display()))
        .collect()
}

/// What stands in the round brackets of `[text](target)`.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_somewhere() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("docs")).unwrap();
        std::fs::write(root.path().join("docs/there.md"), "").unwrap();
        let text = "[a](there.md) [b](there.md#part) [c](https://example.org) [d](#here) [e](../docs/)\n[f](gone.md)";
        let problems = check(root.path(), Path::new("docs/page.md"), text);
        assert_eq!(problems, ["docs/page.md: link to gone.md, which is not there"]);
    }
}
