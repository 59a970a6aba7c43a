//! The faults of networks and servers, and those of an operator; those of processes are in `hurt`. Each lane makes one
//! fault after the other, as its own seed decides, until the record says that the phase of faults is over. It repairs
//! whatever it has broken.
//!
//! The numbers that a lane draws from its seed never depend on what it finds. So the same seed makes the same faults in
//! the same order; which contenders they hit depends on timing.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use fastrand::Rng;
use nix::sys::signal::Signal;

use crate::checker::{Excuse, Until, Whose};
use crate::crowd::{Contender, Crowd, Wanted};
use crate::harness::client::{Client, end_session};
use crate::harness::ensemble::Ensemble;
use crate::harness::frames::Op;
use crate::harness::process;
use crate::harness::proxy::{Fate, Flow, Proxy, Trap};
use crate::harness::server::Role;
use crate::record::{Deaf, Record};
use crate::servers::Member;
use crate::tool::{LONGEST_TIMEOUT, Tool};
use crate::work;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Length {
    pub(crate) time: Duration,
    /// How a kind of fault names it.
    pub(crate) name: &'static str,
}

impl Length {
    /// With equal chances, shorter than a lease or longer than the longest session timeout.
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let (short, long) = (rng.u64(100..1000), Self::draw_long(rng));
        if rng.bool() { Self { time: Duration::from_millis(short), name: "briefly" } } else { long }
    }

    pub(crate) fn draw_long(rng: &mut Rng) -> Self {
        Self { time: Duration::from_millis(LONGEST_TIMEOUT + rng.u64(300..2500)), name: "for long" }
    }
}

pub(crate) fn draw_pause(rng: &mut Rng, milliseconds: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(rng.u64(milliseconds))
}

// The network.

/// A proxy to each server, for some of the contenders.
#[derive(Debug)]
pub(crate) struct Network {
    number: usize,
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
        let Some(victim) = crowd.pick(Wanted::Holder, dice, Contender::has_long_to_go) else { continue };
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

pub(crate) fn disturb_networks(networks: &[Network], tool: Tool, record: &Record, rng: &mut Rng) {
    while record.pause(draw_pause(rng, 200..1500)) {
        let disruption = Disruption::draw(networks, rng);
        let network = &networks[disruption.network];
        if let Some(_busy) = network.try_take() {
            record.disturb(Deaf::Network(network.number), || disruption.make(network, tool, record));
        }
    }
}

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

/// `ensemble`: the same servers, if they reach each other through proxies.
pub(crate) fn hurt_servers(servers: &[&dyn Member], ensemble: Option<&Ensemble>, record: &Record, rng: &mut Rng) {
    while record.pause(draw_pause(rng, 2000..8000)) {
        let (number, length) = (rng.usize(..servers.len()), Length::draw(rng));
        let leader = || Vec::from_iter(servers.iter().copied().find(|server| server.leads()));
        let dice = rng.u8(..12);
        let others: Vec<_> = (1..servers.len()).map(|step| servers[(number + step) % servers.len()]).collect();
        record.disturb(Deaf::All, || match dice {
            0 | 1 => freeze(&[servers[number]], "one server", length, record),
            2 | 3 => kill(&[servers[number]], "one server", length, record),
            4 => freeze(&leader(), "leader", length, record),
            5 | 6 => kill(&leader(), "leader", length, record),
            7 => freeze(&others, "two servers", length, record),
            8 => kill(&others, "two servers", length, record),
            9 => {
                record.fault("rolling restart", "all servers");
                for server in servers {
                    server.restart();
                    server.wait_until_serving();
                }
            }
            _ => ensemble.into_iter().for_each(|ensemble| cut(ensemble, length, record)),
        });
        record.disturb(Deaf::All, || servers.iter().for_each(|server| server.wait_until_serving()));
    }
}

fn cut(ensemble: &Ensemble, length: Length, record: &Record) {
    let find = |role| ensemble.servers().iter().find(|server| server.role() == Some(role));
    let (Some(leader), Some(follower)) = (find(Role::Leader), find(Role::Follower)) else { return };
    let on = format!("{} from {}, {:?}", follower.address(), leader.address(), length.time);
    record.fault(&format!("follower cut from the leader {}", length.name), &on);
    let link = ensemble.link(follower, leader);
    link.hold();
    record.pause(length.time);
    link.pass();
}

fn freeze(servers: &[&dyn Member], which: &str, length: Length, record: &Record) {
    record.fault(&format!("{which} frozen {}", length.name), &format!("{:?}, {:?}", all(servers), length.time));
    servers.iter().for_each(|server| process::stop(server.pid()));
    record.pause(length.time);
    servers.iter().for_each(|server| process::send(server.pid(), Signal::SIGCONT));
}

fn kill(servers: &[&dyn Member], which: &str, length: Length, record: &Record) {
    record.fault(&format!("{which} killed, down {}", length.name), &format!("{:?}, {:?}", all(servers), length.time));
    servers.iter().for_each(|server| server.kill());
    record.pause(length.time);
    servers.iter().for_each(|server| server.restart());
}

fn all(servers: &[&dyn Member]) -> Vec<String> {
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
