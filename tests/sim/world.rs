//! The simulated outside of a keeper, and its sessions.

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use zklock::futures::or;
use zklock::keeper::outside::Outside;
use zklock::rules::card::Card;
use zklock::rules::contacts::silence_limit;
use zklock::rules::guard::Stage;
use zklock::rules::instant::Instant;
use zklock::rules::lease::Span;
use zklock::rules::lender::{Lender, Loan};
use zklock::rules::message::{Connection, Order, Progress, Report};
use zklock::session::{Change, Created, Failure, Session, Stat, Watch};

use crate::coverage::Kind;
use crate::network::{Answer, Request, Slot};
use crate::servers;
use crate::state::{Event, MS, State, instant, micros};

/// The state that the run and all its keepers share. The run does not borrow it while it polls a keeper.
pub(crate) type Shared = Rc<RefCell<State>>;

/// How many unread reports there is room for.
const ROOM: usize = 20;

/// What one keeper finds outside itself.
pub(crate) struct SimOutside {
    pub(crate) state: Shared,
    pub(crate) keeper: usize,
    pub(crate) card: Card,
}

impl SimOutside {
    async fn connect(
        &self,
        timeout: Duration,
        session: Option<usize>,
        mut unreachable: impl FnMut(String),
    ) -> Result<SimSession, Failure> {
        let mut pause = Duration::from_millis(50);
        loop {
            let mut order: Vec<usize> = (0..self.state.borrow().servers.all.len()).collect();
            self.state.borrow_mut().chance.shuffle(&mut order);
            let distrusted = self.state.borrow().keepers[self.keeper].distrusted;
            order.sort_by_key(|server| distrusted == Some(*server));
            for server in order {
                let (conn, slot) = self.state.borrow_mut().dial(self.keeper, server, session, micros(timeout));
                let lost = Rc::clone(&self.state.borrow().conns[conn].lost);
                let opened = self.now();
                let granted = Duration::from_micros(self.state.borrow().conns[conn].granted);
                let mut tried =
                    SimSession { opened, timeout: granted, state: Rc::clone(&self.state), conn, id: 0, lost };
                let enough = async {
                    or(self.sleep(silence_limit(timeout)), tried.lost()).await;
                    Answer::Failed(Failure::Unknown(String::new()))
                };
                match or(reply(slot), enough).await {
                    Answer::Accepted(session) => {
                        self.state.borrow_mut().note(|| format!("keeper {} is connected to {server}", self.keeper));
                        self.state.borrow_mut().hear_of_timeout(session, micros(granted));
                        tried.id = servers::Session::id(session);
                        return Ok(tried);
                    }
                    Answer::Failed(Failure::SessionOver) => return Err(Failure::SessionOver),
                    _ => {}
                }
            }
            unreachable("no server answers".to_owned());
            self.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    fn has_room(&self) -> bool {
        self.state.borrow().keepers[self.keeper].reports.len() < ROOM
    }

    fn push(&self, report: &Report) {
        let mut state = self.state.borrow_mut();
        let host = state.keepers[self.keeper].host;
        state.note(|| format!("keeper {} of host {host}: {report:?}", self.keeper));
        if let Report::Queue(Progress::Requeued(_)) = report {
            state.coverage.count(Kind::Requeued);
        }
        if let (Report::Connection(Connection::Shortened { .. }), true) = (report, state.hosts[host].is_running()) {
            state.spring(Kind::AtShortened, host);
        }
        let held = matches!(report, Report::Queue(Progress::Held { .. }));
        state.keepers[self.keeper].reports.push(report.clone());
        state.keepers[self.keeper].reported_at = state.now;
        state.wake_supervisor(host);
        if held && !state.hosts[host].alive {
            state.fail(format!("keeper {} takes the lock although host {host} has no supervisor", self.keeper));
        }
        if held {
            state.spring(Kind::AtHeld, host);
        }
    }
}

impl Outside for SimOutside {
    type Session = SimSession;

    fn now(&self) -> Instant {
        instant(self.state.borrow().now)
    }

    fn wall_millis(&self) -> u64 {
        let state = self.state.borrow();
        (state.now + state.hosts[state.keepers[self.keeper].host].fast) / 1000
    }

    fn random(&self) -> u64 {
        self.state.borrow_mut().chance.number()
    }

    async fn sleep(&self, time: Duration) {
        let host = self.state.borrow().keepers[self.keeper].host;
        // Timers stand still while the machine sleeps.
        let deadline = self.state.borrow().monotonic(host) + micros(time);
        let mut armed = None;
        poll_fn(|_| {
            let mut state = self.state.borrow_mut();
            let now = state.monotonic(host);
            if now >= deadline {
                return Poll::Ready(());
            }
            let at = state.now + (deadline - now);
            if armed.replace(at) != Some(at) {
                state.schedule(at, Event::Wake(self.keeper));
            }
            Poll::Pending
        })
        .await;
    }

    async fn open(&self, timeout: Duration, unreachable: impl FnMut(String)) -> Result<SimSession, Failure> {
        self.connect(timeout, None, unreachable).await
    }

    async fn resume(
        &self,
        timeout: Duration,
        identity: &i64,
        unreachable: impl FnMut(String),
    ) -> Result<SimSession, Failure> {
        let session = self.state.borrow().servers.session_of(*identity);
        self.connect(timeout, Some(session), unreachable).await
    }

    fn show_lease(&self, span: Span) {
        let [from, kill_at, ends_at] = [span.from, span.kill_at, span.ends_at].map(|at| micros(at.since_boot()));
        let mut state = self.state.borrow_mut();
        let keeper = &mut state.keepers[self.keeper];
        let (before, host) = (keeper.limits, keeper.host);
        (keeper.lease, keeper.limits) = (Some(from), Some((kill_at, ends_at)));
        if let Some((_, before)) = before.filter(|before| ends_at < before.1) {
            // The kernel takes a moment to kill.
            state.hosts[host].shortened_from = before + MS;
            state.schedule(before + MS + 1, Event::Verify(host));
            state.wake_guard(host);
        }
    }

    fn show_answered(&self, at: Instant) {
        self.state.borrow_mut().keepers[self.keeper].answered = Some(micros(at.since_boot()));
    }

    async fn report(&self, report: &Report) {
        poll_fn(|_| if self.has_room() { Poll::Ready(()) } else { Poll::Pending }).await;
        self.push(report);
    }

    fn report_if_room(&self, report: &Report) {
        if self.has_room() {
            self.push(report);
        }
    }

    async fn order(&self) -> Option<Order> {
        poll_fn(|_| {
            let mut state = self.state.borrow_mut();
            let host = state.keepers[self.keeper].host;
            let orders = &mut state.keepers[self.keeper].orders;
            if !orders.is_empty() {
                return Poll::Ready(Some(orders.remove(0)));
            }
            if state.hosts[host].alive { Poll::Pending } else { Poll::Ready(None) }
        })
        .await
    }

    fn revoke_lease(&self) {
        let mut state = self.state.borrow_mut();
        state.keepers[self.keeper].revoked = true;
        let host = state.keepers[self.keeper].host;
        state.wake_guard(host);
    }

    async fn emptied(&self) {
        poll_fn(|_| {
            let state = self.state.borrow();
            let guard = &state.hosts[state.keepers[self.keeper].host].guard;
            if !guard.alive && guard.stage == Stage::Empty { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    async fn guard_gone(&self) -> bool {
        poll_fn(|_| {
            let state = self.state.borrow();
            let host = &state.hosts[state.keepers[self.keeper].host];
            if host.alive || host.guard.alive {
                return Poll::Pending;
            }
            Poll::Ready(matches!(host.guard.stage, Stage::Gated | Stage::Empty | Stage::Left))
        })
        .await
    }

    fn loan(&self, _: &Card) -> Loan {
        Loan::Stranger
    }

    async fn until_gone(&self, _: Lender) {
        pending().await
    }

    fn card(&self) -> &Card {
        &self.card
    }
}

/// A session over one connection.
pub(crate) struct SimSession {
    opened: Instant,
    timeout: Duration,
    state: Shared,
    conn: usize,
    id: i64,
    lost: Rc<Cell<bool>>,
}

impl SimSession {
    fn ask(&self, request: Request) -> Rc<Slot> {
        self.state.borrow_mut().ask(self.conn, request)
    }
}

impl Drop for SimSession {
    fn drop(&mut self) {
        // At the end of a run, everything may be dropped at once.
        if let Ok(mut state) = self.state.try_borrow_mut() {
            state.hang_up(self.conn);
        }
    }
}

async fn reply(slot: Rc<Slot>) -> Answer {
    poll_fn(|_| slot.answer.take().map_or(Poll::Pending, Poll::Ready)).await
}

async fn done(slot: Rc<Slot>) -> Result<(), Failure> {
    match reply(slot).await {
        Answer::Failed(failure) => Err(failure),
        _ => Ok(()),
    }
}

async fn data(slot: Rc<Slot>) -> Result<(Vec<u8>, Stat), Failure> {
    match reply(slot).await {
        Answer::Data(data, stat) => Ok((data, stat)),
        Answer::Failed(failure) => Err(failure),
        _ => unreachable!("not what was asked for"),
    }
}

impl Session for SimSession {
    type Identity = i64;

    fn identity(&self) -> i64 {
        self.id
    }

    fn id(&self) -> i64 {
        self.id
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn opened(&self) -> Instant {
        self.opened
    }

    async fn lost(&self) {
        poll_fn(|_| if self.lost.get() { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    fn distrust(&self) {
        let mut state = self.state.borrow_mut();
        state.coverage.count(Kind::SeenThrough);
        let (keeper, server) = (state.conns[self.conn].keeper, state.conns[self.conn].server);
        state.keepers[keeper].distrusted = Some(server);
        state.note(|| format!("keeper {keeper} distrusts server {server}"));
    }

    fn sync<'s>(&'s self, _: &str) -> impl Future<Output = Result<(), Failure>> + use<'s> {
        done(self.ask(Request::Sync))
    }

    fn create<'s>(
        &'s self,
        prefixes: &'s [String],
        data: &[u8],
        with_stat: bool,
    ) -> impl Future<Output = Result<Created, Failure>> + use<'s> {
        let slot = self.ask(Request::Create { prefixes: prefixes.to_vec(), data: Rc::from(data), with_stat });
        async move {
            match reply(slot).await {
                Answer::Created(paths, stat) => Ok(Created { paths, stat }),
                Answer::Failed(failure) => Err(failure),
                _ => unreachable!("not what was asked for"),
            }
        }
    }

    async fn create_parents(&self, path: &str, _: bool) -> Result<(), Failure> {
        done(self.ask(Request::Mkdir(path.to_owned()))).await
    }

    fn children<'s>(&'s self, path: &str) -> impl Future<Output = Result<Vec<String>, Failure>> + use<'s> {
        let slot = self.ask(Request::Children(path.to_owned()));
        async move {
            match reply(slot).await {
                Answer::Children(names) => Ok(names),
                Answer::Failed(failure) => Err(failure),
                _ => unreachable!("not what was asked for"),
            }
        }
    }

    fn read<'s>(&'s self, path: &str) -> impl Future<Output = Result<(Vec<u8>, Stat), Failure>> + use<'s> {
        data(self.ask(Request::Read(path.to_owned())))
    }

    fn read_and_watch<'s>(
        &'s self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<u8>, Stat, Watch), Failure>> + use<'s> {
        let slot = self.ask(Request::Watch(path.to_owned()));
        async move {
            let (bytes, stat) = data(Rc::clone(&slot)).await?;
            let watch: Watch = Box::pin(changed(slot));
            Ok((bytes, stat, watch))
        }
    }

    fn beat<'s>(
        &'s self,
        nodes: &[String],
        publish: Option<&[u8]>,
    ) -> impl Future<Output = Result<(), Failure>> + use<'s> {
        let sent = self.state.borrow().now;
        let beat = done(self.ask(Request::Beat { nodes: nodes.to_vec(), publish: publish.map(Rc::from) }));
        async move {
            beat.await?;
            let mut state = self.state.borrow_mut();
            let keeper = state.conns[self.conn].keeper;
            state.keepers[keeper].last_beat = Some(sent);
            Ok(())
        }
    }

    fn delete<'s>(&'s self, path: &str) -> impl Future<Output = Result<(), Failure>> + use<'s> {
        let deleted = done(self.ask(Request::Delete(path.to_owned())));
        async move {
            match deleted.await {
                Ok(()) | Err(Failure::NoNode) => Ok(()),
                Err(failure) => Err(failure),
            }
        }
    }

    async fn close(self) -> Result<(), Failure> {
        let lost = async {
            self.lost().await;
            Err(Failure::Unknown("connection lost".to_owned()))
        };
        or(done(self.ask(Request::Close)), lost).await
    }
}

async fn changed(slot: Rc<Slot>) -> Change {
    poll_fn(|_| slot.watch.take().map_or(Poll::Pending, Poll::Ready)).await
}
