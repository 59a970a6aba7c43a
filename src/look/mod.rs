//! Subcommands that take no lock: one process, one thread, one session without a lease. They ask, print, and close their
//! session.

mod break_lock; // `zklock break`
mod check; // `zklock check`
mod complete; // what TAB asks
mod list; // `zklock list`
mod output; // standard output, without waiting for its reader
mod picture; // locks as text
pub mod roster; // the holders and waiters of a lock
mod status; // `zklock status`
mod vanished; // a holder that delays the next one
mod view; // one lock
mod visit; // a session for as long as something is asked
mod window; // many requests at a time

use nix::errno::Errno;
use nix::poll::PollFlags;

use self::output::Output;
use self::visit::Visit;
use crate::cli::sentences;
use crate::cli::{self, Operation, Subject, Verbosity};
use crate::rules::outcome::Outcome;
use crate::rules::signal::Signal;
use crate::system::futures::or;
use crate::system::reactor::Reactor;
use crate::system::signals::Signals;
use crate::system::terminal::say;
use crate::zookeeper::net::connect::TcpSession;
use crate::zookeeper::net::servers::Servers;
use crate::zookeeper::session::Failure;

#[derive(Debug)]
enum EarlyEnd {
    /// With this outcome, for this reason. A lock that is not free is no reason that `--quiet` tells.
    Because(Outcome, String),
    Failed(Failure),
    Output(Errno),
}

impl From<Failure> for EarlyEnd {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Does what a subcommand is to do. Says on standard error why, if it cannot.
pub fn run(operation: &Operation) -> Outcome {
    let access = &operation.access;
    let mut login = access.login.clone();
    let servers = match Servers::open(&access.servers, access.tls.as_ref(), &mut login) {
        Ok((servers, warnings)) => {
            warnings.iter().for_each(|warning| log::warn!("{warning}"));
            servers
        }
        Err(unfit) => {
            say(&cli::unfit(&access.origins, unfit));
            return Outcome::Usage;
        }
    };
    let ended = Reactor::new().and_then(|reactor| {
        // The session is closed before we die of one. All others do what they do to any program: Ctrl-Z suspends it.
        let endings = Signals::of([Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM])?;
        let visit = Visit::new(&operation.access, &servers, &reactor);
        let output = Output::new(&reactor);
        reactor.run(async {
            let work = async {
                match &operation.subject {
                    Subject::Status(status) => status::run(status, operation, &visit, &output).await,
                    Subject::List(list) => list::run(list, operation, &visit, &output).await,
                    Subject::Complete(typed) => complete::run(typed, operation, &visit, &output).await,
                    Subject::Break(order) => break_lock::run(order, operation, &visit, &reactor).await,
                    Subject::Check(check) => check::run(check, operation, &servers, &reactor, &output).await,
                }
            };
            let ending = async {
                loop {
                    reactor.ready(&endings, PollFlags::POLLIN).await;
                    if let Some(arrival) = endings.drain().first() {
                        return Ok(Outcome::Interrupted(arrival.signal));
                    }
                }
            };
            let ended = or(ending, work).await;
            visit.close().await;
            ended
        })
    });
    match ended {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(stop)) => explained(stop, operation),
        Err(error) => {
            say(&format!("internal error: {error}"));
            Outcome::Internal
        }
    }
}

/// Says why a subcommand has ended early, unless there is no reader for what it prints.
fn explained(stop: EarlyEnd, operation: &Operation) -> Outcome {
    let (outcome, why) = match stop {
        EarlyEnd::Because(outcome, why) => (outcome, why),
        EarlyEnd::Failed(Failure::NotLetIn(why)) => (Outcome::Denied, sentences::not_let_in(&why)),
        EarlyEnd::Failed(Failure::NoLibrary(why)) => (Outcome::Unusable, why),
        EarlyEnd::Failed(Failure::ClickHouseKeeper(server)) => {
            (Outcome::Unusable, sentences::clickhouse_keeper(&server))
        }
        EarlyEnd::Failed(failure) => (Outcome::Internal, format!("ZooKeeper refused: {failure}")),
        // As other programs do that write to a pipe.
        EarlyEnd::Output(Errno::EPIPE) => return Outcome::Interrupted(Signal::PIPE),
        EarlyEnd::Output(error) => (Outcome::Internal, format!("cannot write to standard output: {}", error.desc())),
    };
    if outcome != Outcome::NotFree || operation.verbosity != Verbosity::Quiet {
        say(&why);
    }
    outcome
}

/// Where nothing was found, there may be no chroot either.
async fn expect_chroot(session: &TcpSession<'_>, operation: &Operation) -> Result<(), EarlyEnd> {
    let servers = &operation.access.servers;
    if !servers.chroot.is_empty() && !session.is_there("/").await? {
        return Err(EarlyEnd::Because(Outcome::Unusable, sentences::no_chroot(servers)));
    }
    Ok(())
}
