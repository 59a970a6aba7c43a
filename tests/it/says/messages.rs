//! What zklock says without being asked: place in the queue, job logs (`CI`), a busy lock, a lost one, a silence.

use nix::sys::signal::Signal;

use crate::harness::poll;
use crate::harness::proxy::Proxy;
use crate::harness::running::{count_own_lines, only_line};
use crate::harness::scratch::{HELD_BY_DB3, LOCK, Scratch, ageless, direct};
use crate::harness::terminal::Terminal;

#[test]
fn terminal_shows_place_and_holder() {
    let scratch = Scratch::new();
    let (holder, waiter) = (scratch.occupy_as_db3(), scratch.occupy(""));
    let terminal = Terminal::new(120);
    let mut job = terminal.spawn(scratch.zklock().arg(LOCK).bare_child());
    for place in ["3rd of 3", "2nd of 2"] {
        let line = format!("zklock: waiting for {LOCK}: {place}, {HELD_BY_DB3}");
        terminal.wait(&line, |lines| matches!(lines, [only] if ageless(only) == line));
        if place == "3rd of 3" {
            scratch.delete(&waiter);
        }
    }
    scratch.delete(&holder);
    job.wait().expect_code(0);
    terminal.wait("the command's line alone", |lines| lines == ["ready"]);
}

#[test]
fn message_that_stays_and_line_that_goes() {
    let scratch = Scratch::new();
    let holder = scratch.occupy_as_db3();
    let terminal = Terminal::new(120);
    // Long enough to learn who holds, on any machine.
    let mut job = terminal.spawn(scratch.zklock().arg(LOCK).args(["-w", "4.5"]).bare_child());
    job.wait().expect_code(75);
    let line = format!("zklock: gave up waiting for {LOCK} after 4.5s: 2nd of 2, {HELD_BY_DB3}");
    terminal.wait(&line, |lines| matches!(lines, [only] if ageless(only) == line));
    scratch.delete(&holder);
}

const SILENT: &str = "zklock: ZooKeeper has not answered for ";

const BACK: &str = "zklock: ZooKeeper answers again";

/// People and job logs are told of a silence before it costs them the command, and of its end; cron is not.
#[test]
fn silence_is_told_at_half_of_the_patience() {
    let scratch = Scratch::new();
    let proxy = Proxy::zookeeper(&direct());
    // Without a grace there is more time to find the link restored in.
    let zklock = || scratch.zklock_by(proxy.address()).arg(LOCK).args(["--shared", "-k", "0"]);
    let half_a_line = ["sh", "-c", "printf half; touch at-work; exec sleep 300"];
    let terminal = Terminal::new(120);
    let mut reader = terminal.spawn(zklock().args(half_a_line));
    let mut log = zklock().env("CI", "true").bare_child().args(["--exit-on", "TERM"]).spawn();
    let mut cron = zklock().bare_child().args(["--exit-on", "TERM"]).spawn();
    poll::until("the command writes", || scratch.file("at-work").exists().then_some(()));
    for job in [&mut log, &mut cron] {
        job.wait_stdout("ready");
    }
    proxy.hold();
    log.wait_stderr("the lock is lost in ");
    terminal.wait("a line of its own", |lines| {
        let last = lines.last().is_some_and(|line| line.starts_with(SILENT) && line.ends_with(" unless it does"));
        last && lines.first().is_some_and(|line| line == "half")
    });
    proxy.pass();
    log.wait_stderr(BACK);
    terminal.wait("the end of the silence", |lines| lines.last().is_some_and(|line| line == BACK));
    for job in [&reader, &log, &cron] {
        job.signal(Signal::SIGTERM);
    }
    reader.wait().expect_signal(Signal::SIGTERM);
    let said = log.wait().expect_code(0).stderr();
    assert_eq!(count_own_lines(&said), 2, "{said}");
    assert_eq!(cron.wait().expect_code(0).stderr(), "");
}

/// `stty tostop` stops a process that writes in the background. zklock must not be stopped: it would hold the lock for
/// ever.
#[test]
fn message_in_the_background_stops_no_process() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(120);
    let mut job = terminal.spawn_by(r#"stty tostop; "$@" & wait $!"#, scratch.zklock().arg(LOCK).args(["sleep", "60"]));
    poll::until("the command runs", || job.processes().iter().any(|process| process.name == "sleep").then_some(()));
    scratch.delete_holder();
    job.wait().expect_code(76);
    terminal.wait_count("zklock: lost the lock /lock: its node was deleted", 1);
}

#[test]
fn busy_lock_is_one_line() {
    let scratch = Scratch::new();
    let holder = scratch.occupy_as_db3();
    for (option, message) in [
        ("-n", "/lock is not free: "),
        ("--timeout=0", "/lock is not free: "),
        // Long enough to learn who holds, on any machine.
        ("--timeout=5s", "gave up waiting for /lock after 5s: 2nd of 2, "),
    ] {
        let output = scratch.zklock().arg(LOCK).arg(option).bare_child().run().expect_code(75);
        assert_eq!(ageless(&only_line(&output)), format!("{message}{HELD_BY_DB3}"));
    }
    scratch.delete(&holder);
}

#[test]
fn job_log_has_start_and_end_of_a_wait() {
    let scratch = Scratch::new();
    let (holder, waiter) = (scratch.occupy_as_db3(), scratch.occupy(""));
    let mut job = scratch.zklock().arg(LOCK).env("CI", "true").bare_child().spawn();
    let first = job.wait_stderr("waiting");
    assert_eq!(ageless(&first), format!("zklock: waiting for /lock: 3rd of 3, {HELD_BY_DB3}"));
    scratch.delete(&waiter);
    scratch.delete(&holder);
    let stderr = job.wait().expect_code(0).stderr();
    let rest = stderr.strip_prefix(&format!("{first}\n")).unwrap_or_else(|| panic!("{stderr}"));
    let age = rest.strip_prefix("zklock: holding /lock after ").and_then(|age| age.strip_suffix("s\n"));
    assert!(age.is_some_and(|age| age.parse::<u32>().is_ok()), "{stderr}");
}

#[test]
fn wait_is_told_where_ci_says_yes() {
    let scratch = Scratch::new();
    for (variable, value, lines) in [("X", "", 0), ("CI", "false", 0), ("CI", "0", 0), ("CI", "", 0), ("CI", "1", 2)] {
        let holder = scratch.occupy("");
        let mut job = scratch.zklock().arg(LOCK).env(variable, value).bare_child().spawn();
        scratch.wait_queue(2);
        if lines > 0 {
            job.wait_stderr("waiting");
        }
        scratch.delete(&holder);
        let stderr = job.wait().expect_code(0).stderr();
        assert_eq!(count_own_lines(&stderr), lines, "{variable}={value:?}\n{stderr}");
    }
}
