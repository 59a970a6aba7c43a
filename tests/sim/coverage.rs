//! What has happened in all runs together, so that the simulator cannot go blind unnoticed.

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident,)*) => {
        /// Faults, moments at which a trap can make one, and what the product does about it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Kind { $($(#[$doc])* $kind,)* }

        const ALL: &[Kind] = &[$(Kind::$kind,)*];
    };
}

kinds! {
    /// Nothing passes between a machine and some servers.
    Cut,
    CutUp,
    CutDown,
    /// A connection is reset.
    Break,
    /// A server goes and comes back.
    Crash,
    /// A server is cut off from the leader.
    Isolate,
    /// There is another leader.
    Elect,
    FreezeServer,
    /// A server hears of commits late.
    Lag,
    EndLag,
    /// A machine and its server are cut off from all others.
    Rack,
    /// A keeper stops, and when it goes on its machine has been cut off.
    FreezeAndCut,
    FreezeSupervisor,
    ThawSupervisor,
    FreezeKeeper,
    ThawKeeper,
    /// SIGSTOP to everything, and SIGCONT.
    FreezeAll,
    ThawAll,
    /// The whole machine sleeps.
    Sleep,
    Awake,
    KillSupervisor,
    KillKeeper,
    KillCommand,
    /// Ctrl-Z and `fg`.
    CtrlZ,
    Foreground,
    /// An operator deletes a contender's node, expires its session, writes to its node.
    DeleteNode,
    ExpireSession,
    SetData,
    /// SIGTERM to zklock.
    Terminate,
    /// The servers remove the lock's node while it has no children.
    ReapParent,
    // Moments.
    AtCreate,
    AtRelease,
    AtBeat,
    AtHeld,
    AtSpawn,
    /// A command runs, and a connection was granted a shorter session timeout.
    AtShortened,
    // What came of it.
    Silence,
    Expiry,
    Throttled,
    /// A creation was done and the reply did not come, or it was not done either.
    ReplyLost,
    CreationLost,
    Requeued,
    Lost,
    LostWhileFrozen,
    /// A session ended because of a shorter timeout that nobody had heard of.
    LostUnheard,
    NotFree,
    Interrupted,
    Unavailable,
    RanOut,
    OnLost,
    KilledByKeeper,
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

    /// What has never happened.
    pub(crate) fn missing(&self) -> Vec<Kind> {
        ALL.iter().copied().filter(|kind| self.0[*kind as usize] == 0).collect()
    }

    pub(crate) fn table(&self) -> String {
        let entries = ALL.iter().map(|kind| format!("{kind:?} {}", self.0[*kind as usize]));
        entries.collect::<Vec<_>>().join(", ")
    }
}
