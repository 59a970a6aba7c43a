//! The runs that this one descends from, as far as they may lend it their locks.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A run that may lend its locks: its supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lender {
    /// The process id.
    pub pid: u32,
    /// When it started, in clock ticks since boot (proc_pid_stat(5)). The pid alone may belong to another
    /// process later.
    pub started: u64,
}

/// What a run tells the processes below it, so that another run among them can borrow its locks.
///
/// As text: the five numbers, separated by spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The run.
    pub lender: Lender,
    /// Its guard's process. It lends only below that: what is not there is not waited for when the command ends.
    pub guard: u32,
    /// The number that the write end of its pipe has there.
    pub descriptor: u32,
    /// The inode of that pipe.
    pub inode: u64,
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lender: Lender { pid, started }, guard, descriptor, inode } = self;
        write!(f, "{pid} {started} {guard} {descriptor} {inode}")
    }
}

/// It is not what a run tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoOffer;

impl FromStr for Offer {
    type Err = NoOffer;

    fn from_str(text: &str) -> Result<Self, NoOffer> {
        let numbers: Vec<u64> = text.split(' ').map(str::parse).collect::<Result<_, _>>().map_err(|_| NoOffer)?;
        let [pid, started, guard, descriptor, inode] = numbers[..] else { return Err(NoOffer) };
        let narrow = |number: u64| u32::try_from(number).map_err(|_| NoOffer);
        let lender = Lender { pid: narrow(pid)?, started };
        Ok(Self { lender, guard: narrow(guard)?, descriptor: narrow(descriptor)?, inode })
    }
}

/// Whether the holder of a lock lends it to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loan {
    /// It is this run, which we descend from, and it holds the lock for as long as we use it.
    Lent(Lender),
    /// It is a run that we descend from, but its command has ended: it is about to release the lock.
    Over,
    /// It is not a run that we descend from.
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
        for text in ["", " ", "1 2 3 4", "1 2 3 4 5 6", "1  2 3 4 5", "1 2 3 4 -5", "1 2 3 4 x", "4294967296 2 3 4 5"] {
            assert_eq!(text.parse::<Offer>(), Err(NoOffer), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn offers_come_back_as_they_were_written(pid: u32, started: u64, guard: u32, descriptor: u32, inode: u64) {
            let offer = Offer { lender: Lender { pid, started }, guard, descriptor, inode };
            prop_assert_eq!(offer.to_string().parse(), Ok(offer));
        }
    }
}
