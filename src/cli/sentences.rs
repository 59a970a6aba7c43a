//! The sentences that a user reads during a run, and some that subcommands share.

use std::time::Duration;

use super::{Plan, Verbosity};
use crate::rules::duration::{show, show_age, show_limit, show_measured};
use crate::rules::instant::Instant;
use crate::rules::last_run::{self, LastRun};
use crate::rules::lease::{NoRoom, Terms};
use crate::rules::lock_delay;
use crate::rules::message::{Grant, Loss, QueueView, Remark, Revoker};
use crate::rules::notice::{Blocker, LostWhy, Notice};
use crate::rules::settings::Patience;
use crate::zookeeper::net::address::ConnectString;

pub use self::refusals::{
    CLICKHOUSE_UNFIT, clickhouse_keeper, denied, immune, lacks, no_chroot, not_let_in, recipe, refused,
};

mod refusals;

/// Who is to see a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Always: it explains a failure.
    Error,
    /// Unless `--quiet`: something to know, or the lock was not free.
    Notable,
    /// A person at a terminal, for as long as it is true; a job log, once in a while.
    Status,
    /// A person at a terminal, or a job log, once in a while: something begins, or is over.
    News,
    /// A job log, once in a while: the end of a wait, which a terminal shows anyway.
    Progress,
    /// A person at a terminal, or with `--verbose`: worth knowing, but not worth a mail from cron.
    Hint,
    /// With `--verbose`.
    Detail,
}

/// The sentence for a notice, without the program's name, and who is to see it.
pub fn sentence(notice: &Notice, plan: &Plan, tells_caller: bool, now: Instant) -> (Weight, String) {
    use Weight::{Error, News, Notable, Status};
    let run = Telling { plan, tells_caller, now };
    let lock = &plan.request.lock;
    match notice {
        // The way to the servers.
        Notice::Connecting(reason) => (Status, format!("connecting to ZooKeeper: {reason}")),
        Notice::Reconnected => (Status, "connected to ZooKeeper again".to_owned()),
        Notice::Granted(timeout) => run.granted(*timeout),
        Notice::NoRoom { no_room, granted } => (Error, run.no_room(*no_room, *granted)),
        Notice::Impatient(terms) => (Weight::Hint, impatient(terms)),
        Notice::Unreachable(reason) => {
            let within = plan.settings.connect_timeout;
            (Error, unreachable(&plan.access.servers, plan.access.servers_given, within, reason))
        }
        // The wait for the lock.
        Notice::Waiting(view) => (Status, format!("waiting for {}: {}", view.lock, queue(view, now))),
        Notice::Delayed(view) => (Status, held(view, now)),
        Notice::Requeued { loss, pause } => (Notable, run.requeued(*loss, *pause)),
        Notice::Skipped(last) => (News, run.skipped(last)),
        Notice::CallerGone => {
            (Notable, format!("gave up waiting for {lock}: the process that it was to be held for has gone"))
        }
        Notice::TimedOut(blocker) => run.timed_out(blocker),
        // While the lock is held.
        Notice::Starting { grant, waited } => run.starting(grant, *waited),
        Notice::Silent { silence, age, remaining } => {
            let remaining = show_measured(*remaining);
            (News, format!("{}; the lock is lost in {remaining} unless it does", unconfirmed(*silence, *age)))
        }
        Notice::Back => (News, "ZooKeeper answers again".to_owned()),
        Notice::MaxRun(max_run) => {
            (Error, format!("the time of --max-run, {}, is over; stopping the command", show(*max_run)))
        }
        Notice::Remark(remark) => self::remark(remark, plan),
        // Its loss and its end.
        Notice::Refused(refusal) => (Error, refused(refusal, plan)),
        Notice::Lost(why) => (Error, format!("lost the {}: {}", run.the_locks(), run.lost(why))),
        Notice::Revoked { by, stops } => (Error, run.revoked(by, *stops)),
        Notice::TooLate => (Error, format!("lost the {}: this machine stalled; {}", run.the_locks(), not_begun(plan))),
        Notice::LenderGone => {
            let why = cause(Loss::LenderGone, run.has_several());
            (Error, format!("lost the {}: {why}; {}", run.the_locks(), not_begun(plan)))
        }
        Notice::NotBegun => (Error, not_begun(plan).to_owned()),
        Notice::NotReleased { within, after_success } => run.not_released(*within, *after_success),
        Notice::GuardDied { had_ended } => {
            let told = run.told_to_caller().map(|told| format!("the guard process died; {told}"));
            (Error, told.unwrap_or_else(|| guard_died(*had_ended).to_owned()))
        }
        Notice::Denied(process) => (Error, immune(*process)),
        Notice::LeftBehind { number, end_with_us } => (Notable, left_behind(*number, *end_with_us)),
        Notice::KeeperDied => (Error, "internal error: the keeper process died".to_owned()),
    }
}

/// The run that a sentence is about.
struct Telling<'a> {
    plan: &'a Plan,
    /// With `zklock hold`: the caller has been told that the lock is lost.
    tells_caller: bool,
    now: Instant,
}

impl Telling<'_> {
    /// Of which of several locks something is true is not known.
    fn has_several(&self) -> bool {
        !self.plan.request.and.is_empty()
    }

    fn locks(&self) -> String {
        self.plan.request.locks().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
    }

    fn the_locks(&self) -> String {
        format!("{} {}", if self.has_several() { "locks" } else { "lock" }, self.locks())
    }

    /// What becomes of the caller of `zklock hold` when the lock is lost; `None` where there is a command.
    fn told_to_caller(&self) -> Option<&'static str> {
        let told = if self.tells_caller { "stopping the caller" } else { "the caller is not told" };
        self.plan.hold.map(|_| told)
    }

    fn granted(&self, timeout: Duration) -> (Weight, String) {
        let asked = self.plan.settings.session_timeout;
        let (weight, limit) = match timeout < asked {
            true => (Weight::Hint, "maxSessionTimeout"),
            false => (Weight::Detail, "minSessionTimeout"),
        };
        let (granted, asked) = (show(timeout), show(asked));
        (weight, format!("the servers granted a session timeout of {granted}, not {asked}: their {limit} is the limit"))
    }

    fn no_room(&self, no_room: NoRoom, granted: Duration) -> String {
        format!(
            "--kill-after {} does not fit into the session timeout of {} that the servers granted ({} was asked for, \
             their maxSessionTimeout is the limit): write {} at most",
            show(no_room.kill_after),
            show(granted),
            show(self.plan.settings.session_timeout),
            show_limit(no_room.longest)
        )
    }

    fn requeued(&self, loss: Loss, pause: Duration) -> String {
        let why = cause(loss, self.has_several());
        let queue = if self.has_several() { "queues" } else { "queue" };
        let when = if pause.is_zero() { String::new() } else { format!(" in {}", show(pause)) };
        format!("lost the place in the {queue} for {}: {why}; queueing again{when}", self.locks())
    }

    fn skipped(&self, last: &LastRun) -> String {
        let began = last.began().unwrap_or_default();
        let began = began.split('.').next().unwrap_or_default();
        let host = last.host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
        format!("skipped: the last successful run under {} began at {began}Z{host}", self.plan.request.lock)
    }

    fn timed_out(&self, blocker: &Blocker) -> (Weight, String) {
        let patience = self.plan.settings.patience;
        let (weight, why) = match blocker {
            Blocker::Queue(view) if patience == Patience::NoWait && view.free_at.is_none() => {
                return (Weight::Notable, format!("{} is not free: {}", view.lock, held(view, self.now)));
            }
            Blocker::Queue(view) => (Weight::Notable, queue(view, self.now)),
            Blocker::Lender => {
                (Weight::Notable, "the run that holds it has waited too long for an answer of ZooKeeper".to_owned())
            }
            Blocker::Freed => (Weight::Error, "zklock has learnt too late that it is free".to_owned()),
            Blocker::Late => (Weight::Error, "ZooKeeper did not answer in time".to_owned()),
            Blocker::Servers(reason) => (Weight::Error, self.no_answer(reason.as_deref())),
        };
        let lock = match blocker {
            Blocker::Queue(view) => view.lock.as_str(),
            _ => self.plan.request.lock.as_str(),
        };
        let after = match patience {
            Patience::AtMost(timeout) => format!(" after {}", show(timeout)),
            Patience::Forever | Patience::NoWait => String::new(),
        };
        (weight, format!("gave up waiting for {lock}{after}: {why}"))
    }

    fn no_answer(&self, reason: Option<&str>) -> String {
        let hint = which_servers(self.plan.access.servers_given);
        match reason {
            None => format!("no ZooKeeper server of {} answered{hint}", self.plan.access.servers),
            Some(reason) => format!("no ZooKeeper server answered: {reason}{hint}"),
        }
    }

    fn starting(&self, grant: &Grant, waited: Option<Duration>) -> (Weight, String) {
        let after = waited.map(|waited| format!(" after {}", show_age(waited))).unwrap_or_default();
        if waited.is_some() && self.plan.verbosity == Verbosity::Normal {
            let locks: Vec<_> = grant.all().map(|granted| granted.lock.as_str()).collect();
            return (Weight::Progress, format!("holding {}{after}", locks.join(" and ")));
        }
        let all: Vec<_> = grant.all().map(|granted| format!("{}, token {}", granted.node, granted.token)).collect();
        (Weight::Detail, format!("holding {}{after}", all.join("; ")))
    }

    fn lost(&self, why: &LostWhy) -> String {
        let stopping = self.told_to_caller().unwrap_or("stopping the command");
        let killing = self.told_to_caller().unwrap_or("killing the command");
        match why {
            LostWhy::Told(Loss::LeaseOver) if self.plan.fence.is_some() => {
                "a later holder has come; killed the command".to_owned()
            }
            LostWhy::Told(loss @ Loss::LeaseOver) if self.plan.hold.is_none() => {
                format!("{}; killed the command", cause(*loss, self.has_several()))
            }
            LostWhy::Told(loss) => format!("{}; {killing}", cause(*loss, self.has_several())),
            LostWhy::Silence { silence, age } => format!("{}; {stopping}", unconfirmed(*silence, *age)),
            LostWhy::Refused(refusal) => format!("{}; {stopping}", refused(refusal, self.plan)),
            LostWhy::KeeperGone => format!("the keeper process died; {stopping}"),
            LostWhy::Killed(signal) => format!("the process that held it died of {signal}; {stopping}"),
        }
    }

    fn revoked(&self, by: &Revoker, stops: bool) -> String {
        let stopping = self.told_to_caller().unwrap_or("stopping the command");
        match by {
            Revoker::LaterHolder(token) => {
                let what = if stops { stopping } else { "the command was not started" };
                format!("a later holder has come, with the token {token} for {}: {what}", self.plan.request.lock)
            }
            Revoker::User(user) => {
                let by = user.as_ref().map(|user| format!(" by {user}")).unwrap_or_default();
                let what = if stops { stopping } else { "leaving the queue" };
                format!("asked{by} to give up {} (zklock break): {what}", self.locks())
            }
        }
    }

    fn not_released(&self, within: Duration, after_success: bool) -> (Weight, String) {
        let (weight, record) = match self.plan.request.once_per {
            Some(_) if after_success => (Weight::Error, "; --once-per may not know of this run, and run it again"),
            _ => (Weight::Notable, ""),
        };
        let free = if self.has_several() { "they free themselves" } else { "it frees itself" };
        let text = format!("the release of {} was not confirmed; {free} within {}{record}", self.locks(), show(within));
        (weight, text)
    }
}

fn impatient(terms: &Terms) -> String {
    format!(
        "with --kill-after {} and a session timeout of {}, a silence of {} already stops the command",
        show(terms.kill_after()),
        show(terms.timeout),
        show(terms.patience())
    )
}

fn left_behind(number: usize, end_with_us: bool) -> String {
    let (which, go_on, end) = match number {
        1 => ("a process".to_owned(), "goes on", "ends"),
        _ => (format!("{number} processes"), "go on", "end"),
    };
    let what =
        if end_with_us { format!("{end} with zklock, which is PID 1") } else { format!("{go_on} without the lock") };
    format!("{which} that the command left behind {what}")
}

fn remark(remark: &Remark, plan: &Plan) -> (Weight, String) {
    let lock = &plan.request.lock;
    match remark {
        Remark::Foreign { lock, child } => {
            (Weight::Hint, format!("{lock} has a child that is not a contender, ignored: {child}"))
        }
        Remark::TooSlow(vain) => (
            Weight::Notable,
            format!(
                "it is this run's turn for {lock}, but for {} ZooKeeper has answered too slowly to rely on the lock; still \
                 trying (a longer --session-timeout helps)",
                show_measured(*vain)
            ),
        ),
        Remark::Beside(refusal) => {
            (Weight::Notable, format!("another command may be running too: {}", refused(refusal, plan)))
        }
        Remark::Misrecorded(record) => {
            (Weight::Error, format!("{record} is no record of a run; continuing as if there were none"))
        }
        Remark::NoHolder(record) => {
            (Weight::Notable, format!("{record} is no record of a holder; waiting out --lock-delay once"))
        }
        Remark::Unreleased(why) => {
            let record = lock_delay::path(lock.as_str());
            (Weight::Error, format!("{record} could not be written: {why}; the next run waits out --lock-delay"))
        }
        Remark::Unrecorded(why) => (
            Weight::Error,
            format!(
                "{} could not be written: {}; the next run will not be skipped because of this one{}",
                last_run::path(lock.as_str()),
                why.as_deref().unwrap_or("the lock was lost before that"),
                if why.is_some() { "; this login has to be able to create and to write that node" } else { "" }
            ),
        ),
    }
}

pub fn guard_died(had_ended: bool) -> &'static str {
    match had_ended {
        false => "internal error: the guard process died; killed the command",
        true => "internal error: the guard process died; killed what the command had left behind",
    }
}

pub fn unreachable(servers: &ConnectString, given: bool, within: Duration, reason: &str) -> String {
    let hint = which_servers(given);
    format!("no ZooKeeper server of {servers} answered within {}: {reason}{hint}", show(within))
}

pub fn cut_off(servers: &ConnectString, connections: usize, reason: &str) -> String {
    format!("none of {connections} connections to {servers} lasted until all was answered: {reason}")
}

fn not_begun(plan: &Plan) -> &'static str {
    if plan.hold.is_some() { "the caller has not been told that it is held" } else { "the command was not started" }
}

/// For how long a lock was not confirmed. `silence`: for how long ZooKeeper has answered nothing at all.
fn unconfirmed(silence: Duration, age: Duration) -> String {
    // ZooKeeper has answered something in between, so the beats come too late rather than not at all.
    if silence < age / 2 {
        return format!("ZooKeeper answers too slowly, and has not confirmed the lock for {}", show_measured(age));
    }
    format!("ZooKeeper has not answered for {}", show_measured(silence))
}

/// Why the lock, or the place in its queue, is lost.
fn cause(loss: Loss, several: bool) -> &'static str {
    match loss {
        Loss::NodeDeleted if several => "one of their nodes was deleted",
        Loss::NodeDeleted => "its node was deleted",
        Loss::StoodStill => "zklock or this machine stood still for longer than the lease",
        Loss::LeaseOver => "ZooKeeper has not answered in time",
        Loss::LenderGone if several => "an outer zklock that held one of them has gone",
        Loss::LenderGone => "the outer zklock that held it has gone",
        Loss::SessionOver => "the session ended",
    }
}

/// If the user named no servers: a hint that sudo or cron may have dropped the variable.
pub fn which_servers(given: bool) -> &'static str {
    if given {
        ""
    } else {
        "; neither --zookeeper, ZKLOCK_ZOOKEEPER nor a configuration file names the servers (sudo and cron drop variables)"
    }
}

fn queue(view: &QueueView, now: Instant) -> String {
    let place = view.place.map(|(position, total)| format!("{} of {total}, ", ordinal(position)));
    place.unwrap_or_default() + &held(view, now)
}

/// How long ago that was, with both on our clock.
fn age(now: Instant, since: i64) -> Duration {
    let now = i64::try_from(now.since_boot().as_millis()).unwrap_or(i64::MAX);
    Duration::from_millis(now.saturating_sub(since).try_into().unwrap_or(0))
}

fn held(view: &QueueView, now: Instant) -> String {
    match (view.held_since, view.free_at) {
        (_, Some(free_at)) => {
            // Rounded up: the lock is not free before that.
            let remaining = show_age(free_at.saturating_since(now) + Duration::from_millis(999));
            format!("{} did not end cleanly: {} is free in {remaining} (--lock-delay)", view.holder, view.lock)
        }
        (Some(since), None) => {
            format!("held by {} for {}", view.holder, show_age(age(now, since)))
        }
        (None, None) => format!("held by {}", view.holder),
    }
}

fn ordinal(number: usize) -> String {
    let suffix = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{suffix}")
}

#[cfg(test)]
mod tests;
