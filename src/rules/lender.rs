//! The runs that this one descends from, as far as they may lend it their locks.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A run that may lend its locks: its supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lender {
    /// The process id.
    pub pid: u32,
    /// When it started, in clock ticks since boot (proc_pid_stat(5)). The pid alone may belong to another
    /// process later.
    pub started: u64,
}

/// What a run tells the processes that may borrow its locks.
///
/// As text: the numbers in the order of the fields, separated by spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The run.
    pub lender: Lender,
    /// It lends only below this process: its guard, because what is not there is not waited for when the command ends;
    /// with `zklock hold`, the process that it holds the lock for.
    pub root: u32,
    /// The number that the write end of its pipe has.
    pub descriptor: u32,
    /// The inode of that pipe.
    pub inode: u64,
    /// With `zklock hold`: what else has to be known.
    pub stand_in: Option<StandIn>,
}

/// The process of `zklock hold` that has the pipes, in place of the run itself. It is below the guard, so that it does not
/// outlive the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandIn {
    /// The process.
    pub process: Lender,
    /// When the root of the offer started.
    pub root_started: u64,
    /// The number that the write end of its second pipe has. That end is closed only when the process ends, and no other
    /// process has it.
    pub lifeline: u32,
    /// The inode of the second pipe.
    pub lifeline_inode: u64,
}

impl Offer {
    /// The process that has the pipes.
    pub fn source(&self) -> Lender {
        self.stand_in.map_or(self.lender, |stand_in| stand_in.process)
    }
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lender: Lender { pid, started }, root, descriptor, inode, stand_in } = self;
        write!(f, "{pid} {started} {root} {descriptor} {inode}")?;
        let Some(StandIn { process: Lender { pid, started }, root_started, lifeline, lifeline_inode }) = stand_in
        else {
            return Ok(());
        };
        write!(f, " {pid} {started} {root_started} {lifeline} {lifeline_inode}")
    }
}

/// It is not what a run tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoOffer;

impl FromStr for Offer {
    type Err = NoOffer;

    fn from_str(text: &str) -> Result<Self, NoOffer> {
        let numbers: Vec<u64> = text.split(' ').map(str::parse).collect::<Result<_, _>>().map_err(|_| NoOffer)?;
        let narrow = |number: u64| u32::try_from(number).map_err(|_| NoOffer);
        let Some((&[pid, started, root, descriptor, inode], rest)) = numbers.split_first_chunk() else {
            return Err(NoOffer);
        };
        let lender = Lender { pid: narrow(pid)?, started };
        let stand_in = match *rest {
            [] => None,
            [pid, started, root_started, lifeline, lifeline_inode] => Some(StandIn {
                process: Lender { pid: narrow(pid)?, started },
                root_started,
                lifeline: narrow(lifeline)?,
                lifeline_inode,
            }),
            _ => return Err(NoOffer),
        };
        Ok(Self { lender, root: narrow(root)?, descriptor: narrow(descriptor)?, inode, stand_in })
    }
}

/// Whether the holder of a lock lends it to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loan {
    /// It is a run that we descend from, or that holds the lock for a process that we descend from. It holds the lock for as
    /// long as we use it, unless this process ends.
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
    /// There is no /proc, here or there.
    NoProc,
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
            "1 2 3 4",
            "1 2 3 4 5 6",
            "1 2 3 4 5 6 7 8 9",
            "1  2 3 4 5",
            "1 2 3 4 -5",
            "1 2 3 4 x",
            "4294967296 2 3 4 5",
        ] {
            assert_eq!(text.parse::<Offer>(), Err(NoOffer), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn offers_come_back_as_they_were_written(pid: u32, started: u64, root: u32, descriptor: u32, inode: u64) {
            let lender = Lender { pid, started };
            let stand_in = StandIn { process: lender, root_started: inode, lifeline: root, lifeline_inode: started };
            for stand_in in [None, Some(stand_in)] {
                let offer = Offer { lender, root, descriptor, inode, stand_in };
                prop_assert_eq!(offer.to_string().parse(), Ok(offer));
            }
        }
    }
}
