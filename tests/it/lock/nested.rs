//! A zklock below the command of another: it uses the locks that are held above it, and believes nothing else.
//!
//! Curator's TestInterProcessMutexBase (testReentrant…) and TestInterProcessReadWriteLock (downgrading, upgrading) ask
//! the same of threads.

use std::ffi::OsString;
use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::harness::poll;
use crate::harness::process;
use crate::harness::running::{Running, finish, only_line, silent};
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::terminal::Terminal;
use crate::harness::zklock::{Zklock, binary, child, copy_program, is_guard, is_keeper};

mod killed;
mod lent;
mod unreachable;

const OTHER: &str = "/other";

/// `zklock OUTER -- zklock INNER -- child`, with the child's arguments to be added.
fn nested(scratch: &Scratch, outer: &[&str], inner: &[&str]) -> Zklock {
    scratch.zklock().args(outer).arg("--").arg(binary()).args(inner)
}

/// The value of a variable that a child has shown.
#[track_caller]
fn shown<'s>(stdout: &'s str, name: &str) -> &'s str {
    let value = stdout.split_once(&format!("\n{name}=")).or_else(|| stdout.split_once(&format!("{name}=")));
    value.and_then(|(_, rest)| rest.lines().next()).unwrap_or_else(|| panic!("no {name} in:\n{stdout}"))
}

/// A zklock that runs a shell script under [`LOCK`]. In the script, `$Z` is zklock and `$C` the command of
/// tests/child/main.rs; `log` is the log of the place.
fn script(scratch: &Scratch, options: &[&str], script: &str) -> Zklock {
    let shell = scratch.zklock().env("SHELL", "/bin/sh").env("Z", binary()).env("C", child());
    shell.arg(LOCK).args(options).args(["-c", script])
}

/// A contender for [`LOCK`] that has queued behind one other.
#[track_caller]
fn next(scratch: &Scratch) -> Running {
    let next = scratch.zklock().arg(LOCK).child(scratch.logged("next")).spawn();
    scratch.wait_queue(2);
    next
}

/// The pipe by which a run lends its locks, as its command has been told: the number of its end, and what /proc
/// shows there. A process of the run must live that has got the variable.
#[track_caller]
fn pipe(run: &Running) -> (String, String) {
    let pid = run.pid().to_string();
    let offer = poll::until("an offer", || {
        let environments = run.processes().into_iter().filter_map(|process| environment(process.pid));
        let offers = environments.filter_map(|all| Some(all.split_once("\0ZKLOCK_LENDER=")?.1.to_owned()));
        let lines = offers.flat_map(|rest| rest.split(['\n', '\0']).map(str::to_owned).collect::<Vec<_>>());
        lines.map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>()).find(|words| words[1] == pid)
    });
    (offer[5].clone(), format!("pipe:[{}]", offer[6]))
}

fn environment(pid: Pid) -> Option<String> {
    Some(String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/environ")).ok()?).into_owned())
}

/// Waits until a run lends its locks no more: its command has ended.
#[track_caller]
fn wait_until_it_lends_no_more(run: &Running) {
    let (number, pipe) = pipe(run);
    let path = format!("/proc/{}/fd/{number}", run.pid());
    poll::until("it lends no more", || {
        let has_it = fs::read_link(&path).is_ok_and(|there| *there.as_os_str() == *pipe);
        (!has_it).then_some(())
    });
}

/// The processes below a run that have its pipe open.
#[track_caller]
fn borrowers(run: &Running) -> Vec<process::Process> {
    let (_, pipe) = pipe(run);
    let borrows = |process: &process::Process| process.pid != run.pid() && has(process.pid, &pipe);
    run.processes().into_iter().filter(borrows).collect()
}

/// Whether a process has a pipe open.
fn has(pid: Pid, pipe: &str) -> bool {
    let numbers = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    numbers.filter_map(|number| fs::read_link(number.path()).ok()).any(|there| *there.as_os_str() == *pipe)
}

/// Waits for one process below a run that has borrowed.
#[track_caller]
fn borrower(run: &Running) -> process::Process {
    poll::until("a borrower", || borrowers(run).pop())
}

/// The process of this name below a run.
#[track_caller]
fn find(run: &Running, what: &str, is_it: impl Fn(&process::Process) -> bool) -> process::Process {
    poll::until(what, || run.processes().into_iter().find(|process| is_it(process)))
}

/// The keeper of the zklock below `run`.
#[track_caller]
fn inner_keeper(run: &Running) -> process::Process {
    let outer = run.keeper();
    find(run, "the inner keeper", |process| process.pid != outer && is_keeper(process))
}

/// The guard of the zklock below `run`.
#[track_caller]
fn inner_guard(run: &Running) -> process::Process {
    let outer = run.guard();
    find(run, "the inner guard", |process| process.pid != outer && is_guard(process))
}

#[test]
fn held_above_is_used_at_once() {
    let scratch = Scratch::new();
    let mut job = nested(&scratch, &[LOCK], &["-n", LOCK]).child(["--env", "--exit-on", "TERM"]).spawn();
    job.wait_stdout("ready");
    let nodes = scratch.client().children(LOCK);
    assert_eq!(nodes.len(), 1);
    let path = format!("{LOCK}/{}", nodes[0]);
    let (_, stat) = scratch.client().get(&path).unwrap();
    let stdout = job.stdout();
    assert_eq!(shown(&stdout, "ZKLOCK_NODE"), path);
    assert_eq!(shown(&stdout, "ZKLOCK_HELD"), path);
    assert_eq!(shown(&stdout, "ZKLOCK_TOKEN"), stat.czxid.to_string());
    assert_eq!(shown(&stdout, "ZKLOCK_SESSION"), format!("{:#x}", stat.owner));
    silent(finish(&mut job));
    assert!(scratch.client().children(LOCK).is_empty());
}

/// The inner run's end releases nothing.
#[test]
fn stays_held_when_the_inner_run_has_ended() {
    let scratch = Scratch::new();
    let script = "\"$0\" -n \"$1\" true && echo inner-done && read line";
    let job = scratch.zklock().args([LOCK, "--", "sh", "-c", script]).arg(binary()).arg(LOCK);
    let mut job = job.open_stdin().spawn();
    job.wait_stdout("inner-done");
    assert_eq!(scratch.client().children(LOCK).len(), 1);
    scratch.zklock().args(["-n", LOCK, "true"]).run().expect_code(75);
    job.write_stdin(b"\n");
    silent(job.wait().expect_code(0));
}

#[test]
fn through_many_levels() {
    let scratch = Scratch::new();
    let levels = [LOCK, OTHER, LOCK, OTHER, "/third", LOCK];
    let mut job = scratch.zklock();
    for (n, lock) in levels.into_iter().enumerate() {
        job = if n == 0 { job.arg(lock).arg("--") } else { job.arg(binary()).args(["-n", lock, "--"]) };
    }
    let mut job = job.args(["sh", "-c", "env; echo ready; read line"]).open_stdin().spawn();
    job.wait_stdout("ready");
    for lock in [LOCK, OTHER, "/third"] {
        assert_eq!(scratch.client().children(lock).len(), 1, "{lock}");
    }
    let stdout = job.stdout();
    assert_eq!(shown(&stdout, "ZKLOCK_PATH"), LOCK);
    assert_eq!(stdout.matches("_c_").count(), 3 + 1, "one in ZKLOCK_NODE, three in ZKLOCK_HELD:\n{stdout}");
    job.close_stdin();
    job.wait().expect_code(1);
    assert!(scratch.client().children(LOCK).is_empty());
}

#[test]
fn another_lock_is_queued_for() {
    let scratch = Scratch::new();
    let mut holder = scratch.zklock().arg(OTHER).child(scratch.logged("holder")).spawn();
    holder.wait_stdout("ready");
    nested(&scratch, &[LOCK], &["-n", OTHER]).bare_child().run().expect_code(75);
    let mut job = nested(&scratch, &[LOCK], &[OTHER]).child(scratch.logged("inner")).spawn();
    scratch.client().wait_count(OTHER, 2);
    silent(finish(&mut holder));
    job.wait_stdout("ready");
    assert_eq!(scratch.client().children(LOCK).len(), 1);
    silent(finish(&mut job));
    scratch.log().expect_no_overlap();
}

#[test]
fn of_several_locks_the_others_are_taken() {
    let scratch = Scratch::new();
    let outer = [LOCK, "--and", "/third"];
    let inner = ["-n", OTHER, "--and", LOCK, "--and", "/third"];
    let mut job = nested(&scratch, &outer, &inner).child(["--env", "--exit-on", "TERM"]).spawn();
    job.wait_stdout("ready");
    for lock in [LOCK, OTHER, "/third"] {
        assert_eq!(scratch.client().children(lock).len(), 1, "{lock}");
    }
    silent(finish(&mut job));
    for lock in [LOCK, OTHER, "/third"] {
        assert!(scratch.client().children(lock).is_empty(), "{lock}");
    }
}

#[test]
fn weaker_use_is_granted_stronger_refused() {
    let exclusive = &["--exclusive"][..];
    let shared = &["--shared"][..];
    let permits = &["--permits", "2"][..];
    for (held, wanted, granted) in [
        (exclusive, exclusive, true),
        (exclusive, shared, true),
        (exclusive, permits, true),
        (shared, shared, true),
        (permits, permits, true),
        (permits, shared, true),
        (shared, exclusive, false),
        (shared, permits, false),
        (permits, exclusive, false),
        (permits, &["--permits", "3"][..], false),
    ] {
        let scratch = Scratch::new();
        let job = nested(&scratch, &[&[LOCK], held].concat(), &[&[LOCK], wanted].concat());
        let output = job.bare_child().run();
        if granted {
            silent(output.expect_code(0));
        } else {
            // It would wait for the run above it, which waits for its end.
            let output = output.expect_code(78);
            assert!(only_line(&output).contains(" by the outer zklock,"), "{output}");
        }
        assert!(scratch.client().children(LOCK).is_empty());
    }
}

/// The readers of one lock in one tree: each waits for no one above it.
#[test]
fn reader_below_a_reader() {
    let scratch = Scratch::new();
    let script = "echo outer; read line; exec \"$0\" --shared \"$1\" echo inner";
    let job = scratch.zklock().args(["--shared", LOCK, "--", "sh", "-c", script]).arg(binary()).arg(LOCK);
    let mut job = job.open_stdin().spawn();
    job.wait_stdout("outer");
    let mut writer = scratch.zklock().arg(LOCK).child(scratch.logged("writer")).spawn();
    scratch.wait_queue(2);
    job.write_stdin(b"\n");
    job.wait_stdout("inner");
    silent(job.wait().expect_code(0));
    silent(finish(&mut writer));
}

/// A holder of [`LOCK`], and what its command sees in `ZKLOCK_HELD`.
#[track_caller]
fn holder(scratch: &Scratch) -> (Running, String) {
    let mut holder = scratch.zklock().arg(LOCK).child(["--env", "--exit-on", "TERM"]).spawn();
    holder.wait_stdout("ready");
    let held = shown(&holder.stdout(), "ZKLOCK_HELD").to_owned();
    (holder, held)
}

/// Of a holder that we do not descend from: its environment was copied.
#[test]
fn held_by_a_stranger_is_not_believed() {
    let scratch = Scratch::new();
    let (mut holder, held) = holder(&scratch);
    let lender = shown(&holder.stdout(), "ZKLOCK_LENDER").to_owned();
    let stolen = || scratch.zklock().env("ZKLOCK_HELD", &held).env("ZKLOCK_LENDER", &lender);
    let output = stolen().args(["-n", LOCK, "true"]).run().expect_code(75);
    assert!(output.stderr().contains("but no zklock that this one descends from holds it"), "{output}");
    let mut waiter = stolen().arg(LOCK).child(scratch.logged("waiter")).spawn();
    scratch.wait_queue(2);
    silent(finish(&mut holder));
    finish(&mut waiter);
}

/// The environment of a zklock may hold anything.
#[test]
fn forged_is_not_believed() {
    let scratch = Scratch::new();
    let (mut holder, held) = holder(&scratch);
    let own = format!("{LOCK}/_c_00000000-0000-0000-0000-000000000000-lock-0000000000");
    let forged: Vec<OsString> = vec![
        own.into(),
        LOCK.into(),
        "".into(),
        "\n\n/\n".into(),
        "/".into(),
        held.trim_end_matches(char::is_numeric).into(),
        format!("{OTHER}/config").into(),
        <OsString as std::os::unix::ffi::OsStringExt>::from_vec(b"\xff\xfe/\xff".to_vec()),
        "/lock/x\n".repeat(2000).into(),
    ];
    for value in forged {
        let output = scratch.zklock().env("ZKLOCK_HELD", &value).args(["-n", LOCK, "true"]).run().expect_code(75);
        assert!(output.stderr().contains("/lock is not free"), "{value:?}\n{output}");
    }
    silent(finish(&mut holder));
}

/// A holder that is above us, but waits itself, or holds another lock: its node is in the queue, and does not hold.
#[test]
fn waiting_above_is_not_believed() {
    let scratch = Scratch::new();
    let (mut holder, _) = holder(&scratch);
    let mut waiter = scratch.zklock().arg(LOCK).child(scratch.logged("waiter")).spawn();
    let waiting = scratch.wait_queue(2)[1].clone();
    let forged = format!("{LOCK}/{waiting}");
    scratch.zklock().env("ZKLOCK_HELD", forged).args(["-n", LOCK, "true"]).run().expect_code(75);
    silent(finish(&mut holder));
    silent(finish(&mut waiter));
}

/// The outer run's lock has gone, and another contender holds: the daemon that was left behind queues like any other.
#[test]
fn held_once_is_not_believed() {
    let scratch = Scratch::new();
    let go = scratch.file("go");
    // A daemon that waits for a file, and then takes the lock.
    let script = "(trap '' HUP; until [ -e \"$2\" ]; do read -t 0.01 line <> \"$3\"; done; exec \"$0\" \"$1\" echo daemon) & exit 0";
    let fifo = scratch.file("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
    let job = scratch.zklock().args([LOCK, "--", "bash", "-c", script]).arg(binary()).arg(LOCK).arg(&go).arg(&fifo);
    let mut job = job.spawn();
    job.wait().expect_code(0);
    let mut other = scratch.hold();
    std::fs::write(&go, "").expect("a file");
    scratch.wait_queue(2);
    assert_eq!(job.stdout(), "");
    silent(finish(&mut other));
    job.wait_stdout("daemon");
    job.wait_until_nothing_is_left();
}

/// The same node name, but on a server that knows nothing of it.
#[test]
fn held_elsewhere_is_not_believed() {
    let (here, elsewhere) = (Scratch::new(), Scratch::new());
    let mut busy = elsewhere.hold();
    let inner = ["-z", &elsewhere.chroot().to_string(), "-n", LOCK];
    nested(&here, &[LOCK], &inner).bare_child().run().expect_code(75);
    silent(finish(&mut busy));
    silent(nested(&here, &[LOCK], &inner).bare_child().run().expect_code(0));
}

/// The inner command runs under the outer lock: when that is lost, both are.
#[test]
fn loss_of_the_outer_lock_stops_the_command() {
    let scratch = Scratch::new();
    let mut job = nested(&scratch, &[LOCK], &[LOCK]).child(scratch.logged("inner")).spawn();
    job.wait_stdout("ready");
    let node = &scratch.wait_queue(1)[0];
    scratch.delete(&format!("{LOCK}/{node}"));
    job.wait().expect_code(76);
    job.wait_until_nothing_is_left();
}

#[test]
fn signal_passes_through_both() {
    let scratch = Scratch::new();
    let mut job = nested(&scratch, &[LOCK], &[LOCK]).child(["--exit-on", "TERM", "--exit", "9"]).spawn();
    job.wait_stdout("ready");
    job.signal(Signal::SIGTERM);
    let output = job.wait().expect_code(9);
    assert_eq!(output.stdout().matches("signal TERM").count(), 1, "{output}");
}

/// It queues again for what it has lost, and not for what is lent: that would be to wait for itself.
#[test]
fn lost_place_beside_a_lent_lock() {
    let scratch = Scratch::new();
    let mut stranger = scratch.zklock().arg(OTHER).child(scratch.logged("stranger")).spawn();
    stranger.wait_stdout("ready");
    let mut job = nested(&scratch, &[LOCK], &[OTHER, "--and", LOCK]).child(scratch.logged("inner")).spawn();
    let nodes = scratch.client().wait_count(OTHER, 2);
    let ours = nodes.iter().max_by_key(|node| node[node.len() - 10..].to_owned()).expect("two nodes");
    scratch.delete(&format!("{OTHER}/{ours}"));
    poll::until("another node", || {
        let now = scratch.client().children(OTHER);
        (now.len() == 2 && !now.contains(ours)).then_some(())
    });
    silent(finish(&mut stranger));
    finish(&mut job);
    assert!(scratch.client().children(LOCK).is_empty());
}

/// All three are in one process group there.
#[test]
fn signal_at_a_terminal() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    let mut job = terminal.spawn(nested(&scratch, &[LOCK], &[LOCK]).child(["--exit-on", "TERM", "--exit", "9"]));
    terminal.wait_count("ready", 1);
    for count in 1..=5 {
        job.signal(Signal::SIGUSR1);
        terminal.wait_count("signal USR1", count);
    }
    job.signal(Signal::SIGTERM);
    terminal.wait_count("signal TERM", 1);
    job.wait().expect_code(9);
    let lines = terminal.lines();
    assert_eq!(lines.iter().filter(|line| line.contains("signal")).count(), 6, "{lines:#?}");
}

/// The inner run passes the stop signal on.
#[test]
fn stop_signal_reaches_the_command_once() {
    let scratch = Scratch::new();
    let run = |max_run: &str| {
        let outer = [LOCK, "--max-run", max_run, "-k", "3s"];
        nested(&scratch, &outer, &[LOCK]).child(["--wait"]).run().expect_code(124)
    };
    // The shortest `--max-run` under which the inner command had time to start.
    let started = ["300ms", "1s", "3s", "10s"].into_iter().map(run).find(|output| output.stdout().contains("ready"));
    let output = started.expect("the inner command starts");
    assert_eq!(output.stdout().matches("signal TERM").count(), 1, "{output}");
}

/// The program file was replaced meanwhile, so the outer run executes one that has no name any more.
#[test]
fn stop_signal_after_an_upgrade() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let [copy, next] = ["zklock", "next"].map(|name| place.path().join(name));
    copy_program(binary(), &copy);
    copy_program(binary(), &next);
    let scratch = Scratch::new();
    let upgrade = r#"mv "$1" "$0" && shift && exec "$0" "$@""#;
    let outer = scratch.zklock().program(&copy).args([LOCK, "--", "sh", "-c", upgrade]).args([&copy, &next]);
    let mut job = outer.arg(OTHER).child(["--until", "end"]).spawn();
    job.wait_stdout("ready");
    let node = scratch.contenders()[0].path.clone();
    let mut ask = scratch.zklock().args(["break", LOCK, "-w", "60", "--node", &node]).spawn();
    job.wait_stdout("signal TERM");
    // What it would get twice has come by then.
    job.signal(Signal::SIGUSR1);
    job.wait_stdout("signal USR1");
    scratch.touch("end");
    let output = job.wait();
    ask.wait().expect_code(0);
    assert_eq!(output.stdout().matches("signal TERM").count(), 1, "{output}");
}

/// A run that was lent its lock takes as long as one connection, not as long as the queue.
#[test]
fn queue_behind_the_outer_lock() {
    let scratch = Scratch::new();
    let script = "echo outer; read line; exec \"$0\" \"$1\" echo inner";
    let job = scratch.zklock().args([LOCK, "--", "sh", "-c", script]).arg(binary()).arg(LOCK);
    let mut job = job.open_stdin().spawn();
    job.wait_stdout("outer");
    let mut waiters: Vec<Running> = (0..3)
        .map(|n| {
            let waiter = scratch.zklock().arg(LOCK).child(scratch.logged(&format!("waiter-{n}"))).spawn();
            scratch.wait_queue(n + 2);
            waiter
        })
        .collect();
    job.write_stdin(b"\n");
    job.wait_stdout("inner");
    silent(job.wait_at_most(Duration::from_secs(10)).expect_code(0));
    for waiter in &mut waiters {
        silent(finish(waiter));
    }
    poll::until("no contender is left", || scratch.client().children(LOCK).is_empty().then_some(()));
    assert_eq!(scratch.log().expect_no_overlap().order(), ["waiter-0", "waiter-1", "waiter-2"]);
}
