//! Which modules of `src/` may use which, as the map in `lib.rs` says.

use std::fs;
use std::path::{Path, PathBuf};

/// Every source file with its path below `src/` and its text.
fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root.clone()];
    let mut sources = vec![];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                sources.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(sources.len() > 10, "these are all the sources there are: {sources:?}");
    sources
}

/// The lines of `text` that are not comments.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.trim_start().starts_with("//"))
}

/// The lines of `text` that name `room`.
fn mentions<'t>(text: &'t str, room: &str) -> Vec<&'t str> {
    let path = format!("crate::{room}");
    code(text).filter(|line| line.contains(&path)).collect()
}

#[test]
fn core_has_no_effects() {
    for (name, text) in sources().iter().filter(|(name, _)| name.starts_with("core")) {
        let outside = code(text).filter(|line| line.contains("crate::") && !line.contains("crate::core"));
        assert_eq!(outside.collect::<Vec<_>>(), Vec::<&str>::new(), "{name} knows other rooms");
        for forbidden in ["std::fs", "TcpStream", "std::process", "std::thread", "SystemTime", "time::Instant", "log::"]
        {
            let uses: Vec<_> = code(text).filter(|line| line.contains(forbidden)).collect();
            assert_eq!(uses, Vec::<&str>::new(), "{name} uses {forbidden}");
        }
    }
}

#[test]
fn one_file_names_the_client_library() {
    for (name, text) in sources() {
        let named = code(&text).any(|line| line.contains("zookeeper_client::"));
        assert_eq!(named, name == "session/client.rs", "{name}");
    }
}

#[test]
fn supervisor_and_keeper_are_apart() {
    // Two processes: the one never touches a server, the other never the terminal.
    let sources = sources();
    let text = |wanted: &str| &sources.iter().find(|(name, _)| name == wanted).unwrap().1;
    assert_eq!(mentions(text("supervisor.rs"), "session"), Vec::<&str>::new());
    assert_eq!(mentions(text("keeper.rs"), "terminal"), Vec::<&str>::new());
    assert_eq!(mentions(text("keeper.rs"), "supervisor"), Vec::<&str>::new());
    for leaf in ["session/client.rs", "command.rs", "signals.rs", "terminal.rs", "wire.rs", "clock.rs", "notice.rs"] {
        for room in ["supervisor", "keeper"] {
            assert_eq!(mentions(text(leaf), room), Vec::<&str>::new(), "{leaf} knows {room}");
        }
    }
}
