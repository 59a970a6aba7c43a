//! The conditions that are checked after every event and at the end of a run.

use std::time::Duration;

use zklock::rules::child_name::ChildName;
use zklock::rules::event::CommandEnd;
use zklock::rules::guard::Stage;
use zklock::rules::lease::Terms;
use zklock::rules::message::{Grant, GrantedLock};
use zklock::rules::mode::Mode;
use zklock::rules::outcome::Outcome;
use zklock::rules::queue::Contender;
use zklock::rules::settings::{Patience, Settings};
use zklock::rules::signal::Signal;

use crate::coverage::Kind;
use crate::hold::Hold;
use crate::liar::LIAR;
use crate::nested::Lender;
use crate::servers::Session;
use crate::state::{Event, KeeperState, MS, State, Time, micros};

/// How long a command that has to die may live on after its paused machine runs again.
const AFTER_A_PAUSE: Time = 80 * MS;
/// How long a command may live on after an operator has taken its lock away. The news takes three messages.
const HEARSAY: Time = 700 * MS;
/// How long a supervisor asks a guard in vain before it kills the guard.
const PATIENCE_WITH_A_GUARD: Time = 310 * MS;
/// How long a command that has to die may live on after its client hears of a shorter session timeout.
const AFTER_THE_NEWS: Time = 80 * MS;

impl State {
    /// Whether this host's command may still be running without the lock. `node`: the one that is gone, if it is only one.
    fn is_excused(&self, host: usize, node: Option<&str>) -> bool {
        let may_be_unheard =
            |granted: &GrantedLock| node.is_none_or(|node| node == granted.node) && self.is_unheard(granted);
        let is_excused = |index: usize| {
            let host = &self.hosts[index];
            self.now <= host.paused_until.max(host.operator_until).max(host.shortened_from)
                || host.grant.as_ref().is_some_and(|grant| grant.all().any(may_be_unheard) || self.is_raised(grant))
        };
        // The lock may be that of a run above.
        is_excused(host) || self.above(host).any(is_excused) || self.is_out_of_reach(host)
    }

    /// Whether the session of this grant had expired, unknown to its client, and came back with an older copy of the
    /// servers' data. Its nodes are before those of contenders that have been granted the lock since.
    fn is_raised(&self, grant: &Grant) -> bool {
        grant.all().any(|granted| self.servers.raised.iter().any(|path| **path == *granted.node))
    }

    /// Whether the session of this node has expired because a server granted a shorter timeout that the client does not
    /// know of yet.
    fn is_unheard(&self, granted: &GrantedLock) -> bool {
        let name = granted.node.rsplit('/').next().unwrap_or_default();
        let id = contender(name).and_then(|contender| contender.id);
        let session = id.and_then(|id| self.servers.sessions.get(self.servers.session_of(id.session())));
        session.is_some_and(|session| self.now <= session.unheard_until)
    }

    /// A client hears which timeout a server has granted. From now on it has no excuse for relying on a longer one. The
    /// leader may count with a shorter one, which another server has granted and the client has not heard of.
    pub(crate) fn hear_of_timeout(&mut self, session: usize, timeout: Time) {
        let soon = self.now + AFTER_THE_NEWS;
        let session = &mut self.servers.sessions[session];
        if timeout < session.known {
            let until = soon.max(session.relied_on.saturating_sub(session.known - timeout));
            session.known = timeout;
            session.relied_on = session.relied_on.min(until);
            session.unheard_until = session.unheard_until.min(until);
            let host = session.host;
            self.schedule(until + 1, Event::Verify(host));
        }
    }

    /// The whole host stands still. Its command is excused until [`State::unpause`], and for a moment after that.
    pub(crate) fn pause(&mut self, host: usize) {
        self.hosts[host].paused_until = Time::MAX;
    }

    pub(crate) fn unpause(&mut self, host: usize) {
        self.hosts[host].paused_until = self.now + AFTER_A_PAUSE;
        self.verify_all_after(AFTER_A_PAUSE + 1, host);
    }

    /// The supervisor or the guard runs, and sees the lease as it is. If both are suspended when the lease is made
    /// shorter, the kernel knows nothing of that, and the command lives until the longer lease ends.
    pub(crate) fn look_at_lease(&mut self, host: usize) {
        let until = self.now + AFTER_THE_NEWS + PATIENCE_WITH_A_GUARD;
        if self.hosts[host].shortened_from > until {
            self.hosts[host].shortened_from = until;
            self.schedule(until + 1, Event::Verify(host));
        }
    }

    /// An operator takes the lock away. If nothing else goes wrong, the command has until its keeper has heard of it.
    pub(crate) fn interfere(&mut self, host: usize) {
        let reaction = if self.calm { HEARSAY } else { self.servers.timeout };
        self.hosts[host].operator_until = self.now + reaction;
        self.verify_all_after(reaction + 1, host);
    }

    /// Looks at the command of a host, and at those of the runs below it.
    fn verify_all_after(&mut self, time: Time, host: usize) {
        for host in self.below(host).into_iter().chain([host]) {
            self.after(time, Event::Verify(host));
        }
    }

    /// Something else goes wrong before the keepers have heard what an operator did: their commands now have until the
    /// end of the lease.
    pub(crate) fn disturb(&mut self) {
        for host in 0..self.hosts.len() {
            if self.hosts[host].operator_until > self.now {
                self.hosts[host].operator_until = self.now + self.servers.timeout;
                self.verify_all_after(self.servers.timeout + 1, host);
            }
        }
    }

    /// A command that runs has its lock.
    pub(crate) fn verify(&mut self, host: usize) {
        if !self.hosts[host].is_running() {
            return;
        }
        let Some(grant) = &self.hosts[host].grant else { return };
        let token = |granted: &GrantedLock| self.servers.head.get(&granted.node).map(|node| node.czxid);
        let lost = grant.all().find(|granted| token(granted) != Some(granted.token));
        let Some(lost) = lost else { return };
        if self.is_unheard(lost) {
            self.coverage.count(Kind::LostUnheard);
        } else if self.is_excused(host, Some(&lost.node)) {
            self.coverage.count(Kind::LostWhileFrozen);
        } else {
            self.fail(format!("the command of host {host} runs, and {} is gone", lost.node));
        }
    }

    /// A node that goes with a session that has expired was deleted by nobody.
    pub(crate) fn check_blame(&mut self, host: usize) {
        let state = &self.hosts[host];
        let session = state.grant.as_ref().map(|grant| self.servers.session_of(grant.session));
        let has_expired = session.is_some_and(|session| !self.servers.sessions[session].alive);
        if has_expired && state.operator_until == 0 {
            self.fail(format!("host {host} blames somebody for the deletion of its node"));
        }
        let is_lacked =
            |node: &str| self.servers.all.iter().any(|server| server.lacks.iter().any(|lacked| **lacked == *node));
        let grant = self.hosts[host].grant.as_ref();
        let is_misled = grant.is_some_and(|grant| grant.all().any(|granted| is_lacked(&granted.node)));
        self.hosts[host].is_misled |= is_misled;
    }

    /// No two commands that exclude each other run at the same time. [`State::verify`] and [`State::check_spawn`] find
    /// the same faults, even if no other command happens to run at that moment.
    pub(crate) fn check_overlap(&mut self) {
        let running =
            (0..self.hosts.len()).filter(|host| self.hosts[*host].is_running() && !self.is_excused(*host, None));
        let running: Vec<usize> = running.collect();
        for (index, one) in running.iter().enumerate() {
            for other in &running[index + 1..] {
                let is_nested = one.max(other) >= &self.first_nested;
                let excludes = self.hosts[*one].excludes(&self.hosts[*other]);
                if if is_nested { self.exclude(*one, *other) } else { excludes } {
                    return self.fail(format!("the commands of hosts {one} and {other} run at the same time"));
                }
            }
        }
    }

    /// Whether these commands use nodes of which one excludes the other.
    fn exclude(&self, one: usize, other: usize) -> bool {
        let used = |host: usize| self.hosts[host].grant.iter().flat_map(Grant::all);
        let is_exclusive = |granted: &GrantedLock| {
            let name = granted.node.rsplit('/').next().unwrap_or_default();
            contender(name).is_none_or(|contender| contender.mode == Mode::Exclusive)
        };
        used(one)
            .any(|a| used(other).any(|b| a.lock == b.lock && a.node != b.node && (is_exclusive(a) || is_exclusive(b))))
    }

    pub(crate) fn check_spawn(&mut self, host: usize, grant: &Grant) {
        if self.hosts[host].grant.is_some() {
            return self.fail(format!("host {host} starts its command twice"));
        }
        // The keeper may not have heard what an operator did after the last of several locks was taken. It must have
        // heard what was done before that.
        let last = grant.all().map(|granted| granted.token).max().unwrap_or_default();
        let gone = |node: &&GrantedLock| self.servers.deleted_between(node.token, last, &node.node);
        if let Some(gone) = grant.all().find(gone) {
            return self.fail(format!("host {host} starts its command, but {} was gone by then", gone.node));
        }
        self.check_loans(host, grant);
        let is_unheard = grant.all().any(|granted| self.is_unheard(granted));
        if self.is_excused(host, None) || is_unheard || self.is_raised(grant) {
            return;
        }
        self.check_once(host);
        self.check_delay(host, grant);
        let exclusive = self.hosts[host].mode == Mode::Exclusive;
        for granted in grant.all() {
            if let Err(why) = self.entitled(&granted.node) {
                return self.fail(format!("host {host} starts its command, but {why}"));
            }
            let earlier = self.hosts.iter().filter(|other| exclusive || other.mode == Mode::Exclusive);
            let earlier = earlier.filter_map(|other| other.grant.as_ref()).flat_map(Grant::all);
            let earlier = earlier.filter(|other| other.lock == granted.lock && other.node != granted.node);
            let highest = earlier.map(|other| other.token).max();
            let token = self.servers.head.get(&granted.node).map(|node| node.czxid);
            if highest >= Some(granted.token) || token != Some(granted.token) {
                self.fail(format!("host {host} has {granted:?}; node {token:?}, highest before {highest:?}"));
            }
        }
    }

    /// A keeper takes no lock if the last list that it has read of the queue does not show its node. Of a nested run, the
    /// node may be that of a run above.
    pub(crate) fn check_listed(&mut self, keeper: usize, grant: &Grant) {
        let KeeperState { host, listed, .. } = &self.keepers[keeper];
        let is_shown = |granted: &GrantedLock| {
            let (lock, name) = granted.node.rsplit_once('/').unwrap_or_default();
            let list = listed.iter().find(|(path, _)| path == lock);
            list.is_none_or(|(_, names)| names.iter().any(|other| *other == name))
        };
        let missing = grant.all().find(|granted| !is_shown(granted)).filter(|_| self.hosts[*host].nesting.is_none());
        if let Some(granted) = missing {
            self.fail(format!("keeper {keeper} takes the lock, although it has read that {} is gone", granted.node));
        }
    }

    /// A guard that has had a turn lets no command go on under a lock that a lender has lost.
    pub(crate) fn check_lender(&mut self, host: usize) {
        let guard = &self.hosts[host].guard;
        if guard.stage == Stage::Open && guard.lender.as_ref().is_some_and(Lender::is_lost) {
            self.fail(format!(
                "the guard of host {host} lets its command go on, although the lender has lost the lock"
            ));
        }
    }

    /// A supervisor lets a command go on only under a lease.
    pub(crate) fn check_continue(&mut self, host: usize) {
        let state = &self.hosts[host];
        let keeper = self.keeper_of(host, state.lender.as_ref());
        // The stop signal goes out this long before SIGKILL, or earlier.
        let limits = self.servers.all.iter().map(|server| server.limit);
        let shortest = limits.min().map_or(state.settings.session_timeout, Duration::from_micros);
        let grace = Terms::with_default_grace(shortest.min(state.settings.session_timeout)).kill_after();
        let grace = micros(state.settings.kill_after.map_or(grace, |kill_after| kill_after.min(grace)));
        let is_over = keeper.is_none_or(|keeper| keeper.limits.is_none_or(|(kill_at, _)| kill_at <= self.now + grace));
        if is_over && state.is_running() && !state.stopped_by_supervisor {
            self.fail(format!("host {host} continues its command, but would have to stop it"));
        }
    }

    /// A supervisor stops its command for a reason, and the newest lease is no such reason while it is young.
    pub(crate) fn check_stop(&mut self, host: usize) {
        let state = &self.hosts[host];
        let is_told = state.told_loss || state.told_revoked;
        let has_lost_lender = state.lender.as_ref().is_some_and(Lender::is_lost);
        let has_reason =
            is_told || has_lost_lender || state.guard.lease_over || state.guard_died || state.stopped_by_supervisor;
        // The report that comes before a revocation may have come just after the reports were read.
        let keeper = self.keeper_of(host, state.lender.as_ref()).filter(|keeper| !keeper.revoked);
        let lease = keeper.and_then(|keeper| keeper.lease.zip(keeper.limits));
        let is_young = lease.is_some_and(|(from, (_, ends_at))| self.now < from + (ends_at - from) / 5);
        if is_young && !has_reason && state.settings.max_run.is_none() {
            self.fail(format!("host {host} stops its command under a young lease"));
        }
    }

    /// Whether the contender with this node has nothing left to wait for.
    fn entitled(&self, path: &str) -> Result<(), String> {
        let (lock, name) = path.rsplit_once('/').unwrap_or_default();
        // A node that was created anew, or that has come back with an older copy of the data, has a low number, but comes
        // after those that saw it go. A liar gives its nodes any number.
        let is_anew = |name: &&str| {
            let node = self.servers.head.get(&format!("{lock}/{name}"));
            node.is_some_and(|node| [0, LIAR].contains(&node.owner) || self.servers.raised.contains(&node.path))
        };
        let names = self.servers.head.children(lock).filter(|name| !is_anew(name));
        let contenders: Vec<Contender> = names.filter_map(contender).collect();
        let Some(ours) = contenders.iter().find(|contender| contender.name == name) else {
            return Err(format!("{path} does not exist"));
        };
        let before = || contenders.iter().filter(|other| other.sequence < ours.sequence);
        let free = match ours.mode {
            Mode::Exclusive => before().count() == 0,
            Mode::Shared => before().all(|other| other.mode != Mode::Exclusive),
            Mode::Permits(permits) => {
                before().all(|other| other.mode != Mode::Exclusive) && before().count() < permits.get() as usize
            }
        };
        if free { Ok(()) } else { Err(format!("{path} is not first")) }
    }

    /// A contender has one node in each dialect. It may have more when a request over a connection that was given up
    /// arrives late, or when an operator deletes one of several.
    pub(crate) fn check_create(&mut self, conn: usize, owner: i64) {
        let host = self.conns[conn].host;
        let owned = self.servers.head.nodes().iter().filter(|node| node.owner == owner);
        let most = self.hosts[host].dialects.len() * if self.hosts[host].takes_all { 2 } else { 1 };
        if owned.count() > most && self.hosts[host].operator_until == 0 && self.conns[conn].client_open {
            self.fail(format!("host {host} has a second node"));
        }
    }

    /// When a keeper releases, nothing is left of the command.
    pub(crate) fn check_release(&mut self, host: usize) {
        if self.is_running(host) {
            self.fail(format!("host {host} releases the lock while its command still runs"));
        }
        if self.hosts[host].abandoned {
            self.fail(format!("host {host} releases the lock, but no process has seen the end of its command"));
        }
    }

    /// The end of an exclusive node in a queue of exclusive ones wakes at most one waiter. Readers, and contenders with
    /// permits, may wake together; so may those whose server hides a contender between them.
    pub(crate) fn check_wakes(&mut self, path: &str) {
        let Some((lock, name)) = path.rsplit_once('/') else { return };
        let exclusive = |name: &str| contender(name).is_some_and(|contender| contender.mode == Mode::Exclusive);
        let Some(owner) = self.servers.head.get(path).map(|node| node.owner) else { return };
        let hides = self.servers.all.iter().any(|server| !server.lacks.is_empty());
        if hides || self.is_lied_to(lock) || !exclusive(name) || !self.servers.head.children(lock).all(exclusive) {
            return;
        }
        let watchers = self.watchers(path, owner);
        if watchers > 1 {
            self.fail(format!("the end of {path} wakes {watchers} waiters"));
        }
    }

    /// Whether a server showed a contender of another session than the host's last one at `end` or later, or shows one that the
    /// leader no longer has.
    fn was_busy(&self, host: usize, end: Time) -> bool {
        let servers = &self.servers;
        let own = servers.sessions.iter().rposition(|session| session.host == host).map(Session::id);
        let mut trees = servers.all.iter().map(|server| &server.tree).chain([&servers.head]);
        // An operator's nodes belong to no session. The locks themselves are not among them.
        let is_contender = |path: &str| path.matches('/').count() > 1;
        trees.any(|tree| tree.nodes().iter().any(|node| is_contender(&node.path) && Some(node.owner) != own))
            || servers.departures.iter().any(|(at, owner)| *at >= end && Some(*owner) != own)
            || !servers.lost.is_empty()
    }

    /// Every exit status has a reason.
    pub(crate) fn check_outcome(&mut self, host: usize, outcome: Outcome) {
        let state = &self.hosts[host];
        let (settings, ran) = (&state.settings, state.grant.is_some());
        let never_ran = state.never_ran || state.died_behind_gate;
        let ended_by_itself = !state.stopped_by_us;
        let explained = match outcome {
            Outcome::Exited(0) if state.is_skipped => !ran,
            Outcome::Exited(status) => ended_by_itself && state.natural_end == Some(CommandEnd::Exited(status)) && ran,
            Outcome::Signaled(signal) => {
                ended_by_itself && state.natural_end == Some(CommandEnd::Signaled(signal)) && ran
            }
            // Without a fault only under a lease that was still short: there, one slow answer is enough.
            Outcome::Lost if state.told_revoked && !state.revoked => false,
            Outcome::Lost if state.told_revoked && !ran => true,
            Outcome::Lost if state.told_lender_gone && !ran => true,
            // What is lent may be lost at any time.
            Outcome::Lost
                if state.is_kept_to_the_end
                    && !state.is_misled
                    && !never_ran
                    && !state.guard.lease_over
                    && state.lender.is_none() =>
            {
                false
            }
            Outcome::Lost => {
                let was_silent = state.was_silent || self.above(host).any(|outer| self.hosts[outer].was_silent);
                let is_called_in = state.lender.as_ref().is_some_and(Lender::is_lost);
                (self.faulty || state.stopped_early || was_silent || is_called_in)
                    && (ran && state.stopped_by_us || never_ran)
            }
            Outcome::RanOut => settings.max_run.is_some() && (ran && state.stopped_by_us || never_ran),
            Outcome::NotFree => {
                let has_caller = state.hold.as_ref().is_none_or(Hold::has_caller);
                !ran && match settings.patience {
                    Patience::NoWait => true,
                    Patience::AtMost(_) if state.lender.is_some() || state.was_delayed => true,
                    Patience::AtMost(time) => !has_caller || self.was_busy(host, state.started_at + micros(time)),
                    Patience::Forever => !has_caller,
                }
            }
            Outcome::Interrupted(signal) => !ran && (self.faulty || state.is_passed_on) && signal == Signal::TERM,
            Outcome::Unusable => !ran && self.is_unlent(host),
            // Without a fault only if the time to wait is shorter than connecting takes.
            Outcome::Unavailable => !ran && (self.faulty || matches!(settings.patience, Patience::AtMost(_))),
            Outcome::Internal => state.keeper_kills > 0 || state.guard_died,
            Outcome::NotFound => state.never_ran && state.script.missing,
            // `--kill-after` may fit the session timeout that was asked for, but not the one that was granted.
            Outcome::Usage => !ran && self.servers.all.iter().any(|server| !has_room(settings, server.limit)),
            _ => false,
        };
        match outcome {
            Outcome::Lost => self.coverage.count(Kind::Lost),
            Outcome::RanOut => self.coverage.count(Kind::RanOut),
            Outcome::NotFree => self.coverage.count(Kind::NotFree),
            Outcome::Interrupted(_) => self.coverage.count(Kind::Interrupted),
            Outcome::Unavailable => self.coverage.count(Kind::Unavailable),
            Outcome::Unusable => self.coverage.count(Kind::Upgrade),
            _ => {}
        }
        if !explained {
            self.fail(format!("host {host} ends with {outcome:?} for no reason"));
        }
        if self.is_running(host) {
            self.fail(format!("host {host} ends while its command still runs"));
        }
    }

    /// No more events are due: everything has ended and been cleaned up.
    pub(crate) fn check_end(&mut self) {
        for host in 0..self.hosts.len() {
            if self.hosts[host].alive {
                self.fail(format!("host {host} waits forever"));
            }
            if self.hosts[host].is_running() {
                self.fail(format!("something is left of the command of host {host}"));
            }
        }
        if let Some(keeper) = self.keepers.iter().position(|keeper| keeper.alive) {
            self.fail(format!("keeper {keeper} is left"));
        }
        let left = self.servers.head.nodes().iter().find(|node| node.owner != 0).map(|node| node.path.clone());
        if let Some(path) = left {
            self.fail(format!("{path} is left"));
        }
        if self.servers.sessions.iter().any(|session| session.alive) {
            self.fail("a session is left");
        }
    }
}

/// Whether `--kill-after` fits a session timeout.
fn has_room(settings: &Settings, timeout: Time) -> bool {
    Terms::new(Duration::from_micros(timeout), settings.kill_after).is_ok()
}

fn contender(name: &str) -> Option<Contender> {
    Contender::parse(&ChildName::parse(name)?)
}
