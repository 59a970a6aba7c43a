//! The links of all pages, in the repository and in the packages, and the paths that pages name.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// All pages: where each one lies in the repository, and its text.
pub(super) fn pages() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let entries = ["", "docs", "docs/design"].map(|folder| fs::read_dir(root.join(folder)).expect("a folder"));
    let paths = entries.into_iter().flatten().map(|entry| entry.expect("a file").path());
    let pages = paths.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.map(|path| (in_repository(&path), fs::read_to_string(&path).expect("text"))).collect()
}

fn in_repository(path: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().expect("the repository");
    let path = path.canonicalize().expect("the file is there");
    path.strip_prefix(root).expect("a file of the repository").to_owned()
}

/// The anchors that GitHub gives to the headings of a page.
fn anchors(text: &str) -> BTreeSet<String> {
    let is_text = |(at, part): (usize, &'_ str)| (at % 2 == 0).then(|| part.to_owned());
    // What is between fences is no heading.
    let text: String = text.split("\n```").enumerate().filter_map(is_text).collect();
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let slug = |c: char| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        _ => c.is_alphanumeric().then(|| c.to_ascii_lowercase()),
    };
    headings.map(|heading| heading.trim_start_matches('#').trim().chars().filter_map(slug).collect()).collect()
}

/// What is shipped, as patterns, and into which folder beside the README.
type Shipped = Vec<(PathBuf, PathBuf)>;

/// What the .deb and the .rpm have below /usr/share/doc/zklock.
fn in_packages() -> Shipped {
    let assets = include_str!("../../../Cargo.toml").lines();
    let asset = |line: &str| {
        let mut words = line.trim().strip_prefix("[\"")?.split("\", \"");
        Some((words.next()?.into(), words.next()?.strip_prefix("usr/share/doc/zklock/")?.into()))
    };
    assets.filter_map(asset).collect()
}

/// What the archives have.
fn in_archives() -> Shipped {
    let lines = include_str!("../../../scripts/package").lines();
    let lines = lines.filter_map(|line| line.trim().strip_prefix("install -m 644 ")?.split_once(" \"$directory/"));
    let sources = |(sources, folder): (&'static str, &'static str)| {
        let folder = folder.trim_end_matches(['/', '"']);
        sources.split(' ').map(move |source| (source.into(), folder.into()))
    };
    lines.flat_map(sources).collect()
}

/// Whether a file of the repository is shipped, at the same place as there.
fn is_among(shipped: &Shipped, path: &Path) -> bool {
    let is_like = |pattern: &Path| {
        let is_any = pattern.file_stem().is_some_and(|stem| stem == "*") && pattern.extension() == path.extension();
        pattern.parent() == path.parent() && (is_any || pattern.file_name() == path.file_name())
    };
    shipped.iter().any(|(source, folder)| is_like(source) && path.parent() == Some(folder))
}

#[test]
fn links_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shipped = [("", None), (" in the packages", Some(in_packages())), (" in the archives", Some(in_archives()))];
    let (mut followed, mut missing) = ([0; 3], vec![]);
    for (page, text) in pages() {
        let links = text.match_indices("](").map(|(at, _)| text[at + 2..].split(')').next().expect("a link ends"));
        for link in links.filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().expect("a folder").join(file) };
            let target = root.join(target);
            let has_anchor = || anchors(&fs::read_to_string(&target).expect("text")).contains(anchor);
            let is_there = target.exists() && (anchor.is_empty() || has_anchor());
            for ((place, shipped), followed) in shipped.iter().zip(&mut followed) {
                let is_there = match shipped {
                    None => is_there,
                    Some(shipped) if is_among(shipped, &page) => is_there && is_among(shipped, &in_repository(&target)),
                    Some(_) => continue,
                };
                *followed += 1;
                missing.extend((!is_there).then(|| format!("{}: {link}{place}", page.display())));
            }
        }
    }
    assert!(followed.iter().all(|followed| *followed > 100), "{followed:?} links");
    assert!(missing.is_empty(), "linked, but not there: {missing:#?}");
}

#[test]
fn paths_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut followed, mut missing) = (0, vec![]);
    for (page, text) in pages() {
        let words = text.split_whitespace().map(|word| word.trim_matches(['`', '.', ',', ';', ':', '(', ')']));
        let is_path = |word: &&str| {
            ["scripts/", "src/", "tests/"].iter().any(|folder| word.len() > folder.len() && word.starts_with(folder))
        };
        for path in words.filter(is_path) {
            followed += 1;
            missing.extend((!root.join(path).exists()).then(|| format!("{}: {path}", page.display())));
        }
    }
    assert!(followed > 100, "{followed} paths");
    assert!(missing.is_empty(), "named, but not there: {missing:#?}");
}
