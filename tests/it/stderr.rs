//! A standard error that is full, closed or blocked, or that has no reader, changes nothing.

use std::fs::{self, File};
use std::io::{self, Read};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::process::{self, Seat};
use crate::harness::running::{count_own_lines, finish};
use crate::harness::scratch::{GRACE, LOCK, Scratch, direct};
use crate::harness::server::{Server, free_port};
use crate::harness::terminal::Terminal;
use crate::harness::times::LEASE;
use crate::harness::zklock::{Zklock, binary, child};

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
fn each_line_is_written_at_once() {
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
fn without_a_reader() {
    let pipe_without_a_reader = || (io::pipe().expect("a pipe").1.into(), ());
    run_talkers(pipe_without_a_reader, |(), _| {});
}

#[test]
fn full_device() {
    let full = || (File::options().write(true).open("/dev/full").expect("full(4)").into(), ());
    run_talkers(full, |(), _| {});
}

#[test]
fn closed() {
    let scratch = Scratch::new();
    let closed = |zklock: Zklock| zklock.run_by(["sh", "-c", r#"exec "$0" "$@" 2>&-"#]);
    closed(scratch.zklock().arg(LOCK).arg("-vvv").child(["--exit", "3"])).run().expect_code(3);
    closed(scratch.zklock().arg(LOCK).args(["--", "no-such-program-anywhere"])).run().expect_code(127);
    let servers = Server::shared().chroot().by(format!("127.0.0.1:{}", free_port()));
    closed(Zklock::at(servers).args(["--connect-timeout=100ms", "/lock"]).bare_child()).run().expect_code(69);
}

/// Executes a program with standard error a pipe that is full and stays full.
const INTO_A_FULL_PIPE: &str = r#"
    mkfifo pipe && exec 3<>pipe && dd if=/dev/zero of=pipe bs=4096 oflag=nonblock 2>dd
    exec "$@" 2>pipe
"#;

/// The keeper of a holder whose standard error takes no bytes is killed. Nothing but SIGKILL ends the command.
#[test]
fn full_pipe() {
    for options in [&GRACE[..], &["-vvv", "--kill-after", "1300ms"]] {
        let scratch = Scratch::new().with_lock();
        let job = scratch.job(&direct(), "holder", options, &["--wait"]);
        let mut holder = job.run_by(["bash", "-c", INTO_A_FULL_PIPE, "bash"]).spawn();
        holder.wait_stdout("ready");
        assert!(scratch.read("dd").contains("Resource temporarily unavailable"), "the pipe is full");
        let mut next = scratch.queue("next", 1);
        // Each of these is worth two lines with -vvv. If each line waited for a moment, so would the loss.
        let signals = format!("for _ in {{1..100}}; do kill -34 {}; done", holder.pid());
        Zklock::bare().program("bash").args(["-c", &signals]).run().expect_code(0);
        let killed = Moment::now();
        process::send(holder.keeper(), Signal::SIGKILL);
        let output = holder.wait().expect_code(76);
        assert!(output.stdout().contains("\nholder signal TERM\n"), "{output}");
        scratch.last_alive("holder").expect_within(LEASE, killed, "the command is dead");
        finish(&mut next);
        holder.wait_until_nothing_is_left();
        scratch.expect_tidy(&["holder", "next"]);
    }
}

#[test]
fn paused_terminal() {
    const CTRL_S: u8 = 0x13;
    let scratch = Scratch::new().with_lock();
    let terminal = Terminal::new(80);
    let mut holder = terminal.spawn(scratch.job(&direct(), "holder", &["-v"], &["--wait"]));
    terminal.wait_count("holder ready", 1);
    let command = holder.command();
    let mut next = scratch.queue("next", 1);
    terminal.press(CTRL_S);
    let killed = Moment::now();
    process::send(holder.keeper(), Signal::SIGKILL);
    process::wait_dead(command);
    Moment::now().expect_within(LEASE, killed, "the command is dead");
    holder.wait().expect_code(76);
    finish(&mut next);
    holder.wait_until_nothing_is_left();
    scratch.expect_tidy(&["holder", "next"]);
}

/// A message to a file that may not grow is lost, and the signal that it causes does not reach the command.
#[test]
fn file_at_its_limit() {
    let scratch = Scratch::new();
    let log = tempfile::NamedTempFile::new().expect("a file");
    fs::write(&log, [b'\n'; 2048]).expect("a file can be written");
    let script = r#"ulimit -c 0; ulimit -f 1; exec "$@" 2>>"$0""#;
    let by = ["bash".into(), "-c".into(), script.into(), log.path().as_os_str().to_owned()];
    let mut run = scratch.zklock().args([LOCK, "-v"]).child(["--exit-on", "TERM"]).run_by(by).spawn();
    run.wait_stdout("ready");
    run.signal(Signal::SIGTERM);
    assert!(!run.wait().expect_code(0).stdout().contains("XFSZ"));
}
