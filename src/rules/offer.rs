//! How a run that lends its locks tells the runs below it where to look, and what may keep them from it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::process_identity::ProcessIdentity;

/// Where the runs below find what a run lends: numbers alone, because an environment is no witness. What is lent stands in
/// the lender's page.
///
/// As text: `FORM`, then the numbers in the order of the fields, separated by spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The supervisor of the run that lends its locks.
    pub lender: ProcessIdentity,
    /// It lends only to this process and below: to what is below the run itself; with `zklock hold`, to the process that it
    /// holds the lock for.
    pub root: ProcessIdentity,
    /// The lender's end of its pipe.
    pub pipe: Descriptor,
    /// The lender's page of memory.
    pub page: Descriptor,
}

/// A descriptor of the lender, and the inode of what the descriptor stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub number: u32,
    pub inode: u64,
}

/// The form of an offer as text. All 1.x keep it. An offer of another form names nobody: zklock refuses to wait for a run
/// above it that no offer names.
const FORM: u64 = 5;

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lender, root, pipe, page } = self;
        write!(f, "{FORM} {lender} {root} {} {} {} {}", pipe.number, pipe.inode, page.number, page.inode)
    }
}

impl Offer {
    /// Reads what `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        let numbers: Vec<u64> = text.split(' ').map(|number| number.parse().ok()).collect::<Option<_>>()?;
        let [FORM, pid, started, root, root_started, pipe, pipe_inode, page, page_inode] = *numbers else {
            return None;
        };
        let process = |pid: u64, started| Some(ProcessIdentity { pid: pid.try_into().ok()?, started });
        let descriptor = |number: u64, inode| Some(Descriptor { number: number.try_into().ok()?, inode });
        Some(Self {
            lender: process(pid, started)?,
            root: process(root, root_started)?,
            pipe: descriptor(pipe, pipe_inode)?,
            page: descriptor(page, page_inode)?,
        })
    }
}

/// Why we cannot borrow from a run above us. We cannot wait for that run either: it waits for us. Each has another remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Barrier {
    /// It is, or may be, another user's, or in another namespace.
    Foreign,
    /// Our environment does not say where to look.
    NoOffer,
    /// Its page is one of another version.
    Version,
    /// Its locks are lost, or its lease has become shorter.
    CalledIn,
    /// It names the servers in another way than we do.
    Servers,
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
            "4 1 2 3 4 5 6 7",
            "4 1 2 3 4 5 6 7 8",
            "5 1 2 3 4 5 6 7",
            "5 1 2 3 4 5 6 7 8 9",
            "5 1  2 3 4 5 6 7 8",
            "5 1 2 3 4 5 6 7 -8",
            "5 1 2 3 4 5 6 7 x",
            "5 4294967296 2 3 4 5 6 7 8",
        ] {
            assert_eq!(Offer::parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn offers_come_back_as_they_were_written(pid: u32, started: u64, number: u32, inode: u64) {
            let (lender, root) = (ProcessIdentity { pid, started }, ProcessIdentity { pid: number, started: inode });
            let (pipe, page) = (Descriptor { number, inode }, Descriptor { number: pid, inode: started });
            let offer = Offer { lender, root, pipe, page };
            prop_assert_eq!(Offer::parse(&offer.to_string()), Some(offer));
        }
    }
}
