//! Counts what has happened in all runs together, so that the test fails if some fault or consequence never happens.

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident,)*) => {
        /// Faults, moments at which a trap can make a fault, and their consequences.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Kind { $($(#[$doc])* $kind,)* }

        const ALL: &[Kind] = &[$(Kind::$kind,)*];
    };
}

/// Some of them, in this order.
macro_rules! list {
    ($($kind:ident)*) => { &[$($crate::coverage::Kind::$kind),*] };
}
pub(crate) use list;

kinds! {
    /// Nothing passes between a machine and the servers, or only in one direction.
    Cut, CutUp, CutDown,
    /// A connection is reset.
    Break,
    /// A server goes down and comes back.
    Crash,
    /// A server is cut off from the leader.
    Isolate,
    /// Another server becomes the leader.
    Elect,
    FreezeServer,
    /// A server hears of commits late.
    Lag, EndLag,
    /// A server misses the deletion of a contender's node, and shows that node for ever.
    Ghost,
    /// The servers follow a new leader, and one of them has lost a contender's node.
    Lacking,
    /// All servers come back with an older copy of their data.
    Restore,
    /// A machine and its server are cut off from all others.
    Rack,
    /// A keeper is suspended, and its machine is cut off before it continues.
    FreezeAndCut,
    FreezeSupervisor, ThawSupervisor, FreezeKeeper, ThawKeeper, FreezeGuard, ThawGuard,
    /// SIGSTOP and SIGCONT to supervisor, keeper, guard and command.
    FreezeAll, ThawAll,
    /// The whole machine sleeps.
    Sleep, Awake,
    KillSupervisor, KillKeeper, KillGuard, KillCommand,
    /// A run that lends its lock to this one dies, and nothing of it kills this one at once.
    KillLender,
    /// Ctrl-Z and `fg`.
    CtrlZ, Foreground,
    /// An operator deletes a contender's node and creates one at the same path, which goes later.
    RemakeNode, RemoveRemade,
    /// An operator deletes a contender's node, ends its session, or writes to its node.
    DeleteNode, ExpireSession, SetData,
    /// A client that lies creates a node that looks like a contender's, or writes into it; and deletes all of them.
    Forge, RemoveForged,
    /// A contender is asked to give up, by the data of its node.
    Revoke,
    /// SIGTERM to zklock.
    Terminate,
    /// The servers remove the lock's node while it has no children.
    ReapParent,
    // Moments for traps.
    AtCreate, AtRelease, AtBeat, AtHeld, AtSpawn,
    /// A nested run opens the gate of its command.
    AtNestedSpawn,
    /// While a command runs, a connection is granted a shorter session timeout.
    AtShortened,
    // Consequences.
    Silence, Expiry, Throttled,
    /// A connection was lost before the reply to a creation came; the creation had been done, or had not.
    ReplyLost, CreationLost, Requeued, Lost, LostWhileFrozen, StoodStill,
    /// A session ended because of a shorter timeout that its client had not heard of.
    LostUnheard, NotFree, Interrupted, Unavailable, RanOut, KilledByGuard, KilledByTimer,
    /// A command was taken back because its guard was suspended at the gate.
    Recalled, QueuedAgain,
    /// A run was recorded as successful, a command was skipped because of one, and a record was lost with its session.
    Recorded, Skipped, Unrecorded,
    /// A holder has vanished, and the next run has marked its record, and waits; a holder's end was recorded as clean.
    Marked, Delayed, Released,
    /// A nested run has started its command under a lock that is lent to it, has found that its
    /// outer run lends nothing any more, or wanted more than is held above it.
    Borrowed, LoanOver, Upgrade,
    /// A command has ended, and nested runs go on under the lock of its run.
    LentOn,
    /// The caller of `zklock hold` has ended. A nested run has started its command under a lock of `zklock hold`, and has lost
    /// it. The same under the lock of a run with a guard.
    CallerEnded, BorrowedFromHold, LostHold, LostGuard,
    /// A waiter far back, which seldom pings, has got its lock so soon that no ping since then may have been relayed.
    FromFarBack,
    /// A server has shown a node that it should have deleted, and still does; a waiter has found that out.
    SeenThrough,
    /// A server has not shown a node that exists, and a waiter has found that out.
    FoundLacking,
}

/// How often each kind has happened.
#[derive(Clone)]
pub(crate) struct Coverage([u64; ALL.len()]);

impl Default for Coverage {
    fn default() -> Self {
        Self([0; ALL.len()])
    }
}

impl Coverage {
    pub(crate) fn count(&mut self, kind: Kind) {
        self.0[kind as usize] += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, more) in self.0.iter_mut().zip(&other.0) {
            *sum += more;
        }
    }

    /// The kinds that have never happened.
    pub(crate) fn missing(&self) -> Vec<Kind> {
        ALL.iter().copied().filter(|kind| self.0[*kind as usize] == 0).collect()
    }

    pub(crate) fn table(&self) -> String {
        let entries = ALL.iter().map(|kind| format!("{kind:?} {}", self.0[*kind as usize]));
        entries.collect::<Vec<_>>().join(", ")
    }
}
