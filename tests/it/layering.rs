//! Which room of `src/` may know which, as the map in `lib.rs` says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The most lines that a file of the product may have.
const LONGEST: usize = 450;

/// What a room without I/O and without a clock names nowhere.
const EFFECTS: &[&str] =
    &["TcpStream", "UdpSocket", "SystemTime", "time::Instant", "log::", "print!", "println!", "libc::", "nix::"];

/// Nor does it name these modules of `std`.
const EFFECTS_OF_STD: &[&str] = &["fs", "env", "io", "os", "process", "thread"];

/// Every source file of the product, with its path below `src/` and its text; unit tests are left out.
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
                if !name.ends_with("tests.rs") && !name.contains("/tests/") {
                    let text = fs::read_to_string(&path).unwrap();
                    sources.push((name, text.split("#[cfg(test)]").next().unwrap().to_owned()));
                }
            }
        }
    }
    assert!(sources.len() > 30, "these are all the sources there are: {sources:?}");
    sources
}

/// The lines of `text` that are not comments.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.trim_start().starts_with("//"))
}

/// The room that a file belongs to: its name, or that of its folder.
fn room(name: &str) -> &str {
    name.split('/').next().unwrap().trim_end_matches(".rs")
}

/// The names that follow `prefix` in the code of `text`, also in a list such as `prefix{one, other::Type}`.
fn named(text: &str, prefix: &str) -> BTreeSet<String> {
    let code: String = code(text).collect::<Vec<_>>().join("\n");
    let word = |text: &str| -> String { text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    let mut names = BTreeSet::new();
    for rest in code.split(prefix).skip(1) {
        match rest.strip_prefix('{') {
            Some(list) => {
                let mut depth = 0;
                let mut item = String::new();
                for c in list.chars() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => {
                            names.insert(word(item.trim()));
                            item.clear();
                        }
                        c if depth == 0 => item.push(c),
                        _ => {}
                    }
                }
                names.insert(word(item.trim()));
            }
            None => {
                names.insert(word(rest));
            }
        }
    }
    names.remove("");
    names
}

/// Fails if the arrows of this graph lead round in a circle.
fn assert_no_circle(graph: &BTreeMap<String, BTreeSet<String>>) {
    let mut left = graph.clone();
    loop {
        let done: Vec<_> = left
            .iter()
            .filter(|(_, known)| !known.iter().any(|room| left.contains_key(room)))
            .map(|(room, _)| room.clone())
            .collect();
        if done.is_empty() {
            break;
        }
        left.retain(|room, _| !done.contains(room));
    }
    assert!(left.is_empty(), "these know each other in a circle: {left:?}");
}

/// Fails if a line of the code of `text` contains one of `forbidden`.
fn assert_uses_none<'f>(name: &str, text: &str, forbidden: impl IntoIterator<Item = &'f &'f str>) {
    for forbidden in forbidden {
        let uses: Vec<_> = code(text).filter(|line| line.contains(forbidden)).collect();
        assert_eq!(uses, Vec::<&str>::new(), "{name} uses {forbidden}");
    }
}

/// Which rooms know which.
fn rooms() -> BTreeMap<String, BTreeSet<String>> {
    let mut graph = BTreeMap::<String, BTreeSet<String>>::new();
    for (name, text) in sources() {
        let mut known = named(&text, "crate::");
        known.remove(room(&name));
        graph.entry(room(&name).to_owned()).or_default().extend(known);
    }
    graph
}

#[test]
fn no_room_is_known_by_one_that_it_knows() {
    assert_no_circle(&rooms());
    let mut rules = BTreeMap::<String, BTreeSet<String>>::new();
    for (name, text) in sources() {
        let Some(module) = name.strip_prefix("rules/").map(room) else { continue };
        let mut known = named(&text, "crate::rules::");
        if name.matches('/').count() == 1 {
            known.extend(named(&text, "super::"));
        }
        known.remove(module);
        rules.entry(module.to_owned()).or_default().extend(known);
    }
    assert!(rules.len() > 10, "{rules:?}");
    assert_no_circle(&rules);
}

#[test]
fn the_rules_know_no_other_room_and_do_nothing() {
    assert_eq!(rooms()["rules"], BTreeSet::new());
    for (name, text) in sources().iter().filter(|(name, _)| name.starts_with("rules/")) {
        // The numbers of the signals are the C library's.
        let forbidden = EFFECTS.iter().filter(|effect| (name.as_str(), **effect) != ("rules/signal.rs", "libc::"));
        assert_uses_none(name, text, forbidden);
        let std = named(text, "std::");
        let std: Vec<_> = EFFECTS_OF_STD.iter().filter(|module| std.contains(**module)).collect();
        assert!(std.is_empty(), "{name} uses {std:?}");
    }
}

/// Bytes in, events out: the simulator can stand on both sides of it.
#[test]
fn the_protocol_knows_only_what_time_it_is_and_does_nothing() {
    assert_eq!(rooms()["zookeeper"], BTreeSet::from(["rules".to_owned()]));
    for (name, text) in sources().iter().filter(|(name, _)| room(name) == "zookeeper") {
        assert!(named(text, "crate::rules::").is_subset(&["instant", "pace"].map(str::to_owned).into()), "{name}");
        assert_uses_none(name, text, EFFECTS);
        let std = named(text, "std::");
        let std: Vec<_> = EFFECTS_OF_STD.iter().filter(|module| std.contains(**module)).collect();
        assert!(std.is_empty(), "{name} uses {std:?}");
    }
}

/// The simulator runs it on a clock of its own, over connections of its own.
#[test]
fn the_session_reaches_outside_through_its_channel() {
    for (name, text) in
        sources().iter().filter(|(name, _)| ["session/client.rs", "session/channel.rs"].contains(&&**name))
    {
        let outside = named(text, "crate::");
        assert!(outside.is_subset(&["rules", "zookeeper"].map(str::to_owned).into()), "{name} knows {outside:?}");
        assert_uses_none(name, text, EFFECTS.iter().filter(|effect| **effect != "log::"));
        assert_uses_none(name, text, &["tcp::", "dial::", "servers::"]);
    }
}

/// An event that is new must not compile in a state that has not been told what to do with it.
#[test]
fn the_machine_ignores_no_event_unseen() {
    for (name, text) in sources().iter().filter(|(name, _)| name.starts_with("rules/machine")) {
        let is_wildcard = |line: &&str| ["_ =>", "_ if"].iter().any(|start| line.trim_start().starts_with(start));
        assert_eq!(code(text).filter(is_wildcard).collect::<Vec<_>>(), Vec::<&str>::new(), "{name}");
    }
}

/// It forks for look-ups, so it must have one thread.
#[test]
fn the_keeper_has_one_thread() {
    for (name, text) in &sources() {
        if ["keeper", "session", "zookeeper", "reactor", "lookup"].contains(&room(name)) {
            assert_uses_none(name, text, &["thread::"]);
            assert!(!named(text, "std::").contains("thread"), "{name}");
        }
    }
}

/// Two processes: one of them never talks to a server, the other never to a terminal.
#[test]
fn effects_are_known_to_those_who_use_them_only() {
    let rooms = rooms();
    let knows_none = |room: &str, others: &[&str]| {
        let known: Vec<_> = others.iter().filter(|other| rooms[room].contains(**other)).collect();
        assert!(known.is_empty(), "{room} knows {known:?}");
    };
    knows_none("supervisor", &["session", "operate"]);
    knows_none("operate", &["supervisor", "keeper", "guard", "wire", "shared", "lending", "command", "fence"]);
    knows_none("fence", &["session", "zookeeper", "operate", "wire", "lending", "guard"]);
    knows_none("keeper", &["supervisor", "terminal", "writer", "sentences"]);
    knows_none("wire", &["command", "cli", "plan"]);
    for leaf in [
        "session",
        "command",
        "signals",
        "terminal",
        "writer",
        "wire",
        "clock",
        "sentences",
        "plan",
        "environment",
        "lending",
        "shared",
        "descendants",
        "guard",
        "fence",
    ] {
        knows_none(leaf, &["supervisor", "keeper"]);
    }
}

#[test]
fn the_keeper_reaches_outside_in_one_file() {
    let in_itself = ["keeper/process.rs", "keeper/fence.rs"];
    let sources = sources();
    for (name, text) in sources.iter().filter(|(name, _)| room(name) == "keeper" && !in_itself.contains(&&**name)) {
        let outside = named(text, "crate::");
        let outside: Vec<_> =
            ["clock", "command", "wire", "signals", "lending"].iter().filter(|o| outside.contains(**o)).collect();
        assert!(outside.is_empty(), "{name} knows {outside:?}");
        assert_uses_none(name, text, &["fastrand::", "session::client", "session::tcp", "reactor::"]);
    }
}

/// They fork for look-ups. And they hold no lock, so they have no use for a lease.
#[test]
fn subcommands_have_one_thread_and_no_lease() {
    for (name, text) in sources().iter().filter(|(name, _)| room(name) == "operate") {
        assert_uses_none(name, text, &["thread::"]);
        let rules = named(text, "crate::rules::");
        let forbidden: Vec<_> = ["lease", "machine", "guard"].iter().filter(|rule| rules.contains(**rule)).collect();
        assert!(forbidden.is_empty(), "{name} uses {forbidden:?}");
    }
}

/// It is for machines that reach no server.
#[test]
fn a_fence_knows_no_zookeeper() {
    for (name, text) in sources().iter().filter(|(name, _)| name == "keeper/fence.rs" || room(name) == "fence") {
        let known = named(text, "crate::");
        let known: Vec<_> = ["session", "zookeeper", "reactor"].iter().filter(|o| known.contains(**o)).collect();
        assert!(known.is_empty(), "{name} knows {known:?}");
    }
}

#[test]
fn the_turns_of_the_supervisor_know_the_rules_only() {
    let sources = sources();
    let (name, text) = sources.iter().find(|(name, _)| name == "supervisor/turn.rs").unwrap();
    assert_eq!(named(text, "crate::"), BTreeSet::from(["rules".to_owned()]));
    assert_eq!(named(text, "super::"), BTreeSet::new());
    assert_uses_none(name, text, &["std::time", "nix::", "libc::"]);
}

#[test]
fn the_supervisor_alone_runs_the_machine_and_has_one_thread() {
    for (name, text) in &sources() {
        if !["supervisor", "rules"].contains(&room(name)) {
            assert!(!named(text, "crate::rules::").contains("machine"), "{name}");
        }
        if ["supervisor", "command", "signals", "terminal", "writer", "wire", "lending", "guard", "fence"]
            .contains(&room(name))
        {
            assert_uses_none(name, text, &["thread::"]);
            assert!(!named(text, "std::").contains("thread"), "{name}");
        }
    }
}

#[test]
fn no_file_is_too_long_to_be_read() {
    for (name, text) in sources() {
        let lines = text.lines().count();
        assert!(lines <= LONGEST, "{name} has {lines} lines");
    }
}
