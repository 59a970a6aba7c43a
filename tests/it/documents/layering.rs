//! Which room of `src/` may know which, and which file what, as `lib.rs` says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};

/// The most lines that a file of the product may have.
const LONGEST: usize = 400;

/// The most lines that a function of the product may have.
const LONGEST_FUNCTION: usize = 70;

/// The rooms, from the top. Each knows those below it alone.
const ORDER: [&str; 10] =
    ["look", "supervisor", "fence", "keeper", "guard", "between", "cli", "zookeeper", "system", "rules"];

/// What is without I/O and without a clock names none of these.
const EFFECTS: &[&str] = &["TcpStream", "UdpSocket", "SystemTime", "time::Instant", "print!", "println!"];
const STD: &[&str] = &["std::fs", "std::env", "std::io", "std::os", "std::process", "std::thread"];
const LIBRARIES: &[&str] = &["libc::", "nix::"];
const LOG: &[&str] = &["log::"];

/// Files by the beginning of their paths, one that is excepted, and what the others name nowhere.
const FORBIDDEN: &[(&str, &str, &[&[&str]])] = &[
    // All processes fork, so each has one thread.
    ("", "", &[&["thread::"]]),
    // What only looks starts no process of a run.
    ("look/", "", &[&["crate::supervisor", "crate::fence", "crate::keeper", "crate::guard", "crate::between"]]),
    // One process never talks to a server, the other never to a terminal. A fence is for machines that reach no server.
    ("supervisor/", "", &[&["crate::zookeeper"]]),
    ("guard/", "", &[&["crate::zookeeper"]]),
    ("fence/", "", &[&["crate::zookeeper"]]),
    ("keeper/", "", &[&["terminal::", "writer::", "sentences::"]]),
    // The numbers of the signals are the C library's, and their names are those of nix.
    ("rules/", "", &[EFFECTS, STD, LOG]),
    ("rules/", "rules/signal.rs", &[LIBRARIES]),
    // Bytes in, events out: the simulator can stand on both sides of it.
    ("zookeeper/wire/", "", &[EFFECTS, STD, LIBRARIES, LOG, &["zookeeper::session", "zookeeper::net"]]),
    // The simulator runs it on a clock of its own, over connections of its own.
    ("zookeeper/session/", "", &[EFFECTS, LIBRARIES, &["zookeeper::net", "crate::system"]]),
    // It reaches outside in one file, so the simulator can take the place of the world.
    ("keeper/", "keeper/process.rs", &[&["crate::between", "crate::guard", "zookeeper::net", "fastrand::"]]),
    ("supervisor/turn.rs", "", &[&["std::time"], LIBRARIES]),
    // The shared page is right on every processor, because all its accesses have one order.
    ("between/", "", &[&["Relaxed", "Acquire", "AcqRel", "Ordering::Release"]]),
];

/// Files in the same way, and what they may know alone of what begins like this.
const ALLOWED: &[(&str, &str, &str, &[&str])] = &[
    ("zookeeper/wire/", "", "crate::rules::", &["child_name", "instant", "keep_alive"]),
    ("keeper/", "keeper/process.rs", "crate::system::", &["futures"]),
    ("supervisor/turn.rs", "", "crate::", &["rules"]),
];

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

fn module(name: &str) -> String {
    name.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::")
}

/// The paths that a file names: those of its imports, each of a list by itself and from `crate` on, and others that begin
/// there.
fn paths(name: &str, text: &str) -> Vec<String> {
    let own = module(name);
    let code: String = code(text).flat_map(|line| ["\n", line]).collect();
    let mut paths = vec![];
    for rest in ["\nuse ", "\npub use ", "\npub(super) use "].iter().flat_map(|start| code.split(start).skip(1)) {
        let mut begins = vec![String::new()];
        let mut path = String::new();
        for c in rest.split(';').next().unwrap().chars().filter(|c| !c.is_whitespace()) {
            match c {
                '{' => begins.push(path.clone()),
                ',' | '}' => {
                    paths.push(absolute(&path, &own));
                    begins.truncate(begins.len() - usize::from(c == '}'));
                    path = begins.last().cloned().unwrap_or_default();
                }
                c => path.push(c),
            }
        }
        paths.push(absolute(&path, &own));
    }
    let ends = |c: char| !c.is_alphanumeric() && c != '_' && c != ':';
    paths.extend(code.split("crate::").skip(1).map(|rest| format!("crate::{}", rest.split(ends).next().unwrap())));
    paths
}

/// A path without `self` and `super`.
fn absolute(path: &str, own: &str) -> String {
    let (mut rest, mut at) = (path, own);
    while let Some(further) = rest.strip_prefix("super::") {
        (rest, at) = (further, at.rsplit_once("::").map_or("", |(above, _)| above));
    }
    let is_relative = rest.len() < path.len() || rest.starts_with("self::");
    if is_relative { format!("crate::{at}::{}", rest.trim_start_matches("self::")) } else { path.to_owned() }
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

/// Which files name which. A file may also know those whose folder it lies in: these are one thing, cut at its ideas.
#[test]
fn no_file_is_known_by_one_that_it_knows() {
    let sources = sources();
    let modules: BTreeSet<String> = sources.iter().map(|(name, _)| module(name)).collect();
    let known = |(name, text): &(String, String)| {
        let own = module(name);
        let mut known = BTreeSet::new();
        for path in paths(name, text) {
            let mut above = iter::successors(path.strip_prefix("crate::"), |path| Some(path.rsplit_once("::")?.0));
            known.extend(above.find(|path| modules.contains(*path)).map(str::to_owned));
        }
        known.retain(|other| *other != own && !own.starts_with(&format!("{other}::")));
        (own, known)
    };
    let files: BTreeMap<_, _> = sources.iter().map(known).collect();
    assert!(files["supervisor::orphans"].contains("guard::tree"), "{files:?}");
    assert_no_circle(&files);
}

#[test]
fn a_room_knows_those_below_it_alone() {
    let mut seen = BTreeSet::new();
    for (name, text) in sources().iter().filter(|(name, _)| name.contains('/')) {
        let place = ORDER.iter().position(|known| *known == room(name)).unwrap_or_else(|| panic!("{name}: a new room"));
        let known = paths(name, text);
        let is_in = |path: &str, room: &str| path.split("::").take(2).eq(["crate", room]);
        let is_above = |path: &&String| ORDER[..place].iter().any(|above| is_in(path, above));
        let above: Vec<_> = known.iter().filter(is_above).collect();
        assert!(above.is_empty(), "{name} knows {above:?}");
        seen.insert(ORDER[place]);
    }
    assert_eq!(seen, BTreeSet::from(ORDER));
}

/// Calls this with each file that begins so, what it names, and its code.
fn for_each(begin: &str, but: &str, check: impl Fn(&str, Vec<String>)) {
    let sources = sources().into_iter().filter(|(name, _)| name.starts_with(begin) && name != but);
    let count = sources
        .map(|(name, text)| check(&name, [paths(&name, &text), code(&text).map(str::to_owned).collect()].concat()))
        .count();
    assert!(count > 0, "no file begins with {begin:?}");
}

#[test]
fn a_file_knows_no_more_than_it_needs() {
    for (begin, but, forbidden) in FORBIDDEN {
        for_each(begin, but, |name, named| {
            let is_forbidden = |line: &&String| forbidden.iter().copied().flatten().any(|word| line.contains(word));
            let faults: Vec<_> = named.iter().filter(is_forbidden).collect();
            assert!(faults.is_empty(), "{name}: {faults:#?}");
        });
    }
    for (begin, but, base, allowed) in ALLOWED {
        for_each(begin, but, |name, named| {
            let is_other =
                |rest: &str| !allowed.iter().any(|word| rest == *word || rest.starts_with(&format!("{word}::")));
            let faults: Vec<_> = named.iter().filter(|path| path.strip_prefix(base).is_some_and(is_other)).collect();
            assert!(faults.is_empty(), "{name}: {faults:#?}");
        });
    }
    for_each("", "", |name, named| {
        let may = ["supervisor", "rules"].contains(&room(name));
        assert!(may || !named.iter().any(|path| path.contains("crate::rules::machine")), "{name} runs the machine");
    });
}

/// An event that is new must not compile in a state that has not been told what to do with it.
#[test]
fn the_machine_ignores_no_event_unseen() {
    for_each("rules/machine", "", |name, named| {
        let is_wildcard = |line: &String| ["_ =>", "_ if"].iter().any(|start| line.trim_start().starts_with(start));
        assert!(!named.iter().any(is_wildcard), "{name}");
    });
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
