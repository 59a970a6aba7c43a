//! A standard error that is full, closed or blocked, or that has no reader, changes nothing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};

use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::running::{Running, count_own_lines, finish};
use crate::harness::scratch::{GRACE, LOCK, Scratch, direct};
use crate::harness::skipped::skip;
use crate::harness::terminal::{CTRL_Q, CTRL_S, Terminal};
use crate::harness::times::{AT_ONCE, INSTANT, LEASE, expect_once_below};
use crate::harness::zklock::{Zklock, binary, child};

/// Runs that write to it for different reasons end with their status.
#[test]
fn closed_or_full_or_without_a_reader() {
    let scratch = Scratch::new();
    let holder = scratch.occupy("");
    let child = child().to_str().expect("a path in UTF-8");
    for (code, args) in [
        (64, &["lock", "true"][..]),
        (69, &["-z127.0.0.1:9", "--connect-timeout=100ms", "/lock", "true"]),
        (75, &["-n", "/lock", "true"]),
        (75, &["-v", "--timeout=2s", "/lock", "true"]),
        (126, &["/lock", "/etc/passwd"]),
        (127, &["/lock", "no-such-program-anywhere"]),
        (3, &["-vvv", "/other", child, "--exit", "3"]),
    ] {
        for script in [
            r#"exec "$@" 2>&-"#,
            r#"exec "$@" 2>/dev/full"#,
            r#"[ -p pipe ] || mkfifo pipe; exec 3<>pipe 4>pipe 3>&-; exec "$@" 2>&4 4>&-"#,
        ] {
            scratch.zklock().args(args).run_by(["bash", "-c", script, "bash"]).run().expect_code(code);
        }
    }
    scratch.delete(&holder);
}

/// The keeper is killed: the command of `holder` gets its stop signal, and is dead by the end of the lease.
#[track_caller]
fn lose_in_time(scratch: &Scratch, holder: &mut Running) {
    let killed = Moment::now();
    process::send(holder.keeper(), Signal::SIGKILL);
    let output = holder.wait().expect_code(76);
    assert!(output.stdout().contains("\nholder signal TERM\n"), "{output}");
    scratch.last_alive("holder").expect_within(LEASE, killed, "the command is dead");
}

/// The keeper of a holder whose standard error takes no bytes is killed. Nothing but SIGKILL ends the command.
#[test]
fn full_pipe() {
    for options in [&GRACE[..], &["-vvv", "--kill-after", "1300ms"]] {
        let scratch = Scratch::new().with_lock();
        let job = scratch.job(&direct(), "holder", options, &["--wait"]);
        let jam = Jam::new(&scratch);
        let mut holder = Jam::before(job).spawn();
        holder.wait_stdout("ready");
        let mut next = scratch.queue("next", 1);
        // Each of these is worth two lines with -vvv. If each line waited for a moment, so would the loss.
        let signals = format!("for _ in {{1..100}}; do kill -34 {}; done", holder.pid());
        Zklock::bare().program("bash").args(["-c", &signals]).run().expect_code(0);
        lose_in_time(&scratch, &mut holder);
        finish(&mut next);
        drop(jam);
        holder.wait_until_nothing_is_left();
        scratch.expect_tidy(&["holder", "next"]);
    }
}

#[test]
fn paused_terminal() {
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
    terminal.press(CTRL_Q);
    terminal.wait_count("zklock: lost the lock /lock: the keeper process died", 1);
    holder.wait_until_nothing_is_left();
    scratch.expect_tidy(&["holder", "next"]);
}

/// The status line is erased before the command writes, but not waited for for long.
#[test]
fn paused_terminal_while_waiting() {
    let scratch = Scratch::new();
    let before = scratch.occupy("");
    let terminal = Terminal::new(80);
    let command = ["sh", "-c", "touch at-work; echo done"];
    let mut job = terminal.spawn(scratch.zklock().arg(LOCK).args(command));
    terminal.wait_count("waiting for /lock", 1);
    terminal.press(CTRL_S);
    scratch.delete(&before);
    poll::until("the command runs", || scratch.file("at-work").exists().then_some(()));
    terminal.press(CTRL_Q);
    job.wait().expect_code(0);
    terminal.wait("the command's line alone", |lines| lines == ["done"]);
}

/// The command comes after a status line that is not erased at once.
#[test]
fn status_line_goes_before_the_command_comes() {
    let scratch = Scratch::new();
    let before = scratch.occupy("");
    let terminal = Terminal::new(80);
    let mut job = terminal.spawn(scratch.zklock().arg(LOCK).child(scratch.logged("child")));
    terminal.wait_count("waiting for /lock", 1);
    let writer = job.writer();
    process::stop(writer);
    let deleted = Moment::now();
    scratch.delete(&before);
    poll::until("the command runs", || (!scratch.log().runs().is_empty()).then_some(()));
    let took = scratch.begin("child").since(deleted);
    assert!(took >= Duration::from_millis(50), "{took:?}");
    process::send(writer, Signal::SIGCONT);
    job.signal(Signal::SIGTERM);
    job.wait().expect_code(0);
}

/// A pipe that is full and stays so until it is read.
struct Jam(File);

impl Jam {
    fn new(scratch: &Scratch) -> Self {
        let path = scratch.file("jam");
        // That of a pipe before.
        let _ = fs::remove_file(&path);
        mkfifo(&path, Mode::S_IRWXU).expect("a pipe");
        let mut pipe = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap();
        while pipe.write(&[0; 4096]).is_ok() {}
        Self(pipe)
    }

    /// A run with this as its standard error.
    fn before(zklock: Zklock) -> Zklock {
        zklock.run_by(["bash", "-c", r#"exec "$@" 2>jam"#, "bash"])
    }

    /// What zklock has written. From now on there is room for more.
    fn read(&mut self) -> String {
        let mut text = vec![];
        // There is no end of the pipe, because this is open for writing as well.
        let _ = self.0.read_to_end(&mut text);
        text.retain(|&byte| byte != 0);
        String::from_utf8(text).expect("UTF-8")
    }

    /// Reads until what was read contains `part`.
    #[track_caller]
    fn read_until(&mut self, part: &str) -> String {
        let mut text = String::new();
        poll::until(part, || {
            text += &self.read();
            text.contains(part).then_some(())
        });
        text
    }
}

/// Standard error takes no byte from the start. The command starts as fast as ever, and so does the next one.
#[test]
fn full_pipe_from_the_start() {
    for options in [&[][..], &["-v"], &["-vv"], &["-vvv"]] {
        let scratch = Scratch::new().with_lock();
        expect_once_below(2 * INSTANT, || {
            let jam = Jam::new(&scratch);
            let job = scratch.zklock().arg(LOCK).args(options).env("CI", "1");
            let mut holder = Jam::before(job.child(scratch.logged("holder"))).spawn();
            holder.wait_stdout("ready");
            let took = holder.elapsed();
            let mut next = scratch.queue("next", 1);
            let ended = Moment::now();
            // Its status, although the writer is stuck.
            finish(&mut holder);
            Moment::now().expect_within(AT_ONCE, ended, "zklock has ended");
            finish(&mut next);
            scratch.log().expect_no_overlap();
            // The writer ends.
            drop(jam);
            holder.wait_until_nothing_is_left();
            took
        });
    }
}

/// A writer that hangs does not keep zklock from ending. It ends by itself, and loses nothing.
#[test]
fn writer_is_left_behind() {
    let scratch = Scratch::new();
    let mut jam = Jam::new(&scratch);
    let mut job = Jam::before(scratch.zklock().args([LOCK, "-v"]).child(["--exit-on", "TERM"])).spawn();
    job.wait_stdout("ready");
    let writer = job.writer();
    finish(&mut job);
    let left: Vec<Pid> = job.processes().iter().map(|process| process.pid).collect();
    assert_eq!(left, [writer]);
    let text = jam.read_until(", token ");
    job.wait_until_nothing_is_left();
    count_own_lines(&(text + &jam.read()));
}

/// The writer of a nested run hangs. It is killed, because it would count as a descendant for which the outer run holds
/// its lock.
#[test]
fn nested_writer_is_not_left_behind() {
    let scratch = Scratch::new();
    let _jam = Jam::new(&scratch);
    let outer = scratch.zklock().args(["--wait-descendants", LOCK, "--"]).arg(binary());
    let mut job = Jam::before(outer.args(["-v", "/inner", "true"])).spawn();
    job.wait().expect_code(0);
    scratch.wait_queue(0);
    job.wait_until_nothing_is_left();
}

/// What writes to standard error holds nothing else, neither of zklock's nor of the caller's.
#[test]
fn writer_holds_nothing_else() {
    let scratch = Scratch::new();
    let job = scratch.zklock().args([LOCK, "-v"]).child(["--exit-on", "TERM"]);
    let mut job = job.run_by(["bash", "-c", r#"exec 7</dev/null 300</dev/null; exec "$@""#, "bash"]).spawn();
    job.wait_stdout("ready");
    let open = |pid: Pid| -> BTreeMap<String, PathBuf> {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).expect("a living process").flatten();
        let name = |entry: &fs::DirEntry| entry.file_name().into_string().expect("a number");
        entries.map(|entry| (name(&entry), fs::read_link(entry.path()).unwrap_or_default())).collect()
    };
    let ours = open(job.pid());
    assert!(ours.contains_key("7") && ours.contains_key("300") && ours.len() > 7, "{ours:?}");
    let writer =
        poll::until("the writer has closed the others", || Some(open(job.writer())).filter(|open| open.len() == 2));
    assert_eq!(writer["2"], ours["2"]);
    finish(&mut job);
}

/// The run goes on without it, and there is another one for what is left in the end.
#[test]
fn writer_killed() {
    let scratch = Scratch::new();
    let job = scratch.zklock().args(["-vv", LOCK]);
    let mut job = job.child(["--exit-on", "TERM", "--exit", "3"]).spawn();
    job.wait_stdout("ready");
    let writer = job.writer();
    process::send(writer, Signal::SIGKILL);
    poll::until("it is reaped", || process::look(writer).is_none().then_some(()));
    // More than there is room for.
    for _ in 0..200 {
        job.signal(Signal::SIGUSR2);
        job.wait_stdout("signal USR2");
    }
    job.signal(Signal::SIGTERM);
    let output = job.wait().expect_code(3);
    assert!(output.stderr().contains("event Signal"), "{output}");
}

/// Mounts a file system, freezes it, thaws it, and unmounts it, a step for each line of its input: at once when that ends
/// with the test. `-l`: also if a process still has a file open there.
const FREEZE: &str = r#"
    trap "" HUP INT TERM
    cd "$0" && mkdir mounted && truncate -s 16M image && /sbin/mkfs.ext4 -q -F image || exit
    mount -o loop image mounted || { echo refused; exit; }
    echo mounted; read -r line; fsfreeze -f mounted; echo frozen; read -r line; fsfreeze -u mounted; echo thawed; read -r line
    umount -l mounted
"#;

/// A write to it sleeps where no signal reaches it, although poll(2) says that it is ready.
#[test]
fn frozen_file_system() {
    for options in [&GRACE[..], &[&GRACE[..], &["-vv"]].concat()] {
        let scratch = Scratch::new().with_lock();
        let mut shell = Command::new("sh");
        shell.args(["-c", FREEZE]).arg(scratch.file("")).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().expect("a shell");
        let (mut to, from) = (shell.stdin.take().expect("a pipe"), shell.stdout.take().expect("a pipe"));
        let mut steps = BufReader::new(from).lines();
        let mut step = || steps.next().expect("apt-get install e2fsprogs").expect("a line");
        if step() != "mounted" {
            shell.wait().expect("it ends");
            return skip("a loop device");
        }
        let job = scratch.job(&direct(), "holder", options, &["--wait"]);
        let mut holder = job.run_by(["bash", "-c", r#"exec "$@" 2>>mounted/log"#, "bash"]).spawn();
        holder.wait_stdout("ready");
        let mut next = scratch.queue("next", 1);
        to.write_all(b"\n").expect("it reads");
        assert_eq!(step(), "frozen");
        lose_in_time(&scratch, &mut holder);
        finish(&mut next);
        to.write_all(b"\n").expect("it reads");
        assert_eq!(step(), "thawed");
        holder.wait_until_nothing_is_left();
        let said = scratch.read("mounted/log");
        assert!(said.contains("zklock: lost the lock /lock: the keeper process died"), "{said}");
        drop(to);
        shell.wait().expect("it ends");
        scratch.expect_tidy(&["holder", "next"]);
    }
}
