//! The faults of processes. Each contender meets at most one of them.

use fastrand::Rng;
use nix::sys::signal::Signal;

use crate::crowd::{Contender, Crowd, Wanted};
use crate::faults::{Length, draw_pause};
use crate::freezer::{Freezer, Frozen};
use crate::harness::poll;
use crate::harness::process::{self, Process};
use crate::record::{Deaf, Record};
use crate::tool::Tool;
use crate::work::Nature;

/// The processes of a zklock. Other tools have one process, in the place of the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Supervisor,
    Keeper,
    Guard,
}

const PARTS: [(Part, &str); 3] = [(Part::Supervisor, "supervisor"), (Part::Keeper, "keeper"), (Part::Guard, "guard")];

/// Some of these processes, in the order in which they are hurt.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Parts(Vec<Part>);

impl Parts {
    /// All of them, in random order.
    fn draw_all(rng: &mut Rng) -> Self {
        let mut parts = PARTS.map(|(part, _)| part).to_vec();
        rng.shuffle(&mut parts);
        Self(parts)
    }

    fn draw(rng: &mut Rng) -> Self {
        let Self(mut parts) = Self::draw_all(rng);
        parts.truncate(match rng.u8(..10) {
            0..5 => 1,
            5..8 => 2,
            _ => 3,
        });
        Self(parts)
    }

    fn contains(&self, part: Part) -> bool {
        self.0.contains(&part)
    }

    /// Their names, whatever their order: `supervisor, keeper and guard`.
    fn names(&self) -> String {
        let named = PARTS.iter().filter(|(part, _)| self.contains(*part)).map(|(_, name)| *name);
        let names: Vec<_> = named.collect();
        match &names[..] {
            [before @ .., last] if !before.is_empty() => format!("{} and {last}", before.join(", ")),
            names => names.concat(),
        }
    }

    /// Those of the victim that are alive now.
    fn of<'a>(&self, victim: &'a Contender) -> Vec<Target<'a>> {
        let find = |part: &Part| match part {
            Part::Supervisor => Some(Target::Supervisor(victim)),
            Part::Keeper => victim.keeper().map(Target::Other),
            Part::Guard => victim.guard().map(Target::Other),
        };
        self.0.iter().filter_map(find).collect()
    }
}

/// A process to be hurt, as it was found.
#[derive(Debug)]
enum Target<'a> {
    Supervisor(&'a Contender),
    Other(Process),
}

impl Target<'_> {
    fn send(&self, signal: Signal) {
        match self {
            Self::Supervisor(victim) => {
                victim.with_supervisor(|pid| process::send(pid, signal));
            }
            Self::Other(process) => send(std::slice::from_ref(process), signal),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Hurt {
    Kill(Parts),
    Stop(Parts, Length),
    /// The one in this place is killed, the others are stopped.
    StopAndKill(Parts, usize, Length),
    /// All processes of zklock, the command, and all its descendants are stopped one after the other.
    StopAll(Parts, Length),
    /// The processes of zklock, or all of them, are in a control group that is frozen.
    Freeze(Frozen, Length),
    KillCommand,
    StopCommand(Length),
    Signal(Signal),
}

impl Hurt {
    fn draw(rng: &mut Rng, tool: Tool) -> Self {
        let (mut parts, all, length, place) =
            (Parts::draw(rng), Parts::draw_all(rng), Length::draw(rng), rng.usize(..3));
        let signal = *rng.choice(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]).expect("there are signals");
        let dice = rng.u8(..20);
        if tool != Tool::Zklock {
            parts = Parts(vec![Part::Supervisor]);
        }
        match dice {
            0..5 => Self::Kill(parts),
            5..10 => Self::Stop(parts, length),
            10..16 if tool != Tool::Zklock => Self::Stop(parts, length),
            10 | 11 => Self::StopAndKill(all, place, length),
            12 | 13 => Self::StopAll(all, length),
            14 => Self::Freeze(Frozen::Zklock, length),
            15 => Self::Freeze(Frozen::Everything, length),
            16 => Self::KillCommand,
            17 => Self::StopCommand(length),
            _ => Self::Signal(signal),
        }
    }

    /// One against which only the kernel can act.
    fn draw_for_kernel(rng: &mut Rng) -> Self {
        let (all, length, place) = (Parts::draw_all(rng), Length::draw_long(rng), rng.usize(..3));
        let pair = Parts(all.0.iter().copied().filter(|part| *part != Part::Keeper).collect());
        match rng.u8(..8) {
            0 | 1 => Self::Stop(all, length),
            2 => Self::StopAll(all, length),
            3 => Self::Freeze(Frozen::Zklock, length),
            4 => Self::Freeze(Frozen::Everything, length),
            5 => Self::Kill(all),
            6 => Self::Kill(pair),
            _ => Self::StopAndKill(all, place, length),
        }
    }

    fn kind(&self) -> String {
        match self {
            Self::Kill(parts) => format!("{} killed", parts.names()),
            Self::Stop(parts, length) => format!("{} stopped {}", parts.names(), length.name),
            Self::StopAndKill(parts, place, length) => {
                format!("{} killed, the others stopped {}", Parts(vec![parts.0[*place]]).names(), length.name)
            }
            Self::StopAll(_, length) => format!("everything stopped {}", length.name),
            Self::Freeze(Frozen::Zklock, length) => format!("all of zklock frozen {}", length.name),
            Self::Freeze(Frozen::Everything, length) => format!("everything frozen {}", length.name),
            Self::KillCommand => "command killed".to_owned(),
            Self::StopCommand(length) => format!("command stopped {}", length.name),
            Self::Signal(signal) => format!("{signal} sent"),
        }
    }

    /// The processes that it hits.
    fn parts(&self) -> Parts {
        match self {
            Self::Kill(parts) | Self::Stop(parts, _) | Self::StopAndKill(parts, ..) | Self::StopAll(parts, _) => {
                parts.clone()
            }
            Self::Freeze(..) => Parts(PARTS.map(|(part, _)| part).to_vec()),
            Self::KillCommand | Self::StopCommand(_) | Self::Signal(_) => Parts(Vec::new()),
        }
    }

    /// Whether zklock can be expected to handle this, if it is done to this contender.
    fn is_for(&self, contender: &Contender) -> bool {
        let parts = self.parts();
        if !parts.contains(Part::Guard) {
            return true;
        }
        // While neither supervisor nor guard can act, the kernel acts, and it knows the command's group only.
        let is_out_of_reach = parts.contains(Part::Supervisor) && contender.nature == Nature::Family;
        !is_out_of_reach && contender.guard().is_some()
    }

    fn kills_keeper(&self) -> bool {
        match self {
            Self::Kill(parts) => parts.contains(Part::Keeper),
            Self::StopAndKill(parts, place, _) => parts.0[*place] == Part::Keeper,
            _ => false,
        }
    }

    fn make(&self, victim: &Contender, freezer: Option<&Freezer>, record: &Record) {
        if self.parts().contains(Part::Guard) || self.kills_keeper() {
            victim.expect_loss_of_process();
        }
        let meanwhile = |length: &Length, begin: &dyn Fn(), end: &dyn Fn()| {
            record.disturb(Deaf::Contender(victim.number), || {
                begin();
                record.pause(length.time);
                end();
            });
        };
        let send_all = |targets: &[Target<'_>], signal| targets.iter().for_each(|target| target.send(signal));
        match self {
            Self::Kill(parts) => {
                if parts.contains(Part::Supervisor) {
                    victim.expect(Signal::SIGKILL);
                }
                send_all(&parts.of(victim), Signal::SIGKILL);
            }
            Self::Stop(parts, length) => {
                let targets = parts.of(victim);
                meanwhile(length, &|| send_all(&targets, Signal::SIGSTOP), &|| send_all(&targets, Signal::SIGCONT));
            }
            Self::StopAndKill(parts, place, length) => {
                let killed = parts.0[*place];
                if killed == Part::Supervisor {
                    victim.expect(Signal::SIGKILL);
                }
                let signal = |part: &Part| if *part == killed { Signal::SIGKILL } else { Signal::SIGSTOP };
                let hurt: Vec<_> = parts.0.iter().map(|part| (signal(part), Parts(vec![*part]).of(victim))).collect();
                let begin = || hurt.iter().for_each(|(signal, targets)| send_all(targets, *signal));
                let end = || hurt.iter().for_each(|(_, targets)| send_all(targets, Signal::SIGCONT));
                meanwhile(length, &begin, &end);
            }
            Self::StopAll(parts, length) => {
                let (targets, family) = (parts.of(victim), victim.family());
                let begin = || {
                    send_all(&targets, Signal::SIGSTOP);
                    send(&family, Signal::SIGSTOP);
                };
                let end = || {
                    // The command continues first.
                    send(&family, Signal::SIGCONT);
                    send_all(&targets, Signal::SIGCONT);
                };
                meanwhile(length, &begin, &end);
            }
            Self::Freeze(frozen, length) => {
                if let Some(freezer) = freezer {
                    let group = freezer.gather(victim, *frozen);
                    meanwhile(length, &|| group.freeze(), &|| group.thaw());
                }
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
                victim.expect(*signal);
                victim.with_supervisor(|pid| process::send(pid, *signal));
            }
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

/// Hurts processes. Without a freezer, the faults that need one are left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hurter<'a> {
    pub(crate) crowd: &'a Crowd,
    pub(crate) freezer: Option<&'a Freezer>,
    pub(crate) record: &'a Record,
}

impl Hurter<'_> {
    pub(crate) fn hurt_anyone(self, tool: Tool, rng: &mut Rng) {
        while self.record.pause(draw_pause(rng, 300..1500)) {
            let hurt = Hurt::draw(rng, tool);
            let (wanted, dice) = (if rng.u8(..10) < 5 { Wanted::Holder } else { Wanted::Anyone }, rng.usize(..));
            self.hit(&hurt, wanted, dice, |_| true);
        }
    }

    /// Hurts processes of holders so that only the kernel can act. Their commands have enough left to do to overlap the
    /// next holder's if they were not killed.
    pub(crate) fn strike_holders(self, rng: &mut Rng) {
        while self.record.pause(draw_pause(rng, 200..800)) {
            let (hurt, dice) = (Hurt::draw_for_kernel(rng), rng.usize(..));
            self.hit(&hurt, Wanted::Holder, dice, Contender::has_long_to_go);
        }
    }

    fn hit(self, hurt: &Hurt, wanted: Wanted, dice: usize, is_right: impl Fn(&Contender) -> bool) {
        if matches!(hurt, Hurt::Freeze(..)) && self.freezer.is_none() {
            return;
        }
        let is_for = |contender: &Contender| hurt.is_for(contender) && is_right(contender);
        if let Some(victim) = self.crowd.pick(wanted, dice, is_for) {
            self.record.fault(&hurt.kind(), &format!("contender {}, {hurt:?}", victim.number));
            hurt.make(&victim, self.freezer, self.record);
        }
    }
}
