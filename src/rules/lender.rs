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
/// As text: [`FORM`], then the numbers in the order of the fields, separated by spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The run.
    pub lender: Lender,
    /// It lends only below this process: its guard, because what is not there is not waited for when the command ends;
    /// with `zklock hold`, the process that it holds the lock for.
    pub root: Lender,
    /// The number that the write end of its pipe has.
    pub descriptor: u32,
    /// The inode of that pipe.
    pub inode: u64,
    /// What tells that the lock may be lost; `None` where the guard may end before what has borrowed it, because it adopts no
    /// orphans.
    pub lifeline: Option<Lifeline>,
}

/// The form of an offer as text. With an offer of another form nothing is borrowed: zklock refuses to wait for a run above it
/// that it does not understand. Up to version 0.2.0 this number was missing, and there were five or ten others.
const FORM: u64 = 2;

/// The second pipe. Its write end is closed only when a process ends that does not outlive the lease, and no other process
/// has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifeline {
    /// That process: the guard. With `zklock hold`, what borrows is not below the guard, so it is the process that stands in
    /// for a command, and has the first pipe as well.
    pub process: Lender,
    /// The number that the write end has there.
    pub descriptor: u32,
    /// The inode of that pipe.
    pub inode: u64,
}

impl Offer {
    /// With `zklock hold`: the process that stands in for a command.
    pub fn stand_in(&self) -> Option<Lender> {
        self.lifeline.map(|lifeline| lifeline.process).filter(|process| *process != self.root)
    }

    /// The process that has the first pipe.
    pub fn source(&self) -> Lender {
        self.stand_in().unwrap_or(self.lender)
    }
}

impl fmt::Display for Lender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pid, self.started)
    }
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lender, root, descriptor, inode, lifeline } = self;
        write!(f, "{FORM} {lender} {root} {descriptor} {inode}")?;
        let Some(Lifeline { process, descriptor, inode }) = lifeline else { return Ok(()) };
        write!(f, " {process} {descriptor} {inode}")
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
        let process = |pid: u64, started: u64| Ok(Lender { pid: narrow(pid)?, started });
        let Some((&[FORM, pid, started, root, root_started, descriptor, inode], rest)) = numbers.split_first_chunk()
        else {
            return Err(NoOffer);
        };
        let (lender, root) = (process(pid, started)?, process(root, root_started)?);
        let lifeline = match *rest {
            [] => None,
            [pid, started, descriptor, inode] => {
                Some(Lifeline { process: process(pid, started)?, descriptor: narrow(descriptor)?, inode })
            }
            _ => return Err(NoOffer),
        };
        Ok(Self { lender, root, descriptor: narrow(descriptor)?, inode, lifeline })
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
    /// There is no /proc, here or there, or here only a part of it.
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
            "1 2 3 4 5",
            "1 2 3 4 5 6 7",
            "2 1 2 3 4 5",
            "2 1 2 3 4 5 6 7",
            "2 1 2 3 4 5 6 7 8 9",
            "2 1 2 3 4 5 6 7 8 9 10 11",
            "2 1  2 3 4 5 6",
            "2 1 2 3 4 5 -6",
            "2 1 2 3 4 5 x",
            "2 4294967296 2 3 4 5 6",
        ] {
            assert_eq!(text.parse::<Offer>(), Err(NoOffer), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn offers_come_back_as_they_were_written(pid: u32, started: u64, descriptor: u32, inode: u64) {
            let (lender, root) = (Lender { pid, started }, Lender { pid: descriptor, started: inode });
            let by = |process| Some(Lifeline { process, descriptor: pid, inode: started });
            for lifeline in [None, by(root), by(lender)] {
                let offer = Offer { lender, root, descriptor, inode, lifeline };
                prop_assert_eq!(offer.to_string().parse(), Ok(offer));
            }
        }
    }
}
