//! What a guard finds outside itself: its children, the supervisor's requests, and the kernel.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::socket::{MsgFlags, recv};
use nix::unistd::{Pid, write};

use super::Process;
use crate::clock;
use crate::command::exit_now;
use crate::descendants;
use crate::guard::below::{self, Numbers};
use crate::guard::from_message;
use crate::guard::kernel::{Fuse, Lenders, noted};
use crate::guard::round::Round;
use crate::lending;
use crate::rules::guard::{Heard, Outside, Reaped, Sign, Stage};
use crate::rules::instant::Instant;
use crate::rules::signal::Signal;
use crate::shared::Part;
use crate::signals;

/// The list of children is read in this many pieces at most, each of some 600 processes.
const PIECES: u32 = 256;

impl Process<'_> {
    /// Calls `act` with each of our children. Fails if the list cannot be read.
    pub(super) fn each_child(children: &File, mut act: impl FnMut(i32)) -> io::Result<()> {
        let (mut list, mut numbers, mut offset) = ([0; 4096], Numbers::default(), 0);
        // The bound is for a list that grows while it is read.
        for _ in 0..PIECES {
            let length = children.read_at(&mut list, offset)?;
            if length == 0 {
                break;
            }
            numbers.each(&list[..length], &mut act);
            offset += length as u64;
        }
        Ok(())
    }

    /// waitpid(2) for this child, or for any with -1.
    #[inline(always)] // Its page is then that of its callers, which is locked in memory.
    fn wait_for(&mut self, child: i32) -> Reaped {
        loop {
            let mut status = 0;
            #[expect(unsafe_code, reason = "nix's waitpid loses a child that a real-time signal killed")]
            // SAFETY: waitpid(2) writes to `status` and nothing else.
            let pid = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
            return match pid {
                0 => Reaped::NoMore,
                // The proof that nothing is left.
                ..0 if Errno::last() == Errno::ECHILD => Reaped::NoneLeft,
                ..0 if Errno::last() == Errno::EINTR => continue,
                ..0 => Reaped::NoMore,
                _ if self.command.map(Pid::as_raw) != Some(pid) => Reaped::Other,
                _ if libc::WIFSTOPPED(status) => Reaped::Stopped(libc::WSTOPSIG(status)),
                _ => {
                    self.command = None;
                    Reaped::Ended(status)
                }
            };
        }
    }

    /// The command's process group, or the command alone where it shares ours; as kill(2) wants it.
    fn target(&self) -> Option<i32> {
        let command = self.command?.as_raw();
        Some(if self.own_group { -command } else { command })
    }
}

impl Outside for Process<'_> {
    fn now(&self) -> Instant {
        clock::now()
    }

    fn limits(&self) -> (Instant, Instant) {
        self.shared.limits()
    }

    #[inline(never)]
    fn heed_lenders(&mut self) -> bool {
        let has_died = self.lenders.as_ref().is_some_and(Lenders::has_lost_one);
        if has_died {
            self.shared.revoke();
            self.lenders = None;
        }
        has_died
    }

    fn lay_fuses(&mut self) {
        let Some(target) = self.target() else { return };
        for fuse in &self.fuses {
            if noted(self.shared, Part::Fuse, fuse.lay(target)).is_err() {
                // There is no command yet.
                exit_now(127);
            }
        }
        if self.lenders.as_ref().is_some_and(Lenders::has_lost_one) {
            // That was before its fuse was laid. There is no command yet.
            exit_now(127);
        }
    }

    fn disarm(&mut self) {
        self.fuses.iter().for_each(Fuse::remove);
    }

    fn ended_by_itself(&self) -> bool {
        !self.shared.is_spoiled()
    }

    fn set_timer(&mut self, deadline: Instant) {
        if self.timer.as_ref().is_some_and(|timer| timer.set(deadline).is_err()) {
            self.shared.set_refused(Part::Timer);
        }
    }

    fn goes_first(&self) -> bool {
        self.goes_first
    }

    #[inline(never)]
    fn reap(&mut self) -> Reaped {
        self.wait_for(-1)
    }

    #[inline(never)]
    fn reap_command(&mut self) -> Reaped {
        match self.command.map(|command| self.wait_for(command.as_raw())) {
            // Others may be left all the same.
            None | Some(Reaped::NoneLeft) => Reaped::NoMore,
            Some(reaped) => reaped,
        }
    }

    #[inline(never)]
    fn has_living_child(&mut self) -> bool {
        descendants::has_living_child()
    }

    #[inline(never)]
    fn hear(&mut self) -> Heard {
        let mut message = [0; 2];
        loop {
            match recv(self.link.as_raw_fd(), &mut message, MsgFlags::MSG_DONTWAIT) {
                Ok(2) => {
                    if let Some(request) = from_message(message) {
                        return Heard::Request(request);
                    }
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Heard::Nothing,
                _ => return Heard::Gone,
            }
        }
    }

    fn redeem(&mut self) {
        if self.shared.take_pledged() {
            self.pledges.iter().for_each(|pipe| lending::redeem(*pipe));
        }
    }

    fn show(&mut self, sign: Sign) {
        self.shared.show(sign);
        if let Sign::Stage(Stage::Empty | Stage::Left) = sign {
            // The keeper hears of it now, and need not wait until the kernel has taken our memory apart.
            self.alive = None;
        }
    }

    fn tell(&mut self) {
        // Not by the socket: for a message the kernel needs memory, and where that is short it may first wait for a disk.
        // This fails only if the supervisor has not been awake for ages, and will wake.
        let _ = self.news.write(1);
    }

    fn open_gate(&mut self) {
        if let Some(go) = self.go.take() {
            // From here on the death of the supervisor is for us to act upon.
            let _ = prctl::set_pdeathsig(None);
            let _ = write(&go, &[1]);
        }
    }

    fn close_gate(&mut self) {
        if self.go.take().is_some() {
            // Its keeper may go on with a lock of its own.
            self.lenders = None;
        }
    }

    fn signal(&mut self, signal: Signal) {
        // What waits for descendants signals them itself, if it can see them.
        if let Some(target) = self.target() {
            send_signal(target, signal);
        }
    }

    #[inline(never)]
    fn kill_group(&mut self) {
        // Once the command has been reaped, its number may be another's, unless a child of ours is in the group ([`Round`]).
        if let Some(target) = self.target() {
            send_signal(target, Signal::KILL);
        }
        // But the fuse holds the group itself. And it asks for user ids only, where kill(2) asks root for CAP_KILL as well.
        self.spark = None;
    }

    #[inline(never)]
    fn kill_children(&mut self) {
        let mut round = Round::new(self.origin);
        // The list is open, so that it can be read.
        let _ = Self::each_child(&self.children, |child| round.kill(child));
    }

    #[inline(never)]
    fn kill_below(&mut self) {
        let mut budget = below::MOST;
        let _ = Self::each_child(&self.children, |child| below::kill(self.proc, child, &mut budget));
    }
}

/// Sends a signal to a process, or to a group if the number is negative. It may have gone.
fn send_signal(target: i32, signal: Signal) {
    let _ = signals::send(target, signal);
}
