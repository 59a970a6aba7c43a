//! The harness does what it says: a test that relies on it proves nothing otherwise.

use std::fs;
use std::path::Path;

mod runs;

/// Every file below tests/it is declared by the file above it.
#[test]
fn no_test_file_is_forgotten() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let mut folders = vec![(root.join("main.rs"), root)];
    let mut files = 0;
    while let Some((above, folder)) = folders.pop() {
        let declarations = fs::read_to_string(&above).unwrap();
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            // What a protocol test reads is no test.
            if ["main", "mod", "recorded"].contains(&name) {
                continue;
            }
            let wanted = format!("mod {name};");
            let is_declared =
                declarations.lines().any(|line| line.trim_start_matches("pub(crate) ").starts_with(&wanted));
            assert!(is_declared, "{} does not declare {name}", above.display());
            if path.is_dir() {
                let inside = path.join("mod.rs");
                folders.push((if inside.exists() { inside } else { path.with_extension("rs") }, path));
            }
            files += 1;
        }
    }
    assert!(files > 40, "{files} files");
}
