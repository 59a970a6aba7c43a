//! Nested runs: a zklock that the command of another run starts, on the same machine. What it borrows, and from which
//! run, is decided by the product. The pipes and the process table are imitated here.

use std::cell::Cell;
use std::rc::Rc;

use fastrand::Rng;
use zklock::rules::event::CommandEnd;
use zklock::rules::loans::{Demand, Lent, Loans, Processes, Unlent};
use zklock::rules::lock_path::LockPath;
use zklock::rules::message::{Grant, GrantedLock};
use zklock::rules::mode::Mode;
use zklock::rules::offer::{Barrier, Descriptor, Offer};
use zklock::rules::outcome::{self, Outcome};
use zklock::rules::process_identity::ProcessIdentity;
use zklock::rules::signal::Signal;

use crate::coverage::Kind;
use crate::faults::{FAULTS, Fault, MOMENTS, Trap, lock_path, some_time};
use crate::hold::Hold;
use crate::host::{Host, Process};
use crate::run::{script, settings};
use crate::state::{Event, KeeperState, MS, State, Time};

/// How long a suspended script takes to start what it starts next.
const NEXT_STEP: Time = 20 * MS;

/// When each process started: a number is not given to another process.
pub(crate) const STARTED: u64 = 1;

/// The number of a lender's pipe in its process.
const DESCRIPTOR: u32 = 5;

/// How a run is nested in another.
#[derive(Clone, Copy)]
pub(crate) struct Nesting {
    /// The run whose command starts it.
    pub(crate) outer: usize,
    /// It is that command: `zklock A -- zklock B`.
    pub(crate) is_command: bool,
    /// How long after its start the command starts it, and whether the command waits for it.
    pub(crate) delay: Time,
    pub(crate) is_awaited: bool,
    /// Whether it stays in the command's process group.
    pub(crate) in_group: bool,
}

/// The end of a borrower: as long as one is left, the lender knows of it.
pub(crate) type PipeEnd = Rc<Cell<bool>>;

/// A run above, as a borrower has it open: its pipe, and the keeper that writes its lease.
#[derive(Clone, Debug)]
pub(crate) struct Lender {
    pub(crate) pipe: PipeEnd,
    pub(crate) keeper: usize,
}

impl Lender {
    pub(crate) fn is_lost(&self) -> bool {
        self.pipe.get()
    }
}

/// The pipe of a lender, and what its page says.
#[derive(Default)]
pub(crate) struct Lending {
    /// Whether what is lent is lost: the pipe hangs up, or has a byte in it. Each borrower has a copy.
    is_lost: PipeEnd,
    /// Whether anything more is lent.
    is_open: bool,
    pub(crate) lent: Option<Lent>,
    /// How many pipes there have been.
    inode: u64,
}

impl Lending {
    /// This run lends from now on, by another pipe.
    pub(crate) fn begin(&mut self) {
        *self = Self { is_lost: Rc::default(), is_open: true, lent: None, inode: self.inode + 1 };
    }

    pub(crate) fn end(&mut self) {
        self.is_open = false;
    }

    /// What is lent is lost.
    pub(crate) fn call_in(&mut self) {
        self.end();
        self.is_lost.set(true);
    }

    pub(crate) fn is_over(&self) -> bool {
        !self.is_open && Rc::strong_count(&self.is_lost) == 1
    }

    /// Whether this is an end of the newest pipe.
    fn is_ours(&self, pipe: &PipeEnd) -> bool {
        Rc::ptr_eq(pipe, &self.is_lost)
    }
}

/// The process ids of a run's supervisor and, with `zklock hold`, of the caller.
pub(crate) fn pid(host: usize) -> u32 {
    1000 + 2 * u32::try_from(host).unwrap_or(0)
}

pub(crate) fn caller_pid(host: usize) -> u32 {
    pid(host) + 1
}

/// A supervisor.
pub(crate) fn lender(host: usize) -> ProcessIdentity {
    ProcessIdentity { pid: pid(host), started: STARTED }
}

fn host_of(pid: u32) -> usize {
    (pid as usize - 1000) / 2
}

/// Pipes and processes as /proc shows them.
pub(crate) struct Proc<'s>(pub(crate) &'s State);

impl Processes for Proc<'_> {
    type Lender = Lender;

    fn open(&self, offer: Offer) -> Result<(Lent, Lender), Unlent> {
        let Host { lending, keeper, .. } = &self.0.hosts[host_of(offer.lender.pid)];
        let is_there = lending.is_open && lending.inode == offer.pipe.inode && self.lives(offer.lender);
        let (Some(lent), Some(keeper), true) = (&lending.lent, *keeper, is_there) else { return Err(Unlent::Over) };
        if lending.is_lost.get() {
            return Err(Unlent::Barred(Barrier::CalledIn));
        }
        Ok((lent.clone(), Lender { pipe: Rc::clone(&lending.is_lost), keeper }))
    }

    fn is_above(&self, root: ProcessIdentity, pid: u32) -> Option<bool> {
        let host = host_of(pid);
        let above = self.0.above(host).any(|outer| {
            let state = &self.0.hosts[outer];
            if let Some(hold) = &state.hold {
                // What a run leaves when it dies does not come to the caller.
                let mut between = self.0.above(host).take_while(|run| *run != outer);
                return root.pid == caller_pid(outer)
                    && hold.has_caller()
                    && between.all(|run| self.0.hosts[run].alive);
            }
            root.pid == self::pid(outer) && state.alive
        });
        Some(above)
    }
}

impl Proc<'_> {
    fn lives(&self, process: ProcessIdentity) -> bool {
        process.started == STARTED && self.0.hosts[host_of(process.pid)].alive
    }
}

impl State {
    /// The runs that a run is nested in, the nearest first.
    pub(crate) fn above(&self, host: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(self.outer(host), |outer| self.outer(*outer))
    }

    fn outer(&self, host: usize) -> Option<usize> {
        self.hosts[host].nesting.map(|nesting| nesting.outer)
    }

    /// The runs that are nested in this one, each after the one that it is nested in.
    pub(crate) fn below(&self, host: usize) -> Vec<usize> {
        self.nested().filter(|below| self.above(*below).any(|above| above == host)).collect()
    }

    fn nested(&self) -> std::ops::Range<usize> {
        self.first_nested..self.hosts.len()
    }

    /// The runs on the same machine, this one included.
    pub(crate) fn machine(&self, host: usize) -> Vec<usize> {
        let top = self.top(host);
        std::iter::once(top).chain(self.below(top)).collect()
    }

    /// The run on the same machine that is nested in no other.
    pub(crate) fn top(&self, host: usize) -> usize {
        self.above(host).last().unwrap_or(host)
    }

    /// What this run tells its command, if it lends anything.
    fn offer(&self, host: usize) -> Option<Offer> {
        let Host { hold, lending, keeper, .. } = &self.hosts[host];
        let root = if hold.is_some() { caller_pid(host) } else { pid(host) };
        let root = ProcessIdentity { pid: root, started: STARTED };
        let descriptor = Descriptor { number: DESCRIPTOR, inode: lending.inode };
        keeper.map(|_| Offer { lender: lender(host), root, pipe: descriptor, page: descriptor })
    }

    /// What a run wants of the runs above it.
    pub(crate) fn wanting<T>(&self, host: usize, then: impl FnOnce(Demand<'_>) -> T) -> T {
        let Host { lock, takes_all, mode, once_per, .. } = &self.hosts[host];
        let others = (0..2).filter(|other| *takes_all && other != lock);
        let paths =
            std::iter::once(*lock).chain(others).map(|lock| LockPath::parse(&lock_path(lock), "").expect("a path"));
        let paths: Vec<_> = paths.collect();
        let locks = paths.iter().collect();
        then(Demand { servers: vec![], chroot: "", locks, mode: *mode, is_once_per: once_per.is_some() })
    }

    /// The keeper of the lease that a run relies on: its own, or that of its lender.
    pub(crate) fn keeper_of(&self, host: usize, lender: Option<&Lender>) -> Option<&KeeperState> {
        lender.map(|lender| lender.keeper).or(self.hosts[host].keeper).map(|keeper| &self.keepers[keeper])
    }

    /// The command of a run has begun: it will start these.
    pub(crate) fn plan_nested(&mut self, host: usize) {
        for nested in self.nested() {
            let Some(nesting) = self.hosts[nested].nesting.filter(|nesting| nesting.outer == host) else { continue };
            if nesting.is_command {
                self.hosts[nested].alive = true;
                self.hosts[host].processes[0].nested = Some(nested);
            }
            self.after(nesting.delay, Event::Start(nested));
        }
    }

    /// The command of another run starts this one. Returns false if it does not.
    pub(crate) fn is_nested_now(&mut self, host: usize) -> bool {
        let Some(Nesting { outer, is_command, in_group, .. }) = self.hosts[host].nesting else { return true };
        // What is lent to the run that starts this one cannot be borrowed once its lender's command has ended.
        let is_gone = |above: usize| {
            let state = &self.hosts[above];
            let has_caller = state.hold.as_ref().is_none_or(Hold::has_caller);
            state.alive && (!state.lending.is_open || !has_caller)
        };
        if self.above(outer).any(is_gone) {
            if std::mem::take(&mut self.hosts[host].alive) {
                self.supervisor_has_gone(host, CommandEnd::Exited(1));
            }
            return false;
        }
        let state = &self.hosts[outer];
        let pending = if let Some(hold) = &state.hold {
            self.hosts[host].alive = hold.has_caller();
            None
        } else if is_command {
            state.root_dies_of
        } else {
            let is_script = |process: &&Process| process.alive && !process.killed && process.nested.is_none();
            let script = state.processes.iter().find(is_script);
            let Some(script) = script else { return false };
            if script.suspended {
                self.after(NEXT_STEP, Event::Start(host));
                return false;
            }
            let process = Process {
                // What a process starts that nobody looks after any more is not looked after either.
                counted: script.counted && !state.leaves,
                in_group: in_group && script.in_group,
                nested: Some(host),
                ..Process::new(Time::MAX)
            };
            self.hosts[outer].processes.push(process);
            self.hosts[host].alive = true;
            None
        };
        if !self.hosts[host].alive {
            return false;
        }
        let (state, offer) = (&self.hosts[outer], self.offer(outer));
        let nodes = state.grant.iter().flat_map(Grant::all).map(|granted| &granted.node);
        let mut held = state.held.clone();
        held.extend(nodes.filter(|node| !state.held.contains(node)).cloned());
        let offers: Vec<Offer> = state.offers.iter().copied().chain(offer).collect();
        let nested = &mut self.hosts[host];
        (nested.held, nested.offers) = (held, offers);
        nested.signals.extend(pending.map(|signal| (signal, false)));
        nested.is_passed_on |= pending.is_some();
        self.note(|| format!("host {host} is nested in {outer}"));
        true
    }

    /// A supervisor that needs locks looks at what the runs above it lend.
    pub(crate) fn borrow(&mut self, host: usize) -> Loans<Lender> {
        let offers = &self.hosts[host].offers;
        let loans = self.wanting(host, |demand| demand.borrow(offers, pid(host), &Proc(self)));
        if let Loans::Nothing(seen) = &loans
            && seen.iter().any(|(_, unlent)| *unlent == Err(Unlent::Over))
        {
            self.coverage.count(Kind::LoanOver);
        }
        loans
    }

    /// Whether a run has a pipe of another open.
    fn has_borrowed(&self, host: usize, from: usize) -> bool {
        let (state, lending) = (&self.hosts[host], &self.hosts[from].lending);
        state.lender.iter().chain(&state.guard.lender).any(|lender| lending.is_ours(&lender.pipe))
    }

    /// What a run has lent is lost: its borrowers hear of it.
    pub(crate) fn call_in(&mut self, host: usize) {
        if self.hosts[host].lending.is_lost.get() {
            return;
        }
        self.hosts[host].lending.call_in();
        for below in self.below(host) {
            if self.has_borrowed(below, host) {
                self.hosts[below].lender_lost_at = self.now;
                // The pipe tells (F_SETSIG).
                self.hosts[below].frozen = false;
                if self.hosts[below].is_running() {
                    let is_hold = self.hosts[host].hold.is_some();
                    self.coverage.count(if is_hold { Kind::LostHold } else { Kind::LostGuard });
                }
                self.wake_supervisor(below);
                self.wake_guard(below);
            }
        }
    }

    /// Something of a nested run has ended: the guards and the supervisors above it may wait for that.
    pub(crate) fn wake_above(&mut self, host: usize) {
        let above: Vec<usize> = self.above(host).collect();
        for outer in above {
            self.wake_guard(outer);
            self.wake_supervisor(outer);
            self.wake_stand_in(outer);
            if let Some(keeper) = self.hosts[outer].keeper {
                self.touch_keeper(keeper);
            }
        }
    }

    /// A supervisor has ended, in whatever way. The kernel closes its pipes, and others see that it has gone.
    pub(crate) fn supervisor_has_gone(&mut self, host: usize, end: CommandEnd) {
        // The keeper of `zklock hold` has a copy of the pipe's end.
        self.hosts[host].lending.end();
        let has_keeper = self.hosts[host].keeper.is_some_and(|keeper| self.keepers[keeper].alive);
        if self.hosts[host].hold.is_none() || !has_keeper {
            self.call_in(host);
        }
        self.hosts[host].lender = None;
        for nested in self.below(host) {
            if let Some(keeper) = self.hosts[nested].keeper {
                self.touch_keeper(keeper);
            }
        }
        let Some(outer) = self.outer(host) else { return };
        let processes = &mut self.hosts[outer].processes;
        if let Some(number) = processes.iter().position(|process| process.alive && process.nested == Some(host)) {
            processes[number].alive = false;
            if number == 0 {
                self.root_ends(outer, end);
            } else {
                // A script that has waited for it goes on.
                self.schedule(self.now, Event::Exit { host: outer, process: 0, killed: false });
            }
        }
        self.wake_above(host);
    }

    /// Whether the command of a run waits for a run that it has started.
    pub(crate) fn awaits_nested(&self, host: usize) -> bool {
        let is_awaited = |nested: usize| self.hosts[nested].nesting.is_some_and(|nesting| nesting.is_awaited);
        self.hosts[host].processes.iter().any(|process| process.alive && process.nested.is_some_and(is_awaited))
    }

    /// Whether nothing is left of a run's command: neither its processes, nor those of runs below.
    pub(crate) fn is_empty(&self, host: usize) -> bool {
        let is_gone = |nested: &usize| {
            let state = &self.hosts[*nested];
            !state.guard.alive
                && state.is_empty()
                && self.keepers.iter().all(|keeper| keeper.host != *nested || !keeper.alive)
        };
        // What the caller of `zklock hold` starts is not below the guard.
        let below = if self.hosts[host].hold.is_some() { vec![] } else { self.below(host) };
        self.hosts[host].is_empty() && below.iter().all(is_gone)
    }

    /// Whether any process is alive that must not run without the lock of this run.
    pub(crate) fn is_running(&self, host: usize) -> bool {
        let counts = |nested: &usize| {
            let mut between = std::iter::once(*nested).chain(self.above(*nested)).take_while(|above| *above != host);
            let is_left = self.hosts[host].leaves
                || self.hosts[host].hold.is_some()
                || between.any(|run| run != *nested && self.hosts[run].leaves);
            self.hosts[*nested].is_running() && (!is_left || self.uses(*nested, host))
        };
        self.hosts[host].is_running() || self.below(host).iter().any(counts)
    }

    /// Whether a run uses a lock that another holds.
    pub(crate) fn uses(&self, host: usize, outer: usize) -> bool {
        let nodes = |run: usize| self.hosts[run].grant.iter().flat_map(Grant::all).map(|granted| &granted.node);
        let is_own = |node: &String| self.above(outer).all(|above| nodes(above).all(|lent| lent != node));
        nodes(outer).any(|node| is_own(node) && nodes(host).any(|used| used == node))
    }

    /// SIGKILL to what has come to the guard, or the supervisor, of this run because its own supervisor had died or ended.
    pub(crate) fn kill_orphans(&mut self, host: usize) {
        if self.hosts[host].hold.is_some() {
            return;
        }
        for nested in self.below(host) {
            let state = &self.hosts[nested];
            let is_orphan = !state.alive && (state.guard.alive || state.keeper.is_some() || !state.is_empty());
            // If the run between is alive, they are its own.
            if is_orphan && self.above(nested).take_while(|above| *above != host).all(|run| !self.hosts[run].alive) {
                let late = self.latency();
                self.after(late, Event::KillOrphans(nested));
            }
        }
    }

    pub(crate) fn orphans_die(&mut self, host: usize) {
        if self.hosts[host].asleep.is_some() {
            return self.hosts[host].deferred.push(Event::KillOrphans(host));
        }
        self.end_keeper(host);
        if self.hosts[host].guard.alive {
            self.guard_dies(host);
        } else {
            self.kill_processes(host);
        }
    }

    /// A signal reaches the runs that the command has started.
    pub(crate) fn signal_nested(&mut self, host: usize, signal: Signal) {
        for nested in self.started_by(host) {
            self.hosts[nested].signals.push((signal, false));
            self.hosts[nested].is_passed_on = true;
            self.wake_supervisor(nested);
        }
    }

    /// The runs that the command of this one has started, as far as their supervisors live.
    pub(crate) fn started_by(&self, host: usize) -> Vec<usize> {
        self.hosts[host].processes.iter().filter(|process| process.alive).filter_map(|process| process.nested).collect()
    }

    /// Whether nobody of this run can stop what its command has started: the guard is dead, and the supervisor dead or
    /// suspended.
    pub(crate) fn is_helpless(&self, host: usize) -> bool {
        let state = &self.hosts[host];
        !state.guard.alive && (!state.alive || state.frozen)
    }

    /// Whether this run is out of reach for a run above, of which neither guard nor supervisor can act: it does not hear of
    /// that, it is not in that command's process group, and no run between dies with that group, because one has left it or
    /// has ended.
    pub(crate) fn is_out_of_reach(&self, host: usize) -> bool {
        self.above(host).any(|outer| {
            let (state, uses) = (&self.hosts[outer], self.uses(host, outer));
            let hears = uses && state.lending.is_lost.get() && !self.hosts[host].frozen;
            let mut links = std::iter::once(host).chain(self.above(host)).take_while(|run| *run != outer);
            let is_elsewhere = if state.hold.is_some() {
                uses
            } else {
                links.any(|run| {
                    let has_left = self.hosts[run].nesting.is_some_and(|nesting| !nesting.in_group);
                    has_left || (run != host && self.hosts[run].released)
                })
            };
            self.is_helpless(outer) && !hears && is_elsewhere
        })
    }

    /// The runs whose locks this one has borrowed, the nearest first.
    pub(crate) fn lenders(&self, host: usize) -> impl Iterator<Item = usize> {
        self.above(host).filter(move |outer| self.has_borrowed(host, *outer))
    }

    /// What a nested command has been granted is its own, or is lent by a run that knows of that.
    pub(crate) fn check_loans(&mut self, host: usize, grant: &Grant) {
        if self.hosts[host].nesting.is_none() {
            return;
        }
        let above: Vec<usize> = self.above(host).collect();
        let holds = |outer: usize, granted: &GrantedLock| {
            self.hosts[outer].grant.iter().flat_map(Grant::all).any(|held| held.node == granted.node)
        };
        // The highest one that holds it is the lender.
        let lenders: Vec<usize> =
            grant.all().filter_map(|granted| above.iter().copied().rfind(|outer| holds(*outer, granted))).collect();
        for outer in &above {
            match (lenders.contains(outer), self.has_borrowed(host, *outer)) {
                (true, true) => {
                    let is_held = self.hosts[*outer].hold.is_some();
                    self.coverage.count(if is_held { Kind::BorrowedFromHold } else { Kind::Borrowed });
                }
                (true, false) => {
                    return self.fail(format!("host {outer} does not know that host {host} uses its lock"));
                }
                (false, true) => {
                    return self.fail(format!("host {host} uses nothing of host {outer}, and gives nothing back"));
                }
                (false, false) => {}
            }
        }
    }

    /// Whether this refusal was to be expected: a run that is nested wants more than one run above holds, or what was lent has
    /// been called in.
    pub(crate) fn is_unlent(&self, host: usize) -> bool {
        let Host { mode, takes_all, .. } = self.hosts[host];
        self.above(host).any(|outer| {
            let Host { mode: held, lending, .. } = &self.hosts[outer];
            takes_all || *held != Mode::Exclusive && mode != Mode::Shared && *held != mode || lending.is_lost.get()
        })
    }
}

/// The end of the process that was the supervisor of a run.
pub(crate) fn end_of(outcome: Outcome) -> CommandEnd {
    match outcome.end() {
        outcome::End::DieOf(signal) => CommandEnd::Signaled(signal),
        outcome::End::Exit(status) => CommandEnd::Exited(status),
    }
}

/// Nests further runs in those of a scene, and makes faults that may concern them.
pub(crate) fn nest(rng: &mut Rng, state: &mut State, timeout: Time) {
    state.first_nested = state.hosts.len();
    let first = rng.usize(0..state.hosts.len());
    if rng.u32(0..3) == 0 {
        let hold = Hold::new(some_time(rng, timeout * 3 / 2), rng.u32(0..4) > 0, rng.u32(0..4) > 0);
        state.hosts[first].holds(hold);
        if rng.u32(0..8) == 0 {
            state.after(rng.u64(0..=timeout), Event::CallerEnds(first));
        }
    }
    for _ in 0..rng.usize(1..4) {
        let count = state.hosts.len();
        // Most often in the newest, so that there are several levels.
        let outer = match count - state.first_nested {
            0 => first,
            nested => [first, count - 1, state.first_nested + rng.usize(0..nested)][rng.usize(0..3)],
        };
        // What is left behind of a run is not below the caller of `zklock hold` any more.
        let is_deep = state.hosts[first].hold.is_some() && state.above(outer).count() > 1;
        let outer = if is_deep { state.outer(outer).unwrap_or(outer) } else { outer };
        let takes = |lock: usize, host: &Host| host.takes_all || host.lock == lock;
        let holds =
            |lock: usize| std::iter::once(outer).chain(state.above(outer)).any(|host| takes(lock, &state.hosts[host]));
        // A run that holds the second lock and waits for the first would wait for those that do the opposite.
        let may_take_first = !holds(1);
        let both = (may_take_first || holds(0)) && rng.u32(0..4) == 0;
        let lock = if may_take_first && rng.u32(0..3) > 0 { 0 } else { usize::from(!may_take_first || rng.bool()) };
        let host = &state.hosts[outer];
        let mode = match (host.mode, rng.u32(0..6)) {
            (Mode::Exclusive, 0) if host.dialects.len() == 1 => Mode::Shared,
            (Mode::Shared, 0) => Mode::Exclusive,
            (mode, _) => mode,
        };
        let servers = host.cuts.len();
        let is_first = !state.hosts.iter().any(|host| host.nesting.is_some_and(|nesting| nesting.outer == outer));
        let dialects = host.dialects.clone();
        let mut nested = Host::new(lock, mode, settings(rng, timeout), script(rng, timeout), servers);
        (nested.takes_all, nested.dialects, nested.alive) = (both, dialects, false);
        let is_command = is_first && state.hosts[outer].hold.is_none() && rng.u32(0..3) == 0;
        nested.nesting = Some(Nesting {
            outer,
            is_command,
            delay: if is_command { 2 * MS } else { some_time(rng, timeout / 2) },
            is_awaited: rng.bool(),
            in_group: is_command || rng.u32(0..8) > 0,
        });
        state.hosts.push(nested);
        let host = &mut state.hosts[outer];
        (host.once_per, host.script.missing) = (None, false);
        if is_command {
            host.script.children = 0;
        }
    }
    let target =
        |rng: &mut Rng| if rng.u32(0..3) == 0 { first } else { rng.usize(state.first_nested..state.hosts.len()) };
    let faults: Vec<Fault> = (0..rng.usize(0..3))
        .map(|_| Fault {
            kind: FAULTS[rng.usize(0..FAULTS.len())],
            host: target(rng),
            time: some_time(rng, timeout * 3 / 2),
        })
        .collect();
    for fault in faults {
        state.after(rng.u64(0..=2 * timeout), Event::Fault(fault));
    }
    if rng.u32(0..4) == 0 || state.hosts[first].hold.is_some() && rng.bool() {
        // Some are not killed with the group of a command.
        let nested = rng.usize(state.first_nested..state.hosts.len());
        state.hosts[nested].nesting.iter_mut().for_each(|nesting| nesting.in_group = nesting.is_command);
        state.traps.push(Trap {
            moment: Kind::AtNestedSpawn,
            countdown: rng.u32(1..4),
            delay: rng.u64(0..MS / 4),
            fault: Kind::KillLender,
            time: some_time(rng, timeout),
        });
    }
    if rng.bool() {
        state.traps.push(Trap {
            moment: MOMENTS[rng.usize(0..MOMENTS.len())],
            countdown: rng.u32(1..8),
            delay: some_time(rng, timeout / 8),
            fault: FAULTS[rng.usize(0..FAULTS.len())],
            time: some_time(rng, timeout * 3 / 2),
        });
    }
}
