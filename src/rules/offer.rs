//! What a run offers the runs below it, and what these can borrow.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::process_identity::ProcessIdentity;

/// What a run tells the processes that may borrow its locks.
///
/// As text: `FORM`, then the numbers in the order of the fields, separated by spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The supervisor of the run that lends its locks.
    pub lender: ProcessIdentity,
    /// It lends only to this process and below: to what is below the run itself; with `zklock hold`, to the process that it
    /// holds the lock for.
    pub root: ProcessIdentity,
    /// The number that its end of its pipe has.
    pub descriptor: u32,
    /// The inode of that pipe.
    pub inode: u64,
    /// The session to which all nodes belong that it lends.
    pub session: i64,
}

/// The form of an offer as text. With an offer of another form nothing is borrowed: zklock refuses to wait for a run above it
/// that it does not understand.
const FORM: u64 = 4;

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lender, root, descriptor, inode, session } = self;
        write!(f, "{FORM} {lender} {root} {descriptor} {inode} {}", session.cast_unsigned())
    }
}

impl Offer {
    /// Reads what `Display` writes; `None`: it is not what a run tells.
    pub fn parse(text: &str) -> Option<Self> {
        let numbers: Vec<u64> = text.split(' ').map(|number| number.parse().ok()).collect::<Option<_>>()?;
        let [FORM, pid, started, root, root_started, descriptor, inode, session] = *numbers else { return None };
        let process = |pid: u64, started| Some(ProcessIdentity { pid: pid.try_into().ok()?, started });
        let (lender, root) = (process(pid, started)?, process(root, root_started)?);
        let session = session.cast_signed();
        Some(Self { lender, root, descriptor: descriptor.try_into().ok()?, inode, session })
    }
}

/// Whether the holder of a lock lends it to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loan {
    /// It is a run that we descend from, or that holds the lock for a process that we descend from. It holds the lock for as
    /// long as we use it, unless this process ends.
    Lent(ProcessIdentity),
    /// It is a run that we descend from, but its command has ended: it is about to release the lock.
    Over,
    /// It is not a run that we descend from, or the node is not of that run's session: it bears a copy of its card.
    Stranger,
    /// It is, or may be, a run that we descend from. We cannot borrow from it, and would wait for ourselves.
    OutOfReach(Barrier),
}

/// Why we cannot borrow from a run that we descend from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Barrier {
    /// We may not look into its process, or do not see it.
    Foreign,
    /// Our environment does not say where to look.
    NoOffer,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_offer() {
        for text in [
            "",
            " ",
            "1 2 3 4 5",
            "3 1 2 3 4 5 6",
            "4 1 2 3 4 5 6",
            "4 1 2 3 4 5 6 7 8",
            "4 1  2 3 4 5 6 7",
            "4 1 2 3 4 5 6 -7",
            "4 1 2 3 4 5 6 x",
            "4 4294967296 2 3 4 5 6 7",
        ] {
            assert_eq!(Offer::parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn offers_come_back_as_they_were_written(pid: u32, started: u64, descriptor: u32, inode: u64, session: i64) {
            let (lender, root) = (ProcessIdentity { pid, started }, ProcessIdentity { pid: descriptor, started: inode });
            let offer = Offer { lender, root, descriptor, inode, session };
            prop_assert_eq!(Offer::parse(&offer.to_string()), Some(offer));
        }
    }
}
