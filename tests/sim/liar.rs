//! A client that lies, of servers that do not: it creates nodes as it likes below the locks, writes into them what it likes,
//! and deletes them at any moment.

use std::rc::Rc;

use fastrand::Rng;
use zklock::rules::card::Card;
use zklock::rules::child_name::ChildName;
use zklock::rules::mode::Mode;
use zklock::rules::queue::{Contender, ContenderId, Dialect};

use crate::coverage::Kind;
use crate::faults::{Fault, Trap, lock_path, some_time};
use crate::state::{Event, MS, State, Time};

/// The session of the liar. No contender has it.
pub(crate) const LIAR: i64 = 0x0200_0000_0000_0000;

/// When a liar does most harm: while queues form and change.
const MOMENTS: [Kind; 4] = [Kind::AtCreate, Kind::AtHeld, Kind::AtRelease, Kind::AtBeat];

/// Lets a client lie in this run.
pub(crate) fn lie(rng: &mut Rng, state: &mut State, timeout: Time) {
    for _ in 0..rng.usize(1..7) {
        let (kind, host, time) = (Kind::Forge, rng.usize(0..state.hosts.len()), some_time(rng, timeout * 3 / 2));
        if rng.bool() {
            state.after(rng.u64(0..=2 * timeout), Event::Fault(Fault { kind, host, time }));
        } else {
            let (moment, countdown) = (MOMENTS[rng.usize(0..MOMENTS.len())], rng.u32(1..6));
            state.traps.push(Trap { moment, countdown, delay: rng.u64(0..20 * MS), fault: kind, time });
        }
    }
}

impl State {
    /// The nodes of contenders that a liar can copy.
    fn models(&self) -> Vec<(String, Contender)> {
        let nodes = self.servers.head.nodes().iter().filter(|node| node.owner != 0 && node.owner != LIAR);
        let contender = |path: &str| Contender::parse(&ChildName::parse(path.rsplit('/').next()?)?);
        nodes.filter_map(|node| Some((node.path.to_string(), contender(&node.path)?))).collect()
    }

    pub(crate) fn can_forge(&self, host: usize) -> bool {
        self.servers.head.get(&lock_path(self.hosts[host].lock)).is_some() && !self.models().is_empty()
    }

    /// Creates a node below a lock, or writes into one that was created so.
    pub(crate) fn forge(&mut self, host: usize) {
        let models = self.models();
        let (path, model) = models[self.chance.one_of(models.len())].clone();
        let card = self.servers.head.get(&path).map(|node| Card::from_bytes(&node.data)).unwrap_or_default();
        let says_it_holds = self.chance.one_of(4) > 0;
        let card = Card { held_since: says_it_holds.then_some(1), held_for: says_it_holds.then_some(1), ..card };
        let forged: Vec<_> = self.servers.head.nodes().iter().filter(|node| node.owner == LIAR).cloned().collect();
        if !forged.is_empty() && self.chance.once_in(3) {
            let node = &forged[self.chance.one_of(forged.len())];
            return self.operate(&node.path, Some(&card.to_bytes()));
        }
        let lock = lock_path(self.hosts[host].lock);
        let tail = self.servers.head.get(&lock).map_or(0, |node| node.counter);
        let number = [0, model.sequence - 1, model.sequence, model.sequence + 1, tail][self.chance.one_of(5)].max(0);
        let mode = [Mode::Exclusive, Mode::Exclusive, Mode::Shared, model.mode][self.chance.one_of(4)];
        let (random, other) = (self.chance.number(), self.chance.number().cast_signed());
        let session = model.id.map_or(other, ContenderId::session);
        let name = match self.chance.one_of(4) {
            0 => model.name.to_string(),
            // With the id of the contender, as if its creation had been done twice.
            1 => {
                let digits = model.name.len() - 10;
                format!("{}{number:010}", &model.name[..digits])
            }
            2 => format!("{}{number:010}", ContenderId::new(session, random).prefix(Dialect::Curator, mode)),
            _ => format!("{}{number:010}", ContenderId::new(other, random).prefix(Dialect::Curator, mode)),
        };
        let path = format!("{lock}/{name}");
        if self.servers.head.get(&path).is_none() {
            let owner = if self.chance.once_in(8) { 0 } else { LIAR };
            self.create_for(&path, Rc::from(card.to_bytes()), owner);
            self.forged.push(path);
        }
    }

    /// The liar deletes all that it has created.
    pub(crate) fn remove_forged(&mut self) {
        for path in std::mem::take(&mut self.forged) {
            if self.servers.head.get(&path).is_some() {
                self.operate(&path, None);
            }
        }
    }

    /// Whether a liar has a node below this lock.
    pub(crate) fn is_lied_to(&self, lock: &str) -> bool {
        self.forged.iter().any(|path| path.starts_with(lock))
    }
}
