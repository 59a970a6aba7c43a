//! The state of a run, without the keepers' futures: the clock, the events that are due, the hosts and the servers.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use zklock::rules::child_name::ChildName;
use zklock::rules::instant::Instant;
use zklock::rules::lease::Span;
use zklock::rules::loans::Seen;
use zklock::rules::message::{Order, Report};

use crate::chance::Chance;
use crate::coverage::Coverage;
use crate::faults::{Fault, Trap};
use crate::host::Host;
use crate::network::Conn;
use crate::servers::Servers;

/// Virtual time in microseconds.
pub(crate) type Time = u64;
pub(crate) const MS: Time = 1000;

pub(crate) fn instant(time: Time) -> Instant {
    Instant::from_boot(Duration::from_micros(time))
}

pub(crate) fn micros(time: Duration) -> Time {
    u64::try_from(time.as_micros()).unwrap_or(Time::MAX / 4)
}

/// The most turns of a process in a virtual second.
const MOST_TURNS: u32 = 1000;

/// Something that is due. Numbers are indices into the vectors of [`State`].
#[derive(Debug)]
pub(crate) enum Event {
    /// A timer of a keeper.
    Wake(usize),
    /// Bytes on their way to a server over this connection.
    Up(usize),
    /// Bytes on their way to a client over this connection.
    Down(usize),
    /// Messages on their way from this server to the leader, and from the leader to it.
    Forward(usize),
    Commit(usize),
    /// This server tells the leader which sessions it has heard from.
    Tell(usize),
    /// This server has not heard from a leader for so long that it stops serving.
    GiveUp(usize),
    /// This server serves again.
    Recover(usize),
    /// This session may be over.
    Expire(usize),
    /// A user starts zklock.
    Start(usize),
    /// A supervisor's loop takes a turn.
    Turn(usize),
    /// A guard takes a turn.
    Guard(usize),
    /// The kernel's timer for this host's guard.
    Deadline(usize),
    /// What has waited at the gate of this host passes it.
    Pass(usize),
    /// With `zklock hold`: what stands in for a command takes a turn, and the caller ends.
    StandIn(usize),
    CallerEnds(usize),
    /// A supervisor that has finished stops waiting for its keeper.
    EndKeeper(usize),
    /// A process of this host's command ends by itself, or because it was killed.
    Exit {
        host: usize,
        process: usize,
        killed: bool,
    },
    /// What a nested run has left to the guard above it is killed.
    KillOrphans(usize),
    /// An excuse of this host's command is over.
    Verify(usize),
    Fault(Fault),
}

/// How many turns a process has taken in this virtual second. One that polls what stays ready, or sets its timer to an
/// instant that has passed, takes thousands.
#[derive(Debug, Default)]
pub(crate) struct TurnRate {
    second: Time,
    turns: u32,
}

impl TurnRate {
    /// Counts a turn. Returns whether there have been too many.
    pub(crate) fn is_exceeded(&mut self, now: Time) -> bool {
        let second = now / (1000 * MS);
        if std::mem::replace(&mut self.second, second) != second {
            self.turns = 0;
        }
        self.turns += 1;
        self.turns > MOST_TURNS
    }
}

/// A keeper as its supervisor and the network see it.
pub(crate) struct KeeperState {
    pub(crate) host: usize,
    /// Whether the process exists.
    pub(crate) alive: bool,
    pub(crate) frozen: bool,
    pub(crate) reports: Vec<Report>,
    pub(crate) orders: Vec<Order>,
    /// From when its lease counts, and when its last answered beat was sent.
    pub(crate) lease: Option<Time>,
    /// When the lease demands SIGKILL, and when it ends.
    pub(crate) limits: Option<(Time, Time)>,
    /// The lease as it shows.
    pub(crate) span: Option<Span>,
    pub(crate) revoked: bool,
    /// What has come of the offers of the runs above.
    pub(crate) seen: Vec<Seen>,
    /// When it last reported anything.
    pub(crate) reported_at: Time,
    pub(crate) last_beat: Option<Time>,
    /// Until when it has been far back in a queue.
    pub(crate) calm_until: Option<Time>,
    /// When the servers last answered anything.
    pub(crate) answered: Option<Time>,
    pub(crate) conns: Vec<usize>,
    /// The server that is asked last.
    pub(crate) distrusted: Option<usize>,
    /// The children of each lock in the last list that it has read since it created a node.
    pub(crate) listed: Vec<(String, Vec<ChildName>)>,
    /// How often it was polled.
    pub(crate) turn: u64,
    turn_rate: TurnRate,
    /// When it asks to be polled again, and when it will be.
    wake_at: Option<Time>,
    armed: Option<(Time, Time)>,
}

impl KeeperState {
    pub(crate) fn new(host: usize, seen: Vec<Seen>) -> Self {
        Self {
            host,
            seen,
            alive: true,
            frozen: false,
            reports: vec![],
            orders: vec![],
            lease: None,
            limits: None,
            span: None,
            revoked: false,
            reported_at: 0,
            last_beat: None,
            calm_until: None,
            answered: None,
            conns: vec![],
            distrusted: None,
            listed: vec![],
            turn: 0,
            turn_rate: TurnRate::default(),
            wake_at: None,
            armed: None,
        }
    }
}

pub(crate) struct State {
    pub(crate) now: Time,
    /// What is due, by its time. The number keeps simultaneous events in the order in which they were scheduled.
    due: BTreeMap<(Time, u64), Event>,
    sequence: u64,
    pub(crate) chance: Chance,
    pub(crate) hosts: Vec<Host>,
    /// Those from this one on are nested in others.
    pub(crate) first_nested: usize,
    pub(crate) keepers: Vec<KeeperState>,
    pub(crate) conns: Vec<Conn>,
    pub(crate) servers: Servers,
    /// The keepers that have to be polled, that were just started, and that have just ended.
    pub(crate) dirty: Vec<usize>,
    pub(crate) born: Vec<usize>,
    pub(crate) dead: Vec<usize>,
    pub(crate) traps: Vec<Trap>,
    /// The nodes that operators have created in place of others. No server misses their deletion.
    pub(crate) remade: Vec<String>,
    /// The nodes that a liar has created.
    pub(crate) forged: Vec<String>,
    /// Whether there has been a fault, whether one of them keeps a keeper from hearing or a guard from acting, and whether
    /// there has been at most one of these.
    pub(crate) faulty: bool,
    pub(crate) disturbed: bool,
    pub(crate) calm: bool,
    pub(crate) coverage: Coverage,
    pub(crate) failure: Option<String>,
    trace: Option<Vec<String>>,
}

impl State {
    pub(crate) fn new(chance: Chance, servers: Servers, hosts: Vec<Host>, traced: bool) -> Self {
        Self {
            // The machines have been up for a while.
            now: 1_000_000 * MS,
            due: BTreeMap::new(),
            sequence: 0,
            chance,
            first_nested: hosts.len(),
            hosts,
            keepers: vec![],
            conns: vec![],
            servers,
            dirty: vec![],
            born: vec![],
            dead: vec![],
            traps: vec![],
            remade: vec![],
            forged: vec![],
            faulty: false,
            disturbed: false,
            calm: true,
            coverage: Coverage::default(),
            failure: None,
            trace: traced.then(Vec::new),
        }
    }

    pub(crate) fn schedule(&mut self, at: Time, event: Event) {
        self.sequence += 1;
        self.due.insert((at.max(self.now), self.sequence), event);
    }

    /// Takes back all faults that are to come.
    pub(crate) fn forget_faults(&mut self) {
        self.due.retain(|_, event| !matches!(event, Event::Fault(_)));
        self.traps.clear();
    }

    pub(crate) fn after(&mut self, time: Time, event: Event) {
        self.schedule(self.now + time, event);
    }

    /// Moves the clock to the next event and returns it. `None` if no event is due.
    pub(crate) fn advance(&mut self) -> Option<Event> {
        let ((at, _), event) = self.due.pop_first()?;
        self.now = at;
        Some(event)
    }

    pub(crate) fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>12.3} ms  {}", (self.now - 1_000_000 * MS) as f64 / 1000.0, text()));
        }
    }

    pub(crate) fn fail(&mut self, why: impl fmt::Display) {
        if self.failure.is_none() {
            self.note(|| format!("FAILED: {why}"));
            self.failure = Some(why.to_string());
        }
    }

    pub(crate) fn trace(&mut self) -> Vec<String> {
        self.trace.take().unwrap_or_default()
    }

    /// Whether the process of a keeper can run.
    pub(crate) fn keeper_runs(&self, keeper: usize) -> bool {
        let state = &self.keepers[keeper];
        state.alive && !state.frozen && self.hosts[state.host].asleep.is_none()
    }

    pub(crate) fn touch_keeper(&mut self, keeper: usize) {
        if !self.dirty.contains(&keeper) {
            self.dirty.push(keeper);
        }
    }

    pub(crate) fn freeze_keeper(&mut self, keeper: usize, frozen: bool) {
        self.keepers[keeper].frozen = frozen;
        if !frozen {
            self.revive_keeper(keeper);
        }
    }

    /// A keeper runs again.
    pub(crate) fn revive_keeper(&mut self, keeper: usize) {
        if !self.keeper_runs(keeper) {
            return;
        }
        for conn in self.keepers[keeper].conns.clone() {
            self.schedule(self.now, Event::Down(conn));
        }
        self.touch_keeper(keeper);
    }

    /// A keeper is about to be polled. It asks anew to be woken.
    pub(crate) fn begin_turn(&mut self, keeper: usize) {
        let state = &mut self.keepers[keeper];
        state.turn += 1;
        state.wake_at = None;
        if state.turn_rate.is_exceeded(self.now) {
            self.fail(format!("keeper {keeper} does not sleep between its turns"));
        }
    }

    pub(crate) fn wake_keeper_at(&mut self, keeper: usize, at: Time) {
        let wake_at = &mut self.keepers[keeper].wake_at;
        *wake_at = Some(wake_at.map_or(at, |before| before.min(at)));
    }

    /// A keeper was polled, and sleeps until its earliest timer wakes it.
    pub(crate) fn end_turn(&mut self, keeper: usize) {
        let Some(at) = self.keepers[keeper].wake_at else { return };
        if at <= self.now || self.keepers[keeper].armed.is_none_or(|(armed, _)| armed != at) {
            let wakes = at.max(self.now) + self.latency();
            self.keepers[keeper].armed = Some((at, wakes));
            self.schedule(wakes, Event::Wake(keeper));
        }
    }

    /// The timer of a keeper goes off, unless it was set anew.
    pub(crate) fn wake_keeper(&mut self, keeper: usize) {
        let now = self.now;
        if self.keepers[keeper].armed.take_if(|(_, wakes)| *wakes == now).is_some() {
            self.touch_keeper(keeper);
        }
    }

    /// The process of a keeper ends.
    pub(crate) fn keeper_ends(&mut self, keeper: usize) {
        if !std::mem::replace(&mut self.keepers[keeper].alive, false) {
            return;
        }
        self.note(|| format!("keeper {keeper} is gone"));
        self.dead.push(keeper);
        for conn in std::mem::take(&mut self.keepers[keeper].conns) {
            self.hang_up(conn);
        }
        let host = self.keepers[keeper].host;
        if !self.hosts[host].alive {
            // What it had open the kernel closes.
            self.call_in(host);
        }
        self.wake_supervisor(self.keepers[keeper].host);
        self.wake_above(self.keepers[keeper].host);
    }
}

/// A path, cheap to copy.
pub(crate) type Path = Rc<str>;
