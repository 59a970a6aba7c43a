//! Every exit status there is, each brought about for real.

use std::os::unix::process::ExitStatusExt;

use nix::sys::signal::Signal;
use zklock::rules::outcome::EXIT_STATUS;

use crate::harness::client::Kind;
use crate::harness::compare::assert_same_after;
use crate::harness::running::{Output, finish, only_line, silent};
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::server::free_port;
use crate::harness::zklock::{Zklock, binary};

/// One way to each end: its row in the table of every document, what happens, the status or less than nothing by the
/// signal, and how it is brought about.
type Way = (&'static str, &'static str, i32, fn(&Scratch) -> Output);

const OWN: &str = "the command's own";

const KILLED: &str = "killed by N";

const WAYS: &[Way] = &[
    (OWN, "success", 0, |scratch| scratch.zklock().args([LOCK, "true"]).run()),
    (OWN, "failure", 255, |scratch| scratch.zklock().args([LOCK, "-c", "exit 255"]).run()),
    (OWN, "a status of zklock's own", 75, |scratch| scratch.zklock().args([LOCK, "-c", "exit 75"]).run()),
    (OWN, "death by a signal that was passed on", -(Signal::SIGUSR1 as i32), |scratch| {
        let run = scratch.zklock().args([LOCK, "sleep", "60"]).spawn();
        run.command();
        run.signal(Signal::SIGUSR1);
        { run }.wait()
    }),
    ("64", "no lock", 64, |scratch| scratch.zklock().arg("-n").run()),
    ("64", "a grace that the granted timeout has no room for", 64, |scratch| {
        scratch.zklock().args(["--session-timeout", "10m", "-k", "3m", LOCK, "true"]).run()
    }),
    ("69", "no server", 69, |scratch| {
        scratch.zklock_by(format!("127.0.0.1:{}", free_port())).args(["--connect-timeout", "500ms", LOCK, "true"]).run()
    }),
    ("69", "no server within --timeout, -q, -E", 69, |scratch| {
        let options = ["-q", "-E", "0", "-w", "500ms", LOCK, "true"];
        scratch.zklock_by(format!("127.0.0.1:{}", free_port())).args(options).run()
    }),
    ("70", "no descriptors", 70, |scratch| with_descriptors(scratch, 5)),
    ("75", "held, -n", 75, |scratch| held(scratch, &["-n"])),
    ("75", "held, --timeout", 75, |scratch| held(scratch, &["-w", "2s"])),
    ("75", "held, -E", 3, |scratch| held(scratch, &["-n", "-E", "3"])),
    ("76", "the node is deleted", 76, |scratch| {
        let mut run = scratch.zklock().args([LOCK, "sleep", "60"]).spawn();
        run.command();
        scratch.delete(&format!("{LOCK}/{}", scratch.wait_queue(1)[0]));
        run.wait()
    }),
    ("77", "an ACL on the lock", 77, |scratch| {
        scratch.client().create(LOCK, b"", Kind::Persistent).unwrap();
        scratch.client().make_read_only(LOCK).unwrap();
        scratch.zklock().args([LOCK, "true"]).run()
    }),
    ("78", "no chroot", 78, |scratch| {
        scratch.zklock().args(["-z", &format!("{}/missing", scratch.chroot()), LOCK, "true"]).run()
    }),
    ("124", "a command that ends in time after the stop signal", 124, |scratch| {
        scratch.zklock().args(["--max-run", "200ms", LOCK, "sleep", "60"]).run()
    }),
    ("126", "a directory", 126, |scratch| scratch.zklock().args([LOCK, "/etc"]).run()),
    ("127", "no such command", 127, |scratch| scratch.zklock().args([LOCK, "no-such-command"]).run()),
    (KILLED, "while waiting", -(Signal::SIGTERM as i32), |scratch| {
        let mut holder = scratch.hold();
        let mut run = scratch.zklock().args([LOCK, "true"]).spawn();
        scratch.wait_queue(2);
        run.signal(Signal::SIGTERM);
        let output = run.wait();
        finish(&mut holder);
        output
    }),
    (KILLED, "while connecting", -(Signal::SIGINT as i32), |scratch| {
        let mut run = scratch.zklock_by(format!("127.0.0.1:{}", free_port())).args([LOCK, "true"]).spawn();
        // By then it listens to signals.
        run.keeper();
        run.signal(Signal::SIGINT);
        run.wait()
    }),
];

/// Against a lock that is held.
fn held(scratch: &Scratch, args: &[&str]) -> Output {
    let mut holder = scratch.hold();
    let output = scratch.zklock().args(args).args([LOCK, "true"]).run();
    finish(&mut holder);
    output
}

/// With a limit on the number of open files that a process may have.
fn with_descriptors(scratch: &Scratch, limit: u32) -> Output {
    let script = format!("ulimit -n {limit}; exec \"$@\"");
    // The files of TLS are read before, and need some.
    let zklock = scratch.zklock().plain().program("sh").args(["-c", &script, "sh"]).arg(binary());
    zklock.args(["-w", "10s", LOCK, "true"]).run()
}

#[test]
fn every_status_of_the_table() {
    for (status, _) in EXIT_STATUS {
        assert!(WAYS.iter().any(|(way, ..)| way == status), "no way leads to {status}");
    }
    for (status, what, end, bring_about) in WAYS {
        assert!(EXIT_STATUS.iter().any(|(listed, _)| listed == status), "{status} is not in the table");
        let scratch = Scratch::new();
        let output = bring_about(&scratch);
        let ended = output.status.code().or(output.status.signal().map(|signal| -signal));
        assert_eq!(ended, Some(*end), "{status}, {what}\n{output}");
        if [OWN, KILLED].contains(status) {
            assert_eq!(silent(output).stdout(), "");
        } else {
            only_line(&output);
        }
    }
}

#[test]
fn death_without_a_second_core_dump() {
    let scratch = Scratch::new();
    let job = scratch.zklock().program("sh").args(["-c", "ulimit -c unlimited 2>/dev/null; exec \"$@\"", "sh"]);
    let job = job.arg(binary()).arg(LOCK).child(["--die-of", "SEGV"]);
    let output = silent(job.run().expect_signal(Signal::SIGSEGV));
    assert!(!output.status.core_dumped(), "{output}");
}

#[test]
fn death_by_a_real_time_signal() {
    let scratch = Scratch::new();
    let output = scratch.zklock().arg(LOCK).args(["--", "sh", "-c", "kill -37 $$"]).run();
    assert!(output.died_of(37), "{output}");
    // zklock was started to ignore it, and the command was not.
    let command = ["--", "env", "--default-signal=37", "sh", "-c", "kill -37 $$"];
    let output = scratch.zklock().arg(LOCK).args(command).run_by(["env", "--ignore-signal=37"]).run();
    assert!(output.died_of(37), "{output}");
}

#[test]
fn closed_standard_output() {
    let scratch = Scratch::new();
    let holder = scratch.occupy("");
    for args in [&["status", LOCK][..], &["status", "--json", LOCK], &["list"], &["check"], &["hold", "/other"]] {
        let output = scratch.zklock().args(args).run_by(["sh", "-c", r#"exec "$@" >&-"#, "sh"]).run().expect_code(70);
        assert!(only_line(&output).ends_with(": Bad file number"), "{output}");
    }
    scratch.delete(&holder);
    assert_same_after("exec >&-", &["sh", "-c", "echo lost"]);
}

/// A script that keeps the help or the version must not take nothing for it.
#[test]
fn help_that_cannot_be_written() {
    const FULL: &str = "zklock: cannot write to standard output: No space left on device (os error 28)\n";
    for (args, status, said) in [
        ("--help >/dev/full", 70, FULL),
        ("--version >/dev/full", 70, FULL),
        ("--help >&-", 70, "zklock: cannot write to standard output: Bad file descriptor (os error 9)\n"),
        // The reader has seen enough.
        ("--help | head -n 1 >/dev/null", 0, ""),
    ] {
        let output = Zklock::bare().run_by(["sh", "-c", &format!(r#""$@" {args}"#), "sh"]).run().expect_code(status);
        assert_eq!(output.stderr(), said);
    }
}
