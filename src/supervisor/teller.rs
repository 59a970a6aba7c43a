//! Which notices the user is told, and where.

use std::collections::HashMap;
use std::mem::{self, Discriminant};
use std::time::Duration;

use nix::sys::stat::fstat;

use crate::cli::sentences::{self, Weight};
use crate::cli::{Plan, Verbosity};
use crate::rules::instant::Instant;
use crate::rules::notice::Notice;
use crate::rules::text::Legible;
use crate::system::clock;
use crate::system::terminal::{self, Screen};

/// How often a person at a terminal gets a new waiting line, and a job log a further one.
const REFRESH_SCREEN: Duration = Duration::from_secs(5);
const REFRESH_LOG: Duration = Duration::from_secs(60);

/// Tells the user what they want to know, where they look.
pub(super) struct Teller<'p> {
    plan: &'p Plan,
    pub(super) screen: Screen,
    audience: Audience,
    /// With `zklock hold`: whether the caller has been told that the lock is lost.
    pub(super) tells_caller: bool,
    /// When a job log last got a line about each kind of thing.
    logged: HashMap<Discriminant<Notice>, Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Audience {
    /// A person at a terminal with a line that can be rewritten.
    Reader,
    /// A terminal that has lines only, or the log of a CI job, which people read to learn why it takes so long.
    JobLog,
    /// Cron and the like: every line is a mail.
    Mail,
}

impl<'p> Teller<'p> {
    pub(super) fn new(plan: &'p Plan) -> Self {
        let in_ci = std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false" && value != "0");
        let is_terminal = terminal::has_reader();
        let audience = match plan.verbosity {
            Verbosity::Quiet => Audience::Mail,
            // Log lines would break up the line that is rewritten.
            Verbosity::Verbose(_) => Audience::JobLog,
            Verbosity::Normal if is_terminal && terminal::can_rewrite() => Audience::Reader,
            Verbosity::Normal if is_terminal || in_ci => Audience::JobLog,
            Verbosity::Normal => Audience::Mail,
        };
        Self { plan, screen: Screen::new(is_terminal), audience, tells_caller: false, logged: HashMap::new() }
    }

    /// How often to look at the queue although nothing has happened, if that would be told.
    pub(super) fn refresh(&self) -> Option<Duration> {
        match self.audience {
            Audience::Reader => Some(REFRESH_SCREEN),
            Audience::JobLog => Some(REFRESH_LOG),
            Audience::Mail => None,
        }
    }

    /// Tells it. Returns what was told.
    pub(super) fn say(&mut self, notice: &Notice) -> (Weight, Legible) {
        let (weight, text) = sentences::sentence(notice, self.plan, self.tells_caller, clock::now());
        match (weight, self.audience) {
            (Weight::Error, _) => self.screen.line(&text),
            (Weight::Notable, _) if self.plan.verbosity != Verbosity::Quiet => self.screen.line(&text),
            (Weight::News | Weight::Hint, Audience::Reader) => self.screen.line(&text),
            (Weight::Status, Audience::Reader) if terminal::is_in_foreground() => self.screen.status(&text),
            (Weight::Progress, Audience::Mail) if is_in_journal() => self.screen.line(&text),
            (Weight::Status | Weight::News | Weight::Progress, Audience::JobLog) => {
                // That we wait is news even to those who have read that we connect. But a network that comes
                // and goes must not fill the log.
                let (now, kind) = (clock::now(), mem::discriminant(notice));
                if self.logged.get(&kind).is_none_or(|at| now.saturating_since(*at) >= REFRESH_LOG) {
                    self.logged.insert(kind, now);
                    self.screen.line(&text);
                }
            }
            _ => log::info!("{text}"),
        }
        (weight, Legible::new(&text))
    }
}

/// Whether standard error is the journal of systemd (systemd.exec(5)). There a line is no mail.
fn is_in_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    fstat(std::io::stderr()).is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}
