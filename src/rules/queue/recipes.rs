//! Recipes of other libraries that exclude others by different means, so that no contender of ours can queue
//! with theirs.

use serde::{Deserialize, Serialize};

use super::names::parse_sequence;
use crate::rules::child_name::ChildName;

/// A recipe whose users do not wait for zklock, nor zklock for them. `cli::sentences::recipe` says how it is known. The
/// names of the children are those that Curator 5.4 and kazoo 2.8 were seen to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recipe {
    CuratorSemaphore,
    CuratorLeaderLatch,
    KazooSemaphore,
    KazooLease,
}

impl Recipe {
    /// The recipe to which these children belong, if there is one. None of them is a contender.
    pub(super) fn of_children(names: &[ChildName]) -> Option<Self> {
        let has = |wanted: &str| names.iter().any(|name| *name == wanted);
        if has("locks") && has("leases") {
            return Some(Self::CuratorSemaphore);
        }
        if names.iter().any(|name| is_latch(name)) {
            return Some(Self::CuratorLeaderLatch);
        }
        if has("lease_holder") {
            return Some(Self::KazooLease);
        }
        // A lock below a lock may be named after an MD5 sum, and one in 64 of those looks like such a UUID. But a
        // semaphore has no other children.
        let are_leases = !names.is_empty() && names.iter().all(|name| is_random_uuid(name));
        are_leases.then_some(Self::KazooSemaphore)
    }
}

fn is_latch(name: &str) -> bool {
    let number = name.rsplit_once("-latch-").map(|(_, number)| number);
    number.is_some_and(|number| parse_sequence(number).is_some())
}

/// Whether this can be a `uuid4().hex` of Python: version and variant have fixed places (RFC 9562).
fn is_random_uuid(name: &str) -> bool {
    name.len() == 32
        && name.bytes().enumerate().all(|(at, byte)| match at {
            12 => byte == b'4',
            16 => matches!(byte, b'8' | b'9' | b'a' | b'b'),
            _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_shows(names: &[&str], recipe: Option<Recipe>) {
        let names: Vec<ChildName> = names.iter().map(|&name| name.into()).collect();
        assert_eq!(Recipe::of_children(&names), recipe, "{names:?}");
    }

    const LEASES: [&str; 2] = ["c7a9c38284934ce795bc992dfa2b5319", "962bc4cc59a244e8a93fc9b339e647d1"];

    #[test]
    fn recipes_are_known_by_their_children() {
        assert_shows(&["leases", "locks"], Some(Recipe::CuratorSemaphore));
        assert_shows(&["locks", "config", "leases"], Some(Recipe::CuratorSemaphore));
        assert_shows(&["_c_892dfd07-9e1a-4896-9c9f-123d2eb27acc-latch-0000000000"], Some(Recipe::CuratorLeaderLatch));
        assert_shows(
            &["x", "_c_892dfd07-9e1a-4896-9c9f-123d2eb27acc-latch--2147483648"],
            Some(Recipe::CuratorLeaderLatch),
        );
        assert_shows(&["lease_holder"], Some(Recipe::KazooLease));
        assert_shows(&["0", "lease_holder"], Some(Recipe::KazooLease));
        assert_shows(&LEASES, Some(Recipe::KazooSemaphore));
        assert_shows(&LEASES[..1], Some(Recipe::KazooSemaphore));
    }

    #[test]
    fn locks_below_a_lock_are_no_recipe() {
        assert_shows(&[], None);
        assert_shows(&["locks"], None);
        assert_shows(&["leases"], None);
        assert_shows(&["locks", "party"], None);
        assert_shows(&["production", "staging"], None);
        assert_shows(&["latch-", "door-latch-", "door-latch-1", "latch-0000000001"], None);
        // kazoo's DoubleBarrier, once it is full, and its Party; Curator's DistributedDoubleBarrier.
        assert_shows(&[LEASES[0], LEASES[1], "ready"], None);
        assert_shows(&["7fbfc03ac9854acd920eb7698767ae00__party__", "2d0a3bfc9f4248119328248c6d79b1c1-id"], None);
        assert_shows(&["41b8cfd6-2259-4369-a912-7be019ae1992"], None);
        // MD5 sums: no UUID, and one that has the look of it among others.
        assert_shows(&["d41d8cd98f00b204e9800998ecf8427e"], None);
        assert_shows(&[LEASES[0], "d41d8cd98f00b204e9800998ecf8427e"], None);
        assert_shows(&["c7a9c38284934ce7c5bc992dfa2b5319"], None);
        assert_shows(&["C7A9C38284934CE795BC992DFA2B5319"], None);
    }
}
