//! What a run costs: the system calls of all its processes. Those of the command are not counted.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

use nix::sys::signal::Signal;

use crate::harness::frames::Op;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::proxy::Fate;
use crate::harness::release::{Feature, lacks};
use crate::harness::rights::{Right, refused};
use crate::harness::running::Running;
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::traced::count_calls;

/// At most this many, with a little room: a run on a free lock; all that the reply causes that says
/// that the lock is free; all that the end of the command causes.
const RUN: usize = 400;
const GRANT: usize = 40;
const RELEASE: usize = 80;

/// Waits until all processes of a run sleep.
fn wait_until_quiet(run: &Running) {
    let sleeps = || -> Option<Vec<usize>> {
        let processes = run.processes().into_iter();
        processes.map(|process| (process.state == 'S').then(|| process::sleeps(process.pid))).collect()
    };
    poll::until("all sleep", || sleeps().filter(|before| sleeps().as_ref() == Some(before)));
}

#[test]
fn a_run_makes_few_system_calls() {
    // A run on 3.4 has other requests.
    if refused([Right::Ptrace]) || lacks(Feature::Create2) {
        return;
    }
    let (scratch, proxy) = Scratch::proxied();
    let reply = proxy.trap_ops(Fate::Wait, &[Op::GetChildren]);
    // The test is not the parent of what it traces: two would wait for the end of that.
    let stopped = r#"/bin/sh -c 'kill -STOP $$; exec "$@"' - "$@"; exit $?"#;
    let zklock = scratch.zklock_by(proxy.address()).arg(LOCK).child(["--until-stdin-closes"]).open_stdin();
    // The loader looks for libraries, and zklock for the command, wherever variables say.
    let mut run = zklock.cleared().run_by(["/bin/sh", "-c", stopped, "-"]).spawn();
    let first =
        poll::until("it is stopped", || process::children(run.pid()).into_iter().find(|child| child.state == 'T'));
    let phase = Arc::new(AtomicUsize::new(0));
    // Not within a scope, which would wait for the thread if this test fails.
    let counts = thread::spawn({
        let phase = Arc::clone(&phase);
        move || count_calls(first.pid, &phase)
    });
    poll::until("it is traced", || process::look(first.pid).filter(|first| first.state == 't'));
    process::send(first.pid, Signal::SIGCONT);
    reply.wait();
    wait_until_quiet(&run);
    phase.store(1, SeqCst);
    reply.release();
    run.wait_stdout("ready");
    wait_until_quiet(&run);
    phase.store(2, SeqCst);
    run.close_stdin();
    let [before, grant, release] = counts.join().expect("it is traced to its end");
    run.wait().expect_code(0);
    let all = before + grant + release;
    assert!(all <= RUN && grant <= GRANT && release <= RELEASE, "{all} in all, {grant} a grant, {release} a release");
    scratch.expect_tidy(&[]);
}
