//! Which room of `src/` may know which, and which file what, as `lib.rs` says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};

/// The most lines that a file of the product may have.
const LONGEST: usize = 450;

/// The most lines that a function of the product may have.
const LONGEST_FUNCTION: usize = 70;

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

/// Which files name which in their imports. A file may also know those whose folder it lies in: these are one thing, cut at
/// its ideas.
fn files() -> BTreeMap<String, BTreeSet<String>> {
    let sources = sources();
    let module = |name: &str| name.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
    let modules: BTreeSet<String> = sources.iter().map(|(name, _)| module(name)).collect();
    let known = |(name, text): &(String, String)| {
        let own = module(name);
        let mut known = BTreeSet::new();
        for path in imports(text) {
            let path = absolute(&path, &own);
            let mut above = iter::successors(Some(&*path), |path| Some(path.rsplit_once("::")?.0));
            known.extend(above.find(|path| modules.contains(*path)).map(str::to_owned));
        }
        known.retain(|other| *other != own && !own.starts_with(&format!("{other}::")));
        (own, known)
    };
    sources.iter().map(known).collect()
}

/// The paths in the imports of `text`, each of a list by itself.
fn imports(text: &str) -> Vec<String> {
    let code: String = code(text).flat_map(|line| ["\n", line]).collect();
    let mut paths = vec![];
    for rest in ["\nuse ", "\npub use ", "\npub(super) use "].iter().flat_map(|start| code.split(start).skip(1)) {
        let mut begins = vec![String::new()];
        let mut path = String::new();
        for c in rest.split(';').next().unwrap().chars().filter(|c| !c.is_whitespace()) {
            match c {
                '{' => begins.push(path.clone()),
                ',' | '}' => {
                    paths.push(path);
                    begins.truncate(begins.len() - usize::from(c == '}'));
                    path = begins.last().cloned().unwrap_or_default();
                }
                c => path.push(c),
            }
        }
        paths.push(path);
    }
    paths
}

/// A path below `src/`, without `crate`, `self` and `super`.
fn absolute(path: &str, own: &str) -> String {
    if let Some(path) = path.strip_prefix("crate::") {
        return path.to_owned();
    }
    let (mut path, mut at) = (path, own);
    while let Some(rest) = path.strip_prefix("super::") {
        (path, at) = (rest, at.rsplit_once("::").map_or("", |(above, _)| above));
    }
    format!("{at}::{}", path.trim_start_matches("self::"))
}

#[test]
fn no_file_is_known_by_one_that_it_knows() {
    let files = files();
    assert!(files["supervisor::job"].contains("guard::tree"), "{files:?}");
    assert_no_circle(&files);
}

/// Fails if a line of the code of `text` contains one of `forbidden`.
fn assert_uses_none<'f>(name: &str, text: &str, forbidden: impl IntoIterator<Item = &'f &'f str>) {
    for forbidden in forbidden {
        let uses: Vec<_> = code(text).filter(|line| line.contains(forbidden)).collect();
        assert_eq!(uses, Vec::<&str>::new(), "{name} uses {forbidden}");
    }
}

/// The rooms, from the top. Each knows those below it alone.
const ORDER: [&str; 10] =
    ["look", "supervisor", "fence", "keeper", "guard", "between", "cli", "zookeeper", "system", "rules"];

/// Which rooms know which.
fn rooms() -> BTreeMap<String, BTreeSet<String>> {
    let mut graph = BTreeMap::<String, BTreeSet<String>>::new();
    for (name, text) in sources().iter().filter(|(name, _)| name.contains('/')) {
        let mut known = named(text, "crate::");
        known.remove(room(name));
        graph.entry(room(name).to_owned()).or_default().extend(known);
    }
    graph
}

#[test]
fn a_room_knows_those_below_it_alone() {
    let rooms = rooms();
    assert_eq!(rooms.keys().map(String::as_str).collect::<BTreeSet<_>>(), BTreeSet::from(ORDER));
    for (name, known) in rooms {
        let place = ORDER.iter().position(|room| *room == name).unwrap();
        let above: Vec<_> = known.iter().filter(|room| ORDER[..place].contains(&room.as_str())).collect();
        assert!(above.is_empty(), "{name} knows {above:?}");
    }
}

#[test]
fn what_only_looks_starts_no_process_of_a_run() {
    let known: Vec<_> = rooms()["look"].iter().filter(|room| ORDER[1..=5].contains(&room.as_str())).cloned().collect();
    assert!(known.is_empty(), "look knows {known:?}");
}

/// One process never talks to a server, the other never to a terminal.
#[test]
fn the_supervisor_knows_no_server_and_the_keeper_no_terminal() {
    assert!(!rooms()["supervisor"].contains("zookeeper"));
    assert!(!rooms()["guard"].contains("zookeeper"));
    for (name, text) in sources().iter().filter(|(name, _)| room(name) == "keeper") {
        assert_uses_none(name, text, &["terminal::", "writer::", "sentences::"]);
    }
}

/// All of them fork.
#[test]
fn each_process_has_one_thread() {
    for (name, text) in &sources() {
        assert_uses_none(name, text, &["thread::"]);
        assert!(!named(text, "std::").contains("thread"), "{name}");
    }
}

#[test]
fn the_rules_do_nothing() {
    for (name, text) in sources().iter().filter(|(name, _)| room(name) == "rules") {
        // The numbers of the signals are the C library's, and their names are those of nix.
        let forbidden =
            EFFECTS.iter().filter(|effect| name != "rules/signal.rs" || !["libc::", "nix::"].contains(effect));
        assert_uses_none(name, text, forbidden);
        assert_names_no_effect_of_std(name, text);
    }
}

fn assert_names_no_effect_of_std(name: &str, text: &str) {
    let std = named(text, "std::");
    let std: Vec<_> = EFFECTS_OF_STD.iter().filter(|module| std.contains(**module)).collect();
    assert!(std.is_empty(), "{name} uses {std:?}");
}

/// Bytes in, events out: the simulator can stand on both sides of it.
#[test]
fn the_protocol_knows_only_what_time_it_is_and_does_nothing() {
    for (name, text) in sources().iter().filter(|(name, _)| name.starts_with("zookeeper/wire/")) {
        assert!(named(text, "crate::rules::").is_subset(&["instant", "pace"].map(str::to_owned).into()), "{name}");
        assert_uses_none(name, text, EFFECTS);
        assert_uses_none(name, text, &["zookeeper::session", "zookeeper::net"]);
        assert_names_no_effect_of_std(name, text);
    }
}

/// The simulator runs it on a clock of its own, over connections of its own.
#[test]
fn the_session_reaches_outside_through_its_channel() {
    for (name, text) in sources().iter().filter(|(name, _)| name.starts_with("zookeeper/session/")) {
        assert_uses_none(name, text, EFFECTS.iter().filter(|effect| **effect != "log::"));
        assert_uses_none(name, text, &["zookeeper::net", "crate::system"]);
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

/// So the simulator can take the place of the world.
#[test]
fn the_keeper_reaches_outside_in_one_file() {
    let inside = sources().into_iter().filter(|(name, _)| room(name) == "keeper" && name != "keeper/process.rs");
    for (name, text) in inside {
        let system = named(&text, "crate::system::");
        assert!(system.is_subset(&BTreeSet::from(["futures".to_owned()])), "{name} knows {system:?}");
        assert_uses_none(&name, &text, &["crate::between", "crate::guard", "zookeeper::net", "fastrand::"]);
    }
}

/// It is for machines that reach no server.
#[test]
fn a_fence_knows_no_zookeeper() {
    assert!(!rooms()["fence"].contains("zookeeper"));
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
fn the_supervisor_alone_runs_the_machine() {
    for (name, text) in sources().iter().filter(|(name, _)| !["supervisor", "rules"].contains(&room(name))) {
        assert!(!named(text, "crate::rules::").contains("machine"), "{name}");
    }
}

#[test]
fn no_file_is_too_long_to_be_read() {
    for (name, text) in sources() {
        let lines = text.lines().count();
        assert!(lines <= LONGEST, "{name} has {lines} lines");
    }
}

#[test]
fn no_function_is_too_long_to_be_read() {
    let mut long = vec![];
    for (name, text) in sources() {
        let lines: Vec<_> = text.lines().collect();
        for (begin, line) in lines.iter().enumerate() {
            let words = line.trim_start();
            let is_function = words.starts_with(|c: char| c.is_ascii_lowercase())
                && (words.starts_with("fn ") || words.contains(" fn "));
            let header = lines[begin..].iter().find(|line| line.ends_with('{') || line.ends_with(';'));
            if is_function && header.is_some_and(|line| line.ends_with('{')) {
                let end = format!("{}}}", &line[..line.len() - words.len()]);
                let length = lines[begin..].iter().position(|line| *line == end).expect("a function ends") + 1;
                long.extend((length > LONGEST_FUNCTION).then(|| format!("{name}: {length}: {words}")));
            }
        }
    }
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn no_name_of_a_type_means_two_things() {
    let mut places = BTreeMap::<String, Vec<String>>::new();
    for (name, text) in sources() {
        for line in code(&text) {
            let line = line.trim_start().trim_start_matches("pub ").trim_start_matches("pub(super) ");
            let kind = ["struct ", "enum ", "trait ", "union "].iter().find_map(|kind| line.strip_prefix(kind));
            if let Some(rest) = kind {
                let type_name = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
                places.entry(type_name).or_default().push(name.clone());
            }
        }
    }
    places.retain(|_, places| places.len() > 1);
    assert!(places.is_empty(), "{places:#?}");
}
