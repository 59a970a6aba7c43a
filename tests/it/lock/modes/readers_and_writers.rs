//! `--shared` and `--exclusive`: readers hold together, a writer alone, and readers wait behind a waiting writer.

use nix::sys::signal::Signal;

use super::{contender, gets_it, line_up, queue, wait_watchers};
use crate::harness::joblog::{JobLog, Run};
use crate::harness::running::{Running, finish, silent};
use crate::harness::scratch::Scratch;
use crate::harness::times::CROWD_LIMIT;

fn reads(run: &Run) -> bool {
    run.name.starts_with("reader")
}

/// Readers hold beside readers, and no other two beside each other.
#[track_caller]
fn expect_readers_together_and_writers_alone(log: JobLog) -> JobLog {
    log.expect_apart(|one, two| !(reads(one) && reads(two)))
}

#[test]
fn readers_together_and_a_writer_alone() {
    let scratch = Scratch::new();
    let mut readers = line_up(&scratch, &["reader-1", "reader-2", "reader-3"], 3);
    assert!(gets_it(&scratch, "reader-4") && !gets_it(&scratch, "writer"));
    let mut writer = queue(&scratch, "writer", 4);
    readers[0].signal(Signal::SIGKILL);
    readers[0].wait().expect_signal(Signal::SIGKILL);
    for reader in &mut readers[1..] {
        assert_eq!(writer.stdout(), "");
        silent(finish(reader));
    }
    writer.wait_stdout("ready");
    assert!(!gets_it(&scratch, "reader-4") && !gets_it(&scratch, "writer"));
    silent(finish(&mut writer));
    expect_readers_together_and_writers_alone(scratch.log());
}

/// Those behind a waiting writer wait for it, or it would starve where readers come and go.
#[test]
fn writers_release_starts_all_readers_before_the_next_writer() {
    let scratch = Scratch::new();
    let names = ["writer-1", "reader-1", "reader-2", "reader-3", "writer-2", "reader-4"];
    let mut jobs = line_up(&scratch, &names, 1);
    // The readers all wait for the writer before them and for no other; the writer for the nearest before it.
    let nodes = scratch.wait_queue(6);
    wait_watchers(&scratch, &nodes, &[4, 1, 1, 2, 2, 1]);
    silent(finish(&mut jobs[0]));
    for reader in &mut jobs[1..4] {
        reader.wait_stdout("ready");
    }
    // That woke no contender that had to go on waiting.
    wait_watchers(&scratch, &nodes[1..], &[1, 1, 2, 2, 1]);
    assert!(!gets_it(&scratch, "reader-5"));
    // The order in which they leave is their own affair.
    for n in [2, 1, 3] {
        silent(finish(&mut jobs[n]));
    }
    for n in [4, 5] {
        silent(finish(&mut jobs[n]));
    }
    let log = expect_readers_together_and_writers_alone(scratch.log());
    assert_eq!(log.order().len(), names.len());
    assert_eq!(log.order()[4..], ["writer-2", "reader-4"]);
}

/// A waiting writer that leaves lets the readers behind it join those before it.
#[test]
fn writer_that_gives_up() {
    let scratch = Scratch::new();
    let mut jobs = line_up(&scratch, &["reader-1", "writer", "reader-2"], 1);
    jobs[1].signal(Signal::SIGTERM);
    jobs[1].wait().expect_signal(Signal::SIGTERM);
    jobs[2].wait_stdout("ready");
    silent(finish(&mut jobs[0]));
    silent(finish(&mut jobs[2]));
    assert_eq!(scratch.log().order(), ["reader-1", "reader-2"]);
}

#[test]
fn crowd() {
    let scratch = Scratch::new();
    let log = scratch.file("log");
    let script = "for turn in 1 2 3 4 5 6 7 8; do \"$@\" || exit; done";
    let mut shells: Vec<Running> = (0..12)
        .map(|n| {
            let name = if n % 3 == 0 { "writer" } else { "reader" };
            let job = contender(&scratch, name).run_by(["sh", "-c", script, "sh"]);
            job.child(["--name", name, "--log"]).arg(&log).spawn()
        })
        .collect();
    for shell in &mut shells {
        silent(shell.wait_at_most(CROWD_LIMIT).expect_code(0));
    }
    let log = expect_readers_together_and_writers_alone(scratch.log());
    assert_eq!((log.count("writer"), log.count("reader")), (32, 64));
}
