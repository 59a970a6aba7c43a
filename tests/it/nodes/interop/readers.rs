//! Readers and writers of zklock beside those of another library: readers together, a writer alone, first come first.

use super::*;
use crate::harness::joblog::Run;
use crate::harness::peers::{Peer, Recipe};
use crate::harness::running::{Running, finish, silent};
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::times::CROWD_LIMIT;

/// The two recipes of one library.
#[derive(Clone, Copy)]
struct Library {
    reader: Recipe,
    writer: Recipe,
    /// How many of the 15 in a crowd of its own read.
    readers: usize,
}

impl Library {
    fn needs_newer_servers(self) -> bool {
        self.reader.needs_newer_servers()
    }
}

const CURATOR: Library = Library { reader: Recipe::CuratorReader, writer: Recipe::CuratorWriter, readers: 10 };
/// Without readers in its crowd: before 2.9, one that waits looks at the last writer, not the one before it, so it and a
/// later writer can wait for each other (python-zk/kazoo#649).
const KAZOO: Library = Library { reader: Recipe::KazooReader, writer: Recipe::KazooWriter, readers: 0 };

/// Whether a run has a reader's name.
fn reads(run: &Run) -> bool {
    ["reader", Recipe::CuratorReader.word(), Recipe::KazooReader.word()].iter().any(|name| run.name.starts_with(name))
}

fn must_not(one: &Run, two: &Run) -> bool {
    !(reads(one) && reads(two))
}

/// A contender of zklock, once its node is the last of `length`: a reader when its name says so.
#[track_caller]
fn queue(scratch: &Scratch, library: Library, name: &str, length: usize) -> Running {
    let mode = if name.starts_with("reader") { "--shared" } else { "--exclusive" };
    let job = beside(scratch, library.writer).arg(mode).child(scratch.logged(name)).spawn();
    scratch.wait_queue(length);
    job
}

fn readers_hold_together(library: Library) {
    let scratch = Scratch::new();
    let mut peer = Peer::start(&scratch, library.reader);
    peer.acquire();
    // At once, or not at all.
    let reader = beside(&scratch, library.reader).args(["--shared", "--nonblock"]);
    silent(reader.child(["--name", "reader"]).run().expect_code(0));
    beside(&scratch, library.reader).arg("--nonblock").bare_child().run().expect_code(75);
    peer.release();

    let mut reader = queue(&scratch, library, "reader", 1);
    reader.wait_stdout("ready");
    peer.acquire();
    let mut writer = Peer::start(&scratch, library.writer);
    writer.expect_busy();
    peer.release();
    silent(finish(&mut reader));
    writer.acquire();
    writer.release();
    scratch.log().expect_apart(must_not);
}

fn a_reader_behind_a_waiting_writer_waits_and_a_writers_release_starts_all_readers(library: Library) {
    let scratch = Scratch::new();
    let [mut early, mut late] = [(); 2].map(|()| Peer::start(&scratch, library.reader));
    let mut last = Peer::start(&scratch, library.writer);

    early.acquire();
    let mut reader = queue(&scratch, library, "reader-1", 2);
    reader.wait_stdout("ready");
    let mut writer = queue(&scratch, library, "writer", 3);
    late.queue();
    scratch.wait_queue(4);
    let mut second = queue(&scratch, library, "reader-2", 5);
    let mut third = queue(&scratch, library, "reader-3", 6);

    early.release();
    silent(finish(&mut reader));
    writer.wait_stdout("ready");
    assert_eq!(scratch.client().children(LOCK).len(), 4);
    silent(finish(&mut writer));
    // All of them, before any has gone.
    late.expect_acquired();
    second.wait_stdout("ready");
    third.wait_stdout("ready");

    last.queue();
    scratch.wait_queue(4);
    late.release();
    silent(finish(&mut second));
    silent(finish(&mut third));
    last.expect_acquired();
    let mut reader = queue(&scratch, library, "reader-4", 2);
    last.release();
    reader.wait_stdout("ready");
    silent(finish(&mut reader));
    scratch.log().expect_apart(must_not);
}

/// Half of them zklock, and of each half some read and some write.
fn shares_with_a_crowd(library: Library) {
    const SIZE: usize = 15;
    const TURNS: usize = 75;
    let scratch = Scratch::new();
    let mut writing = Peer::start(&scratch, library.writer);
    let mut reading = Peer::start(&scratch, library.reader);
    let reads = TURNS * library.readers / SIZE;
    writing.crowd(SIZE - library.readers, TURNS - reads);
    reading.crowd(library.readers, reads);
    let shell = |n: usize| {
        let (mode, name) = if n.is_multiple_of(3) { ("--exclusive", "writer") } else { ("--shared", "reader") };
        take_turns(&scratch, beside(&scratch, library.writer).arg(mode), name, TURNS / SIZE)
    };
    let mut shells: Vec<Running> = (0..SIZE).map(shell).collect();
    for shell in &mut shells {
        shell.wait_at_most(CROWD_LIMIT).expect_code(0);
    }
    writing.expect_crowd_done();
    reading.expect_crowd_done();
    let log = scratch.log().expect_apart(must_not);
    assert_eq!(log.count("reader") + log.count("writer"), TURNS);
    assert_eq!((log.count(library.reader.word()), log.count(library.writer.word())), (reads, TURNS - reads));
}

of_peers! {
    [readers_hold_together a_reader_behind_a_waiting_writer_waits_and_a_writers_release_starts_all_readers
        shares_with_a_crowd]
    curator CURATOR;
    kazoo KAZOO;
}
