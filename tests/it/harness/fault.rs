//! What can die or freeze, one by one and in pairs. Each test that uses [`Fault`] is a row of a table that says how
//! long the command and its lock outlived the fault:
//!
//! ```sh
//! cargo test --test it -- --nocapture | grep '^|'
//! ```

use std::sync::Once;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::moment::Moment;
use super::process;
use super::proxy::Proxy;
use super::running::{Running, finish};
use super::scratch::{GRACE, LASTING_VERBOSE, Scratch, direct};
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

/// The end of a row about a holder that noticed nothing.
pub(crate) const UNDISTURBED: [&str; 4] = ["undisturbed", "in its turn", "0", "0"];

/// The options of a holder that is not to be disturbed while servers start, or elect a leader.
pub(crate) const ENDURING: &[&str] = &["-v", "--session-timeout", "90"];

/// A holder that something happens to, another contender behind it, and what was seen of them.
pub(crate) struct Fault {
    pub(crate) what: &'static str,
    pub(crate) scratch: Scratch,
    pub(crate) holder: Running,
    pub(crate) next: Running,
    pub(crate) supervisor: Pid,
    pub(crate) keeper: Pid,
    pub(crate) command: Pid,
    pub(crate) since: Moment,
    pub(crate) dead: Duration,
    pub(crate) next_began: Duration,
}

impl Fault {
    /// The holder reaches the servers by `addresses`, and nothing but SIGKILL ends its command.
    #[track_caller]
    pub(crate) fn new(what: &'static str, scratch: Scratch, addresses: &str) -> Self {
        Self::with(what, scratch, addresses, &GRACE, &["--wait"])
    }

    /// Against the shared server.
    #[track_caller]
    pub(crate) fn shared(what: &'static str) -> Self {
        Self::new(what, Scratch::new().with_lock(), &direct())
    }

    /// The same with a session of a minute, which would take long to end by itself.
    #[track_caller]
    pub(crate) fn minute(what: &'static str) -> Self {
        Self::with(what, Scratch::new().with_lock(), &direct(), &["--session-timeout", "60"], &["--wait"])
    }

    /// Against the shared server, by a way that can be disturbed.
    #[track_caller]
    pub(crate) fn proxied(what: &'static str) -> (Self, Proxy) {
        let (scratch, proxy) = Scratch::proxied();
        (Self::new(what, scratch, &proxy.address()), proxy)
    }

    /// A holder whose command ends by SIGTERM, with a session of [`LASTING_VERBOSE`].
    #[track_caller]
    pub(crate) fn lasting(what: &'static str, scratch: Scratch, addresses: &str) -> Self {
        Self::with(what, scratch, addresses, &LASTING_VERBOSE, &["--exit-on", "TERM"])
    }

    /// The same with a session of [`ENDURING`].
    #[track_caller]
    pub(crate) fn enduring(what: &'static str, scratch: Scratch, addresses: &str) -> Self {
        Self::with(what, scratch, addresses, ENDURING, &["--exit-on", "TERM"])
    }

    #[track_caller]
    pub(crate) fn with(
        what: &'static str,
        scratch: Scratch,
        addresses: &str,
        options: &[&str],
        child: &[&str],
    ) -> Self {
        let mut holder = scratch.start(addresses, "holder", options, child);
        holder.wait_stdout("holder ready");
        let next = scratch.queue("next", 1);
        Self::of(what, scratch, holder, next)
    }

    #[track_caller]
    pub(crate) fn of(what: &'static str, scratch: Scratch, holder: Running, next: Running) -> Self {
        let (supervisor, keeper, command) = (holder.pid(), holder.keeper(), holder.command());
        let (since, dead, next_began) = (Moment::now(), Duration::ZERO, Duration::ZERO);
        Self { what, scratch, holder, next, supervisor, keeper, command, since, dead, next_began }
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

    /// The holder's node is deleted.
    #[track_caller]
    pub(crate) fn delete_node(&mut self) {
        let node = self.scratch.contenders().swap_remove(0).path;
        self.strikes();
        self.scratch.delete(&node);
    }

    /// The command is dead, and was last alive at most `limit` after the fault.
    #[track_caller]
    pub(crate) fn command_dead(&mut self, limit: Duration) {
        process::wait_dead(self.command);
        let last = self.scratch.last_alive("holder");
        last.expect_within(limit, self.since, "the command is dead");
        self.dead = last.since(self.since);
    }

    /// The next command has started at most `limit` after the fault.
    #[track_caller]
    pub(crate) fn next_starts(&mut self, limit: Duration) {
        if !self.next.stdout().contains(" ready\n") {
            self.next.wait_stdout(" ready");
        }
        let begin = self.scratch.begin("next");
        begin.expect_within(limit, self.since, "the next one starts");
        self.next_began = begin.since(self.since);
    }

    /// zklock exits with 76 and one line that says why.
    #[track_caller]
    pub(crate) fn lost(&mut self, why: &str) {
        self.holder.expect_lost(why);
    }

    /// The lock is lost because of `why`: the command is dead within `dead`, the next one starts within `next`.
    #[track_caller]
    pub(crate) fn expect_lost(mut self, dead: Duration, next: Duration, why: &str) {
        self.command_dead(dead);
        self.lost(why);
        let stdout = self.holder.stdout();
        assert!(stdout.contains("holder signal TERM\n"), "the stop signal came first\n{stdout}");
        self.next_starts(next);
        self.end("76");
    }

    /// The lock was taken away: there is no time for a stop signal.
    #[track_caller]
    pub(crate) fn expect_taken(mut self, why: &str) {
        self.command_dead(AT_ONCE);
        self.lost(why);
        let stdout = self.holder.stdout();
        assert!(stdout.ends_with("holder ready\n"), "no stop signal\n{stdout}");
        self.next_starts(AT_ONCE);
        self.end_with_overlap("76");
    }

    /// zklock was killed: the command is dead at once, and the next one starts within `next`.
    #[track_caller]
    pub(crate) fn expect_killed(mut self, next: Duration) {
        self.command_dead(AT_ONCE);
        self.holder.wait().expect_signal(Signal::SIGKILL);
        self.next_starts(next);
        self.end("KILL");
    }

    /// Ends what is left, and panics when two commands ran at the same time or when something is left behind.
    #[track_caller]
    pub(crate) fn end(self, exit: &str) {
        self.scratch.log().expect_no_overlap();
        self.end_with_overlap(exit);
    }

    /// The same where the documents say that two commands can run at the same time.
    #[track_caller]
    pub(crate) fn end_with_overlap(mut self, exit: &str) {
        let both = self.scratch.last_alive("holder").since(self.scratch.begin("next"));
        let [dead, next, both] = [self.dead, self.next_began, both].map(|time| time.as_millis().to_string());
        self.row([&dead, &next, &both, exit]);
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
        self.row(UNDISTURBED);
        self.holder.wait_until_nothing_is_left();
        finish(&mut self.next);
        self.scratch.expect_tidy(&["holder", "next"]);
    }

    pub(crate) fn row(&self, [dead, next, both, exit]: [&str; 4]) {
        static HEADER: Once = Once::new();
        HEADER.call_once(|| {
            println!("\n| fault | command dead after (ms) | next one starts after (ms) | both ran for (ms) | exit |");
            println!("| --- | ---: | ---: | ---: | --- |");
        });
        println!("| {} | {dead} | {next} | {both} | {exit} |", self.what);
    }
}
