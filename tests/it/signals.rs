//! Signals and terminals: what reaches the command, what ends the wait, and who goes with whom.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::harness::client::expire_session;
use crate::harness::frames::Op;
use crate::harness::joblog::JobLog;
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::proxy::Proxy;
use crate::harness::running::Running;
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::server::{Server, free_port};
use crate::harness::stub::Stub;
use crate::harness::terminal::{CTRL_C, CTRL_Z, Terminal};
use crate::harness::times::{INSTANT, SOON, expect_once_below};
use crate::harness::zklock::{Zklock, child};

/// The signals that end a wait.
const CANCELLING: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

/// A real-time signal, for which nix has no name.
const REAL_TIME: i32 = 37;

/// Sends `signal` to a zklock that has no command, and gives the time until it has died of it, in silence.
#[track_caller]
fn cancel(job: &mut Running, signal: Signal) -> Duration {
    let told = Instant::now();
    job.signal(signal);
    let output = job.wait().expect_signal(signal);
    let took = told.elapsed();
    assert_eq!(output.stdout(), "", "{output}");
    took
}

/// Sends a signal by its number.
fn send_number(pid: Pid, number: i32) {
    let killed = Zklock::bare().program("sh").args(["-c", &format!("kill -{number} {pid}")]).run();
    killed.expect_code(0);
}

// Waiting.

#[test]
fn a_signal_ends_the_wait_at_once_and_takes_the_node_along() {
    let scratch = Scratch::new();
    let holder = scratch.occupy("");
    for signal in CANCELLING {
        expect_once_below(INSTANT, || {
            let mut job = scratch.zklock().arg(LOCK).bare_child().spawn();
            scratch.wait_queue(2);
            let took = cancel(&mut job, signal);
            expect_given_up(&scratch, took, Duration::from_secs(1));
            assert_eq!(job.stderr(), "", "after {signal}");
            took
        });
    }
    scratch.delete(&holder);
}

/// Of a waiter that took so long to go, the node has gone, too; unless it has waited for that for as long as it ever
/// does: then it goes with the session at the latest.
#[track_caller]
fn expect_given_up(scratch: &Scratch, took: Duration, patience: Duration) {
    if took < patience {
        assert_eq!(scratch.contenders().len(), 1);
    } else {
        scratch.wait_queue(1);
    }
}

#[test]
fn a_signal_ends_the_wait_for_a_server_that_refuses() {
    for signal in CANCELLING {
        expect_once_below(INSTANT, || {
            let zklock = Zklock::at(format_args!("127.0.0.1:{}", free_port()));
            let mut job = zklock.args(["-v", LOCK]).bare_child().spawn();
            job.wait_stderr("connecting");
            cancel(&mut job, signal)
        });
    }
}

/// Each signal for a zklock that has connected to `address`, where nobody answers.
fn cancel_while_nobody_answers(address: &str) {
    let proxy = Proxy::plain(address.parse().expect("an address with a port"));
    for signal in CANCELLING {
        expect_once_below(INSTANT, || {
            let before = proxy.accepted();
            let mut job = Zklock::at(proxy.address()).arg(LOCK).bare_child().spawn();
            poll::until("a connection", || (proxy.accepted() > before).then_some(()));
            let took = cancel(&mut job, signal);
            assert_eq!(job.stderr(), "");
            took
        });
    }
}

#[test]
fn a_signal_ends_the_wait_for_a_server_that_hangs() {
    cancel_while_nobody_answers(&Stub::silent().address());
}

#[test]
fn a_signal_ends_the_wait_for_a_server_that_is_frozen() {
    let server = Server::start();
    server.freeze();
    cancel_while_nobody_answers(&server.address());
}

/// Nobody can delete the node then. That it is tried costs a second and a half at most; the rest is tolerance, of less
/// than a session takes to expire.
#[test]
fn a_signal_ends_the_wait_in_the_queue_of_a_server_that_has_fallen_silent() {
    let scratch = Scratch::new();
    let holder = scratch.occupy("");
    let proxy = Proxy::zookeeper(&direct());
    let mut job = scratch.zklock_by(proxy.address()).arg(LOCK).bare_child().spawn();
    let contender = format!("{}/{}", LOCK, scratch.wait_queue(2)[1]);
    let session = scratch.client().get(&contender).unwrap().1.owner;
    proxy.hold();
    assert!(cancel(&mut job, Signal::SIGTERM) < SOON);
    assert_eq!(scratch.contenders().len(), 2);
    expire_session(&direct(), session);
    scratch.wait_left([LOCK], [1]);
    scratch.delete(&holder);
}

#[test]
fn of_two_signals_at_once_one_ends_the_wait() {
    let scratch = Scratch::new();
    let holder = scratch.occupy("");
    let hurried = Duration::from_millis(300);
    expect_once_below(hurried, || {
        let mut job = scratch.zklock().arg(LOCK).bare_child().spawn();
        scratch.wait_queue(2);
        let told = Instant::now();
        job.signal_all_at_once(&[Signal::SIGTERM, Signal::SIGINT]);
        let output = job.wait();
        let took = told.elapsed();
        assert!([Signal::SIGTERM, Signal::SIGINT].iter().any(|&signal| output.died_of(signal as i32)), "{output}");
        expect_given_up(&scratch, took, hurried);
        took
    });
    scratch.delete(&holder);
}

// The instant in which the lock comes.

#[test]
fn a_signal_that_came_before_the_lock_was_seen_keeps_the_command_from_starting() {
    let scratch = Scratch::new();
    let holder = scratch.occupy("");
    let mut job = scratch.zklock().arg(LOCK).arg("-v").bare_child().spawn();
    let contender = format!("{}/{}", LOCK, scratch.wait_queue(2)[1]);
    process::stop(job.pid());
    scratch.delete(&holder);
    // The keeper writes into its node since when it holds, after it has told zklock.
    poll::until("the lock is held", || scratch.client().get(&contender).ok().filter(|(_, stat)| stat.version > 0));
    job.signal(Signal::SIGTERM);
    job.signal(Signal::SIGCONT);
    let output = job.wait().expect_signal(Signal::SIGTERM);
    // A command that the signal hit at once would have written nothing: zklock says when it starts one.
    assert!(output.stdout().is_empty() && !output.stderr().contains("holding"), "{output}");
}

/// A waiter whose turn it is since an instant. It may or may not start its command; `tell` decides when it gets TERM.
fn signal_as_the_lock_comes(tell: impl FnOnce(&Scratch, &Running)) {
    let scratch = Scratch::new();
    let holder = scratch.occupy("");
    let mut job = scratch.zklock().arg(LOCK).child(["--exit-on", "TERM"]).spawn();
    scratch.wait_queue(2);
    scratch.delete(&holder);
    tell(&scratch, &job);
    let output = job.wait();
    assert_eq!(job.processes(), [], "{output}");
    // A command that was hit before it could catch signals has died of it, and zklock after it.
    match output.stdout().as_str() {
        "" => drop(output.expect_signal(Signal::SIGTERM)),
        "ready\nsignal TERM\n" => drop(output.expect_code(0)),
        _ => panic!("neither of the two\n{output}"),
    }
}

#[test]
fn a_signal_in_the_instant_of_the_lock_leaves_neither_an_orphan_nor_a_node() {
    for delay in 0..30 {
        signal_as_the_lock_comes(|scratch, job| {
            (0..delay).for_each(|_| drop(scratch.client().children(LOCK)));
            job.signal(Signal::SIGTERM);
        });
    }
}

/// The child that is to become the command is stopped before it does, which succeeds as a rule.
#[test]
fn a_signal_between_fork_and_exec_is_not_lost() {
    poll::until("a child is stopped between fork and exec", || {
        let mut is_between = false;
        signal_as_the_lock_comes(|_, job| {
            let forked = job.stop_forked();
            is_between = process::look(forked).is_some_and(|process| process.name == "zklock");
            job.signal(Signal::SIGTERM);
            process::wait_pending(forked, Signal::SIGTERM);
            process::send(forked, Signal::SIGCONT);
        });
        is_between.then_some(())
    });
}

// Running.

#[test]
fn each_signal_reaches_the_command_once() {
    let scratch = Scratch::new();
    let mut job = scratch.zklock().arg(LOCK).child(["--exit-on", "USR2"]).spawn();
    let mut lines = vec![job.wait_stdout("ready")];
    for name in ["HUP", "INT", "QUIT", "TERM", "USR1", "WINCH", "CONT", "TSTP", "ALRM", "URG"] {
        job.signal(format!("SIG{name}").parse().expect("a signal"));
        lines.push(job.wait_stdout(&format!("signal {name}")));
    }
    send_number(job.pid(), REAL_TIME);
    lines.push(job.wait_stdout(&format!("signal {REAL_TIME}")));
    assert_eq!(scratch.contenders().len(), 1);
    job.signal(Signal::SIGUSR2);
    lines.push("signal USR2".to_owned());
    let output = job.wait().expect_code(0);
    assert_eq!(output.stdout().lines().collect::<Vec<_>>(), lines, "{output}");
}

#[test]
fn signals_that_come_at_once_all_reach_the_command() {
    let scratch = Scratch::new();
    let mut job = scratch.zklock().arg(LOCK).child(["--exit-on", "TERM"]).spawn();
    job.wait_stdout("ready");
    job.signal_all_at_once(&[Signal::SIGINT, Signal::SIGUSR1, Signal::SIGUSR2]);
    job.wait_stdout_all(&["signal INT", "signal USR1", "signal USR2", "signal CONT"]);
    job.signal(Signal::SIGTERM);
    assert_eq!(job.wait().expect_code(0).stdout().lines().count(), 6, "{job}");
}

#[test]
fn a_command_that_takes_its_time_keeps_the_lock_and_is_not_killed() {
    let scratch = Scratch::new();
    let named = |name: &str| {
        let zklock = scratch.zklock().args([LOCK, "--kill-after", "50ms"]);
        zklock.child(["--log", "log", "--name", name])
    };
    let mut first = named("first").args(["--beat", "--exit-on", "USR1"]).spawn();
    first.wait_stdout("ready");
    let mut second = named("second").spawn();
    scratch.wait_queue(2);
    first.signal(Signal::SIGTERM);
    first.wait_stdout("signal TERM");
    // Ten times the grace of a stop by zklock itself.
    scratch.wait_alive_at("first", Moment::now().after(Duration::from_millis(500)));
    assert_eq!(scratch.contenders().len(), 2);
    first.signal(Signal::SIGUSR1);
    first.wait().expect_code(0);
    second.wait().expect_code(0);
    scratch.expect_tidy(&["first", "second"]);
}

#[test]
fn what_was_ignored_when_zklock_started_stays_ignored_by_both() {
    let ignored = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGUSR1];
    let scratch = Scratch::new();
    let holder = scratch.occupy("");
    let mut job = scratch.zklock().arg(LOCK).child(["--state", "--exit-on", "TERM"]).ignoring(ignored).spawn();
    scratch.wait_queue(2);
    ignored.iter().for_each(|&signal| job.signal(signal));
    scratch.delete(&holder);
    job.wait_stdout("ignored HUP,INT,USR1");
    job.wait_stdout("ready");
    ignored.iter().for_each(|&signal| job.signal(signal));
    job.signal(Signal::SIGTERM);
    let output = job.wait().expect_code(0);
    assert!(output.stdout().ends_with("ready\nsignal TERM\n"), "{output}");
}

#[test]
fn a_caller_that_ignores_sigchld_does_not_make_it_hang() {
    let scratch = Scratch::new();
    let output =
        scratch.zklock().arg(LOCK).child(["--state", "--exit", "3"]).ignoring([Signal::SIGCHLD]).run().expect_code(3);
    assert!(output.stdout().starts_with("ignored CHLD"), "{output}");
}

#[test]
fn a_command_that_a_real_time_signal_kills_takes_zklock_along() {
    let output = Scratch::new().zklock().arg(LOCK).args(["--", "sh", "-c", "kill -37 $$"]).run();
    assert!(output.died_of(37), "{output}");
}

// Who goes with whom.

#[test]
fn without_a_terminal_a_signal_reaches_the_whole_process_group() {
    let script = r#"trap : TERM; "$0" --name one --exit-on TERM & "$0" --name two --exit-on TERM & wait; wait"#;
    let scratch = Scratch::new();
    let mut job = scratch.zklock().arg(LOCK).args(["--", "sh", "-c", script]).arg(child()).spawn();
    job.wait_stdout_all(&["one ready", "two ready"]);
    let group = process::look(job.command()).expect("the shell waits").group;
    assert_eq!(group, job.command());
    job.signal(Signal::SIGTERM);
    job.wait_stdout_all(&["one signal TERM", "two signal TERM"]);
    job.wait().expect_code(0);
}

#[test]
fn a_daemon_that_the_command_leaves_does_not_hold_the_lock_and_is_left_alone() {
    let scratch = Scratch::new();
    let daemon = ["--spawn-daemon", "--", "--name", "daemon", "--exit-on", "USR1"];
    let mut job = scratch.zklock().arg(LOCK).child(daemon).spawn();
    job.wait().expect_code(0);
    job.wait_stdout("daemon ready");
    scratch.zklock().arg(LOCK).arg("-n").bare_child().run().expect_code(0);
    let left: Vec<Pid> = job.processes().iter().map(|process| process.pid).collect();
    assert_eq!(left.len(), 1, "{job}");
    process::send(left[0], Signal::SIGUSR1);
    job.wait_stdout("daemon signal USR1");
    job.wait_until_nothing_is_left();
}

/// A command with descendants of every kind that is hard to stop, seven processes that write to a log, and a shell.
const UNRULY: &str = r#"
    child=$0 log=$1
    job() { name=$1; shift; "$child" --name "$name" --log "$log" "$@"; }
    job left --ignore TERM --wait | job right --exit-on TERM &
    job session --setsid --ignore TERM --wait &
    job parent --spawn-daemon -- --name daemon --log "$log" --ignore TERM --wait
    env -i ZKLOCK_TEST="$ZKLOCK_TEST" "$child" --name nameless --log "$log" --setsid --wait &
    job last --wait"#;

/// Runs [`UNRULY`] and loses its lock by `lose`. When zklock has exited, no process of it is left; returns the log.
fn lose_the_lock_of_the_unruly(scratch: &Scratch, zklock: Zklock, lose: impl FnOnce()) -> JobLog {
    let mut job = zklock.args(["--", "sh", "-c", UNRULY]).arg(child()).arg("log").spawn();
    poll::until("all are there", || (scratch.log().runs().len() == 7).then_some(()));
    lose();
    job.wait().expect_code(76);
    let log = scratch.log();
    for run in log.runs() {
        let left = process::look(Pid::from_raw(run.pid.cast_signed())).filter(|process| process.name == "child");
        assert_eq!(left, None, "{} was left\n{job}", run.name);
    }
    log
}

/// Whether the command of this name came to its own end, rather than being killed.
fn ended_itself(log: &JobLog, name: &str) -> bool {
    log.runs().iter().any(|run| run.name == name && run.ended)
}

#[test]
fn when_the_node_is_deleted_the_whole_tree_is_killed() {
    let scratch = Scratch::new();
    let log = lose_the_lock_of_the_unruly(&scratch, scratch.zklock().arg(LOCK), || scratch.delete_holder());
    assert!(!ended_itself(&log, "right"), "the next holder may run already: there is no time for TERM");
}

#[test]
fn when_the_servers_fall_silent_the_whole_tree_is_stopped() {
    let scratch = Scratch::new();
    let proxy = Proxy::zookeeper(&direct());
    // The lease outlasts a pause of three seconds while they start, and there are five for the one that ends by itself.
    let zklock =
        scratch.zklock_by(proxy.address()).args([LOCK, "--session-timeout", "16"]).args(["--kill-after", "5s"]);
    let log = lose_the_lock_of_the_unruly(&scratch, zklock, || proxy.hold());
    assert!(ended_itself(&log, "right"), "TERM comes before SIGKILL");
    assert!(!ended_itself(&log, "last"));
    scratch.wait_queue(0);
}

#[test]
fn when_zklock_is_killed_its_tree_goes_with_it_and_the_next_holder_starts_at_once() {
    expect_once_below(INSTANT, || {
        let scratch = Scratch::new();
        let logged = ["--beat", "--log", "log", "--name"];
        let tree = logged.iter().copied().chain(["first", "--wait", "--spawn", "--", "--setsid", "--wait"]);
        let mut first = scratch.zklock().arg(LOCK).child(tree).args(logged).arg("grandchild").spawn();
        first.wait_stdout_all(&["first ready", "grandchild ready"]);
        let mut second = scratch.zklock().arg(LOCK).child(logged).arg("second").spawn();
        scratch.wait_queue(2);
        let killed = Moment::now();
        first.signal(Signal::SIGKILL);
        first.wait().expect_signal(Signal::SIGKILL);
        second.wait().expect_code(0);
        first.wait_until_nothing_is_left();
        let log = scratch.log();
        let (next, tree) = log.runs().split_last().expect("three runs");
        assert_eq!((next.name.as_str(), tree.len()), ("second", 2));
        assert!(tree.iter().all(|run| run.last < next.begin), "{log:?}");
        let took = scratch.begin("second").since(killed);
        assert!(took < SOON, "{took:?}");
        took
    });
}

/// The keeper is in a group of its own, and has something left to do.
#[test]
fn when_its_whole_process_group_is_killed_the_node_goes_at_once_all_the_same() {
    let scratch = Scratch::new();
    let mut job = scratch.zklock().arg(LOCK).child(["--wait"]).spawn();
    job.wait_stdout("ready");
    let killed = Instant::now();
    killpg(job.pid(), Signal::SIGKILL).expect("a group can be killed");
    scratch.wait_queue(0);
    assert!(killed.elapsed() < SOON);
    job.wait().expect_signal(Signal::SIGKILL);
    job.wait_until_nothing_is_left();
}

// At a terminal.

#[test]
fn at_a_terminal_ctrl_c_reaches_the_command_once_and_other_signals_too() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    let settings = terminal.settings();
    let mut job = terminal.spawn(scratch.zklock().arg(LOCK).child(["--exit-on", "TERM"]));
    terminal.wait_count("ready", 1);
    let group = |pid| process::look(pid).map(|process| process.group);
    assert_eq!(group(job.command()), group(job.pid()));
    for count in 1..=5 {
        terminal.press(CTRL_C);
        terminal.wait_count("signal INT", count);
    }
    job.signal(Signal::SIGTERM);
    job.wait().expect_code(0);
    terminal.wait_count("signal TERM", 1);
    assert_eq!(terminal.lines().len(), 7, "{:#?}", terminal.lines());
    assert_eq!(terminal.settings(), settings);
}

/// As a shell with job control does, and setsid(1).
#[test]
fn at_a_terminal_signals_reach_a_command_that_has_left_the_process_group() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    let command = scratch.zklock().arg(LOCK).args(["--", "setsid"]).arg(child()).args(["--exit-on", "TERM"]);
    let mut job = terminal.spawn(command);
    terminal.wait_count("ready", 1);
    for signal in [Signal::SIGUSR1, Signal::SIGCONT] {
        job.signal(signal);
        terminal.wait_count(&format!("signal {}", &signal.as_str()[3..]), 1);
    }
    job.signal(Signal::SIGTERM);
    job.wait().expect_code(0);
    terminal.wait_count("signal TERM", 1);
}

#[test]
fn at_a_terminal_ctrl_c_ends_the_wait() {
    let scratch = Scratch::new();
    let holder = scratch.occupy("");
    let terminal = Terminal::new(80);
    let mut job = terminal.spawn(scratch.zklock().arg(LOCK).bare_child());
    terminal.wait_count("waiting for /lock", 1);
    terminal.press(CTRL_C);
    job.wait().expect_signal(Signal::SIGINT);
    scratch.wait_left([LOCK], [1]);
    terminal.wait("an empty screen", <[String]>::is_empty);
    scratch.delete(&holder);
}

/// A shell that runs its command in the foreground, waits for a line when that has stopped, and continues it.
const STOP_AND_CONTINUE: &str = r#""$@"; echo "stopped $?"; read; fg >/dev/null; echo "ended $?""#;

#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it_and_the_lock_is_held_meanwhile() {
    let scratch = Scratch::new();
    let proxy = Proxy::zookeeper(&direct());
    let terminal = Terminal::new(80);
    let zklock = scratch.zklock_by(proxy.address()).arg(LOCK);
    let zklock = zklock.child(["--default", "TSTP,CONT", "--exit-on", "INT"]);
    let mut job = terminal.spawn_by(STOP_AND_CONTINUE, zklock);
    terminal.wait_count("ready", 1);
    let contenders = scratch.client().children(LOCK);
    terminal.press(CTRL_Z);
    terminal.wait_count("stopped", 1);
    // Before the last of these, the lease that counts from those before the stop is over.
    proxy.wait_count(Op::Multi, proxy.count(Op::Multi) + 4);
    assert_eq!(scratch.client().children(LOCK), contenders);
    terminal.enter("");
    // The shell has given it the terminal when it continues; until then the key goes to the shell's own group.
    poll::until("the command goes on", || {
        process::all()
            .into_iter()
            .find(|process| process.session == job.pid() && process.name == "child" && process.state != 'T')
    });
    terminal.press(CTRL_C);
    terminal.wait_count("signal INT", 1);
    terminal.wait_count("ended 0", 1);
    job.wait().expect_code(0);
}

#[test]
fn ctrl_z_stops_a_waiter_too_and_it_keeps_its_place() {
    let scratch = Scratch::new();
    let holder = scratch.occupy("");
    let terminal = Terminal::new(80);
    let mut job = terminal.spawn_by(STOP_AND_CONTINUE, scratch.zklock().arg(LOCK).bare_child());
    terminal.wait_count("waiting for /lock", 1);
    terminal.press(CTRL_Z);
    terminal.wait_count("stopped", 1);
    let last = scratch.occupy("");
    terminal.enter("");
    scratch.delete(&holder);
    terminal.wait_count("ready", 1);
    terminal.wait_count("ended 0", 1);
    job.wait().expect_code(0);
    scratch.delete(&last);
}

#[test]
fn the_command_can_read_from_the_terminal_also_in_a_pipeline() {
    let scratch = Scratch::new();
    for script in [r#"exec "$@""#, r#""$@" | cat"#, r#"cat /dev/null | "$@" </dev/tty"#] {
        let terminal = Terminal::new(80);
        let reading = scratch.zklock().arg(LOCK).args(["--", "sh", "-c", r#"echo ready; read line; echo "got $line""#]);
        let mut job = terminal.spawn_by(script, reading);
        terminal.wait_count("ready", 1);
        terminal.enter("hello");
        terminal.wait_count("got hello", 1);
        job.wait().expect_code(0);
    }
}

#[test]
fn when_the_terminal_is_closed_the_command_hears_of_it() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    let zklock = scratch.zklock().arg(LOCK).child(["--log", "log", "--exit-on", "HUP"]);
    let mut job = terminal.spawn(zklock);
    terminal.wait_count("ready", 1);
    terminal.close();
    job.wait().expect_code(0);
    assert!(scratch.log().runs()[0].ended);
}
