//! What is checked of `--once-per`.

use zklock::rules::last_run::{self, Asked, LastRun};
use zklock::zookeeper::session::NodeStat;

use crate::coverage::Kind;
use crate::faults::lock_path;
use crate::host::Host;
use crate::state::{MS, State, instant};

impl State {
    /// The last successful run under the lock of this host, as the leader knows it.
    fn last_run(&self, host: usize) -> Option<LastRun> {
        let node = self.servers.head.get(&last_run::path(&lock_path(self.hosts[host].lock)))?;
        LastRun::from_bytes(&node.data, node.written)
    }

    /// The token of the lock under which this host's command was started.
    fn token(&self, host: usize) -> Option<i64> {
        self.hosts[host].grant.as_ref().map(|grant| grant.first.token)
    }

    /// The keeper over this connection has read when a contender of its own was created. A run asks with its first one,
    /// however often it queues anew.
    pub(crate) fn note_asked(&mut self, conn: usize, stat: NodeStat) {
        let host = &mut self.hosts[self.conns[conn].host];
        let after = instant(host.started_at);
        host.asked.get_or_insert(Asked { at: stat.created, after });
    }

    /// A command starts only if the last successful run was not recent.
    pub(crate) fn check_once(&mut self, host: usize) {
        let Host { once_per, asked, is_asked_unsure: false, .. } = self.hosts[host] else { return };
        let (Some(period), Some(asked)) = (once_per, asked) else { return };
        let Some(last) = self.last_run(host) else { return };
        // If an operator had taken the lock away from the last run, this one may have been granted it before that record.
        let is_disturbed = |run: usize| self.token(run) == last.token && self.hosts[run].operator_until > 0;
        if last.is_recent(asked, period) && !(0..self.hosts.len()).any(is_disturbed) {
            self.fail(format!("host {host} starts its command, but the last successful run was recent"));
        }
    }

    /// A command is skipped only because of a recent run that was successful.
    pub(crate) fn check_skip(&mut self, host: usize, last: &LastRun) {
        self.coverage.count(Kind::Skipped);
        self.hosts[host].is_skipped = true;
        let run = (0..self.hosts.len()).find(|run| last.token.is_some() && self.token(*run) == last.token);
        let Some(run) = run.map(|run| &self.hosts[run]) else {
            return self.fail(format!("host {host} skips its command because of {last:?}, which never was"));
        };
        let begins_too_early = run.began.is_none_or(|began| last.started + 1 < (began / MS) as i64);
        let is_recent = self.hosts[host].once_per.zip(self.hosts[host].asked);
        let is_recent = is_recent.is_none_or(|(period, asked)| last.is_recent(asked, period));
        if begins_too_early || !is_recent || run.script.status != 0 || run.lock != self.hosts[host].lock {
            self.fail(format!("host {host} skips its command because of {last:?}, which is no reason"));
        }
    }

    /// A client writes the record only if its command was successful.
    pub(crate) fn check_record(&mut self, host: usize) {
        let state = &self.hosts[host];
        if state.guard.ended != Some(0) || state.stopped_by_supervisor || state.once_per.is_none() {
            self.fail(format!("host {host} records a run that was not successful"));
        }
    }

    /// A client releases the lock: a run that was successful has been recorded.
    pub(crate) fn check_recorded(&mut self, host: usize) {
        let state = &self.hosts[host];
        let is_revoked = state.keeper.is_none_or(|keeper| self.keepers[keeper].revoked);
        let was_stopped = state.is_spoiled || state.guard.lease_over || is_revoked || state.stopped_by_us;
        let is_success = state.guard.ended == Some(0) && state.began.is_some() && !was_stopped;
        // What an operator does to the node, or to the servers' data, may come in between.
        if state.once_per.is_none() || !is_success || !state.alive || state.operator_until > 0 {
            return;
        }
        if self.last_run(host).and_then(|last| last.token) == self.token(host) {
            self.coverage.count(Kind::Recorded);
        } else {
            self.fail(format!("host {host} releases the lock without a record of its run"));
        }
    }

    /// A keeper gives up recording only if its session is over, or an operator has deleted its node.
    pub(crate) fn check_unrecorded(&mut self, host: usize, why: Option<&str>) {
        self.coverage.count(Kind::Unrecorded);
        let is_disturbed = self.hosts.iter().any(|host| host.operator_until > 0);
        if let Some(why) = why.filter(|_| !is_disturbed) {
            self.fail(format!("host {host} does not record its run: {why}"));
        }
    }
}
