//! Several kinds of client on one path, and what is said when they cannot see each other.

use super::*;
use crate::harness::client::Kind;
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
    let all = [Recipe::CuratorReader, Recipe::KazooReader].into_iter().chain(WRITERS);
    for recipe in all.filter(|recipe| !recipe.needs_newer_servers()) {
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

// Clients that would not see us.

/// The dialects that are given, and those that are advised. Without any, a client that does not read the names of the
/// default one is refused.
#[test]
fn wrong_dialect_is_refused_with_advice() {
    for (recipe, cases) in [
        (Recipe::CuratorMutex, &[("kazoo", "curator,kazoo"), ("curator-rw", "curator,curator-rw")][..]),
        (Recipe::WriteLock, &[("kazoo", "curator,kazoo")]),
        (Recipe::CuratorReader, &[("", "curator,curator-rw"), ("kazoo", "curator-rw,kazoo")]),
        (Recipe::CuratorWriter, &[("", "curator,curator-rw"), ("curator", "curator,curator-rw")]),
        // Only `curator` says that kazoo has been told to read other names.
        (Recipe::KazooLock, &[("", "curator,kazoo"), ("curator-rw", "curator-rw,kazoo")]),
        (Recipe::KazooReader, &[("", "curator,kazoo"), ("curator-rw", "curator-rw,kazoo")]),
        // Its nodes do not tell that it sees ours.
        (Recipe::KazooLockBesideCurator, &[("", "curator,kazoo")]),
    ] {
        if recipe.needs_newer_servers() {
            continue;
        }
        let scratch = Scratch::new();
        let mut peer = Peer::start(&scratch, recipe);
        peer.acquire();
        for (given, advice) in cases {
            let dialect = if given.is_empty() { vec![] } else { vec!["--dialect", given] };
            let output = scratch.zklock().args(dialect).args([LOCK, "true"]).run().expect_code(78);
            assert!(
                only_line(&output).ends_with(&format!("--dialect {advice}")),
                "{recipe:?}, {given}
{output}"
            );
            assert_eq!(scratch.client().children(LOCK).len(), 1);
            // As advised.
            scratch.zklock().args(["--dialect", advice, "-n", LOCK, "true"]).run().expect_code(75);
        }
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
    scratch.wait_watched(&scratch.contenders()[0].path);
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
    holder.wait_stderr("another command may be running too");
    let output = finish(&mut holder);
    assert!(output.stderr().ends_with("--dialect curator,kazoo\n"), "{output}");
    assert_eq!(count_own_lines(&output.stderr()), 1);
}
