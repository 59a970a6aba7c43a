//! The simulated outside of a keeper, and its sessions.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use zklock::keeper::io::KeeperIo;
use zklock::rules::card::Card;
use zklock::rules::child_name::ChildName;
use zklock::rules::contacts::Contact;
use zklock::rules::guard::Stage;
use zklock::rules::instant::Instant;
use zklock::rules::keep_alive::{KeepAlive, silence_limit};
use zklock::rules::lease::Span;
use zklock::rules::loans::{self, HolderNode};
use zklock::rules::message::{Connectivity, Loss, Order, Progress, Remark, Report};
use zklock::rules::offer::Barrier;
use zklock::system::futures::or;
use zklock::zookeeper::session::channel::{Rejected, shake_hands};
use zklock::zookeeper::session::client::ClientSession;
use zklock::zookeeper::session::{Created, Expected, Failure, NodeStat, RecordWrite, Session, Watch};
use zklock::zookeeper::wire::handshake::{Attempt, Granted, Identity};

use crate::coverage::Kind;
use crate::nested::{Proc, pid};
use crate::network::{SimChannel, mark};
use crate::state::{Event, KeeperState, MS, State, instant, micros};

/// The state that the run and all its keepers share. The run does not borrow it while it polls a keeper.
pub(crate) type Shared = Rc<RefCell<State>>;

/// How many unread reports there is room for.
const ROOM: usize = 20;

/// What one keeper finds outside itself.
pub(crate) struct SimIo {
    pub(crate) state: Shared,
    pub(crate) keeper: usize,
    pub(crate) card: Card,
}

impl SimIo {
    async fn connect(
        &self,
        timeout: Duration,
        identity: Option<&Identity>,
        mut unreachable: impl FnMut(String),
        mut shortened: impl FnMut(Duration, Instant),
    ) -> Result<SimSession, Failure> {
        let mut pause = Duration::from_millis(50);
        loop {
            let mut order: Vec<usize> = (0..self.state.borrow().servers.all.len()).collect();
            self.state.borrow_mut().chance.shuffle(&mut order);
            let distrusted = self.state.borrow().keepers[self.keeper].distrusted;
            order.sort_by_key(|server| distrusted == Some(*server));
            for server in order {
                let conn = self.state.borrow_mut().dial(self.keeper, server);
                let channel = SimChannel { state: Rc::clone(&self.state), keeper: self.keeper, conn };
                match self.ask(&channel, timeout, identity).await {
                    Ok(granted) => {
                        self.connected(server, &granted);
                        if identity.is_some() && granted.timeout < timeout {
                            shortened(granted.timeout, granted.asked_at);
                        }
                        let session = ClientSession::new(channel, granted, "", identity.map(|_| timeout));
                        return Ok(SimSession {
                            session,
                            state: Rc::clone(&self.state),
                            conn,
                            is_calm: Cell::new(false),
                        });
                    }
                    Err(Rejected::SessionOver) => return Err(Failure::SessionOver),
                    Err(Rejected::ClickHouseKeeper) => panic!("a session without a password"),
                    Err(Rejected::NoSession | Rejected::Closed | Rejected::Silent) => {}
                }
            }
            unreachable("no server answers".to_owned());
            self.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    fn connected(&self, server: usize, granted: &Granted) {
        let mut state = self.state.borrow_mut();
        state.note(|| format!("keeper {} is connected to {server}", self.keeper));
        let session = state.servers.session_of(granted.identity.id());
        state.hear_of_timeout(session, micros(granted.timeout));
    }

    /// Asks a server for a session, and waits for the answer as long as the product does.
    async fn ask(
        &self,
        channel: &SimChannel,
        timeout: Duration,
        identity: Option<&Identity>,
    ) -> Result<Granted, Rejected> {
        let mut attempt = match identity {
            Some(identity) => Attempt::resume(identity.clone(), timeout),
            None => Attempt::open(timeout),
        };
        let shaken = poll_fn(|_| match shake_hands(&mut attempt, channel, identity.is_some()) {
            Ok(None) => Poll::Pending,
            Ok(Some(granted)) => Poll::Ready(Ok(granted)),
            Err(rejected) => Poll::Ready(Err(rejected)),
        });
        let enough = async {
            self.sleep(silence_limit(timeout)).await;
            Err(Rejected::Silent)
        };
        or(shaken, enough).await
    }

    fn host(&self) -> usize {
        self.state.borrow().keepers[self.keeper].host
    }

    fn has_room(&self) -> bool {
        self.state.borrow().keepers[self.keeper].reports.len() < ROOM
    }

    fn push(&self, report: &Report) {
        let mut state = self.state.borrow_mut();
        let host = state.keepers[self.keeper].host;
        state.note(|| format!("keeper {} of host {host}: {report:?}", self.keeper));
        if let (Report::Connection(Connectivity::Shortened(_)), true) = (report, state.hosts[host].is_running()) {
            state.spring(Kind::AtShortened, host);
        }
        if let Report::Requeued { .. } = report {
            state.coverage.count(Kind::Requeued);
        }
        match report {
            Report::Queue(Progress::Skipped(last)) => state.check_skip(host, last),
            Report::Remark(Remark::Unrecorded(why)) => state.check_unrecorded(host, why.as_deref()),
            Report::Remark(Remark::Unreleased(why)) => state.check_unreleased(host, why),
            Report::Lost(Loss::NodeDeleted) => state.check_blame(host),
            Report::Lost(Loss::StoodStill) => state.coverage.count(Kind::StoodStill),
            _ => {}
        }
        if let Report::Queue(Progress::Held { grant, .. }) = report {
            state.check_listed(self.keeper, grant);
            if state.keepers[self.keeper].calm_until.is_some_and(|until| until + state.servers.tick / 2 > state.now) {
                state.coverage.count(Kind::FromFarBack);
            }
        }
        let held = matches!(report, Report::Queue(Progress::Held { .. }));
        match report {
            Report::Queue(_) => state.hosts[host].has_place = true,
            // An answer that comes with the end of a connection is read, and the keeper may not hear of it: when the run asked
            // is then known to the keeper alone.
            Report::Requeued { .. } if !state.hosts[host].has_place => state.hosts[host].is_asked_unsure = true,
            _ => {}
        }
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

impl KeeperIo for SimIo {
    type Session = SimSession;

    fn now(&self) -> Instant {
        instant(self.state.borrow().now)
    }

    fn wall_millis(&self) -> u64 {
        self.state.borrow().now / 1000
    }

    fn random(&self) -> u64 {
        self.state.borrow_mut().chance.number()
    }

    async fn sleep(&self, time: Duration) {
        let deadline = self.state.borrow().now + micros(time);
        poll_fn(|_| {
            let mut state = self.state.borrow_mut();
            if state.now >= deadline {
                return Poll::Ready(());
            }
            state.wake_keeper_at(self.keeper, deadline);
            Poll::Pending
        })
        .await;
    }

    async fn open(&self, timeout: Duration, unreachable: impl FnMut(String)) -> Result<SimSession, Failure> {
        self.connect(timeout, None, unreachable, |_, _| {}).await
    }

    async fn resume(
        &self,
        timeout: Duration,
        identity: &Identity,
        unreachable: impl FnMut(String),
        shortened: impl FnMut(Duration, Instant),
    ) -> Result<SimSession, Failure> {
        self.connect(timeout, Some(identity), unreachable, shortened).await
    }

    fn write_lease(&self, span: Span) {
        let [from, kill_at, ends_at] = [span.from, span.kill_at, span.ends_at].map(|at| micros(at.since_boot()));
        let mut state = self.state.borrow_mut();
        let keeper = &mut state.keepers[self.keeper];
        let (before, host) = (keeper.limits, keeper.host);
        (keeper.lease, keeper.limits, keeper.span) = (Some(from), Some((kill_at, ends_at)), Some(span));
        if let Some((_, before)) = before.filter(|before| ends_at < before.1) {
            // The kernel takes a moment to kill.
            // It may have been made shorter before, with neither of them to see it.
            let shortened = &mut state.hosts[host];
            shortened.longest_lease = (before + MS).max(shortened.longest_lease);
            shortened.shortened_from = shortened.longest_lease;
            state.schedule(before + MS + 1, Event::Verify(host));
            state.wake_guard(host);
            if state.hosts[host].hold.is_some() {
                state.call_in(host);
            }
        }
    }

    fn show_answered(&self, at: Instant) {
        self.state.borrow_mut().keepers[self.keeper].answered = Some(micros(at.since_boot()));
    }

    async fn report(&self, report: &Report) {
        poll_fn(|_| if self.has_room() { Poll::Ready(()) } else { Poll::Pending }).await;
        self.push(report);
    }

    fn report_if_room(&self, report: &Report) -> bool {
        let has_room = self.has_room();
        if has_room {
            self.push(report);
        }
        has_room
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

    fn own_end(&self) -> Option<(Instant, i32)> {
        let state = self.state.borrow();
        let keeper = &state.keepers[self.keeper];
        let host = &state.hosts[keeper.host];
        let was_stopped = host.is_spoiled || host.guard.lease_over || keeper.revoked;
        let began = host.has_passed.then(|| instant(host.passed_at));
        began.zip(host.guard.ended).filter(|_| !was_stopped)
    }

    fn revoke_lease(&self) {
        let mut state = self.state.borrow_mut();
        state.keepers[self.keeper].revoked = true;
        let host = state.keepers[self.keeper].host;
        if state.hosts[host].hold.is_some() {
            state.call_in(host);
        }
        state.wake_guard(host);
    }

    fn forget_lease(&self) {
        let mut state = self.state.borrow_mut();
        let host = state.keepers[self.keeper].host;
        if state.hosts[host].has_opening() || state.hosts[host].has_passed {
            state.fail(format!("host {host} gets another lease after its gate was opened"));
        }
        let keeper = &mut state.keepers[self.keeper];
        (keeper.lease, keeper.limits, keeper.span, keeper.revoked) = (None, None, None, false);
    }

    async fn emptied(&self) {
        poll_fn(|_| {
            let state = self.state.borrow();
            let guard = &state.hosts[state.keepers[self.keeper].host].guard;
            let is_empty = guard.stage == Stage::Empty && state.hosts[self.host()].hold.is_none();
            if is_empty { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    async fn guard_gone(&self) -> bool {
        poll_fn(|_| {
            let number = self.host();
            let mut state = self.state.borrow_mut();
            if state.hosts[number].hold.is_some() && !state.hosts[number].alive {
                state.call_in(number);
            }
            let host = &state.hosts[number];
            if host.alive || host.guard.alive && !host.guard.is_done || state.lends_by_hold(number) {
                return Poll::Pending;
            }
            Poll::Ready(matches!(host.guard.stage, Stage::Gated | Stage::Empty | Stage::Left))
        })
        .await
    }

    fn recall(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let host = state.keepers[self.keeper].host;
        state.recall_by_keeper(host)
    }

    fn barrier(&self, holder: &HolderNode<'_>) -> Option<Barrier> {
        let state = self.state.borrow();
        let KeeperState { host, seen, .. } = &state.keepers[self.keeper];
        loans::barrier(holder, &self.card, pid(*host), seen, &Proc(&state))
    }

    fn card(&self) -> &Card {
        &self.card
    }
}

/// The product's session over one connection. It tells the simulator what is asked for.
pub(crate) struct SimSession {
    session: ClientSession<SimChannel>,
    state: Shared,
    conn: usize,
    is_calm: Cell<bool>,
}

impl Session for SimSession {
    type Identity = Identity;

    fn identity(&self) -> Identity {
        self.session.identity()
    }

    fn id(&self) -> i64 {
        self.session.id()
    }

    fn timeout(&self) -> Duration {
        self.session.timeout()
    }

    fn opened(&self) -> Instant {
        self.session.opened()
    }

    fn set_keep_alive(&self, keep_alive: KeepAlive) {
        self.session.set_keep_alive(keep_alive);
        let mut state = self.state.borrow_mut();
        let (now, keeper) = (state.now, state.conns[self.conn].keeper);
        if self.is_calm.replace(keep_alive == KeepAlive::calm(self.timeout())) {
            state.keepers[keeper].calm_until = Some(now);
        }
    }

    fn take_contacts(&self) -> Vec<Contact> {
        self.session.take_contacts()
    }

    async fn lost(&self) {
        self.session.lost().await;
        self.state.borrow_mut().lose(self.conn);
    }

    fn closed_over_creation(&self) -> bool {
        self.session.closed_over_creation()
    }

    fn distrust(&self) {
        self.session.distrust();
    }

    fn watch_children(&self, path: &str) -> Expected<'_, (Vec<ChildName>, Watch)> {
        self.session.watch_children(path)
    }

    fn sync(&self, path: &str) -> Expected<'_, ()> {
        self.session.sync(path)
    }

    fn create<'s>(
        &'s self,
        prefixes: &'s [String],
        data: &[u8],
        numbered: bool,
        with_stat: bool,
    ) -> Expected<'s, Created> {
        self.state.borrow_mut().conns[self.conn].creating += 1;
        let created = self.session.create(prefixes, data, numbered, with_stat);
        Box::pin(async move {
            let created = created.await;
            let mut state = self.state.borrow_mut();
            state.conns[self.conn].creating -= 1;
            let keeper = state.conns[self.conn].keeper;
            // They show nothing of the new node.
            state.keepers[keeper].listed.clear();
            if let Ok(Created { stat: Some(stat), .. }) = created {
                state.note_asked(self.conn, stat);
            }
            drop(state);
            created
        })
    }

    fn create_parents(&self, path: &str, containers: bool) -> impl Future<Output = Result<(), (Failure, String)>> {
        self.session.create_parents(path, containers)
    }

    fn children(&self, path: &str) -> Expected<'_, Vec<ChildName>> {
        let (path, names) = (path.to_owned(), self.session.children(path));
        Box::pin(async move {
            let names = names.await?;
            let mut state = self.state.borrow_mut();
            let keeper = state.conns[self.conn].keeper;
            let listed = &mut state.keepers[keeper].listed;
            listed.retain(|(lock, _)| *lock != path);
            listed.push((path, names.clone()));
            Ok(names)
        })
    }

    fn read(&self, path: &str) -> Expected<'_, (Vec<u8>, NodeStat)> {
        let read = self.session.read(path);
        Box::pin(async move {
            let read = read.await?;
            if read.1.owner == self.id() {
                self.state.borrow_mut().note_asked(self.conn, read.1);
            }
            Ok(read)
        })
    }

    fn read_and_watch(&self, path: &str) -> Expected<'_, (Vec<u8>, NodeStat, Watch)> {
        let mark = mark(&mut self.state.borrow_mut().conns[self.conn], path);
        let read = self.session.read_and_watch(path);
        Box::pin(async move {
            let (data, stat, watch) = read.await?;
            let watch: Watch = Box::pin(async move {
                let _mark = mark;
                watch.await
            });
            Ok((data, stat, watch))
        })
    }

    fn beat(&self, nodes: &[String], publish: Option<&[u8]>) -> Expected<'_, ()> {
        let mut state = self.state.borrow_mut();
        let (sent, keeper, host) = (state.now, state.conns[self.conn].keeper, state.conns[self.conn].host);
        state.spring(Kind::AtBeat, host);
        let is_own = |node: &String| state.servers.head.get(node).is_some_and(|node| node.owner == self.id());
        if self.is_calm.get() && nodes.iter().any(is_own) {
            state.fail(format!("host {host} lives by its lease, and pings as seldom as a waiter far back"));
        }
        drop(state);
        let beat = self.session.beat(nodes, publish);
        Box::pin(async move {
            beat.await?;
            self.state.borrow_mut().keepers[keeper].last_beat = Some(sent);
            Ok(())
        })
    }

    fn delete(&self, path: &str) -> Expected<'_, ()> {
        self.session.delete(path)
    }

    fn transact(&self, checked: &[String], records: &[RecordWrite], deleted: &[String]) -> Expected<'_, ()> {
        self.session.transact(checked, records, deleted)
    }

    fn close(&self) -> impl Future<Output = Result<(), Failure>> {
        self.session.close()
    }
}
