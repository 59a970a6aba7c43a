//! The keeper as a process: a fork of the supervisor, deaf to every signal but SIGKILL and SIGSTOP.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::future::pending;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use nix::poll::PollFlags;
use nix::sys::prctl;
use nix::unistd::{dup2_stdin, dup2_stdout, gethostname, setsid};

use super::io::KeeperIo;
use super::{PAUSE, sessions};
use crate::between::inheritance::KeeperInheritance;
use crate::between::lending::{self, Lending};
use crate::between::wire::{Link, Received};
use crate::cli::{self, Plan};
use crate::rules::card::Card;
use crate::rules::guard::Stage;
use crate::rules::instant::Instant;
use crate::rules::lease::Span;
use crate::rules::loans::{self, HolderNode, Seen};
use crate::rules::message::{Order, Refusal, Report};
use crate::rules::offer::Barrier;
use crate::rules::process_identity::ProcessIdentity;
use crate::rules::text::stored;
use crate::system::clock;
use crate::system::lookup;
use crate::system::namespaces;
use crate::system::reactor::Reactor;
use crate::system::secrets;
use crate::system::standard::null;
use crate::zookeeper::net::connect::TcpSession;
use crate::zookeeper::net::servers::Servers;
use crate::zookeeper::session::Failure;
use crate::zookeeper::wire::handshake::Identity;

/// Lives as a keeper until there is nothing left to keep. To be called in a fresh fork. `supervisor`: the process that users
/// know. `refresh`: how often to look at the queue although nothing has happened, if a user is watching. `seen`: what the
/// runs above us lend, which is nothing that we want.
pub fn run(
    plan: &Plan,
    supervisor: ProcessIdentity,
    refresh: Option<Duration>,
    seen: Vec<Seen>,
    link: Link,
    inherited: KeeperInheritance<'_>,
) {
    secrets::enter();
    // A panic is logged on one line, like every other message.
    std::panic::set_hook(Box::new(|panic| log::error!("keeper: {}", panic.to_string().replace('\n', " "))));
    let mut login = plan.access.login.clone();
    let servers = match Servers::open(&plan.access.servers, plan.access.tls.as_ref(), &mut login) {
        Ok((servers, warnings)) => {
            warnings.iter().for_each(|warning| log::warn!("{warning}"));
            servers
        }
        Err(unfit) => {
            let _ = link.send(&Report::Refused(Refusal::File(cli::unfit(&plan.access.origins, unfit))));
            return;
        }
    };
    // From here on the keeper may have something to release, and outlives the supervisor. Before, it must not: it reads
    // credentials from standard input, which may never come.
    let _ = prctl::set_pdeathsig(None);
    if let Err(error) = detach() {
        log::error!("keeper: {error:#}");
        return;
    }
    let lived = Reactor::new().and_then(|reactor| {
        let card = OnceCell::new();
        let outside = RealIo { plan, supervisor, seen, link, inherited, servers: &servers, reactor: &reactor, card };
        reactor.run(sessions::keep(plan, refresh, outside))
    });
    if let Err(error) = lived {
        log::error!("keeper: {error}");
    }
}

/// Detaches the process: out of reach of terminals, and with standard input and output detached.
pub fn detach() -> anyhow::Result<()> {
    setsid()?;
    let null = null().context("cannot open /dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(null)?;
    Ok(())
}

struct RealIo<'p> {
    plan: &'p Plan,
    supervisor: ProcessIdentity,
    link: Link,
    inherited: KeeperInheritance<'p>,
    servers: &'p Servers<'p>,
    reactor: &'p Reactor,
    seen: Vec<Seen>,
    card: OnceCell<Card>,
}

impl<'p> KeeperIo for RealIo<'p> {
    type Session = TcpSession<'p>;

    fn now(&self) -> Instant {
        clock::now()
    }

    fn wall_millis(&self) -> u64 {
        clock::wall_millis()
    }

    fn random(&self) -> u64 {
        fastrand::u64(..)
    }

    async fn sleep(&self, time: Duration) {
        self.reactor.sleep_until(clock::now() + time).await;
    }

    async fn open(&self, timeout: Duration, unreachable: impl FnMut(String)) -> Result<TcpSession<'p>, Failure> {
        TcpSession::connect(self.servers, self.reactor, timeout, None, unreachable, |_, _| {}).await
    }

    async fn resume(
        &self,
        timeout: Duration,
        identity: &Identity,
        unreachable: impl FnMut(String),
        shortened: impl FnMut(Duration, Instant),
    ) -> Result<TcpSession<'p>, Failure> {
        TcpSession::connect(self.servers, self.reactor, timeout, Some(identity), unreachable, shortened).await
    }

    fn write_lease(&self, span: Span) {
        self.inherited.write_lease(span);
    }

    fn show_answered(&self, now: Instant) {
        self.inherited.page.write_answered_at(now);
    }

    async fn report(&self, report: &Report) {
        let mut report = Cow::Borrowed(report);
        while let Err(error) = self.link.send(&*report) {
            match error.raw_os_error() {
                // The report has a name of a node in it that is longer than any that a client would choose. Without any
                // report, the supervisor would wait for ever.
                Some(libc::EMSGSIZE) => {
                    report = Cow::Owned(Report::Refused(Refusal::Server(
                        "a name that is too long is in an answer".to_owned(),
                    )));
                }
                Some(libc::EAGAIN) => self.reactor.ready(&self.link, PollFlags::POLLOUT).await,
                Some(libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => self.sleep(PAUSE).await,
                _ => return,
            }
        }
    }

    fn report_if_room(&self, report: &Report) -> bool {
        let sent = self.link.send(report);
        sent.inspect_err(|error| log::debug!("keeper: report dropped: {error}")).is_ok()
    }

    async fn order(&self) -> Option<Order> {
        loop {
            match self.link.receive() {
                Received::Message(order) => return Some(order),
                Received::Gone => return self.inherited.page.is_released().then_some(Order::Release),
                Received::Nothing => self.reactor.ready(&self.link, PollFlags::POLLIN).await,
            }
        }
    }

    fn recall(&self) -> bool {
        self.inherited.page.recall()
    }

    fn own_end(&self) -> Option<(Instant, i32)> {
        self.inherited.page.own_end()
    }

    fn revoke_lease(&self) {
        self.inherited.revoke();
    }

    fn forget_lease(&self) {
        self.inherited.page.forget_lease();
    }

    async fn emptied(&self) {
        let KeeperInheritance { page, guards_gone, lending, .. } = &self.inherited;
        self.reactor.ready(guards_gone, PollFlags::POLLIN).await;
        // With `zklock hold`, the runs that borrow the lock are not below the guard: the supervisor waits for them.
        if page.stage() != Stage::Empty || lending.is_some() {
            pending().await
        }
    }

    async fn guard_gone(&self) -> bool {
        let KeeperInheritance { page, guards_gone, lending, .. } = &self.inherited;
        lending.iter().for_each(|lending| lending.call_in());
        // The pipe has no message, only an end.
        self.reactor.ready(guards_gone, PollFlags::POLLIN).await;
        if let Some(borrowers) = lending.and_then(Lending::awaited) {
            self.reactor.ready(borrowers, PollFlags::empty()).await;
        }
        !page.stage().is_open()
    }

    fn barrier(&self, holder: &HolderNode<'_>) -> Option<Barrier> {
        loans::barrier(holder, self.card(), self.supervisor.pid, &self.seen, &lending::Proc)
    }

    fn card(&self) -> &Card {
        self.card.get_or_init(|| {
            let plan = self.plan;
            let command = match &plan.command {
                Some(line) if plan.publishes_arguments => {
                    let words = std::iter::once(&line.program).chain(&line.args);
                    Some(words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "))
                }
                Some(line) => Path::new(&line.program).file_name().map(|name| name.to_string_lossy().into_owned()),
                None => Some("zklock hold".to_owned()),
            };
            Card {
                host: gethostname().ok().map(|name| stored(name.to_string_lossy().into_owned())),
                pid: Some(self.supervisor.pid),
                started: Some(self.supervisor.started),
                pid_ns: namespaces::pid_namespace(),
                time_ns: namespaces::time_namespace(),
                boot_id: lending::boot_id(),
                user: lookup::user_name().map(stored),
                command: command.map(stored),
                describe: plan.description.clone().map(stored),
                mode: Some(plan.request.mode),
                held_since: None,
                held_for: None,
                held_at: None,
            }
        })
    }
}
