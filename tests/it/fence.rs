//! `zklock fence`: where the work is done, a command with a lower token does not begin, or ends, before one with a higher
//! token begins.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::PathBuf;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::harness::joblog::JobLog;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::rights::{AS_NOBODY, Right, as_pid_1, refused};
use crate::harness::running::{Output, Running, finish, only_line, silent};
use crate::harness::terminal::Terminal;
use crate::harness::times::SOON;
use crate::harness::traced::Traced;
use crate::harness::zklock::{Zklock, binary, child, copy_program};

mod ssh;

/// A grace that no test waits for.
const LONG: &str = "50s";

/// A directory on the machine where the work is done.
struct Far(TempDir);

impl Far {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// What the file keeps.
    #[track_caller]
    fn seen(&self) -> String {
        fs::read_to_string(self.file("file")).expect("the file is there")
    }

    fn log(&self) -> JobLog {
        JobLog::read(self.file("log"))
    }

    /// A fence whose command is still to be named.
    fn fence(&self, token: u64, options: &[&str]) -> Zklock {
        let token = token.to_string();
        Zklock::bare().directory(self.0.path()).args(["fence", "--token", &token]).args(options).args(["file", "--"])
    }

    /// Arguments of a child that writes to the log until it is told to end in one of these ways.
    fn logged(name: &str, ends: &[&str]) -> Vec<String> {
        let words = ["--name", name, "--log", "log", "--beat"].into_iter().chain(ends.iter().copied());
        words.map(str::to_owned).collect()
    }

    /// A fence around such a child.
    fn job(&self, name: &str, token: u64, options: &[&str], ends: &[&str]) -> Zklock {
        self.fence(token, options).arg(child()).args(Self::logged(name, ends))
    }

    /// The same, with its command running.
    #[track_caller]
    fn start(&self, name: &str, token: u64, options: &[&str], ends: &[&str]) -> Running {
        let mut run = self.job(name, token, options, ends).spawn();
        run.wait_stdout(&format!("{name} ready"));
        run
    }

    /// A fence with the token 7 around a child that has another one below it, which writes to the log. Each ends in one
    /// of these ways, or at once.
    #[track_caller]
    fn tree(&self, spawn: &str, ends: &[&str], below: &[&str]) -> Running {
        let command = self.fence(7, &["-k", LONG]).arg(child()).args(["--name", "child"]).args(ends);
        let run = command.args([spawn, "--"]).args(Self::logged("below", below)).spawn();
        run.wait_stdout_all(&["below ready", "child ready"]);
        run
    }

    /// A fence that waits.
    #[track_caller]
    fn queue(&self, name: &str, token: u64) -> Running {
        let run = self.job(name, token, &[], &["--exit-on", "TERM"]).spawn();
        wait_waiting(&run);
        run
    }

    /// The commands ran in this order, none beside another.
    #[track_caller]
    fn expect_order(&self, order: &[&str]) {
        assert_eq!(self.log().expect_no_overlap().order(), order);
    }

    /// The fence `first`, which has the token 7, stops its command `name` for a later one.
    #[track_caller]
    fn expect_makes_way(&self, first: &mut Running, name: &str) -> Output {
        let mut second = self.job("second", 8, &["-k", LONG], &[]).spawn();
        let output = expect_stopped(first);
        silent(second.wait().expect_code(0));
        self.expect_order(&[name, "second"]);
        output
    }

    fn names(&self) -> Vec<OsString> {
        let mut names: Vec<_> = fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    fn set_mode(&self, name: &str, mode: u32) {
        fs::set_permissions(self.file(name), fs::Permissions::from_mode(mode)).unwrap();
    }
}

/// Waits until a fence waits for its turn.
#[track_caller]
fn wait_waiting(run: &Running) {
    poll::until(format_args!("a process that waits\n{run}"), || {
        run.processes().iter().any(|process| process.name == "lock-waiter").then_some(())
    });
}

#[track_caller]
fn expect_stopped(run: &mut Running) -> Output {
    let output = run.wait().expect_code(76);
    let said = "zklock: a later holder has come, with the token 8 for file: stopping the command\n";
    assert_eq!(output.stderr(), said, "{output}");
    output
}

#[track_caller]
fn expect_refused(run: Zklock, seen: u64, ours: u64) {
    let line = only_line(&run.run().expect_code(76));
    assert!(line.starts_with("a later holder has been here: file has seen the token "), "{line}");
    assert!(
        line.contains(&format!(" {seen}, and the token of this run is {ours};")) && line.ends_with(", remove file"),
        "{line}"
    );
}

#[test]
fn tokens_only_grow() {
    let far = Far::new();
    for token in [7, 7, 9, 4_294_967_298] {
        let output = silent(far.fence(token, &[]).args(["echo", "done"]).run().expect_code(0));
        assert_eq!((output.stdout().as_str(), far.seen()), ("done\n", format!("{token}\n")));
        // It is replaced, not written to.
        far.set_mode("file", 0o444);
    }
    expect_refused(far.fence(9, &[]).args(["touch", "harm"]), 4_294_967_298, 9);
    assert!(!far.file("harm").exists());
    assert_eq!(far.seen(), "4294967298\n");
    // After an ensemble was rebuilt, as the line says.
    fs::remove_file(far.file("file")).unwrap();
    silent(far.fence(2, &[]).arg("true").run().expect_code(0));
    assert_eq!(far.seen(), "2\n");
}

#[test]
fn the_token_comes_from_the_option_or_the_variable() {
    let far = Far::new();
    let show = ["file", "sh", "-c", "echo $ZKLOCK_TOKEN"];
    let fence = || Zklock::bare().directory(far.0.path()).arg("fence");
    let output = fence().env("ZKLOCK_TOKEN", "7").args(show).run().expect_code(0);
    assert_eq!((output.stdout().as_str(), far.seen().as_str()), ("7\n", "7\n"));
    let output = fence().env("ZKLOCK_TOKEN", "7").args(["--token", "8"]).args(show).run().expect_code(0);
    assert_eq!((output.stdout().as_str(), far.seen().as_str()), ("8\n", "8\n"));
    for value in [None, Some("")] {
        let fence = value.into_iter().fold(fence(), |fence, value| fence.env("ZKLOCK_TOKEN", value));
        let line = only_line(&fence.args(show).run().expect_code(64));
        assert!(line.starts_with("no token: ") && line.contains("--token \"$ZKLOCK_TOKEN\""), "{line}");
    }
}

#[test]
fn refused_arguments() {
    let far = Far::new();
    fs::write(far.file("text"), "root:x:0:0\n").unwrap();
    fs::write(far.file("other.lock"), "something else\n").unwrap();
    symlink("text", far.file("link")).unwrap();
    fs::create_dir(far.file("directory")).unwrap();
    let before = far.names();
    for (args, says) in [
        (&["--token", "-1", "file", "true"][..], "--token '-1': write a decimal number"),
        (&["--token", "18446744073709551616", "file", "true"], "write a decimal number"),
        (&["--token", "1", "-k", "x", "file", "true"], "--kill-after 'x'"),
        (&["--token", "1"], "no file; write zklock fence"),
        (&["--token", "1", "file"], "no command; write zklock fence"),
        (&["--token", "1", "", "true"], "FILE '' is no name of a file"),
        (&["--token", "1", "directory/", "true"], "FILE 'directory/' is no name of a file"),
        (&["--token", "1", "..", "true"], "FILE '..' is no name of a file"),
        (&["--token", "1", "directory", "true"], "directory is no plain file; name one that is"),
        (&["--token", "1", "link", "true"], "link is no plain file; name one that is"),
        (&["--token", "1", "/dev\n\u{1b}/file", "true"], "/dev<U+000A><U+001B>/file: the directory does not exist"),
        (&["--token", "1", "missing/file", "true"], "the directory does not exist; create it"),
        (&["--token", "1", "text/file", "true"], "the directory does not exist; create it"),
        (&["--token", "1", "text", "true"], "text holds no token, so it is left as it is; name another file, or"),
        (&["--token", "1", "other", "true"], "other.lock is not ours, so it is left as it is; name another file than"),
    ] {
        let output = Zklock::bare().directory(far.0.path()).arg("fence").args(args).run().expect_code(64);
        assert!(only_line(&output).contains(says), "{args:?}\n{output}");
    }
    assert_eq!(far.names(), before, "nothing was made, nothing was lost");
    assert_eq!(fs::read_to_string(far.file("text")).unwrap(), "root:x:0:0\n");
    assert_eq!(fs::read_to_string(far.file("other.lock")).unwrap(), "something else\n");
}

#[test]
fn exit_statuses_are_the_commands_own() {
    let far = Far::new();
    silent(far.fence(1, &[]).args(["sh", "-c", "exit 3"]).run().expect_code(3));
    let killed = far.fence(1, &[]).args(["sh", "-c", "kill -KILL $$"]).run();
    silent(killed.expect_signal(Signal::SIGKILL));
    let line = only_line(&far.fence(1, &[]).arg("./nowhere").run().expect_code(127));
    assert_eq!(line, "./nowhere: command not found");
}

#[test]
fn an_equal_one_waits_and_a_signal_ends_the_wait() {
    let far = Far::new();
    let mut first = far.start("first", 7, &[], &["--exit-on", "TERM"]);
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut second = far.queue("second", 7);
        second.signal(signal);
        silent(second.wait().expect_signal(signal));
    }
    let mut third = far.queue("third", 7);
    let output = silent(finish(&mut first));
    assert!(!output.stdout().contains("CONT"), "it was left alone\n{output}");
    finish(&mut third);
    far.expect_order(&["first", "third"]);
}

#[test]
fn a_higher_one_stops_a_command_and_what_it_has_started() {
    for kind in ["--spawn", "--spawn-daemon"] {
        let far = Far::new();
        let mut first = far.tree(kind, &["--exit-on", "TERM"], &["--exit-on", "TERM"]);
        let output = far.expect_makes_way(&mut first, "below");
        assert!(output.stdout().contains("below signal TERM"), "{output}");
    }
}

/// What is left when the command has ended is still the work of that holder.
#[test]
fn what_a_command_leaves_behind_is_waited_for_and_stopped() {
    let far = Far::new();
    let mut first = far.tree("--spawn-daemon", &[], &["--exit-on", "TERM"]);
    poll::until("only the daemon is left", || (process::below_guard(first.pid()).len() == 1).then_some(()));
    let mut equal = far.queue("equal", 7);
    assert!(!first.has_ended());
    far.expect_makes_way(&mut first, "below");
    let line = only_line(&equal.wait().expect_code(76));
    assert!(line.starts_with("a later holder has been here: "), "{line}");
}

/// A command that ignores the stop signal; one that gets none; one whose fence is stopped.
#[test]
fn a_command_that_does_not_end_is_killed_and_a_fence_that_is_stopped_makes_way() {
    for (grace, ends, is_stopped) in
        [("300ms", &["--wait"][..], false), ("0", &["--wait"], false), (LONG, &["--exit-on", "TERM"], true)]
    {
        let far = Far::new();
        let mut first = far.start("first", 7, &["-k", grace], ends);
        if is_stopped {
            process::stop(first.pid());
        }
        let output = far.expect_makes_way(&mut first, "first");
        assert_eq!(output.stdout().contains("signal TERM"), grace != "0", "{output}");
    }
}

/// A debugger has it.
#[test]
fn the_command_of_a_fence_that_does_not_react_is_killed() {
    if refused([Right::Ptrace]) {
        return;
    }
    let far = Far::new();
    let mut first = far.start("first", 7, &["-k", "0"], &["--wait"]);
    let held = Traced::hold(first.pid());
    let mut second = far.job("second", 8, &[], &[]).spawn();
    silent(second.wait().expect_code(0));
    far.expect_order(&["first", "second"]);
    drop(held);
    let output = first.wait().expect_code(76);
    assert!(output.stderr().contains("a later holder has come"), "{output}");
}

/// What waits at its gate is stopped.
#[test]
fn a_command_that_is_to_stop_before_it_has_begun_never_begins() {
    let far = Far::new();
    let mut first = far.start("first", 7, &[], &["--exit-on", "TERM"]);
    let mut second = far.job("second", 7, &[], &["--wait"]).spawn();
    wait_waiting(&second);
    let gated = poll::until("a process at its gate", || process::below_guard(second.pid()).pop());
    process::stop(gated.pid);
    finish(&mut first);
    let turn = format!("{} 7\n", second.pid());
    poll::until("its turn", || (fs::read_to_string(far.file("file.lock")).unwrap() == turn).then_some(()));
    let mut third = far.job("third", 8, &[], &[]).spawn();
    let output = second.wait_at_most(SOON).expect_code(76);
    assert!(output.stderr().contains("a later holder has come, with the token 8 for file"), "{output}");
    assert!(output.stderr().ends_with("zklock: the command was not started\n"), "{output}");
    second.wait_until_nothing_is_left();
    silent(third.wait().expect_code(0));
    far.expect_order(&["first", "third"]);
}

#[test]
fn the_next_one_begins_when_the_tree_of_a_killed_fence_is_gone() {
    if refused([Right::Ptrace]) {
        return;
    }
    for token in [7, 8] {
        let far = Far::new();
        let mut first = far.tree("--spawn-daemon", &["--wait"], &["--wait"]);
        // So that there is a time in which the fence has gone, and the daemon has not. A process that is merely stopped is
        // continued by the kernel when the leader of its session dies.
        let held = Traced::hold(first.guard());
        first.signal(Signal::SIGKILL);
        first.wait().expect_signal(Signal::SIGKILL);
        let mut second = far.job("second", token, &[], &[]).spawn();
        wait_waiting(&second);
        assert!(second.stdout().is_empty(), "{second}");
        drop(held);
        silent(second.wait().expect_code(0));
        first.wait_until_nothing_is_left();
        far.expect_order(&["below", "second"]);
    }
}

/// Also when its command has ended, and the fence, which is stopped meanwhile, hears of both at once.
#[test]
fn guard_killed() {
    for (has_ended, killed) in [(false, "the command"), (true, "what the command had left behind")] {
        let far = Far::new();
        let mut first = far.tree("--spawn-daemon", &["--exit-on", "TERM"], &["--wait"]);
        let mut second = far.queue("second", 7);
        let guard = first.guard();
        if has_ended {
            process::stop(first.pid());
            process::send(first.command(), Signal::SIGTERM);
            poll::until("the end of the command", || (process::children(guard).len() == 1).then_some(()));
        }
        process::send(guard, Signal::SIGKILL);
        first.signal(Signal::SIGCONT);
        let output = first.wait_at_most(SOON).expect_code(70);
        assert!(output.stderr().ends_with(&format!("the guard process died; killed {killed}\n")), "{output}");
        first.wait_until_nothing_is_left();
        finish(&mut second);
        far.expect_order(&["below", "second"]);
    }
}

/// A later holder has come, and the command is being stopped.
#[test]
fn guard_killed_while_it_makes_way() {
    let far = Far::new();
    let mut first = far.start("first", 7, &["-k", LONG], &["--wait"]);
    let mut second = far.job("second", 8, &[], &[]).spawn();
    first.wait_stdout("first signal TERM");
    process::send(first.guard(), Signal::SIGKILL);
    first.wait().expect_code(76);
    second.wait().expect_code(0);
    far.expect_order(&["first", "second"]);
}

#[test]
fn many_at_once_never_overlap() {
    let far = Far::new();
    let token = |number: u64| 100 + number * 7 % 10;
    let ends = ["--until", "go", "--exit-on", "TERM"];
    let job = |number| far.job(&format!("job{number}"), token(number), &["-k", LONG], &ends).spawn();
    let runs: Vec<Running> = (0..20).map(job).collect();
    // Those with the highest token.
    let last = ["job7", "job17"];
    poll::until("one of the last", || far.log().order().iter().any(|name| last.contains(name)).then_some(()));
    fs::write(far.file("go"), "").unwrap();
    for mut run in runs {
        let output = run.wait();
        assert!(matches!(output.status.code(), Some(0 | 76)), "{output}");
    }
    assert_eq!(far.seen(), "109\n");
    let log = far.log().expect_no_overlap();
    let tokens: Vec<u64> = log.order().iter().map(|name| token(name[3..].parse().expect("a number"))).collect();
    assert!(tokens.is_sorted() && tokens.ends_with(&[109, 109]), "{tokens:?}");
}

#[test]
fn signals_reach_the_command() {
    let far = Far::new();
    let mut run = far.start("first", 7, &[], &["--exit-on", "QUIT"]);
    for (signal, name) in [(Signal::SIGHUP, "HUP"), (Signal::SIGTERM, "TERM"), (Signal::SIGUSR1, "USR1")] {
        run.signal(signal);
        run.wait_stdout(&format!("first signal {name}"));
    }
    run.signal(Signal::SIGQUIT);
    silent(run.wait().expect_code(0));
}

#[test]
fn a_person_sees_what_is_waited_for() {
    let far = Far::new();
    let mut first = far.start("first", 7, &[], &["--exit-on", "TERM"]);
    let terminal = Terminal::new(100);
    let mut second = terminal.spawn(far.job("second", 7, &[], &[]));
    let line = format!("zklock: waiting for file: held by process {}, with the token 7", first.pid());
    terminal.wait("the waiting line", |lines| lines.last() == Some(&line));
    finish(&mut first);
    second.wait().expect_code(0);
    terminal.wait("no waiting line", |lines| !lines.contains(&line));
    terminal.close();
}

#[test]
fn another_containers_command_is_stopped() {
    if refused([Right::PidNamespaces]) {
        return;
    }
    let far = Far::new();
    let mut first = far.job("first", 7, &["-k", LONG], &["--exit-on", "TERM"]).run_by(as_pid_1()).spawn();
    first.wait_stdout("first ready");
    far.expect_makes_way(&mut first, "first");
}

#[test]
fn another_users_command_is_stopped() {
    if refused([Right::Root]) {
        return;
    }
    let far = Far::new();
    far.set_mode("", 0o777);
    let mut first = far.start("first", 7, &["-k", LONG], &["--exit-on", "TERM"]);
    far.set_mode("file.lock", 0o666);
    // Where others may not go, they find a copy.
    let copy = far.file("zklock");
    copy_program(binary(), &copy);
    let mut second = far.fence(8, &[]).arg("true").program(&copy).run_by(AS_NOBODY).spawn();
    expect_stopped(&mut first);
    silent(second.wait().expect_code(0));
}

/// Whoever replaces it: root, whose umask locks others out, or a member of its group.
#[test]
fn the_file_of_several_users_stays_theirs() {
    if refused([Right::Root]) {
        return;
    }
    let far = Far::new();
    let (umask, nobody) = (["sh", "-c", "umask 077; exec \"$@\"", "sh"], 65534);
    let access = || {
        let file = fs::metadata(far.file("file")).expect("the file is there");
        (file.mode() & 0o7777, file.uid(), file.gid())
    };
    fs::write(far.file("file.lock"), "").unwrap();
    chown(far.file("file.lock"), None, Some(nobody)).unwrap();
    far.set_mode("file.lock", 0o660);
    silent(far.fence(7, &[]).arg("true").run_by(umask).run().expect_code(0));
    assert_eq!(access(), (0o660, 0, nobody), "as file.lock");

    far.set_mode("", 0o777);
    let copy = far.file("zklock");
    copy_program(binary(), &copy);
    let as_nobody = |token| far.fence(token, &[]).arg("true").program(&copy).run_by(AS_NOBODY).run();
    silent(as_nobody(8).expect_code(0));
    assert_eq!(access(), (0o660, nobody, nobody), "only root gives a file away");
    far.set_mode("file", 0o640);
    silent(far.fence(9, &[]).arg("true").run_by(umask).run().expect_code(0));
    assert_eq!(access(), (0o640, nobody, nobody));

    chown(far.file("file"), Some(0), None).unwrap();
    far.set_mode("", 0o1777);
    let line = only_line(&as_nobody(10).expect_code(70));
    assert_eq!(
        line,
        "cannot replace file; this user needs the right to write to its directory, and that without the sticky bit"
    );
    far.set_mode("file.lock", 0o600);
    let line = only_line(&as_nobody(10).expect_code(70));
    assert_eq!(line, "cannot open file.lock; this user needs the right to read and to write it");
}
