//! The faults, and when they happen: at any time, or at a moment that a trap waits for.

use zklock::rules::card::Card;
use zklock::rules::revocation::{CURATOR_MARKER, Revocation};
use zklock::rules::signal::Signal;

use crate::coverage::{Kind, list};
use crate::liar::LIAR;
use crate::state::{Event, MS, Path, State, Time};

/// A fault that lasts for a while, at one host or at the server that it is connected to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) host: usize,
    pub(crate) time: Time,
}

/// Makes a fault `delay` after the moment has come `countdown` more times.
pub(crate) struct Trap {
    pub(crate) moment: Kind,
    pub(crate) countdown: u32,
    pub(crate) delay: Time,
    pub(crate) fault: Kind,
    pub(crate) time: Time,
}

/// The faults to choose from. The more interesting ones are listed twice.
pub(crate) const FAULTS: &[Kind] = list! {
    Cut Cut CutUp CutDown Break Break Crash Isolate Isolate Elect FreezeServer Lag Rack Rack FreezeSupervisor
    FreezeKeeper FreezeGuard FreezeAndCut FreezeAndCut FreezeAll Sleep KillSupervisor KillKeeper KillGuard
    KillCommand CtrlZ DeleteNode ExpireSession SetData Revoke Terminate ReapParent
};

pub(crate) const MOMENTS: &[Kind] = list! {
    AtCreate AtRelease AtBeat AtHeld AtSpawn
};

/// Faults, each with a moment at which it is more likely to find something than at others.
pub(crate) const AIMED: &[(Kind, Kind)] = &[
    (Kind::AtBeat, Kind::FreezeAndCut),
    (Kind::AtBeat, Kind::Rack),
    (Kind::AtCreate, Kind::Break),
    (Kind::AtCreate, Kind::FreezeServer),
    (Kind::AtHeld, Kind::Sleep),
    (Kind::AtSpawn, Kind::DeleteNode),
    (Kind::AtSpawn, Kind::Revoke),
    (Kind::AtRelease, Kind::Break),
];

/// Faults that make a keeper connect again, hear late which session timeout it was granted, hear nothing after that, or
/// report it to a supervisor that is suspended.
pub(crate) const REGRANTING: &[(Kind, Kind)] = &[
    (Kind::AtSpawn, Kind::Break),
    (Kind::AtSpawn, Kind::FreezeSupervisor),
    (Kind::AtSpawn, Kind::CutDown),
    (Kind::AtBeat, Kind::Break),
    (Kind::AtBeat, Kind::CutDown),
    (Kind::AtBeat, Kind::FreezeAndCut),
    (Kind::AtBeat, Kind::Elect),
    (Kind::AtShortened, Kind::Cut),
    (Kind::AtShortened, Kind::FreezeSupervisor),
];

/// A supervisor is suspended while its command runs, and then its node is deleted.
pub(crate) const UNTOLD: &[(Kind, Kind)] = &[(Kind::AtSpawn, Kind::FreezeSupervisor), (Kind::AtBeat, Kind::DeleteNode)];

impl State {
    /// Springs the traps that wait for this moment, which has just come for this host.
    pub(crate) fn spring(&mut self, moment: Kind, host: usize) {
        self.coverage.count(moment);
        for index in 0..self.traps.len() {
            let trap = &mut self.traps[index];
            if trap.moment != moment || trap.countdown == 0 {
                continue;
            }
            trap.countdown -= 1;
            if trap.countdown == 0 {
                let (delay, fault) = (trap.delay, Fault { kind: trap.fault, host, time: trap.time });
                self.after(delay, Event::Fault(fault));
            }
        }
    }

    /// The server that this host is connected to.
    fn server_of(&mut self, host: usize) -> usize {
        let keeper = self.hosts[host].keeper;
        let conn = keeper.and_then(|keeper| self.keepers[keeper].conns.last().copied());
        match conn {
            Some(conn) => self.conns[conn].server,
            None => self.chance.one_of(self.servers.all.len()),
        }
    }

    /// Whether the supervisor of this host runs, and no Ctrl-Z is on its way to it.
    fn has_supervisor(&self, host: usize) -> bool {
        let state = &self.hosts[host];
        state.alive && state.started && !state.frozen && state.asleep.is_none() && !self.is_being_suspended(host)
    }

    fn has_keeper(&self, host: usize) -> bool {
        let keeper = self.hosts[host].keeper.map(|keeper| &self.keepers[keeper]);
        self.hosts[host].asleep.is_none() && keeper.is_some_and(|keeper| keeper.alive && !keeper.frozen)
    }

    fn has_guard(&self, host: usize) -> bool {
        let state = &self.hosts[host];
        state.asleep.is_none() && state.guard.alive && !state.guard.frozen
    }

    /// A run that lends to this one, and that can be killed now.
    fn mortal_lender(&self, host: usize) -> Option<usize> {
        self.lenders(host).find(|lender| match &self.hosts[*lender].hold {
            Some(hold) => hold.stands && self.hosts[*lender].asleep.is_none(),
            None => self.has_supervisor(*lender) && self.has_guard(*lender),
        })
    }

    /// Makes a fault. Returns false if that is not possible now.
    pub(crate) fn strike(&mut self, fault: Fault) -> bool {
        let Fault { kind, host, time } = fault;
        let happens = self.happens(fault);
        if happens {
            // A supervisor that is suspended keeps neither its keeper from hearing nor its guard from acting.
            let is_harmless = matches!(kind, Kind::FreezeSupervisor | Kind::ThawSupervisor);
            self.faulty = true;
            if !is_harmless {
                self.calm = !std::mem::replace(&mut self.disturbed, true);
                self.disturb();
            }
            self.coverage.count(kind);
            self.note(|| format!("FAULT {kind:?}, host {host}, {:.3} ms", time as f64 / 1000.0));
            self.do_fault(fault);
        }
        happens
    }

    fn happens(&mut self, fault: Fault) -> bool {
        let host = &self.hosts[fault.host];
        match fault.kind {
            // A terminal would have to be shared with the nested runs; and they know an outer run by the data of its
            // node.
            Kind::CtrlZ if self.machine(fault.host).len() > 1 => false,
            Kind::FreezeSupervisor | Kind::KillSupervisor | Kind::CtrlZ => self.has_supervisor(fault.host),
            Kind::FreezeKeeper | Kind::KillKeeper | Kind::FreezeAndCut => self.has_keeper(fault.host),
            Kind::FreezeGuard | Kind::KillGuard => self.has_guard(fault.host),
            Kind::FreezeAll | Kind::Sleep => self.has_supervisor(fault.host) && self.has_keeper(fault.host),
            Kind::KillLender => self.mortal_lender(fault.host).is_some(),
            Kind::KillCommand => host.is_running() && host.asleep.is_none() && !host.stopped_by_us,
            Kind::Terminate => host.alive && host.started,
            Kind::DeleteNode | Kind::RemakeNode | Kind::ExpireSession | Kind::SetData | Kind::Revoke => {
                self.node_of(fault.host).is_some()
            }
            Kind::Ghost => self.servers.all.len() > 1,
            Kind::Lacking => self.servers.all.len() > 1 && self.node_of(fault.host).is_some(),
            // What an operator or a liar has created would come back and stay.
            Kind::Restore => self.servers.lost.is_empty() && self.remade.is_empty() && self.forged.is_empty(),
            Kind::Forge => self.can_forge(fault.host),
            Kind::ReapParent => self.servers.head.children(&lock_path(host.lock)).next().is_none(),
            _ => true,
        }
    }

    /// The node of this host's contender.
    fn node_of(&self, host: usize) -> Option<String> {
        let sessions = &self.servers.sessions;
        let nodes = self.servers.head.nodes().iter();
        let mut owned = nodes.filter(|node| node.owner != 0 && node.owner != LIAR);
        let node = owned.find(|node| sessions[self.servers.session_of(node.owner)].host == host)?;
        Some(node.path.to_string())
    }

    fn do_fault(&mut self, Fault { kind, host, time }: Fault) {
        let until = self.now + time;
        let later = |kind: Kind| Event::Fault(Fault { kind, host, time: 0 });
        let keeper = self.hosts[host].keeper;
        match kind {
            Kind::Cut => self.cut(host, None, (until, until)),
            Kind::CutUp => self.cut(host, None, (until, 0)),
            Kind::CutDown => self.cut(host, None, (0, until)),
            Kind::Break => {
                let conns = keeper.map(|keeper| self.keepers[keeper].conns.clone()).unwrap_or_default();
                conns.into_iter().for_each(|conn| self.break_conn(conn));
            }
            Kind::Crash => {
                let server = self.server_of(host);
                let silently = self.chance.once_in(2);
                self.shut(server, until, silently);
                if server == self.servers.leader {
                    self.elect(time / 2, None);
                }
            }
            Kind::Isolate => {
                let server = self.server_of(host);
                let patience = self.chance.up_to(2 * self.servers.timeout);
                self.isolate(server, time, patience);
                // In touch for a moment, and then cut off again.
                if self.chance.once_in(4) {
                    let (touch, again) = (self.chance.up_to(10 * MS), self.chance.up_to(2 * self.servers.timeout));
                    self.after(time + touch, Event::Fault(Fault { kind: Kind::Isolate, host, time: again }));
                }
            }
            Kind::Elect => self.elect(time / 4, None),
            Kind::Restore => {
                let position = self.chance.one_of(self.servers.transactions() + 1);
                self.restore(position, self.now + time / 4);
            }
            Kind::FreezeServer => {
                let server = self.server_of(host);
                if server == self.servers.leader {
                    self.elect(time / 4, Some(server));
                    // When it thaws, it serves for a moment before it notices that it was deposed.
                    let patience = self.chance.up_to(20 * MS);
                    self.schedule(until + patience, Event::GiveUp(server));
                }
                let frozen = &mut self.servers.all[server].frozen_until;
                *frozen = until.max(*frozen);
            }
            Kind::Lag => {
                let server = self.server_of(host);
                self.servers.all[server].lag = time / 4;
                self.after(time, later(Kind::EndLag));
            }
            Kind::EndLag => {
                self.servers.all.iter_mut().for_each(|server| server.lag = 0);
            }
            Kind::Ghost => {
                let server = self.server_of(host);
                self.servers.all[server].misses += 1;
            }
            Kind::Lacking => {
                let Some(node) = self.node_of(host) else { return };
                let mut lost = vec![node];
                if self.chance.once_in(2) {
                    let other = self.chance.one_of(self.hosts.len());
                    lost.extend(self.node_of(other));
                }
                self.elect(time / 4, None);
                let followers: Vec<_> = (0..self.servers.all.len()).filter(|it| *it != self.servers.leader).collect();
                let server = followers[self.chance.one_of(followers.len())];
                self.note(|| format!("server {server} lacks {}", lost.join(" ")));
                self.servers.all[server].lacks.extend(lost.into_iter().map(Path::from));
            }
            Kind::Rack => {
                let server = self.server_of(host);
                self.cut(host, Some(server), (until, until));
                self.isolate(server, time, time / 2);
            }
            Kind::FreezeSupervisor => {
                self.hosts[host].frozen = true;
                self.excuse_stragglers(host);
                self.after(time, later(Kind::ThawSupervisor));
            }
            Kind::ThawSupervisor => self.thaw_supervisor(host),
            Kind::FreezeKeeper => {
                self.freeze(keeper, true);
                self.after(time, later(Kind::ThawKeeper));
            }
            Kind::FreezeAndCut => {
                let time = time / 2;
                self.do_fault(Fault { kind: Kind::FreezeKeeper, host, time });
                let cut = Fault { kind: Kind::Cut, host, time: self.servers.timeout };
                let moment = self.chance.up_to(time);
                self.after(moment, Event::Fault(cut));
            }
            Kind::ThawKeeper => self.freeze(keeper, false),
            Kind::FreezeGuard => {
                self.guard(host).frozen = true;
                self.excuse_stragglers(host);
                self.after(time, later(Kind::ThawGuard));
            }
            Kind::ThawGuard => self.thaw_guard(host),
            Kind::KillGuard => self.guard_dies(host),
            Kind::FreezeAll => {
                for host in self.below(host).into_iter().chain([host]) {
                    self.hosts[host].frozen = true;
                    self.guard(host).frozen = true;
                    self.excuse_stragglers(host);
                    self.freeze(self.hosts[host].keeper, true);
                    self.suspend_processes(host);
                }
                self.after(time, later(Kind::ThawAll));
            }
            Kind::ThawAll => {
                for host in self.below(host).into_iter().chain([host]) {
                    self.continue_processes(host);
                    self.thaw_guard(host);
                    self.freeze(self.hosts[host].keeper, false);
                    self.thaw_supervisor(host);
                }
            }
            Kind::Sleep => {
                for host in self.machine(host) {
                    self.pause(host);
                    self.hosts[host].asleep = Some(self.now);
                }
                self.after(time, later(Kind::Awake));
            }
            Kind::Awake => {
                for host in self.machine(host) {
                    self.unpause(host);
                    self.awake(host);
                }
            }
            Kind::KillSupervisor => self.kill_supervisor(host),
            Kind::KillKeeper => {
                self.hosts[host].keeper_kills += 1;
                self.end_keeper(host);
            }
            Kind::KillLender => {
                let Some(lender) = self.mortal_lender(host) else { return };
                if self.hosts[lender].hold.is_some() {
                    return self.schedule(self.now, Event::Exit { host: lender, process: 0, killed: true });
                }
                // It would kill this run as well.
                self.do_fault(Fault { kind: Kind::FreezeGuard, host: lender, time });
                self.kill_supervisor(lender);
            }
            Kind::KillCommand => self.schedule(self.now, Event::Exit { host, process: 0, killed: true }),
            Kind::CtrlZ => {
                self.suspend_job(host);
                self.after(time.max(20 * MS), later(Kind::Foreground));
            }
            // No user types `fg` before the shell has seen the job suspended, and while the machine sleeps it has not.
            Kind::Foreground if self.hosts[host].alive && self.is_being_suspended(host) => {
                self.after(20 * MS, later(Kind::Foreground));
            }
            Kind::Foreground => self.thaw_supervisor(host),
            Kind::DeleteNode | Kind::RemakeNode => {
                let Some(node) = self.node_of(host) else { return };
                self.interfere(host);
                self.operate(&node, None);
                if kind == Kind::RemakeNode {
                    self.remake(&node);
                    self.remade.push(node);
                    self.after(time, later(Kind::RemoveRemade));
                }
            }
            Kind::RemoveRemade => {
                for node in self.remade.clone() {
                    if self.servers.head.get(&node).is_some_and(|node| node.owner == 0) {
                        self.operate(&node, None);
                    }
                }
            }
            Kind::ExpireSession => {
                let node = self.node_of(host);
                let owner = node.and_then(|node| self.servers.head.get(&node).map(|node| node.owner));
                if let Some(owner) = owner {
                    self.interfere(host);
                    let session = self.servers.session_of(owner);
                    self.close_session(session, None);
                }
            }
            Kind::SetData => {
                if let Some(node) = self.node_of(host) {
                    self.operate(&node, Some(&Card::default().to_bytes()));
                }
            }
            Kind::Revoke => {
                let node = self.node_of(host).and_then(|path| self.servers.head.get(&path));
                if let Some(node) = node.cloned() {
                    let seen_holding = [None, Some(true), Some(false)][time as usize % 3];
                    let asked = Revocation { seen_holding, by: None };
                    let data = asked.add_to(&node.data, 0, 0).filter(|_| seen_holding.is_some());
                    self.hosts[host].revoked = true;
                    self.operate(&node.path, Some(data.as_deref().unwrap_or(CURATOR_MARKER)));
                }
            }
            Kind::Terminate => {
                let signals = &mut self.hosts[host];
                let signals = if time % 2 == 0 { &mut signals.signals } else { &mut signals.late_signals };
                signals.push((Signal::TERM, false));
                self.wake_supervisor(host);
            }
            Kind::Forge => {
                self.forge(host);
                self.after(time, later(Kind::RemoveForged));
            }
            Kind::RemoveForged => self.remove_forged(),
            Kind::ReapParent => self.operate(&lock_path(self.hosts[host].lock), None),
            _ => unreachable!("{kind:?} is not a fault"),
        }
    }

    fn cut(&mut self, host: usize, but: Option<usize>, (up, down): (Time, Time)) {
        for host in self.machine(host) {
            for (server, cut) in self.hosts[host].cuts.iter_mut().enumerate() {
                if Some(server) != but {
                    *cut = (cut.0.max(up), cut.1.max(down));
                }
            }
        }
    }

    fn freeze(&mut self, keeper: Option<usize>, frozen: bool) {
        if let Some(keeper) = keeper {
            self.freeze_keeper(keeper, frozen);
        }
    }

    fn thaw_guard(&mut self, host: usize) {
        self.guard(host).frozen = false;
        self.wake_guard(host);
    }

    /// Something comes by the guard's socket, or that hangs up (F_SETSIG). A debugger may hold the guard.
    pub(crate) fn continue_guard(&mut self, host: usize) {
        if self.guard(host).frozen && !self.chance.once_in(2) {
            self.thaw_guard(host);
        }
    }

    pub(crate) fn thaw_supervisor(&mut self, host: usize) {
        self.hosts[host].frozen = false;
        self.hosts[host].signals.push((Signal::CONT, false));
        self.wake_supervisor(host);
    }
}

/// The path of the lock with this number.
pub(crate) fn lock_path(lock: usize) -> String {
    format!("/lock{lock}")
}

/// A time of at most `longest`, often a much shorter one.
pub(crate) fn some_time(rng: &mut fastrand::Rng, longest: Time) -> Time {
    match rng.u32(0..4) {
        0 => rng.u64(0..=20 * MS),
        1 => rng.u64(0..=longest / 8),
        _ => rng.u64(0..=longest),
    }
}
