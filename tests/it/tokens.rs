//! The fencing token.

use crate::ensemble::{Ensemble, Role};
use crate::place::{LOCK, silent};
use crate::poll;
use crate::zklock::Zklock;

/// A hundred holders, a leader that changes, a lock whose node is created again.
#[test]
fn the_token_rises_from_holder_to_holder() {
    let ensemble = Ensemble::start();
    let chroot = ensemble.chroot();
    let client = chroot.client();
    let mut tokens: Vec<i64> = Vec::new();
    for n in 0..100 {
        match n {
            40 => {
                let leader = ensemble.leader();
                leader.kill();
                poll::until("there is another leader", || {
                    let mut others = ensemble.servers().iter().filter(|server| !std::ptr::eq(*server, leader));
                    others.any(|server| server.role() == Some(Role::Leader)).then_some(())
                });
            }
            80 => {
                client.sync();
                client.remove(LOCK);
            }
            _ => {}
        }
        let mode = [&["-x"][..], &["-s"], &["--permits", "3"]][n % 3];
        let run = Zklock::at(&chroot).args(mode).args([LOCK, "printenv", "ZKLOCK_TOKEN"]).run().expect_code(0);
        tokens.push(silent(run).stdout().trim().parse().expect("a number"));
    }
    assert!(tokens.is_sorted_by(|one, two| one < two), "{tokens:?}");
    // The epoch is in the upper half: it was another leader.
    assert!(tokens[99] >> 32 > tokens[0] >> 32, "{tokens:?}");
}
