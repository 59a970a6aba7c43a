//! The creation of a contender's node, as a proxy sees it.

use super::frames::{Op, Request};
use super::poll;
use super::proxy::{Fate, Proxy, Trap};
use super::release::Feature;
use super::running::{Running, finish};
use super::scratch::Scratch;

/// The requests by which a contender's node can be created. Others the servers do not know.
pub(crate) fn creations() -> &'static [Op] {
    if Feature::Create2.is_there() { &[Op::Create, Op::Create2] } else { &[Op::Create] }
}

pub(crate) fn creates_contender(request: &Request) -> bool {
    creations().contains(&request.op) && request.path.contains("-lock-")
}

/// How many connections it takes to create a contender's node.
pub(crate) fn connections() -> usize {
    if Feature::Create2.is_there() { 1 } else { 2 }
}

pub(crate) fn lose_creation(proxy: &Proxy, fate: Fate) -> Trap {
    proxy.trap(fate, creates_contender)
}

#[track_caller]
pub(crate) fn expect_one_creation(proxy: &Proxy) {
    let creations: Vec<_> = proxy.requests().into_iter().filter(creates_contender).collect();
    assert_eq!(creations.len(), 1, "{creations:?}");
}

/// The job waits behind the holder and no other contender, and starts when the holder ends.
#[track_caller]
pub(crate) fn expect_watch_works(scratch: &Scratch, proxy: &Proxy, holder: &mut Running, job: &mut Running) {
    let holders = scratch.contenders()[0].path.clone();
    poll::until("the job watches the holder", || {
        let watches = |request: &Request| request.op == Op::GetData && request.path.ends_with(&holders);
        (proxy.requests().iter().filter(|request| watches(request)).count() >= 2).then_some(())
    });
    scratch.wait_queue(2);
    assert_eq!(scratch.log().order(), ["holder"]);
    finish(holder);
    job.wait_stdout("ready");
    scratch.expect_ours(job);
    finish(job);
    scratch.expect_tidy(&["holder", "job"]);
}
