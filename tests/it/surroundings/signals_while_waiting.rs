//! Signals end the wait at once, and leave no node.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::harness::client::expire_session;
use crate::harness::poll;
use crate::harness::proxy::Proxy;
use crate::harness::running::Running;
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::server::free_port;
use crate::harness::stub::Stub;
use crate::harness::terminal::{CTRL_C, Terminal};
use crate::harness::times::{INSTANT, SOON, expect_once_below};
use crate::harness::zklock::Zklock;

/// The signals that end a wait.
const CANCELLING: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

/// Sends `signal` to a zklock that has no command, and returns the time until it has died of it, in silence.
#[track_caller]
fn cancel(job: &mut Running, signal: Signal) -> Duration {
    let told = Instant::now();
    job.signal(signal);
    let output = job.wait().expect_signal(signal);
    let took = told.elapsed();
    assert_eq!(output.stdout(), "", "{output}");
    took
}

#[test]
fn in_the_queue() {
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

/// When the waiter has ended within `patience`, its node is gone too. Otherwise it may have given up on the
/// deletion, and the node goes with its session at the latest.
#[track_caller]
fn expect_given_up(scratch: &Scratch, took: Duration, patience: Duration) {
    if took < patience {
        assert_eq!(scratch.contenders().len(), 1);
    } else {
        scratch.wait_queue(1);
    }
}

#[test]
fn two_at_once() {
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

#[test]
fn server_refuses() {
    for signal in CANCELLING {
        expect_once_below(INSTANT, || {
            let zklock = Zklock::at(format_args!("127.0.0.1:{}", free_port()));
            let mut job = zklock.args(["-v", LOCK]).bare_child().spawn();
            job.wait_stderr("connecting");
            cancel(&mut job, signal)
        });
    }
}

#[test]
fn server_hangs() {
    let stub = Stub::silent();
    let proxy = Proxy::plain(stub.address().parse().unwrap());
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

/// The node cannot be deleted then. Trying costs a second and a half at most; the rest is tolerance, and
/// still less than a session takes to expire.
#[test]
fn server_has_fallen_silent() {
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
fn ctrl_c_at_a_terminal() {
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
