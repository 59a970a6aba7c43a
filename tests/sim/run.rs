//! One run from one seed: the scene, the faults, and the event loop.

use std::cell::{OnceCell, RefCell};
use std::future::Future;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use fastrand::Rng;
use zklock::cli::{LockRequest, Plan};
use zklock::keeper::sessions;
use zklock::rules::card::Card;
use zklock::rules::mode::Mode;
use zklock::rules::process_identity::ProcessIdentity;
use zklock::rules::queue::Dialect;
use zklock::rules::settings::{Patience, Settings};
use zklock::rules::signal::Signal;

use crate::chance::Chance;
use crate::coverage::{Coverage, Kind};
use crate::faults::{AIMED, FAULTS, Fault, MOMENTS, REGRANTING, Trap, UNTOLD, some_time};
use crate::host::{Host, Script};
use crate::liar::lie;
use crate::nested::{lender, nest};
use crate::servers::Servers;
use crate::state::{Event, MS, State, Time};
use crate::world::{Shared, SimIo};

/// A run with more events than this goes round in circles.
const EVENTS: u32 = 400_000;

const MOST_SERVERS: usize = 5;

/// The session timeouts that contenders ask for, and the longest ones that servers grant, in milliseconds.
const TIMEOUTS: [Time; 5] = [2000, 4000, 6000, 10_000, 30_000];

/// The life of a keeper, from its start to its end.
type Task<'p> = Pin<Box<dyn Future<Output = ()> + 'p>>;

/// The result of a run.
pub(crate) struct Report {
    /// Why it failed, if it did.
    pub(crate) failure: Option<String>,
    /// What happened, if a trace was asked for.
    pub(crate) trace: Vec<String>,
    pub(crate) coverage: Coverage,
    /// How many events there were.
    pub(crate) events: u32,
}

/// Makes the run that belongs to this seed. `plans`: a plan for each lock, as the product parses it.
pub(crate) fn run(seed: u64, plans: &[Plan], traced: bool) -> Report {
    play(scene(&mut Rng::with_seed(seed), seed, traced), plans, &[]).expect("a run")
}

/// Plays a scene to its end. `strikes`: faults, each with the number of the event before which it happens. `None` if one
/// of them is not possible at its time.
pub(crate) fn play(state: State, plans: &[Plan], strikes: &[(u32, Fault)]) -> Option<Report> {
    let last_fault = state.now + 8 * state.servers.timeout;
    let hosts = state.hosts.len() as Time;
    let limit = last_fault + (hosts + 2) * (6 * state.servers.timeout + 30_000 * MS);
    let (by_lock, plans) = (plans, state.hosts.iter().map(|_| OnceCell::new()).collect::<Vec<_>>());
    let state: Shared = Rc::new(RefCell::new(state));
    let mut tasks: Vec<Option<Task<'_>>> = vec![];
    let mut events = 0;
    while events < EVENTS {
        let event = state.borrow_mut().advance();
        let Some(event) = event else {
            state.borrow_mut().check_end();
            break;
        };
        for (_, fault) in strikes.iter().filter(|(number, _)| *number == events) {
            if !state.borrow_mut().strike(*fault) {
                return None;
            }
        }
        events += 1;
        dispatch(&mut state.borrow_mut(), event);
        settle(&state, by_lock, &plans, &mut tasks);
        let mut state = state.borrow_mut();
        state.check_overlap();
        if state.now > limit && state.hosts.iter().any(|host| host.alive) {
            state.fail("a contender is not served");
        }
        if state.failure.is_some() {
            break;
        }
    }
    // Sessions hang up when they are dropped.
    drop(tasks);
    let mut state = state.borrow_mut();
    if state.failure.is_none() && state.advance().is_some() {
        state.fail("the run does not end");
    }
    let failure = state.failure.take();
    Some(Report { failure, trace: state.trace(), coverage: state.coverage.clone(), events })
}

fn dispatch(state: &mut State, event: Event) {
    match event {
        Event::Wake(keeper) => state.wake_keeper(keeper),
        Event::Up(conn) => state.arrive_up(conn),
        Event::Down(conn) => state.arrive_down(conn),
        Event::Forward(server) => state.forward(server),
        Event::Commit(server) => state.hear_leader(server),
        Event::Tell(server) => state.tell(server),
        Event::GiveUp(server) => state.give_up(server),
        Event::Recover(server) => state.recover(server),
        Event::Expire(session) => state.expire(session),
        Event::Start(host) => state.start(host),
        Event::Turn(host) => state.turn(host),
        Event::Guard(host) => state.guard_turn(host),
        Event::Deadline(host) => state.deadline_passes(host),
        Event::Pass(host) => state.pass(host),
        Event::StandIn(host) => state.stand(host),
        Event::CallerEnds(host) => state.caller_ends(host),
        Event::EndKeeper(host) => state.end_keeper(host),
        Event::Exit { host, process, killed } => state.exit(host, process, killed),
        Event::KillOrphans(host) => state.orphans_die(host),
        Event::Verify(host) => state.verify(host),
        Event::Fault(fault) => {
            state.strike(fault);
        }
    }
}

/// Starts new keepers, drops dead ones, and polls those that may have something to do.
fn settle<'p>(state: &Shared, by_lock: &[Plan], plans: &'p [OnceCell<Plan>], tasks: &mut Vec<Option<Task<'p>>>) {
    loop {
        let dead = std::mem::take(&mut state.borrow_mut().dead);
        for keeper in dead {
            if let Some(task) = tasks.get_mut(keeper) {
                *task = None;
            }
        }
        let born = std::mem::take(&mut state.borrow_mut().born);
        for keeper in born {
            let host = state.borrow().keepers[keeper].host;
            let plan = plans[host].get_or_init(|| plan_of(by_lock, &state.borrow().hosts[host]));
            let ProcessIdentity { pid, started } = lender(host);
            let machine = state.borrow().top(host).to_string();
            let (pid, started, boot_id) = (Some(pid), Some(started), Some(machine));
            let card =
                Card { pid, started, boot_id, pid_ns: Some(1), mode: Some(plan.request.mode), ..Card::default() };
            let outside = SimIo { state: Rc::clone(state), keeper, card };
            let alive = state.borrow().keepers[keeper].alive;
            tasks.push(alive.then(|| Box::pin(sessions::keep(plan, None, outside)) as Task<'p>));
        }
        let Some(keeper) = state.borrow_mut().dirty.pop() else { return };
        if !state.borrow().keeper_runs(keeper) {
            continue;
        }
        state.borrow_mut().begin_turn(keeper);
        // The simulated futures check their conditions each time they are polled, so wakers are not needed.
        let mut context = Context::from_waker(Waker::noop());
        let Some(task) = &mut tasks[keeper] else { continue };
        if task.as_mut().poll(&mut context).is_ready() {
            state.borrow_mut().keeper_ends(keeper);
        } else {
            state.borrow_mut().end_turn(keeper);
        }
    }
}

/// The longest session timeouts that the servers grant where `TIMEOUTS[asked]` is asked for.
fn limits(rng: &mut Rng, asked: usize) -> [Time; MOST_SERVERS] {
    let differ = rng.u32(0..8) == 5;
    std::array::from_fn(|_| MS * TIMEOUTS[if differ { rng.usize(0..=asked) } else { asked }])
}

fn scene(rng: &mut Rng, seed: u64, traced: bool) -> State {
    let asked = rng.usize(0..TIMEOUTS.len());
    let timeout = TIMEOUTS[asked] * MS;
    // A random source of its own: where the limits do not differ, a seed still means the same run as before.
    let mut apart = Rng::with_seed(!seed);
    let limits = limits(&mut apart, asked);
    // A tick is at most half of the shortest session timeout, and at most 4 s.
    let shortest = limits.into_iter().min().unwrap_or(timeout);
    let longest = (shortest / 2).min(4000 * MS);
    let tick = if rng.bool() { longest } else { rng.u64(longest / 8..=longest) };
    let count = [1, 3, 3, 3, MOST_SERVERS][rng.usize(0..5)];
    let phases: Vec<Time> = (0..count).map(|_| rng.u64(0..tick)).collect();
    let mut servers = Servers::new(timeout, tick, &phases, &limits);
    servers.gain = [0, 0, 500, 1000][apart.usize(0..4)];
    let modes = rng.u32(0..8);
    let permits = NonZeroU32::new(rng.u32(1..4)).unwrap_or(NonZeroU32::MIN);
    let locks = if rng.u32(0..6) == 0 { 2 } else { 1 };
    let hosts = (0..rng.usize(2..6)).map(|_| {
        let mode = match (modes, rng.u32(0..3)) {
            (0, 0..2) => Mode::Shared,
            (1, _) => Mode::Permits(permits),
            _ => Mode::Exclusive,
        };
        let mut host = Host::new(rng.usize(0..locks), mode, settings(rng, timeout), script(rng, timeout), count);
        if modes == 2 {
            host.dialects = Dialect::QUEUEING.to_vec();
        }
        host.takes_all = locks > 1 && rng.bool();
        host
    });
    let hosts: Vec<Host> = hosts.collect();
    let mut state = State::new(Chance::Random(rng.fork()), servers, hosts, traced);
    state.note(|| format!("{count} servers, session timeout {timeout} us, tick {tick} us"));
    state.note(|| format!("they grant {:?} us", &limits[..count]));
    for host in 0..state.hosts.len() {
        let begin = some_time(rng, timeout / 4);
        state.after(begin, Event::Start(host));
    }
    for _ in 0..rng.usize(0..5) {
        let fault = Fault {
            kind: FAULTS[rng.usize(0..FAULTS.len())],
            host: rng.usize(0..state.hosts.len()),
            time: some_time(rng, timeout * 3 / 2),
        };
        state.after(rng.u64(0..=2 * timeout), Event::Fault(fault));
    }
    for _ in 0..rng.usize(0..4) {
        let (moment, fault) = if rng.bool() {
            AIMED[rng.usize(0..AIMED.len())]
        } else {
            (MOMENTS[rng.usize(0..MOMENTS.len())], FAULTS[rng.usize(0..FAULTS.len())])
        };
        state.traps.push(Trap {
            moment,
            countdown: rng.u32(1..6),
            delay: if rng.bool() { rng.u64(0..2 * MS) } else { some_time(rng, timeout / 2) },
            fault,
            time: some_time(rng, timeout * 3 / 2),
        });
    }
    if shortest < timeout {
        state.traps.extend(regranting(&mut apart, timeout));
    }
    let (remade, haunted) = (apart.u32(0..6) == 0, apart.u32(0..6) == 0);
    if remade {
        state.traps.extend(remaking(&mut apart, timeout));
    }
    if haunted {
        for _ in 0..apart.usize(1..4) {
            let fault = Fault { kind: Kind::Ghost, host: apart.usize(0..state.hosts.len()), time: 0 };
            state.after(apart.u64(0..=2 * timeout), Event::Fault(fault));
        }
    }
    if apart.u32(0..12) == 0 {
        for _ in 0..apart.usize(1..3) {
            let (host, time) = (apart.usize(0..state.hosts.len()), some_time(&mut apart, timeout));
            state.after(apart.u64(0..=2 * timeout), Event::Fault(Fault { kind: Kind::Lacking, host, time }));
        }
    }
    // A node that a server had missed the deletion of would come back.
    let restored = !remade && !haunted && apart.u32(0..10) == 0;
    if restored {
        // As a rule it is the only fault, so that nothing that happens is excused because of another.
        if apart.bool() {
            state.forget_faults();
        }
        let fault = Fault { kind: Kind::Restore, host: 0, time: some_time(&mut apart, timeout) };
        state.after(apart.u64(0..=2 * timeout), Event::Fault(fault));
    }
    if apart.u32(0..4) == 0 {
        let period = apart.u64(MS..=4 * timeout);
        for host in state.hosts.iter_mut().filter(|host| host.mode == Mode::Exclusive) {
            let own = if apart.u32(0..4) == 0 { apart.u64(MS..=4 * timeout) } else { period };
            host.once_per = (apart.u32(0..8) > 0).then(|| Duration::from_micros(own));
            // Most runs are to be successful.
            host.script.status *= u8::from(apart.u32(0..4) == 0);
        }
    }
    // A random source of its own, as above.
    let mut delaying = Rng::with_seed(seed.rotate_left(48));
    if delaying.u32(0..4) == 0 && !restored && !remade {
        let delay = delaying.u64(MS..=3 * timeout);
        for host in state.hosts.iter_mut().filter(|host| host.mode.permits().is_none()) {
            let own = if delaying.u32(0..4) == 0 { delaying.u64(MS..=3 * timeout) } else { delay };
            host.lock_delay = Duration::from_micros(own / MS * MS);
        }
    }
    if apart.u32(0..20) == 0 {
        state.forget_faults();
        for (moment, fault) in UNTOLD {
            let (delay, time) = (apart.u64(0..=timeout / 8), apart.u64(timeout / 2..=timeout));
            state.traps.push(Trap { moment: *moment, countdown: 1, delay, fault: *fault, time });
        }
    }
    if apart.u32(0..32) == 0 {
        // Between a creation and the list that was asked for with it.
        let (moment, fault) = (Kind::AtCreate, Kind::DeleteNode);
        let (countdown, delay) = (apart.u32(1..4), apart.u64(0..5 * MS));
        state.traps.push(Trap { moment, countdown, delay, fault, time: 0 });
    }
    if apart.u32(0..24) == 0 {
        state.forget_faults();
        state.traps.extend(silencing(&mut apart, timeout));
        for host in &mut state.hosts {
            host.script.stubborn = true;
        }
    }
    // Another one of its own, for the same reason. A nested run takes an outer one for a waiter if a node has come
    // before it.
    let mut nesting = Rng::with_seed(seed.rotate_left(32));
    let nests = nesting.u32(0..8) == 0 && !remade && !restored;
    if nests {
        nest(&mut nesting, &mut state, timeout);
    }
    // And another one.
    let mut lying = Rng::with_seed(seed.rotate_left(16));
    if lying.u32(0..if nests { 2 } else { 6 }) == 0 && !remade && !restored {
        lie(&mut lying, &mut state, timeout);
    }
    state
}

/// Traps that make keepers connect to servers that grant a shorter session timeout, early in the life of commands.
fn regranting(rng: &mut Rng, timeout: Time) -> Vec<Trap> {
    let mut traps = vec![];
    for _ in 0..rng.usize(1..5) {
        let (moment, fault) = REGRANTING[rng.usize(0..REGRANTING.len())];
        let countdown = if moment == Kind::AtShortened { 1 } else { rng.u32(1..4) };
        let (delay, time) = (some_time(rng, timeout / 8), rng.u64(0..=timeout));
        traps.push(Trap { moment, countdown, delay, fault, time });
    }
    if rng.bool() {
        // The supervisor is suspended, so the keeper has to watch over the command; and the keeper hears late which
        // timeout it was granted.
        for (moment, fault, longest) in
            [(Kind::AtSpawn, Kind::FreezeSupervisor, timeout), (Kind::AtBeat, Kind::CutDown, timeout / 3)]
        {
            let (delay, time) = (rng.u64(0..=timeout / 8), rng.u64(longest / 4..=longest));
            traps.push(Trap { moment, countdown: rng.u32(1..3), delay, fault, time });
        }
    }
    traps
}

/// Traps by which the servers hear late of a ping: it is under way for long, while its keeper is suspended. When they
/// have answered it and a beat, they are cut off before the leader has been told of it.
fn silencing(rng: &mut Rng, timeout: Time) -> [Trap; 3] {
    let (moment, countdown) = (Kind::AtBeat, rng.u32(1..5));
    let trap = |delay, fault, time| Trap { moment, countdown, delay, fault, time };
    let (delay, before) = (rng.u64(0..=timeout / 5), rng.u64(0..=timeout / 8));
    let (cut, after) = (rng.u64(timeout / 4..=timeout / 2), rng.u64(0..=timeout / 16));
    let later = Trap { countdown: countdown + rng.u32(1..5), ..trap(rng.u64(0..5 * MS), Kind::Rack, timeout * 3 / 2) };
    [trap(delay, Kind::CutUp, cut), trap(delay + before, Kind::FreezeKeeper, cut - before + after), later]
}

/// Traps that put another node in place of a contender's while its keeper is out of touch.
fn remaking(rng: &mut Rng, timeout: Time) -> [Trap; 3] {
    let moment = [Kind::AtHeld, Kind::AtSpawn, Kind::AtBeat][rng.usize(0..3)];
    let countdown = rng.u32(1..4);
    let trap = |delay, fault, time| Trap { moment, countdown, delay, fault, time };
    let delay = rng.u64(MS..=timeout / 3);
    let begin = if rng.bool() { rng.u64(0..MS / 4) } else { rng.u64(0..=delay) };
    let away = trap(begin, [Kind::Cut, Kind::Sleep][rng.usize(0..2)], rng.u64(0..=timeout));
    let time = some_time(rng, timeout);
    [away, trap(delay, Kind::Break, 0), trap(delay, Kind::RemakeNode, time)]
}

pub(crate) fn settings(rng: &mut Rng, timeout: Time) -> Settings {
    let session_timeout = Duration::from_micros(timeout);
    let no_wait = rng.u32(0..20) == 0;
    let wait = (rng.u32(0..8) == 0).then(|| Duration::from_micros(rng.u64(1..3 * timeout)));
    Settings {
        patience: if no_wait { Patience::NoWait } else { wait.map_or(Patience::Forever, Patience::AtMost) },
        connect_timeout: Duration::from_secs(if rng.u32(0..4) == 0 { 2 } else { 3600 }),
        session_timeout,
        kill_after: (rng.u32(0..4) == 0).then(|| session_timeout / rng.u32(20..40)),
        stop_signal: Signal::TERM,
        max_run: (rng.u32(0..8) == 0).then(|| Duration::from_micros(rng.u64(1..timeout))),
        wait_descendants: rng.u32(0..4) == 0,
    }
}

pub(crate) fn script(rng: &mut Rng, timeout: Time) -> Script {
    Script {
        length: some_time(rng, timeout * 3 / 2),
        status: rng.u8(0..3),
        children: rng.usize(0..3),
        stubborn: rng.bool(),
        forks: rng.u8(0..3),
        daemon: rng.u32(0..8) == 0,
        leaves_group: rng.u32(0..8) == 0,
        missing: rng.u32(0..50) == 0,
    }
}

/// The plan of this host's user, as far as a keeper needs it.
fn plan_of(plans: &[Plan], host: &Host) -> Plan {
    let others = plans.iter().enumerate().filter(|(lock, _)| host.takes_all && *lock != host.lock);
    let plan = plans[host.lock].clone();
    let and = others.map(|(_, plan)| plan.request.lock.clone()).collect();
    let (mode, once_per, dialects) = (host.mode, host.once_per, host.dialects.clone());
    let (lock_delay, held, offers) = (host.lock_delay, host.held.clone(), host.offers.clone());
    let request = LockRequest { mode, and, once_per, lock_delay, dialects, held, offers, ..plan.request };
    Plan { request, settings: host.settings, ..plan }
}
