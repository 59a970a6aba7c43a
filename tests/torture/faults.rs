//! The faults. Each lane makes one fault after the other, as its own seed decides, until the record says that the phase
//! of faults is over. It repairs whatever it has broken.
//!
//! The numbers that a lane draws from its seed never depend on what it finds. So the same seed makes the same faults in
//! the same order; which contenders they hit depends on timing.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use fastrand::Rng;
use nix::sys::signal::Signal;

use crate::checker::{Excuse, Until, Whose};
use crate::client::{Client, end_session};
use crate::crowd::{Contender, Crowd, Wanted};
use crate::ensemble::Ensemble;
use crate::frames::Op;
use crate::poll;
use crate::process::{self, Process};
use crate::proxy::{Fate, Flow, Proxy, Trap};
use crate::record::{Deaf, Record};
use crate::server::{Data, Role, Server};
use crate::servers::Etcd;
use crate::tool::{LONGEST_TIMEOUT, Tool};
use crate::work::{self, Nature};

/// How long a command may live after its stopped guards continue, on a loaded machine, if its lease is over by then.
const AT_ONCE: Duration = Duration::from_secs(1);

/// How long a fault lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Length {
    time: Duration,
    name: &'static str,
}

impl Length {
    /// With equal chances, shorter than a lease or longer than the longest session timeout.
    fn draw(rng: &mut Rng) -> Self {
        let (short, time) = (rng.u64(100..1000), LONGEST_TIMEOUT + rng.u64(300..2500));
        let (time, name) = if rng.bool() { (short, "briefly") } else { (time, "for long") };
        Self { time: Duration::from_millis(time), name }
    }
}

fn draw_pause(rng: &mut Rng, milliseconds: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(rng.u64(milliseconds))
}

// Processes.

/// Which of a contender's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    Supervisor,
    Keeper,
    Both,
    /// Both, the command, and all its descendants.
    Everything,
}

impl Guard {
    fn name(self) -> &'static str {
        match self {
            Self::Supervisor => "supervisor",
            Self::Keeper => "keeper",
            Self::Both => "supervisor and keeper",
            Self::Everything => "everything",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hurt {
    Kill(Guard),
    Stop(Guard, Length),
    KillCommand,
    StopCommand(Length),
    Signal(Signal),
}

impl Hurt {
    fn draw(rng: &mut Rng, tool: Tool) -> Self {
        let guard = |dice| match dice {
            // The other tools have one process, in the place of the supervisor.
            _ if tool != Tool::Zklock => Guard::Supervisor,
            0..4 => Guard::Supervisor,
            4..8 => Guard::Keeper,
            8 => Guard::Both,
            _ => Guard::Everything,
        };
        let (dice, length) = (rng.u8(..10), Length::draw(rng));
        let signal = *rng.choice(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]).expect("there are signals");
        match rng.u8(..10) {
            0..3 => match guard(dice) {
                Guard::Everything => Self::Kill(Guard::Both),
                other => Self::Kill(other),
            },
            3..7 => Self::Stop(guard(dice), length),
            7 => Self::KillCommand,
            8 => Self::StopCommand(length),
            _ => Self::Signal(signal),
        }
    }

    fn kind(self) -> String {
        match self {
            Self::Kill(guard) => format!("{} killed", guard.name()),
            Self::Stop(guard, length) => format!("{} stopped {}", guard.name(), length.name),
            Self::KillCommand => "command killed".to_owned(),
            Self::StopCommand(length) => format!("command stopped {}", length.name),
            Self::Signal(signal) => format!("{signal} sent"),
        }
    }

    /// Whether zklock can be expected to handle this, if it is done to this contender.
    fn is_for(self, contender: &Contender) -> bool {
        match self {
            // No process is left that could kill a descendant which has left the command's group.
            Self::Kill(Guard::Both) => contender.nature != Nature::Family,
            _ => true,
        }
    }

    fn make(self, victim: &Contender, record: &Record) {
        match self {
            Self::Kill(guard) => {
                if guard != Guard::Keeper {
                    victim.expect(Signal::SIGKILL);
                }
                guards(victim, guard).send(Signal::SIGKILL);
            }
            Self::Stop(guard @ (Guard::Supervisor | Guard::Keeper), length) => {
                let guards = guards(victim, guard);
                record.disturb(Deaf::Contender(victim.number), || {
                    guards.send(Signal::SIGSTOP);
                    record.pause(length.time);
                    guards.send(Signal::SIGCONT);
                });
            }
            Self::Stop(guard, length) => {
                let from = work::now();
                let guards = guards(victim, guard);
                guards.send(Signal::SIGSTOP);
                let family = if guard == Guard::Everything { victim.family() } else { Vec::new() };
                send(&family, Signal::SIGSTOP);
                record.pause(length.time);
                // The command continues first.
                send(&family, Signal::SIGCONT);
                guards.send(Signal::SIGCONT);
                let until = Until::Fixed(work::now() + AT_ONCE);
                let kind = if guard == Guard::Everything { "everything stopped" } else { "both guards stopped" };
                record.excuse(Excuse { kind, whose: Whose::Contender(victim.number), from, until });
            }
            Self::KillCommand => {
                victim.expect(Signal::SIGKILL);
                kill_family(victim);
            }
            Self::StopCommand(length) => {
                let family = victim.family();
                send(&family, Signal::SIGSTOP);
                record.pause(length.time);
                send(&family, Signal::SIGCONT);
            }
            Self::Signal(signal) => {
                victim.expect(signal);
                victim.with_supervisor(|pid| process::send(pid, signal));
            }
        }
    }
}

/// The guards of a command, as they were found.
struct Guards<'a> {
    victim: &'a Contender,
    supervisor: bool,
    keeper: Option<Process>,
}

fn guards(victim: &Contender, guard: Guard) -> Guards<'_> {
    let keeper = if guard == Guard::Supervisor { None } else { victim.keeper() };
    Guards { victim, supervisor: guard != Guard::Keeper, keeper }
}

impl Guards<'_> {
    fn send(&self, signal: Signal) {
        // The keeper first: it would act if it saw that the supervisor is gone.
        send(self.keeper.as_slice(), signal);
        if self.supervisor {
            self.victim.with_supervisor(|pid| process::send(pid, signal));
        }
    }
}

/// Sends a signal to those of these processes that are still alive.
fn send(processes: &[Process], signal: Signal) {
    for process in processes {
        if is_alive(process) {
            process::send(process.pid, signal);
        }
    }
}

fn is_alive(process: &Process) -> bool {
    process::look(process.pid).is_some_and(|now| now.started == process.started && now.state != 'Z')
}

/// Kills all descendants of the command, and then the command: the lock is not held for descendants that outlive it.
fn kill_family(victim: &Contender) {
    let Some(command) = victim.command() else { return };
    let command = [command];
    send(&command, Signal::SIGSTOP);
    let rest = || victim.family().into_iter().filter(|process| process.pid != command[0].pid).collect::<Vec<_>>();
    poll::until("the command's descendants are dead", || {
        let rest = rest();
        send(&rest, Signal::SIGKILL);
        (rest.is_empty() || !is_alive(&command[0])).then_some(())
    });
    send(&command, Signal::SIGKILL);
}

/// Hurts the processes of contenders.
pub(crate) fn hurt_processes(crowd: &Crowd, tool: Tool, record: &Record, rng: &mut Rng) {
    while record.pause(draw_pause(rng, 300..1500)) {
        let hurt = Hurt::draw(rng, tool);
        let (wanted, dice) = (if rng.u8(..10) < 5 { Wanted::Holder } else { Wanted::Anyone }, rng.usize(..));
        if let Some(victim) = crowd.pick(wanted, dice, |contender| hurt.is_for(contender)) {
            record.fault(&hurt.kind(), &format!("contender {}", victim.number));
            hurt.make(&victim, record);
        }
    }
}

// The network.

/// A proxy to each server, for some of the contenders.
#[derive(Debug)]
pub(crate) struct Network {
    number: usize,
    /// The proxies.
    pub(crate) proxies: Vec<Proxy>,
    /// Locked while a lane makes a fault here: two lanes at the same time would undo each other's faults.
    busy: Mutex<()>,
}

impl Network {
    /// `number`: its index, by which contenders refer to it.
    pub(crate) fn new(number: usize, proxies: Vec<Proxy>) -> Self {
        Self { number, proxies, busy: Mutex::default() }
    }

    fn try_take(&self) -> Option<MutexGuard<'_, ()>> {
        self.busy.try_lock().ok()
    }
}

/// Silences the network of a holder, for longer than its session lasts. Its command has enough left to do to overlap
/// the next holder's if it were not stopped.
pub(crate) fn silence_holders(crowd: &Crowd, networks: &[Network], record: &Record, rng: &mut Rng) {
    while record.pause(draw_pause(rng, 200..800)) {
        let (dice, percents) = (rng.usize(..), rng.u32(120..250));
        let is_right = |contender: &Contender| {
            contender.time > contender.timeout * 3 / 2
                && contender.time_left().is_some_and(|left| left > contender.timeout * 3 / 2)
        };
        let Some(victim) = crowd.pick(Wanted::Holder, dice, is_right) else { continue };
        let network = &networks[victim.network];
        let Some(_busy) = network.try_take() else { continue };
        let time = victim.timeout * percents / 100;
        record.fault("network of a holder silent for long", &format!("contender {}, {time:?}", victim.number));
        record.disturb(Deaf::Network(network.number), || {
            network.proxies.iter().for_each(Proxy::hold);
            record.pause(time);
            network.proxies.iter().for_each(Proxy::pass);
        });
    }
}

/// Disturbs networks.
pub(crate) fn disturb_networks(networks: &[Network], tool: Tool, record: &Record, rng: &mut Rng) {
    while record.pause(draw_pause(rng, 200..1500)) {
        let disruption = Disruption::draw(networks, rng);
        let network = &networks[disruption.network];
        if let Some(_busy) = network.try_take() {
            record.disturb(Deaf::Network(network.number), || disruption.make(network, tool, record));
        }
    }
}

/// A fault of a network.
#[derive(Debug)]
struct Disruption {
    network: usize,
    /// Only the proxy to this server, if given.
    one: Option<usize>,
    length: Length,
    delay: Duration,
    fate: Fate,
    op: (&'static str, Vec<Op>),
    dice: u8,
}

impl Disruption {
    fn draw(networks: &[Network], rng: &mut Rng) -> Self {
        let network = rng.usize(..networks.len());
        let one = rng.usize(..networks[network].proxies.len());
        Self {
            network,
            one: rng.bool().then_some(one),
            length: Length::draw(rng),
            delay: Duration::from_millis(rng.u64(20..400)),
            fate: *rng.choice(&[Fate::Reset, Fate::Blackhole]).expect("there are fates"),
            op: match rng.u8(..4) {
                0 | 1 => ("create", vec![Op::Create, Op::Create2, Op::Multi]),
                2 => ("delete", vec![Op::Delete]),
                _ => ("beat", vec![Op::Multi]),
            },
            dice: rng.u8(..12),
        }
    }

    fn make(&self, network: &Network, tool: Tool, record: &Record) {
        let Self { one, length, delay, fate, op: (op, ops), dice, .. } = self;
        let is_hit = |index: usize| one.is_none_or(|one| one == index);
        let hit: Vec<_> =
            network.proxies.iter().enumerate().filter(|(index, _)| is_hit(*index)).map(|(_, proxy)| proxy).collect();
        let place = if one.is_none() { "network" } else { "way to one server" };
        let fault = |kind: String| record.fault(&kind, &format!("{:?}, {:?}", addresses(&hit), length.time));
        let flows = |up, down| {
            hit.iter().for_each(|proxy| proxy.flows(up, down));
            record.pause(length.time);
            hit.iter().for_each(|proxy| proxy.pass());
        };
        match dice {
            0..3 => {
                fault(format!("{place} silent {}", length.name));
                flows(Flow::Hold, Flow::Hold);
            }
            3 => {
                fault(format!("{place} silent upwards {}", length.name));
                flows(Flow::Hold, Flow::Pass);
            }
            4 => {
                fault(format!("{place} silent downwards {}", length.name));
                flows(Flow::Pass, Flow::Hold);
            }
            5 => {
                fault(format!("{place} slow {}", length.name));
                flows(Flow::Delay(*delay), Flow::Delay(*delay));
            }
            6 | 7 => {
                fault(format!("{place} reset"));
                hit.iter().for_each(|proxy| proxy.reset());
            }
            8 => {
                fault(format!("{place} refuses {}", length.name));
                hit.iter().for_each(|proxy| proxy.refuse());
                record.pause(length.time);
                hit.iter().for_each(|proxy| proxy.accept());
            }
            // The proxies do not understand the protocol of etcd.
            _ if tool == Tool::Etcdctl => {}
            _ => {
                fault(format!("reply to a {op} lost"));
                let traps: Vec<_> = hit.iter().map(|proxy| proxy.trap_ops(*fate, ops)).collect();
                record.pause(length.time);
                traps.iter().for_each(Trap::release);
            }
        }
    }
}

fn addresses(proxies: &[&Proxy]) -> Vec<String> {
    proxies.iter().map(|proxy| proxy.address()).collect()
}

// The servers.

/// Makes faults of the servers of an ensemble.
pub(crate) fn hurt_ensemble(ensemble: &Ensemble, record: &Record, rng: &mut Rng) {
    while record.pause(draw_pause(rng, 2000..8000)) {
        let (number, length) = (rng.usize(..ensemble.servers().len()), Length::draw(rng));
        let servers = ensemble.servers();
        let leader = || servers.iter().find(|server| server.role() == Some(Role::Leader));
        let dice = rng.u8(..12);
        let others: Vec<&Server> = (1..servers.len()).map(|step| &servers[(number + step) % servers.len()]).collect();
        record.disturb(Deaf::All, || match dice {
            0 | 1 => freeze(&[&servers[number]], "one server", length, record),
            2 | 3 => kill(&[&servers[number]], "one server", length, record),
            4 => freeze(&leader().into_iter().collect::<Vec<_>>(), "leader", length, record),
            5 | 6 => kill(&leader().into_iter().collect::<Vec<_>>(), "leader", length, record),
            7 => freeze(&others, "two servers", length, record),
            8 => kill(&others, "two servers", length, record),
            9 => {
                record.fault("rolling restart", "all servers");
                servers.iter().for_each(|server| server.restart(Data::Kept));
            }
            _ => {
                let follower = servers.iter().find(|server| server.role() == Some(Role::Follower));
                let (Some(leader), Some(follower)) = (leader(), follower) else { return };
                let on = format!("{} from {}, {:?}", follower.address(), leader.address(), length.time);
                record.fault(&format!("follower cut from the leader {}", length.name), &on);
                let link = ensemble.link(follower, leader);
                link.hold();
                record.pause(length.time);
                link.pass();
            }
        });
        record.disturb(Deaf::All, || ensemble.wait_until_serving());
    }
}

/// Makes the faults that make sense with a single server.
pub(crate) fn hurt_etcd(etcd: &Etcd, record: &Record, rng: &mut Rng) {
    while record.pause(draw_pause(rng, 1000..4000)) {
        let (freezes, length) = (rng.bool(), Length::draw(rng));
        let on = format!("{:?}", length.time);
        if freezes {
            record.fault(&format!("server frozen {}", length.name), &on);
            etcd.freeze();
            record.pause(length.time);
            etcd.thaw();
        } else {
            record.fault(&format!("server killed, down {}", length.name), &on);
            etcd.kill();
            record.pause(length.time);
            etcd.restart();
        }
        etcd.wait_until_serving();
    }
}

fn freeze(servers: &[&Server], which: &str, length: Length, record: &Record) {
    record.fault(&format!("{which} frozen {}", length.name), &format!("{:?}, {:?}", all(servers), length.time));
    servers.iter().for_each(|server| server.freeze());
    record.pause(length.time);
    servers.iter().for_each(|server| server.thaw());
}

fn kill(servers: &[&Server], which: &str, length: Length, record: &Record) {
    record.fault(&format!("{which} killed, down {}", length.name), &format!("{:?}, {:?}", all(servers), length.time));
    servers.iter().for_each(|server| server.kill());
    record.pause(length.time);
    servers.iter().for_each(|server| server.restart_in_background(Data::Kept));
}

fn all(servers: &[&Server]) -> Vec<String> {
    servers.iter().map(|server| server.address()).collect()
}

// The operator.

/// Deletes nodes and ends sessions of contenders.
pub(crate) fn meddle(client: &Client, servers: &[String], locks: &[String], record: &Record, rng: &mut Rng) {
    while record.pause(draw_pause(rng, 1000..6000)) {
        let lock = rng.choice(locks).expect("there are locks");
        let (first, dice, ends_session) = (rng.u8(..10) < 7, rng.usize(..), rng.bool());
        let nodes = client.children(lock);
        let Some(place) = (if first { Some(0) } else { dice.checked_rem(nodes.len()) }) else { continue };
        let Some(name) = nodes.get(place) else { continue };
        let node = format!("{lock}/{name}");
        // The node may be gone by now.
        let Ok((_, stat)) = client.get(&node) else { continue };
        let from = work::now();
        let kind = if ends_session { "session ended" } else { "node deleted" };
        record.fault(kind, &node);
        if ends_session {
            end_session(servers, stat.owner);
        } else {
            client.remove(&node);
        }
        let until = Until::Heard(work::now());
        if ends_session {
            record.excuse(Excuse { kind, whose: Whose::Session(stat.owner), from, until });
        }
        record.excuse(Excuse { kind, whose: Whose::Node(node), from, until });
    }
}
