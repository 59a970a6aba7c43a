//! What a hostile reviewer broke once: each of these was a fault, and stays mended.

use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::harness::client::Kind;
use crate::harness::frames::Op;
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::process::{self};
use crate::harness::proxy::Fate;
use crate::harness::running::{Running, finish};
use crate::harness::scratch::{GRACE, LASTING, LOCK, Scratch, direct};
use crate::harness::server::{Data, Server};
use crate::harness::terminal::Terminal;
use crate::harness::times::{AT_ONCE, LEASE, LONG_SESSION, SHORT_SESSION};
use crate::harness::zklock::{Zklock, binary, child};

// The session timeout that a reconnection grants.

/// The session timeout that a holder asks for.
const ASKED: Duration = Duration::from_secs(30);

/// A holder that asks for [`ASKED`] and is granted `first`, and a waiter behind it. `begun` after the command has begun
/// the connection breaks, and the holder is granted `second`.
fn regrant(
    first: Duration,
    begun: Duration,
    second: Duration,
    then: impl FnOnce(&Scratch, &mut Running, &mut Running),
) {
    let (scratch, proxy) = Scratch::proxied();
    // As if the server's configuration were another afterwards; to restart it would take longer than some leases last.
    proxy.ask_for(first);
    let asked = ASKED.as_secs().to_string();
    let options = ["-v", "--session-timeout", &asked, "--kill-after", "0"];
    let (mut holder, mut next) = scratch.holder_and_next(&proxy.address(), &options);
    scratch.begin("holder").after(begun).wait_past();
    proxy.ask_for(second);
    let watches = proxy.count(Op::GetData);
    proxy.reset();
    holder.wait_stderr("connection to ZooKeeper restored");
    proxy.wait_count(Op::GetData, watches + 1);
    then(&scratch, &mut holder, &mut next);
}

/// The keeper is frozen. The command is dead within `lease`, and the next one starts after it.
#[track_caller]
fn expect_dead_within(scratch: &Scratch, holder: &mut Running, next: &mut Running, lease: Duration) {
    process::stop(holder.keeper());
    let frozen = Moment::now();
    holder.wait().expect_code(76);
    scratch.last_alive("holder").expect_within(lease, frozen, "the command is dead");
    finish(next);
    holder.wait_until_nothing_is_left();
    scratch.expect_tidy(&["holder", "next"]);
}

#[test]
fn a_reconnection_that_grants_a_shorter_session_shortens_the_lease() {
    // The last beat is older than a lease of [`T`] then.
    regrant(ASKED, Duration::from_millis(5500), SHORT_SESSION, |scratch, holder, next| {
        // The change alone ends nothing.
        scratch.wait_alive_at("holder", Moment::now().after(LEASE));
        expect_dead_within(scratch, holder, next, LEASE);
    });
}

#[test]
fn a_reconnection_that_grants_a_longer_session_does_not_prolong_the_lease() {
    // A new leader would count with the first one.
    regrant(SHORT_SESSION, Duration::ZERO, LONG_SESSION, |scratch, holder, next| {
        scratch.wait_alive_at("holder", Moment::now().after(LEASE));
        expect_dead_within(scratch, holder, next, LEASE);
    });
}

/// The servers count with the shorter one from the moment on in which they grant it, not from the first beat.
#[test]
fn a_reconnection_that_grants_a_shorter_session_and_then_nothing_shortens_the_lease() {
    let (scratch, proxy) = Scratch::proxied();
    let asked = ASKED.as_secs().to_string();
    let options = ["--session-timeout", &asked, "--kill-after", "0"];
    let (mut holder, mut next) = scratch.holder_and_next(&proxy.address(), &options);
    scratch.begin("holder").after(Duration::from_millis(100)).wait_past();
    proxy.ask_for(SHORT_SESSION);
    let cut = proxy.trap_ops(Fate::ResetAndHold, &[Op::Sync]);
    proxy.reset();
    cut.wait();
    holder.wait().expect_code(76);
    finish(&mut next);
    proxy.pass();
    holder.wait_until_nothing_is_left();
    scratch.expect_tidy(&["holder", "next"]);
}

// Another session.

#[test]
fn a_reconnection_that_gives_out_another_session_is_a_loss() {
    let (scratch, proxy) = Scratch::proxied();
    // No lease could end in time for this.
    let mut holder = scratch.start(&proxy.address(), "holder", &["--session-timeout", "60"], &["--wait"]);
    holder.wait_stdout("ready");
    proxy.give_out_session(0x7e57);
    let reset = Moment::now();
    proxy.reset();
    let output = holder.wait().expect_code(76);
    scratch.last_alive("holder").expect_within(AT_ONCE, reset, "the command is dead");
    let why = "the session ended before its time; killing the command";
    assert_eq!(output.stderr(), format!("zklock: lost the lock {LOCK}: {why}\n"));
    assert!(output.stdout().ends_with("holder ready\n"), "no stop signal\n{output}");
    holder.wait_until_nothing_is_left();
    scratch.expect_tidy(&["holder"]);
}

// Standard error that nobody reads.

/// Makes standard error a pipe that is full, and in which there will never be room, for the program that it executes.
const INTO_A_FULL_PIPE: &str = r#"
    mkfifo pipe && exec 3<>pipe && dd if=/dev/zero of=pipe bs=4096 oflag=nonblock 2>dd
    exec "$@" 2>pipe
"#;

/// The keeper of a holder whose standard error takes no bytes is killed. Nothing but SIGKILL ends the command.
fn stderr_is_full(options: &[&str]) {
    let scratch = Scratch::new().with_lock();
    let job = scratch.job(&direct(), "holder", options, &["--wait"]);
    let mut holder = job.run_by(["bash", "-c", INTO_A_FULL_PIPE, "bash"]).spawn();
    holder.wait_stdout("ready");
    assert!(scratch.read("dd").contains("Resource temporarily unavailable"), "the pipe is full");
    let mut next = scratch.queue("next", 1);
    // Each of these is worth two lines, to who says so much. Were each line to wait for a moment, the loss would, too.
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

#[test]
fn a_full_pipe_for_stderr_does_not_save_the_command() {
    stderr_is_full(&GRACE);
}

#[test]
fn a_full_pipe_for_stderr_does_not_save_the_command_when_much_is_said() {
    stderr_is_full(&["-vvv", "--kill-after", "1300ms"]);
}

#[test]
fn a_paused_terminal_does_not_save_the_command() {
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

// One zklock below another.

/// The lock that the inner one of two takes.
const INNER: &str = "/inner";

/// `zklock LOCK -- zklock INNER -- child`, with a session that takes long to expire, and a daemon of the child's that
/// has left group and session. All of them run.
#[track_caller]
fn nested(scratch: &Scratch) -> Running {
    let outer = scratch.zklock().env("ZKLOCK_SESSION_TIMEOUT", "60").arg(LOCK).arg("--").arg(binary());
    let daemon = ["--beat", "--spawn-daemon", "--"].map(str::to_owned).into_iter().chain(scratch.logged("daemon"));
    let mut run = outer.arg(INNER).child(scratch.logged("inner").into_iter().chain(daemon)).spawn();
    for _ in ["the command", "what is between", "the daemon"] {
        run.wait_stdout(" ready");
    }
    run
}

/// The inner keeper, which would see to its own, is frozen meanwhile: the outer one must not rely on it.
#[test]
fn outer_supervisor_killed_the_whole_inner_tree_goes_before_the_next_holder_starts() {
    let scratch = Scratch::new();
    let mut outer = nested(&scratch);
    let (keepers, family) = outer.family(3);
    let inner_keeper = keepers.iter().find(|keeper| keeper.parent != outer.pid()).expect("another keeper").pid;
    let mut next = scratch.zklock().arg(LOCK).child(scratch.logged("next")).spawn();
    scratch.wait_queue(2);
    process::stop(inner_keeper);
    outer.signal(Signal::SIGKILL);
    next.wait_stdout("ready");
    process::expect_dead(&family);
    let thawed = Moment::now();
    process::send(inner_keeper, Signal::SIGCONT);
    scratch.client().wait_count(INNER, 0);
    Moment::now().expect_within(AT_ONCE, thawed, "the inner node has gone");
    outer.wait().expect_signal(Signal::SIGKILL);
    outer.wait_until_nothing_is_left();
    finish(&mut next);
}

#[test]
fn outer_lock_lost_the_inner_one_is_given_up() {
    let scratch = Scratch::new();
    let mut outer = nested(&scratch);
    let (_, family) = outer.family(3);
    let [node] = <[_; 1]>::try_from(scratch.wait_queue(1)).expect("one contender");
    let deleted = Moment::now();
    scratch.delete(&format!("{LOCK}/{node}"));
    outer.wait().expect_code(76);
    process::expect_dead(&family);
    scratch.client().wait_count(INNER, 0);
    Moment::now().expect_within(AT_ONCE, deleted, "the inner node has gone");
    outer.wait_until_nothing_is_left();
}

// Servers that fall silent, or are away for long.

#[test]
fn without_waiting_a_server_that_falls_silent_after_the_handshake_is_given_up() {
    let (scratch, proxy) = Scratch::proxied();
    // More than there will be requests: no connection gets a word beyond the greeting.
    let _silence: Vec<_> = (0..200).map(|_| proxy.trap(Fate::Blackhole, |_| true)).collect();
    let limit = Duration::from_secs(4);
    let job = scratch.job(&proxy.address(), "job", &["-n", "--connect-timeout", "4"], &[]);
    let mut run = job.spawn();
    let output = run.wait().expect_code(69);
    // What it takes to give up a release that nobody answers comes on top: a second and a half at most.
    assert!(limit <= output.elapsed && output.elapsed < limit + Duration::from_millis(1500) + AT_ONCE, "{output}");
    assert!(proxy.count(Op::CreateContainer) + proxy.count(Op::Create) + proxy.count(Op::Create2) > 0, "it had begun");
    run.wait_until_nothing_is_left();
    scratch.expect_tidy(&[]);
}

#[test]
fn a_waiter_keeps_its_place_through_an_outage_longer_than_its_session() {
    let server = Server::start();
    let scratch = Scratch::on(server.chroot()).with_lock();
    let prefix = format!("{LOCK}/_c_{:032x}-lock-", 1);
    let holder = scratch.client().create(&prefix, b"", Kind::EphemeralSequential).unwrap();
    let mut waiter = scratch.start(&server.address(), "waiter", &[], &["--exit-on", "TERM"]);
    scratch.wait_queue(2);
    let before = scratch.contenders();
    server.kill();
    Moment::now().after(SHORT_SESSION + SHORT_SESSION / 4).wait_past();
    server.restart(Data::Kept);
    // Its session, which no one renews, would be over by then.
    Moment::now().after(SHORT_SESSION + SHORT_SESSION / 4).wait_past();
    assert_eq!(scratch.contenders(), before);
    scratch.delete(&holder);
    waiter.wait_stdout("ready");
    assert_eq!(waiter.variable("ZKLOCK_NODE"), before[1].path);
    finish(&mut waiter);
    assert_eq!(waiter.stderr(), "");
    scratch.expect_tidy(&["waiter"]);
}

// Processes that are stopped or killed in an awkward moment.

#[test]
fn without_a_terminal_a_command_that_is_stopped_does_not_stop_zklock() {
    let scratch = Scratch::new().with_lock();
    let mut job = scratch.start(&direct(), "job", &LASTING, &["--exit-on", "TERM", "--exit", "7"]);
    job.wait_stdout("ready");
    let command = job.command();
    process::stop(command);
    // What tells that the command has stopped was there before these, so it has been seen when the second is passed on.
    for signal in [Signal::SIGUSR1, Signal::SIGUSR2] {
        job.signal(signal);
        process::wait_pending(command, signal);
    }
    process::send(command, Signal::SIGCONT);
    job.wait_stdout("signal USR1");
    job.signal(Signal::SIGTERM);
    job.wait().expect_code(7);
    job.wait_until_nothing_is_left();
    scratch.expect_tidy(&["job"]);
}

/// Kills a supervisor about when it starts its command, which starts a process in a session of its own. The next one gets
/// the lock, and has it to itself.
#[track_caller]
fn kill_while_starting(scratch: &Scratch, aim: impl FnOnce(&mut Running)) {
    let options = ["--session-timeout", "60"];
    // What leads a process group, as the command does, cannot make a session (setsid(2)).
    let session = ["--spawn", "--", "--name", "session", "--setsid", "--beat", "--log", "log", "--wait"];
    let mut victim = scratch.start(&direct(), "victim", &options, &[&["--wait"], &session[..]].concat());
    aim(&mut victim);
    victim.signal(Signal::SIGKILL);
    let options = ["-w", "25s", "--session-timeout", "20"];
    let mut next = scratch.start(&direct(), "next", &options, &["--exit-on", "TERM"]);
    next.wait_stdout("next ready");
    let beside: Vec<_> = victim.processes().into_iter().filter(|process| process.name == "child").collect();
    assert_eq!(beside, [], "beside the next command");
    finish(&mut next);
    victim.wait().expect_signal(Signal::SIGKILL);
    victim.wait_until_nothing_is_left();
    next.wait_until_nothing_is_left();
    scratch.wait_queue(0);
}

#[test]
fn supervisor_killed_at_any_instant_of_the_start_leaves_nothing() {
    let scratch = Scratch::new().with_lock();
    let mut random = fastrand::Rng::with_seed(7);
    let rounds = 20;
    for _ in 0..rounds {
        let started = Moment::now();
        let delay = Duration::from_micros(random.u64(..30_000));
        kill_while_starting(&scratch, |_| started.after(delay).wait_past());
        // Closer: the command starts some milliseconds after its node is there.
        let delay = Duration::from_micros(random.u64(..12_000));
        kill_while_starting(&scratch, |_| {
            scratch.wait_queue(1);
            Moment::now().after(delay).wait_past();
        });
        // And as soon as there is the other session.
        kill_while_starting(&scratch, |victim| drop(victim.wait_stdout("session ready")));
    }
    let log = scratch.log().expect_apart(|one, two| one.name == "next" || two.name == "next");
    assert_eq!(log.count("next"), 3 * rounds);
}

/// The number of a processor that we may use (`Cpus_allowed_list` of proc_pid_status(5)).
fn one_processor() -> String {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a list of processors");
    list.trim().chars().take_while(char::is_ascii_digit).collect()
}

/// The command stops zklock as its first act, which is often before zklock has told its keeper of it; both are on one
/// processor, and neither is interrupted for the other's sake (SCHED_BATCH, sched(7)). Then it starts a process that has
/// nothing of its environment, so that only its group tells whose it is, and leaves a daemon, of which only its
/// environment does.
#[test]
fn supervisor_killed_before_it_has_told_of_the_command_leaves_nothing() {
    let scratch = Scratch::new();
    for _ in 0..5 {
        let script = r#"kill -STOP $PPID; env -i ZKLOCK_TEST="$ZKLOCK_TEST" "$1" --wait & "$@""#;
        let mut job = scratch.zklock().env("ZKLOCK_SESSION_TIMEOUT", "60").args([LOCK, "--", "sh", "-c", script, "sh"]);
        job = job.arg(child()).args(["--wait", "--spawn-daemon", "--", "--wait"]);
        let mut victim = job.run_by(["taskset", "-c", &one_processor(), "chrt", "-b", "0"]).spawn();
        for _ in ["the one in the group", "the command", "what is between", "the daemon"] {
            victim.wait_stdout("ready");
        }
        let (_, family) = victim.family(4);
        process::wait_state(victim.pid(), &['T']);
        let mut next = scratch.zklock().arg(LOCK).child(scratch.logged("next")).spawn();
        scratch.wait_queue(2);
        victim.signal(Signal::SIGKILL);
        next.wait_stdout("ready");
        process::expect_dead(&family);
        victim.wait().expect_signal(Signal::SIGKILL);
        victim.wait_until_nothing_is_left();
        finish(&mut next);
    }
}

/// How often a process has read from a file (proc_pid_io(5)).
#[track_caller]
fn reads(pid: Pid) -> usize {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).expect("the kernel counts them");
    let count = io.lines().find_map(|line| line.strip_prefix("syscr: ")).expect("a number of reads");
    count.parse().expect("a number")
}

/// The keeper looks in vain for a child that has been stopped before it has told of itself. With the supervisor stopped,
/// too, nobody but the child itself keeps it from becoming the command when it goes on.
#[test]
fn a_child_that_is_not_the_command_yet_does_not_become_it_when_the_lock_has_been_lost() {
    poll::until("a child is stopped before it has told of itself", || {
        let scratch = Scratch::new().with_lock();
        let prefix = format!("{LOCK}/_c_{:032x}-lock-", 1);
        let holder = scratch.client().create(&prefix, b"", Kind::EphemeralSequential).unwrap();
        let mut victim = scratch.start(&direct(), "victim", &["--session-timeout", "60"], &["--wait"]);
        scratch.wait_queue(2);
        let mut next = scratch.queue("next", 2);
        scratch.delete(&holder);
        let forked = victim.stop_forked();
        let is_forked = process::look(forked).is_some_and(|process| process.name == "zklock");
        process::stop(victim.pid());
        let keeper = victim.keeper();
        // It takes one read to look at a process.
        let looked = reads(keeper) + process::all().len();
        scratch.delete_holder();
        next.wait_stdout("next ready");
        poll::until("the keeper has looked for the child", || (reads(keeper) >= looked).then_some(()));
        let is_unknown = process::look(forked).is_some_and(|process| process.state == 'T');
        process::send(forked, Signal::SIGCONT);
        process::wait_dead(forked);
        victim.signal(Signal::SIGCONT);
        victim.wait().expect_code(76);
        victim.wait_until_nothing_is_left();
        finish(&mut next);
        (is_forked && is_unknown).then(|| scratch.expect_tidy(&["next"]))
    });
}

// Signals.

/// Starts a program with eight seconds left on the timer of alarm(2), which survives execve(2).
const WITH_AN_ALARM: [&str; 3] = ["perl", "-e", "alarm 8; exec @ARGV or die"];

#[test]
fn an_alarm_ends_the_wait() {
    let scratch = Scratch::new();
    let mut holder = scratch.hold();
    let mut waiter = scratch.zklock().arg(LOCK).bare_child().run_by(WITH_AN_ALARM).spawn();
    scratch.wait_queue(2);
    let output = waiter.wait().expect_signal(Signal::SIGALRM);
    assert_eq!((output.stdout(), output.stderr()), (String::new(), String::new()));
    scratch.wait_queue(1);
    waiter.wait_until_nothing_is_left();
    finish(&mut holder);
}

/// The kernel makes it, as it makes Ctrl-C; but it makes it for zklock alone.
#[test]
fn at_a_terminal_an_alarm_reaches_the_command() {
    let scratch = Scratch::new().with_lock();
    let terminal = Terminal::new(80);
    let job = scratch.job(&direct(), "job", &LASTING, &["--exit-on", "ALRM", "--exit", "7"]);
    let mut job = terminal.spawn(job.run_by(WITH_AN_ALARM));
    terminal.wait_count("job signal ALRM", 1);
    job.wait().expect_code(7);
    job.wait_until_nothing_is_left();
    scratch.expect_tidy(&["job"]);
}

#[test]
fn a_signal_for_everybody_does_not_end_the_keeper() {
    let (scratch, proxy) = Scratch::proxied();
    let mut job = scratch.start(&proxy.address(), "job", &[], &["--exit-on", "TERM"]);
    job.wait_stdout("ready");
    let keeper = job.keeper();
    // It leads a process group and a session of its own. Of those that end a process by default, the ones that it
    // cannot ignore, and those of a fault of its own, are not among them.
    let numbers = "1 2 3 10 12 13 14 15 16 24 25 26 27 29 30 $(seq 34 64)";
    let script = format!("for signal in {numbers}; do kill -$signal -- {keeper} -{keeper}; done");
    Zklock::bare().program("bash").args(["-c", &script]).run().expect_code(0);
    let beats = proxy.count(Op::Multi);
    proxy.wait_count(Op::Multi, beats + 2);
    assert_eq!(job.keeper(), keeper);
    finish(&mut job);
    assert_eq!(job.stderr(), "");
    scratch.expect_tidy(&["job"]);
}

/// What zklock writes to a file that may not grow is lost, and the signal that answers it is not the command's.
#[test]
fn a_log_that_is_as_long_as_it_may_be_does_not_end_the_command() {
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
