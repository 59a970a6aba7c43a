//! What zklock says, to whom, and what it does when nobody can hear it.

use std::fs::File;
use std::io::{self, Read};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use crate::harness::client::Kind;
use crate::harness::poll;
use crate::harness::process::{self, Seat};
use crate::harness::proxy::Proxy;
use crate::harness::running::{count_own_lines, only_line};
use crate::harness::scratch::{HELD_BY_DB3, LOCK, Scratch, direct};
use crate::harness::server::{Server, free_port};
use crate::harness::terminal::Terminal;
use crate::harness::zklock::{Zklock, binary, child};

// A terminal.

#[test]
fn a_terminal_shows_one_line_of_place_and_holder_until_the_command_starts() {
    let scratch = Scratch::new();
    let (holder, waiter) = (scratch.occupy_as_db3(), scratch.occupy(""));
    let terminal = Terminal::new(120);
    let mut job = terminal.spawn(scratch.zklock().arg(LOCK).bare_child());
    for place in ["3rd of 3", "2nd of 2"] {
        let line = format!("zklock: waiting for {LOCK}: {place}, {HELD_BY_DB3}");
        terminal.wait(&line, |lines| lines == [line.as_str()]);
        if place == "3rd of 3" {
            scratch.delete(&waiter);
        }
    }
    scratch.delete(&holder);
    job.wait().expect_code(0);
    terminal.wait("the command's line alone", |lines| lines == ["ready"]);
}

#[test]
fn on_a_narrow_terminal_the_line_does_not_wrap() {
    let scratch = Scratch::new();
    let holder = scratch.occupy_as_db3();
    let terminal = Terminal::new(40);
    let mut job = terminal.spawn(scratch.zklock().arg(LOCK).bare_child());
    terminal.wait("39 columns", |lines| lines == ["zklock: waiting for /lock: 2nd of 2, he"]);
    scratch.delete(&holder);
    job.wait().expect_code(0);
    terminal.wait("the command's line alone", |lines| lines == ["ready"]);
}

#[test]
fn a_message_that_stays_does_not_mix_with_the_line_that_goes() {
    let scratch = Scratch::new();
    let holder = scratch.occupy_as_db3();
    let terminal = Terminal::new(120);
    // Long enough to learn who holds, on any machine.
    let mut job = terminal.spawn(scratch.zklock().arg(LOCK).args(["-w", "4.5"]).bare_child());
    job.wait().expect_code(75);
    let line = format!("zklock: gave up waiting for {LOCK} after 4.5s: 2nd of 2, {HELD_BY_DB3}");
    terminal.wait(&line, |lines| lines == [line.as_str()]);
    scratch.delete(&holder);
}

const SILENT: &str = "zklock: ZooKeeper has not answered for ";
const BACK: &str = "zklock: ZooKeeper answers again";

/// People and job logs are told of a silence before it costs them the command, and of its end; cron is not.
#[test]
fn a_silence_is_told_of_when_half_of_the_patience_is_gone() {
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

/// `stty tostop` stops who writes in the background. That must not be us: the lock would be held for ever.
#[test]
fn in_the_background_a_message_stops_nobody() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(120);
    let mut job = terminal.spawn_by(r#"stty tostop; "$@" & wait $!"#, scratch.zklock().arg(LOCK).args(["sleep", "60"]));
    poll::until("the command runs", || job.processes().iter().any(|process| process.name == "sleep").then_some(()));
    scratch.delete_holder();
    job.wait().expect_code(76);
    terminal.wait_count("zklock: lost the lock /lock: its node was deleted", 1);
}

#[test]
fn a_shorter_session_than_was_asked_for_is_told_to_a_person() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(120);
    let mut job = terminal.spawn(scratch.zklock().arg(LOCK).args(["--session-timeout", "10m"]).bare_child());
    job.wait().expect_code(0);
    let line = "zklock: the servers granted a session timeout of 2m, not 10m: their maxSessionTimeout is the limit";
    terminal.wait(line, |lines| lines == [line, "ready"]);
}

// No terminal.

#[test]
fn without_a_terminal_success_is_silent_also_after_a_wait() {
    let scratch = Scratch::new();
    let holder = scratch.occupy_as_db3();
    let mut job = scratch.zklock().arg(LOCK).bare_child().spawn();
    scratch.wait_queue(2);
    scratch.delete(&holder);
    let output = job.wait().expect_code(0);
    assert_eq!((output.stdout().as_str(), output.stderr().as_str()), ("ready\n", ""));
}

/// A lock below a lock is in order. It is worth a word to a person, and no mail.
#[test]
fn a_child_that_is_no_contender_is_told_at_a_terminal_and_with_verbose() {
    let scratch = Scratch::new();
    let below = format!("{LOCK}/production");
    for path in [LOCK, &below] {
        scratch.client().create(path, b"", Kind::Persistent).expect("a node can be created");
    }
    let hint = "zklock: /lock has a child that is not a contender, ignored: production";
    for ci in ["", "1"] {
        let output = scratch.zklock().arg(LOCK).env("CI", ci).bare_child().run().expect_code(0);
        assert_eq!(output.stderr(), "");
    }
    for (option, told) in [(None, true), (Some("-q"), false), (Some("-v"), true)] {
        let terminal = Terminal::new(120);
        terminal.spawn(scratch.zklock().arg(LOCK).args(option).bare_child()).wait().expect_code(0);
        terminal.wait("the command's line", |lines| lines.iter().any(|line| line == "ready"));
        terminal.wait(hint, |lines| lines.iter().filter(|line| **line == hint).count() == usize::from(told));
    }
    let output = scratch.zklock().arg(LOCK).arg("-v").bare_child().run().expect_code(0);
    assert_eq!(output.stderr().lines().filter(|line| *line == hint).count(), 1, "{output}");
    scratch.delete(&below);
}

#[test]
fn a_lock_that_is_busy_is_one_line_that_names_the_holder() {
    let scratch = Scratch::new();
    let holder = scratch.occupy_as_db3();
    for (option, message) in [
        ("-n", "/lock is not free: "),
        ("--timeout=0", "/lock is not free: "),
        // Long enough to learn who holds, on any machine.
        ("--timeout=5s", "gave up waiting for /lock after 5s: 2nd of 2, "),
    ] {
        let output = scratch.zklock().arg(LOCK).arg(option).bare_child().run().expect_code(75);
        assert_eq!(output.stderr(), format!("zklock: {message}{HELD_BY_DB3}\n"));
        assert_eq!(output.stdout(), "");
    }
    scratch.delete(&holder);
}

#[test]
fn a_lock_that_is_lost_is_one_line() {
    for quiet in [&[][..], &["--quiet"]] {
        let scratch = Scratch::new();
        let mut job = scratch.zklock().arg(LOCK).args(quiet).child(["--wait"]).spawn();
        job.wait_stdout("ready");
        scratch.delete_holder();
        let stderr = job.wait().expect_code(76).stderr();
        assert_eq!(count_own_lines(&stderr), 1, "{stderr}");
        assert!(stderr.contains("lost the lock /lock"), "{stderr}");
    }
}

#[test]
fn a_job_log_gets_a_line_when_waiting_starts_and_one_when_it_ends() {
    let scratch = Scratch::new();
    let (holder, waiter) = (scratch.occupy_as_db3(), scratch.occupy(""));
    let mut job = scratch.zklock().arg(LOCK).env("CI", "true").bare_child().spawn();
    let first = job.wait_stderr("waiting");
    assert_eq!(first, format!("zklock: waiting for /lock: 3rd of 3, {HELD_BY_DB3}"));
    scratch.delete(&waiter);
    scratch.delete(&holder);
    let stderr = job.wait().expect_code(0).stderr();
    let rest = stderr.strip_prefix(&format!("{first}\n")).unwrap_or_else(|| panic!("{stderr}"));
    let age = rest.strip_prefix("zklock: holding /lock after ").and_then(|age| age.strip_suffix("s\n"));
    assert!(age.is_some_and(|age| age.parse::<u32>().is_ok()), "{stderr}");
}

#[test]
fn a_variable_ci_that_says_no_is_no_job_log() {
    let scratch = Scratch::new();
    for (value, lines) in [("false", 0), ("0", 0), ("", 0), ("1", 2)] {
        let holder = scratch.occupy("");
        let mut job = scratch.zklock().arg(LOCK).env("CI", value).bare_child().spawn();
        scratch.wait_queue(2);
        if lines > 0 {
            job.wait_stderr("waiting");
        }
        scratch.delete(&holder);
        let stderr = job.wait().expect_code(0).stderr();
        assert_eq!(count_own_lines(&stderr), lines, "CI={value:?}\n{stderr}");
    }
}

// More and less.

#[test]
fn quiet_says_nothing_of_a_busy_lock_and_one_line_of_an_error() {
    let scratch = Scratch::new();
    let holder = scratch.occupy("");
    for option in ["-n", "--timeout=2s"] {
        assert_eq!(scratch.zklock().arg(LOCK).args(["-q", option]).bare_child().run().expect_code(75).stderr(), "");
    }
    scratch.delete(&holder);
    let servers = format!("127.0.0.1:{}", free_port());
    let output =
        Zklock::at(servers).args(["-q", "--connect-timeout=200ms", "/lock"]).bare_child().run().expect_code(69);
    assert_eq!(count_own_lines(&output.stderr()), 1, "{output}");
}

#[test]
fn verbose_tells_the_course_of_things_line_by_line() {
    let scratch = Scratch::new();
    let mut counts = vec![];
    for option in ["-v", "-vv", "-vvv"] {
        let holder = scratch.occupy_as_db3();
        let mut job = scratch.zklock().arg(LOCK).arg(option).bare_child().spawn();
        let waiting = job.wait_stderr("waiting for /lock");
        assert!(waiting.ends_with(HELD_BY_DB3), "{waiting}");
        scratch.delete(&holder);
        let output = job.wait().expect_code(0);
        assert!(output.stderr().contains(", token "), "{output}");
        assert_eq!(output.stdout(), "ready\n");
        counts.push(count_own_lines(&output.stderr()));
    }
    assert!(counts.is_sorted_by(|less, more| less < more), "{counts:?}");
}

#[test]
fn the_log_variable_filters_as_env_logger_does() {
    let scratch = Scratch::new();
    let stderr_with =
        |filter: &str| scratch.zklock().arg(LOCK).env("ZKLOCK_LOG", filter).bare_child().run().expect_code(0).stderr();
    assert!(count_own_lines(&stderr_with("debug")) > count_own_lines(&stderr_with("info")));
    assert_eq!(stderr_with("off"), "");
    assert_eq!(stderr_with("zklock::session=off,zookeeper_client=off,warn"), "");
}

#[test]
fn a_log_filter_that_makes_no_sense_is_refused() {
    let output = Scratch::new().zklock().arg(LOCK).env("ZKLOCK_LOG", "zklock=loud").bare_child().run().expect_code(64);
    assert_eq!(count_own_lines(&output.stderr()), 1, "{output}");
    assert!(output.stderr().contains("ZKLOCK_LOG 'zklock=loud'"), "{output}");
}

// Any standard error.

/// Runs that write to stderr for different reasons: what each ends with, and its arguments after the options that
/// name the server. `/lock` is taken.
const TALKERS: [(i32, &[&str]); 7] = [
    (64, &["lock", "true"]),
    (64, &["--no-such-option"]),
    (69, &["-z127.0.0.1:9", "--connect-timeout=100ms", "/lock", "true"]),
    (75, &["-n", "/lock", "true"]),
    (75, &["-v", "--timeout=2s", "/lock", "true"]),
    (126, &["/lock", "/etc/passwd"]),
    (127, &["/lock", "no-such-program-anywhere"]),
];

/// Runs each of [`TALKERS`] and a successful `zklock -vvv` with a stderr of `make_stderr`, and looks at its status;
/// `listen` is called while it runs.
fn run_talkers<T>(make_stderr: impl Fn() -> (Stdio, T), listen: impl Fn(T, &str)) {
    let scratch = Scratch::new();
    let holder = scratch.occupy("");
    let child = child().to_str().expect("a path in UTF-8");
    let success: (i32, &[&str]) = (3, &["-vvv", "/other", child, "--exit", "3"]);
    for (code, args) in TALKERS.into_iter().chain([success]) {
        let (stderr, listener) = make_stderr();
        let mut command = Command::new(binary());
        command.env_clear().env("PATH", "/usr/bin:/bin").env("ZKLOCK_ZOOKEEPER", scratch.chroot().to_string());
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        let mut job = process::spawn(command, Seat::OwnSession, &[]).expect("zklock can be started");
        let what = args.join(" ");
        listen(listener, &what);
        let status = poll::until(&what, || job.try_wait().expect("a child can be waited for"));
        assert_eq!(status.code(), Some(code), "{what}");
    }
    scratch.delete(&holder);
}

/// A pipe takes up to 4 kB that are written at once as a whole (pipe(7)). A socket that keeps messages apart shows what
/// was written at once.
#[test]
fn each_line_is_written_at_once_so_that_runs_do_not_garble_each_other() {
    let message_socket = || {
        let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
        let (theirs, ours) = pair.expect("a pair of sockets");
        (theirs.into(), File::from(ours))
    };
    run_talkers(message_socket, |mut stderr, what| {
        let mut message = [0; 64 * 1024];
        let mut count = 0;
        while let length @ 1.. = stderr.read(&mut message).expect("messages can be read") {
            let text = String::from_utf8_lossy(&message[..length]);
            assert_eq!(count_own_lines(&text), 1, "{what}: {text:?}");
            count += 1;
        }
        assert!(count > 0, "{what}: nothing was said");
    });
}

#[test]
fn a_stderr_that_nobody_reads_changes_nothing() {
    let pipe_without_a_reader = || (io::pipe().expect("a pipe").1.into(), ());
    run_talkers(pipe_without_a_reader, |(), _| {});
}

#[test]
fn a_stderr_that_is_full_changes_nothing() {
    let full = || (File::options().write(true).open("/dev/full").expect("full(4)").into(), ());
    run_talkers(full, |(), _| {});
}

#[test]
fn a_stderr_that_is_closed_changes_nothing() {
    let scratch = Scratch::new();
    let closed = |zklock: Zklock| zklock.run_by(["sh", "-c", r#"exec "$0" "$@" 2>&-"#]);
    closed(scratch.zklock().arg(LOCK).arg("-vvv").child(["--exit", "3"])).run().expect_code(3);
    closed(scratch.zklock().arg(LOCK).args(["--", "no-such-program-anywhere"])).run().expect_code(127);
    let servers = Server::shared().chroot().by(format!("127.0.0.1:{}", free_port()));
    closed(Zklock::at(servers).args(["--connect-timeout=100ms", "/lock"]).bare_child()).run().expect_code(69);
}

#[test]
fn a_line_for_the_shell_is_told_from_a_command() {
    for (program, hint) in [("echo hi; ls", true), ("A=1", true), ("no-such-command", false)] {
        let line = only_line(&Zklock::bare().args(["/lock", program]).run().expect_code(127));
        assert_eq!(line.ends_with("; write -c before a line for the shell"), hint, "{line}");
    }
}
