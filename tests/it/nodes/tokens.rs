//! The fencing token.

use crate::harness::ensemble::Ensemble;
use crate::harness::poll;
use crate::harness::running::silent;
use crate::harness::scratch::LOCK;
use crate::harness::server::Role;
use crate::harness::zklock::Zklock;

/// A hundred holders of every kind, a leader that changes, a lock whose node is created again.
#[test]
fn rises_from_holder_to_holder() {
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
        let dialects = ["--dialect", "curator,curator-rw,kazoo"];
        let options = [&["-x"][..], &["-s"], &["--permits", "3"], &dialects, &["--and", "/other"]][n % 5];
        let run = Zklock::at(&chroot).args(options).args([LOCK, "printenv", "ZKLOCK_TOKEN"]).run().expect_code(0);
        tokens.push(silent(run).stdout().trim().parse().expect("a number"));
    }
    assert!(tokens.is_sorted_by(|one, two| one < two), "{tokens:?}");
    // The epoch is in the upper half: it was another leader.
    assert!(tokens[99] >> 32 > tokens[0] >> 32, "{tokens:?}");
}
