//! What can die or freeze, one by one and in pairs, while a contender holds the lock and another one waits behind it.

use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::moment::Moment;
use super::process;
use super::proxy::Proxy;
use super::running::{Running, finish};
use super::scratch::{GRACE, Scratch, direct};
use super::times::{AT_ONCE, SHORT_SESSION};

/// When a session that is not renewed has ended, and the next holder has noticed.
pub(crate) const EXPIRY: Duration = SHORT_SESSION.saturating_add(AT_ONCE);

/// Why a lock was lost in a silence. The supervisor says how long it was, the keeper says that it was too long, and
/// either may be the first.
pub(crate) const NO_ANSWER: &str = "ZooKeeper has not answered ";
/// The same where the supervisor is the first.
pub(crate) const SILENCE: &str = "ZooKeeper has not answered for ";
pub(crate) const KEEPER_DIED: &str = "the keeper process died; stopping the command";
pub(crate) const DELETED: &str = "its node was deleted; killing the command";

/// A holder that something happens to, and another contender behind it.
pub(crate) struct Fault {
    pub(crate) scratch: Scratch,
    pub(crate) holder: Running,
    pub(crate) next: Running,
    pub(crate) supervisor: Pid,
    pub(crate) keeper: Pid,
    pub(crate) command: Pid,
    pub(crate) since: Moment,
}

impl Fault {
    /// The holder reaches the servers by `addresses`, and nothing but SIGKILL ends its command.
    #[track_caller]
    pub(crate) fn new(scratch: Scratch, addresses: &str) -> Self {
        Self::with(scratch, addresses, &GRACE, &["--wait"])
    }

    /// Against the shared server.
    #[track_caller]
    pub(crate) fn shared() -> Self {
        Self::new(Scratch::new().with_lock(), &direct())
    }

    /// The same with a session of a minute, which would take long to end by itself.
    #[track_caller]
    pub(crate) fn minute() -> Self {
        Self::with(Scratch::new().with_lock(), &direct(), &["--session-timeout", "60"], &["--wait"])
    }

    /// Against the shared server, by a way that can be disturbed.
    #[track_caller]
    pub(crate) fn proxied() -> (Self, Proxy) {
        let (scratch, proxy) = Scratch::proxied();
        (Self::new(scratch, &proxy.address()), proxy)
    }

    #[track_caller]
    pub(crate) fn with(scratch: Scratch, addresses: &str, options: &[&str], child: &[&str]) -> Self {
        let mut holder = scratch.start(addresses, "holder", options, child);
        holder.wait_stdout("holder ready");
        let next = scratch.queue("next", 1);
        Self::of(scratch, holder, next)
    }

    #[track_caller]
    pub(crate) fn of(scratch: Scratch, holder: Running, next: Running) -> Self {
        let (supervisor, keeper, command) = (holder.pid(), holder.keeper(), holder.command());
        Self { scratch, holder, next, supervisor, keeper, command, since: Moment::now() }
    }

    /// The fault happens now: from here on time counts.
    pub(crate) fn strike(&mut self, signal: Signal, pids: &[Pid]) {
        pids.iter().for_each(|&pid| process::send(pid, signal));
        if signal == Signal::SIGSTOP {
            pids.iter().for_each(|&pid| process::wait_state(pid, &['T']));
        }
        self.strikes();
    }

    /// The same for a fault that is not a signal.
    pub(crate) fn strikes(&mut self) {
        self.since = Moment::now();
    }

    #[track_caller]
    pub(crate) fn delete_node(&mut self) {
        self.strikes();
        self.scratch.delete_holder();
    }

    /// The command is dead, and was last alive at most `limit` after the fault.
    #[track_caller]
    pub(crate) fn command_dead(&self, limit: Duration) {
        process::wait_dead(self.command);
        self.scratch.last_alive("holder").expect_within(limit, self.since, "the command is dead");
    }

    /// The next command has started at most `limit` after the fault.
    #[track_caller]
    pub(crate) fn next_starts(&mut self, limit: Duration) {
        if !self.next.stdout().contains(" ready\n") {
            self.next.wait_stdout(" ready");
        }
        self.scratch.begin("next").expect_within(limit, self.since, "the next one starts");
    }

    /// The lock is lost because of `why`: the command is dead within `dead`, the next one starts within `next`.
    #[track_caller]
    pub(crate) fn expect_lost(mut self, dead: Duration, next: Duration, why: &str) {
        self.command_dead(dead);
        self.holder.expect_lost(why);
        let stdout = self.holder.stdout();
        assert!(stdout.contains("holder signal TERM\n"), "the stop signal came first\n{stdout}");
        self.next_starts(next);
        self.end();
    }

    /// The lock was taken away: there is no time for a stop signal.
    #[track_caller]
    pub(crate) fn expect_taken(mut self, why: &str) {
        self.command_dead(AT_ONCE);
        self.holder.expect_lost(why);
        let stdout = self.holder.stdout();
        assert!(stdout.ends_with("holder ready\n"), "no stop signal\n{stdout}");
        self.next_starts(AT_ONCE);
        self.end_with_overlap();
    }

    /// zklock was killed: the command is dead at once, and the next one starts within `next`.
    #[track_caller]
    pub(crate) fn expect_killed(mut self, next: Duration) {
        self.command_dead(AT_ONCE);
        self.holder.wait().expect_signal(Signal::SIGKILL);
        self.next_starts(next);
        self.end();
    }

    /// Ends what is left, and panics when two commands ran at the same time or when something is left behind.
    #[track_caller]
    pub(crate) fn end(self) {
        self.scratch.log().expect_no_overlap();
        self.end_with_overlap();
    }

    /// The same where the documents say that two commands can run at the same time.
    #[track_caller]
    pub(crate) fn end_with_overlap(mut self) {
        self.holder.wait_until_nothing_is_left();
        finish(&mut self.next);
        assert_eq!(self.scratch.log().order(), ["holder", "next"]);
        self.scratch.wait_queue(0);
    }

    /// The holder still has the node and the session that its command was told of, and ends when it is asked to.
    #[track_caller]
    pub(crate) fn expect_undisturbed(mut self) {
        let first = self.scratch.contenders().into_iter().next().expect("a contender");
        assert_eq!(first.path, self.holder.variable("ZKLOCK_NODE"));
        assert_eq!(format!("{:#x}", first.stat.owner), self.holder.variable("ZKLOCK_SESSION"));
        self.holder.signal(Signal::SIGTERM);
        let output = self.holder.wait().expect_code(0);
        assert_eq!(output.stdout().matches("signal TERM\n").count(), 1, "{output}");
        self.holder.wait_until_nothing_is_left();
        finish(&mut self.next);
        self.scratch.expect_tidy(&["holder", "next"]);
    }
}
