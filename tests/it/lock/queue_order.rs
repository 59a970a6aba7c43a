//! Waiters get the lock in the order of their arrival, one at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::harness::creation::connections;
use crate::harness::frames::{Op, Request};
use crate::harness::joblog::Run;
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::proxy::{Fate, Proxy};
use crate::harness::release::{Feature, lacks};
use crate::harness::running::{Running, finish, silent};
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::secure::Secure;

/// Twenty commands of which each runs until it is told to end: two at a time would be there to be seen.
#[test]
fn twenty_at_once_run_in_the_order_of_nodes() {
    let scratch = Scratch::new();
    let mut jobs: BTreeMap<String, Running> =
        (0..20).map(|n| n.to_string()).map(|name| (name.clone(), scratch.contend(&name))).collect();
    let nodes = scratch.wait_queue(20);
    let pid = |node: &String| scratch.card(node)["pid"].as_u64().and_then(|pid| i32::try_from(pid).ok());
    let of_pid: BTreeMap<Option<i32>, &String> =
        jobs.iter().map(|(name, job)| (Some(job.pid().as_raw()), name)).collect();
    let expected: Vec<String> = nodes.iter().map(|node| of_pid[&pid(node)].clone()).collect();
    for n in 0..20 {
        let name =
            poll::until(format_args!("number {n} begins"), || scratch.log().runs().get(n).map(|run| run.name.clone()));
        silent(finish(jobs.get_mut(&name).expect("each runs once")));
    }
    assert_eq!(scratch.log().expect_no_overlap().order(), expected);
}

/// Each but the first is next in line only while the short command before it runs, so it has hardly begun to
/// beat when its turn comes.
#[test]
fn short_commands_follow_at_once() {
    const SESSION_TIMEOUT: Duration = Duration::from_secs(8);
    let scratch = Scratch::new();
    let mut holder = scratch.hold();
    let log = scratch.file("log");
    let short = || scratch.zklock().args([LOCK, "--session-timeout", "8s"]).child(["--log"]).arg(&log).spawn();
    let mut jobs = Vec::new();
    for n in 2..=6 {
        jobs.push(short());
        scratch.wait_queue(n);
    }
    let queued = Moment::now();
    poll::until("nothing is left of the time before", || (Moment::now().since(queued) > SESSION_TIMEOUT).then_some(()));
    finish(&mut holder);
    for job in &mut jobs {
        silent(job.wait().expect_code(0));
    }
    let log = scratch.log().expect_no_overlap();
    let gap = |pair: &[Run]| Duration::from_nanos(pair[1].begin - pair[0].last);
    let mut gaps: Vec<Duration> = log.runs().windows(2).map(gap).collect();
    gaps.sort_unstable();
    // Without a lease that is there already, each would take a quarter of the session timeout. A machine that does
    // other things may make some of them as slow.
    assert!(gaps.len() == 5 && gaps[2] < SESSION_TIMEOUT / 8, "{gaps:?}");
}

/// The kinds of requests of each run, whatever connections it has made. The runs have come one after the other. The pings
/// depend on time and are left out, and a login comes first.
fn kinds(requests: impl IntoIterator<Item = Request>) -> Vec<Vec<Op>> {
    let mut kinds: BTreeMap<usize, Vec<Op>> = BTreeMap::new();
    for request in requests.into_iter().filter(|request| request.op != Op::Ping) {
        kinds.entry(request.connection).or_default().push(request.op);
    }
    let mut kinds: Vec<_> = kinds.into_values().collect();
    if Secure::used().is_some() {
        kinds.iter_mut().for_each(|kinds| assert_eq!(kinds.remove(0), Op::Auth));
    }
    kinds.chunks(connections()).map(<[_]>::concat).collect()
}

/// How many requests of the run with this number the server has answered, but for the login.
fn answered(proxy: &Proxy, run: usize) -> usize {
    let requests = proxy.requests().into_iter();
    kinds(requests.filter(|request| request.is_answered || request.op == Op::Auth))[run].len()
}

/// What a contender asks for until it knows its place.
fn came() -> &'static [Op] {
    if Feature::Create2.is_there() {
        return &[Op::Create2, Op::GetChildren, Op::GetData];
    }
    // Over the second connection, it first looks whether its node is there. Once that is created, it looks up the token.
    &[
        Op::Create2,
        Op::GetChildren,
        Op::Sync,
        Op::Multi,
        Op::GetChildren,
        Op::Create,
        Op::GetChildren,
        Op::GetChildren,
        Op::GetData,
        Op::GetData,
        Op::GetChildren,
    ]
}

/// A release wakes one waiter, and what a hand-over costs does not depend on the length of the queue.
#[test]
fn requests_of_a_hand_over() {
    const WAITERS: usize = 6;
    let scratch = Scratch::new().with_lock();
    let proxy = Proxy::zookeeper(&direct());
    // Longer than this test: no beat is due in it, and with a beat the next in line lists.
    let zklock = || scratch.zklock_by(proxy.address()).args([LOCK, "--session-timeout", "2m"]);
    let mut jobs = Vec::new();
    for n in 0..=WAITERS {
        jobs.push(zklock().child(scratch.logged(&n.to_string())).spawn());
        scratch.wait_queue(n + 1);
    }
    // Every contender watches itself and the one before it, and none watches the lock.
    let nodes = scratch.wait_queue(WAITERS + 1);
    let mut expected: BTreeMap<String, usize> = nodes.iter().map(|node| (format!("{LOCK}/{node}"), 2)).collect();
    expected.insert(format!("{LOCK}/{}", nodes[WAITERS]), 1);
    poll::until("every contender watches", || (scratch.watchers() == expected).then_some(()));
    let waits = [came(), &[Op::GetData, Op::GetData]].concat();
    // The one before it says that it holds, so it lists the queue and watches that one as the holder; then it says that it
    // holds itself, by which its own watch fires.
    let holds = [Op::GetData, Op::GetChildren, Op::GetData, Op::Multi, Op::GetData];
    for (n, job) in jobs.iter_mut().enumerate() {
        job.wait_stdout("ready");
        if (1..WAITERS).contains(&n) {
            let watches = || answered(&proxy, n + 1) >= waits.len() + 3;
            poll::until("the next in line watches the holder", || watches().then_some(()));
        }
        if n > 1 {
            let count = waits.len() + holds.len();
            poll::until("it has said that it holds", || (answered(&proxy, n) >= count).then_some(()));
        }
        finish(job);
    }
    // The last flight comes when the command has ended.
    let leaves = [Op::Delete, Op::CloseSession];
    let requests = kinds(proxy.requests());
    assert_eq!(requests[0], [came(), &leaves].concat());
    for behind_a_waiter in &requests[2..] {
        assert_eq!(*behind_a_waiter, [&waits[..], &holds, &leaves].concat());
    }
    assert_eq!(scratch.log().expect_no_overlap().order(), ["0", "1", "2", "3", "4", "5", "6"]);
}

/// A contender of several dialects holds by its first node; the one behind it watches its last.
#[test]
fn the_next_in_line_behind_several_nodes_beats() {
    let (scratch, proxy) = Scratch::proxied();
    let options = [LOCK, "--dialect", "curator,kazoo"];
    let mut holder = scratch.zklock().args(options).child(scratch.logged("holder")).spawn();
    holder.wait_stdout("ready");
    let mut next = scratch.zklock_by(proxy.address()).args(options).child(scratch.logged("next")).spawn();
    scratch.wait_queue(4);
    // Others ask the leader once in four session timeouts.
    proxy.wait_count(Op::Multi, proxy.count(Op::Multi) + 1);
    finish(&mut holder);
    finish(&mut next);
    scratch.expect_tidy(&["holder", "next"]);
}

#[test]
fn predecessor_gone_before_the_watch() {
    if lacks(Feature::Create2) {
        return;
    }
    let scratch = Scratch::new();
    let proxy = Proxy::zookeeper(&direct());
    let mut holder = scratch.hold();
    let trap = proxy.trap_ops(Fate::Wait, &[Op::GetChildren, Op::GetChildren2]);
    let mut waiter = scratch.zklock_by(proxy.address()).arg(LOCK).child(scratch.logged("waiter")).spawn();
    trap.wait();
    finish(&mut holder);
    trap.release();
    finish(&mut waiter);
    scratch.log().expect_no_overlap();
}

#[test]
fn waiter_in_the_middle_gives_up() {
    let scratch = Scratch::new();
    let mut holder = scratch.hold();
    let mut middle = scratch.queue("middle", 1);
    let mut last = scratch.queue("last", 2);
    let nodes: Vec<_> = scratch.wait_queue(3).into_iter().map(|node| format!("{LOCK}/{node}")).collect();
    // Each watches itself.
    let watch = |expected: &[(&String, usize)]| {
        let expected = expected.iter().map(|(node, count)| ((*node).clone(), *count)).collect();
        poll::until("each watches the one before it", || (scratch.watchers() == expected).then_some(()));
    };
    watch(&[(&nodes[0], 2), (&nodes[1], 2), (&nodes[2], 1)]);
    middle.signal(Signal::SIGTERM);
    silent(middle.wait().expect_signal(Signal::SIGTERM));
    watch(&[(&nodes[0], 2), (&nodes[2], 1)]);
    assert_eq!(scratch.log().order(), ["holder"]);
    finish(&mut holder);
    finish(&mut last);
    assert_eq!(scratch.log().expect_no_overlap().order(), ["holder", "last"]);
}
