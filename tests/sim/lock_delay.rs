//! What is checked of `--lock-delay`.

use zklock::rules::lock_delay::{self, HolderFate, HolderRecord};
use zklock::rules::message::{Grant, GrantedLock};
use zklock::rules::mode::Mode;

use crate::coverage::Kind;
use crate::host::Host;
use crate::state::{MS, State, micros};

impl Host {
    /// Whether others have to wait if this host vanishes.
    fn is_recorded(&self) -> bool {
        !self.lock_delay.is_zero() && self.mode == Mode::Exclusive && self.nesting.is_none()
    }
}

impl State {
    fn holder(&self, lock: &str) -> Option<HolderRecord> {
        let node = self.servers.head.get(&lock_delay::path(lock))?;
        let record = HolderRecord::from_bytes(&node.data);
        assert!(record.is_some(), "a record that makes sense");
        record
    }

    /// The command of this host exited by itself, or has not passed the gate.
    fn is_clean(&self, host: usize) -> bool {
        let state = &self.hosts[host];
        let exited = state.guard.ended.is_some_and(|status| libc::WIFEXITED(status));
        !state.has_passed || exited && !state.ended_spoiled && !state.stopped_by_us
    }

    /// A command starts when its lock has been recorded, and when the work that those before it may have left elsewhere has had
    /// time to end.
    pub(crate) fn check_delay(&mut self, host: usize, grant: &Grant) {
        let is_recorded = self.hosts[host].is_recorded();
        for granted in grant.all().filter(|_| !self.hosts[host].lock_delay.is_zero()) {
            let record = self.holder(&granted.lock);
            let is_own = |record: &HolderRecord| record.fate == HolderFate::Held && record.token == granted.token;
            if is_recorded && !record.as_ref().is_some_and(is_own) {
                return self.fail(format!("host {host} starts its command, but the record is {record:?}"));
            }
            if let Some(other) =
                (0..self.hosts.len()).find(|other| *other != host && self.may_work_elsewhere(*other, granted))
            {
                return self.fail(format!("host {host} starts its command before the delay of host {other} is over"));
            }
        }
    }

    /// Whether the command of this host may have left work elsewhere that has had no time to end.
    fn may_work_elsewhere(&self, host: usize, granted: &GrantedLock) -> bool {
        let state = &self.hosts[host];
        if !state.is_recorded() || !state.has_passed || self.is_clean(host) {
            return false;
        }
        let before = |other: &&GrantedLock| other.lock == granted.lock && other.token < granted.token;
        let Some(node) = state.grant.as_ref().and_then(|grant| grant.all().find(before)) else { return false };
        let gone = self.servers.gone.get(&*node.node);
        // The servers count in milliseconds.
        gone.is_none_or(|gone| self.now + 2 * MS < gone + micros(state.lock_delay))
    }

    /// A client writes these records.
    pub(crate) fn check_holder_records(&mut self, host: usize, records: Vec<HolderRecord>) {
        let own =
            |state: &Host, token| state.grant.as_ref().is_some_and(|grant| grant.all().any(|own| own.token == token));
        for record in records {
            match record.fate {
                HolderFate::Held if self.hosts[host].grant.is_some() => {
                    self.fail(format!("host {host} records itself after the start"))
                }
                HolderFate::Held => {}
                HolderFate::Vanished => self.coverage.count(Kind::Marked),
                HolderFate::Released if own(&self.hosts[host], record.token) && !self.is_clean(host) => {
                    self.fail(format!("host {host} records a clean end that was none"));
                }
                HolderFate::Released => self.coverage.count(Kind::Released),
            }
        }
    }

    /// A client has released the lock.
    pub(crate) fn check_released(&mut self, host: usize) {
        let state = &self.hosts[host];
        let Some(grant) = state.grant.clone() else { return };
        if !state.is_recorded() || !state.alive || state.operator_until > 0 || state.is_spoiled || !self.is_clean(host)
        {
            return;
        }
        let is_left = |granted: &&GrantedLock| {
            self.holder(&granted.lock)
                .is_some_and(|record| record.token == granted.token && record.fate == HolderFate::Held)
        };
        if let Some(left) = grant.all().find(is_left) {
            self.fail(format!("host {host} releases {} without a record of its clean end", left.lock));
        }
    }

    /// A keeper gives up recording a clean end only if an operator has taken the lock away.
    pub(crate) fn check_unreleased(&mut self, host: usize, why: &str) {
        if self.hosts.iter().all(|host| host.operator_until == 0) {
            self.fail(format!("host {host} does not record its clean end: {why}"));
        }
    }
}
