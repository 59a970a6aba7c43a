//! The creation of a contender's node, as a proxy sees it.

use super::frames::{Op, Request};
use super::poll;
use super::proxy::{Fate, Proxy, Trap};
use super::running::{Running, finish};
use super::scratch::Scratch;

pub(crate) fn creates_contender(request: &Request) -> bool {
    [Op::Create, Op::Create2].contains(&request.op) && request.path.contains("-lock-")
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
