//! Several kinds of client on one path, and what is said when they cannot see each other.

use super::*;
use crate::harness::client::Kind;
use crate::harness::counter;
use crate::harness::peers::{Peer, Recipe};
use crate::harness::running::{Running, count_own_lines, finish, only_line, silent};
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::times::CROWD_LIMIT;
use crate::harness::zklock::Zklock;

const ALL: [&str; 2] = ["--dialect", "curator,curator-rw,kazoo"];

/// The recipes that hold alone.
const WRITERS: [Recipe; 6] = [
    Recipe::CuratorMutex,
    Recipe::WriteLock,
    Recipe::CuratorWriter,
    Recipe::KazooLockBesideCurator,
    Recipe::KazooLock,
    Recipe::KazooWriter,
];

/// zklock as every kind of client sees it.
fn seen_by_all(scratch: &Scratch) -> Zklock {
    scratch.zklock().arg(LOCK).args(ALL)
}

#[test]
fn all_dialects_wait_both_ways() {
    let scratch = Scratch::new();
    for recipe in [Recipe::CuratorReader, Recipe::KazooReader].into_iter().chain(WRITERS) {
        if recipe.needs_newer_servers() {
            continue;
        }
        let mut peer = Peer::start(&scratch, recipe);
        let mut holder = seen_by_all(&scratch).child(scratch.logged("holder")).spawn();
        holder.wait_stdout("ready");
        peer.expect_busy();
        peer.queue();
        scratch.wait_queue(4);
        silent(finish(&mut holder));
        peer.expect_acquired();
        seen_by_all(&scratch).arg("-n").bare_child().run().expect_code(75);
        let mut waiter = seen_by_all(&scratch).child(scratch.logged("waiter")).spawn();
        scratch.wait_queue(4);
        peer.release();
        waiter.wait_stdout("ready");
        peer.expect_busy();
        silent(finish(&mut waiter));
    }
    scratch.log().expect_no_overlap();
}

/// The nodes of one contender come and go together, so no client sees half of it.
#[test]
fn one_node_of_each_dialect() {
    let scratch = Scratch::new();
    let mut holder = seen_by_all(&scratch).child(["--env", "--exit-on", "TERM"]).spawn();
    holder.wait_stdout("ready");
    let nodes = scratch.client().children(LOCK);
    let [lock, rw, kazoo] = &nodes[..] else { panic!("{nodes:?}") };
    assert!(lock.ends_with("-lock-0000000000"), "{nodes:?}");
    assert!(rw.ends_with("-__WRIT__0000000001"), "{nodes:?}");
    assert!(kazoo.ends_with("__lock__0000000002"), "{nodes:?}");
    let stats = [lock, rw, kazoo].map(|node| scratch.client().get(&format!("{LOCK}/{node}")).unwrap().1);
    assert!(stats.iter().all(|stat| stat.czxid == stats[0].czxid && stat.owner == stats[0].owner), "{stats:?}");
    assert!(holder.stdout().contains(&format!("ZKLOCK_TOKEN={}\n", stats[0].czxid)), "{holder}");
    assert!(holder.stdout().contains(&format!("ZKLOCK_NODE={LOCK}/{lock}\n")), "{holder}");

    let mut reader = seen_by_all(&scratch).arg("-s").child(scratch.logged("reader")).spawn();
    let nodes = scratch.wait_queue(6);
    for (node, part) in nodes[3..].iter().zip(["-read-lock-", "-__READ__", "__rlock__"]) {
        assert!(node.contains(part), "{nodes:?}");
    }
    silent(finish(&mut holder));
    reader.wait_stdout("ready");
    assert_eq!(scratch.client().children(LOCK), nodes[3..]);
    silent(finish(&mut reader));
    assert!(scratch.client().children(LOCK).is_empty());
}

/// Any of the nodes may be deleted: the lock is lost, because some kind of client no longer sees us.
#[test]
fn loss_of_any_node_is_the_loss_of_the_lock() {
    for n in 0..3 {
        let scratch = Scratch::new();
        let mut holder = seen_by_all(&scratch).child(scratch.logged("holder")).spawn();
        holder.wait_stdout("ready");
        let nodes = scratch.wait_queue(3);
        scratch.delete(&format!("{LOCK}/{}", nodes[n]));
        holder.wait().expect_code(76);
        assert!(scratch.client().children(LOCK).is_empty());
    }
}

/// All kinds at once. They do not all see each other; but none of them overlaps with zklock.
#[test]
fn crowd_of_every_kind() {
    if Recipe::CuratorMutex.needs_newer_servers() {
        return;
    }
    const SHELLS: usize = 12;
    const PEERS: usize = 3;
    const TURNS: usize = 72;
    let scratch = Scratch::new();
    let mut peers = WRITERS.map(|recipe| Peer::start(&scratch, recipe));
    for peer in &mut peers {
        peer.crowd(PEERS, TURNS / WRITERS.len());
    }
    let shell = |_| take_turns(&scratch, seen_by_all(&scratch), "zklock", TURNS / SHELLS);
    let mut shells: Vec<Running> = (0..SHELLS).map(shell).collect();
    for shell in &mut shells {
        shell.wait_at_most(CROWD_LIMIT).expect_code(0);
    }
    peers.iter_mut().for_each(Peer::expect_crowd_done);
    let log = scratch.log().expect_apart(|one, two| one.name == "zklock" || two.name == "zklock");
    assert_eq!(log.count("zklock"), TURNS);
    for recipe in WRITERS {
        assert_eq!(log.count(recipe.word()), TURNS / WRITERS.len(), "{recipe:?}");
    }
}

/// Curator sorts the whole names of kazoo's nodes among the sequence numbers of its own. A large number might sort
/// after the kazoo name of a later contender of ours; then the two would wait for each other.
#[test]
fn large_sequence_numbers() {
    if Recipe::CuratorMutex.needs_newer_servers() {
        return;
    }
    let (_server, scratch) = counter::standing_at(2_000_000_000);
    let mut holder = seen_by_all(&scratch).child(scratch.logged("holder")).spawn();
    holder.wait_stdout("ready");
    let mut peer = Peer::start(&scratch, Recipe::CuratorMutex);
    peer.queue();
    scratch.wait_queue(4);
    let mut waiter = seen_by_all(&scratch).child(scratch.logged("waiter")).spawn();
    scratch.wait_queue(7);
    silent(finish(&mut holder));
    peer.expect_acquired();
    peer.release();
    waiter.wait_stdout("ready");
    silent(finish(&mut waiter));
    scratch.log().expect_no_overlap();
}

// Clients that would not see us.

/// Without `--dialect`, beside a client that does not read the names of the default one.
#[test]
fn missing_dialect_is_refused_with_advice() {
    for (recipe, advice) in [
        (Recipe::CuratorReader, "--dialect curator,curator-rw"),
        (Recipe::CuratorWriter, "--dialect curator,curator-rw"),
        (Recipe::KazooLock, "--dialect curator,kazoo"),
        (Recipe::KazooReader, "--dialect curator,kazoo"),
        // Its nodes do not tell that it sees ours.
        (Recipe::KazooLockBesideCurator, "--dialect curator,kazoo"),
    ] {
        if recipe.needs_newer_servers() {
            continue;
        }
        let scratch = Scratch::new();
        let mut peer = Peer::start(&scratch, recipe);
        peer.acquire();
        let output = scratch.zklock().args([LOCK, "true"]).run().expect_code(78);
        assert!(only_line(&output).ends_with(advice), "{recipe:?}\n{output}");
        assert_eq!(scratch.client().children(LOCK).len(), 1);
        // As advised.
        let dialect: Vec<&str> = advice.split(' ').collect();
        scratch.zklock().args(dialect).args(["-n", LOCK, "true"]).run().expect_code(75);
        peer.release();
    }
}

/// A dialect that was asked for, beside a client of another one.
#[test]
fn the_wrong_dialect_is_refused_too() {
    for (recipe, dialect) in [
        (Recipe::CuratorMutex, "kazoo"),
        (Recipe::CuratorMutex, "curator-rw"),
        (Recipe::WriteLock, "kazoo"),
        (Recipe::CuratorWriter, "curator"),
        (Recipe::CuratorReader, "kazoo"),
        // Only `curator` says that kazoo has been told to read other names.
        (Recipe::KazooLock, "curator-rw"),
        (Recipe::KazooReader, "curator-rw"),
    ] {
        if recipe.needs_newer_servers() {
            continue;
        }
        let scratch = Scratch::new();
        let mut peer = Peer::start(&scratch, recipe);
        peer.acquire();
        let output = scratch.zklock().args(["--dialect", dialect, LOCK, "true"]).run().expect_code(78);
        assert!(only_line(&output).contains(dialect), "{output}");
        peer.release();
    }
}

/// Runs of zklock itself with different dialects do not all see each other either.
#[test]
fn other_dialects_of_zklock_are_refused() {
    let scratch = Scratch::new();
    let mut holder = scratch.zklock().args([LOCK, "--dialect", "kazoo"]).child(scratch.logged("holder")).spawn();
    holder.wait_stdout("ready");
    scratch.zklock().args([LOCK, "true"]).run().expect_code(78);
    scratch.zklock().args(["--dialect", "kazoo,curator", "-n", LOCK, "true"]).run().expect_code(75);
    silent(finish(&mut holder));

    let mut holder = scratch.hold();
    for dialect in ["kazoo", "curator-rw"] {
        scratch.zklock().args(["--dialect", dialect, LOCK, "true"]).run().expect_code(78);
    }
    silent(finish(&mut holder));
}

/// A holder is named by the words that it stored, if it stored any.
#[test]
fn a_holder_of_another_kind_is_named() {
    // Curator stores the address to which the machine's name resolves, whatever it is, or nothing if there is none. A
    // WriteLock stores no words.
    for recipe in
        [Recipe::CuratorMutex, Recipe::CuratorWriter, Recipe::WriteLock, Recipe::KazooLock, Recipe::KazooWriter]
    {
        if recipe.needs_newer_servers() {
            continue;
        }
        let scratch = Scratch::new();
        let mut peer = Peer::start(&scratch, recipe);
        peer.acquire();
        let output = beside(&scratch, recipe).arg("-n").bare_child().run().expect_code(75);
        let node = &scratch.wait_queue(1)[0];
        let (data, _) = scratch.client().get(&format!("{LOCK}/{node}")).unwrap();
        let is_curator = matches!(recipe, Recipe::CuratorMutex | Recipe::CuratorWriter);
        let is_nameless = recipe == Recipe::WriteLock || is_curator && data.is_empty();
        let words = if is_nameless { node.clone() } else { String::from_utf8(data).unwrap() };
        assert!(words.len() > 6 && only_line(&output).ends_with(&format!(" held by {words}")), "{words:?}\n{output}");
        peer.release();
    }
}

/// A contender that comes after us, of a kind that would not wait for us. Our turn comes without another list, so it is
/// looked for with the beats.
#[test]
fn a_contender_of_another_dialect_comes_later() {
    let scratch = Scratch::new();
    let mut holder = scratch.start(&direct(), "holder", &["-q"], &["--exit-on", "TERM"]);
    holder.wait_stdout("ready");
    let mut next = scratch.start(&direct(), "next", &[], &["--exit-on", "TERM"]);
    scratch.wait_queue(2);
    // Next in line.
    next.guard();
    let name = format!("{LOCK}/0123456789abcdef0123456789abcdef__lock__");
    scratch.client().create(&name, b"", Kind::EphemeralSequential).expect("the lock is there");
    let output = next.wait().expect_code(78);
    assert!(only_line(&output).ends_with("--dialect curator,kazoo"), "{output}");
    silent(finish(&mut holder));
}

/// The same while the command runs: that is told once, with the first beat.
#[test]
fn a_contender_of_another_dialect_beside_the_command() {
    let scratch = Scratch::new();
    let mut holder = scratch.start(&direct(), "holder", &[], &["--exit-on", "TERM"]);
    holder.wait_stdout("ready");
    let name = format!("{LOCK}/0123456789abcdef0123456789abcdef__lock__");
    scratch.client().create(&name, b"", Kind::EphemeralSequential).expect("the lock is there");
    holder.wait_stderr("the command may not run alone");
    let output = finish(&mut holder);
    assert!(output.stderr().ends_with("--dialect curator,kazoo\n"), "{output}");
    assert_eq!(count_own_lines(&output.stderr()), 1);
}
