//! The guard itself.
//!
//! It has one thread, blocks every signal that can be blocked, touches no file but the list of its children, allocates
//! nothing once it waits, writes to no inherited descriptor, and waits for no other process.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::socket::{MsgFlags, recv, send};
use nix::unistd::{ForkResult, Pid, fork, getpid, pipe2, read, setpgid, setsid, write};

use super::gate::{self, Passage};
use super::kernel::{self, DeadlineTimer, Fuse};
use super::{Birth, Request, above};
use crate::clock::{self, Alarm};
use crate::descendants;
use crate::rules::guard::{Verdict, Watch};
use crate::rules::instant::Instant;
use crate::rules::signal::Signal;
use crate::shared::{Part, Shared, Stage};
use crate::signals::{self, ChildSignals};

/// How many times in a row to chase processes that fork and exit faster than we can kill them.
const CHASES: u32 = 100;

/// What a guard has from the supervisor.
pub(super) struct Inherited<'a> {
    pub(super) link: OwnedFd,
    /// The end of the pipe that shows that no guard is left. The kernel kills the command at that moment.
    pub(super) ended: BorrowedFd<'a>,
    /// The other end of that pipe.
    pub(super) alive: BorrowedFd<'a>,
    pub(super) bell: BorrowedFd<'a>,
    /// The end of a pipe that shows that the supervisor has died. The kernel kills the command at that moment.
    pub(super) fuse: OwnedFd,
    pub(super) shared: Shared,
}

/// Lives as a guard until nothing is left of the command, or until it is told to leave.
pub(super) fn run(birth: &Birth<'_>, inherited: Inherited<'_>, passage: Passage) {
    let shared = inherited.shared;
    // An error means that no command was started. The supervisor sees that we go.
    if let Ok(mut guard) = Process::begin(birth, inherited, passage) {
        guard.work();
        if guard.watch.is_open() {
            shared.reach(if guard.leaves { Stage::Left } else { Stage::Empty });
        }
    }
}

struct Process<'a> {
    link: OwnedFd,
    bell: BorrowedFd<'a>,
    signals: ChildSignals,
    alarm: Alarm,
    shared: Shared,
    /// Opens the gate; `None` once it was opened.
    go: Option<OwnedFd>,
    /// The command's process, until it has been reaped.
    command: Option<Pid>,
    own_group: bool,
    /// The list of our children; `None` where the kernel does not have it.
    children: Option<File>,
    timer: Option<DeadlineTimer>,
    fuses: [Fuse<'a>; 2],
    /// The end of the pipe that shows that no guard is left.
    alive: OwnedFd,
    /// The end of the pipe that shows that the supervisor has died.
    fuse: OwnedFd,
    watch: Watch,
    leaves: bool,
    is_orphan: bool,
}

impl<'a> Process<'a> {
    fn begin(birth: &Birth<'_>, inherited: Inherited<'a>, passage: Passage) -> nix::Result<Self> {
        let Inherited { link, ended, alive, bell, fuse, shared } = inherited;
        let refused = |part, result: nix::Result<()>| {
            if result.is_err() {
                shared.set_refused(part);
            }
        };
        let _ = prctl::set_name(c"lock-guard");
        refused(Part::Adoption, prctl::set_child_subreaper(true));
        let (waits, go) = pipe2(OFlag::O_CLOEXEC)?;
        // At the end of a process the kernel closes its descriptors, those with higher numbers first: the end that
        // only we have must be closed before the end that tells us of the supervisor.
        let alive = above(alive.try_clone_to_owned().map_err(|_| Errno::EMFILE)?, fuse.as_fd())?;
        let guard = getpid();
        #[expect(unsafe_code, reason = "the command's process is a fork of this one")]
        // SAFETY: this process has one thread, so the child may go on as any process may (fork(2)).
        let child = match unsafe { fork() }? {
            ForkResult::Child => {
                drop((link, fuse, alive, go));
                gate::wait(birth, passage, &waits, guard, shared)
            }
            ForkResult::Parent { child } => child,
        };
        drop((waits, passage));
        if birth.own_group {
            // Also here, because the group must exist before a fuse can name it.
            let _ = setpgid(child, child);
            // In a group of our own, but in the session: so the command's group is not orphaned, and Ctrl-Z can
            // stop it (setpgid(2)).
            let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
        } else {
            // Out of reach of the terminal. If we stayed in its session, in another group than the command, the
            // command's group would not be orphaned even where no shell can continue it.
            let _ = setsid();
        }
        let target = if birth.own_group { -child.as_raw() } else { child.as_raw() };
        #[expect(unsafe_code, reason = "the descriptors live as long as this process")]
        // SAFETY: `fuse` is owned by the value that is returned, and closed no earlier than this process ends.
        let fuse_fd = unsafe { BorrowedFd::borrow_raw(fuse.as_raw_fd()) };
        let fuses = [Fuse::new(ended), Fuse::new(fuse_fd)];
        for laid in &fuses {
            refused(Part::Fuse, laid.lay(target));
        }
        let children = File::open(format!("/proc/self/task/{guard}/children")).ok();
        refused(Part::Children, children.as_ref().map(|_| ()).ok_or(Errno::ENOENT));
        let timer = DeadlineTimer::new();
        refused(Part::Timer, timer.as_ref().map(|_| ()).map_err(|error| *error));
        let process = Self {
            link,
            bell,
            signals: ChildSignals::new()?,
            alarm: Alarm::new()?,
            shared,
            go: Some(go),
            command: Some(child),
            own_group: birth.own_group,
            children,
            timer: timer.ok(),
            fuses,
            alive,
            fuse,
            watch: Watch::default(),
            leaves: false,
            is_orphan: false,
        };
        process.close_others(ended, &birth.keep);
        let functions = [
            Self::work as *const (),
            Self::wait as *const (),
            Self::reap as *const (),
            Self::obey as *const (),
            Self::enforce as *const (),
            Self::kill_all as *const (),
        ];
        kernel::lock_in_memory(shared, &functions);
        shared.set_command(child);
        process.tell();
        Ok(process)
    }

    /// Closes all descriptors but ours and those that a guard is to `keep`. A copy of an end that only the supervisor
    /// should have would hide the supervisor's death.
    fn close_others(&self, ended: BorrowedFd<'_>, keep: &[i32]) {
        let mut ours = vec![
            self.link.as_raw_fd(),
            self.bell.as_raw_fd(),
            self.signals.as_fd().as_raw_fd(),
            self.alarm.as_fd().as_raw_fd(),
            self.alive.as_raw_fd(),
            self.fuse.as_raw_fd(),
            ended.as_raw_fd(),
        ];
        ours.extend(self.go.as_ref().map(AsRawFd::as_raw_fd));
        ours.extend(self.children.as_ref().map(AsRawFd::as_raw_fd));
        ours.extend(keep);
        kernel::close_all_but(&mut ours);
    }

    // Not inlined, nor are the functions that it calls: their pages are locked in memory.
    #[inline(never)]
    fn work(&mut self) {
        loop {
            if !self.reap() {
                return;
            }
            self.obey();
            if self.leaves {
                return self.disarm();
            }
            let wake_at = self.enforce();
            // An alarm that cannot be set leaves the kernel's timer.
            let _ = self.alarm.set(wake_at);
            self.wait();
        }
    }

    #[inline(never)]
    fn wait(&self) {
        let mut fds = [
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.alarm.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.bell, PollFlags::POLLIN),
            PollFd::new(self.link.as_fd(), PollFlags::POLLIN),
        ];
        // Once the supervisor has gone, its socket is always readable.
        let waits_for = if self.is_orphan { 3 } else { 4 };
        let _ = poll(&mut fds[..waits_for], PollTimeout::NONE);
        self.signals.clear();
        let _ = read(self.bell, &mut [0; 8]);
    }

    /// Tells the supervisor that there is something new in [`Shared`]. If there is no room, it has been told already.
    fn tell(&self) {
        let _ = send(self.link.as_raw_fd(), &[0], MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT);
    }

    /// Reaps what has ended. Returns whether anything is left.
    #[inline(never)]
    fn reap(&mut self) -> bool {
        loop {
            let mut status = 0;
            #[expect(unsafe_code, reason = "nix's waitpid loses a child that a real-time signal killed")]
            // SAFETY: waitpid(2) writes to `status` and nothing else.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
            match pid {
                0 => return true,
                ..0 if Errno::last() == Errno::EINTR => {}
                ..0 => {
                    self.tell();
                    return false;
                }
                _ if self.command.map(Pid::as_raw) != Some(pid) => {}
                // Without an opened gate there was no command, and this guard may have been replaced.
                _ if !self.watch.is_open() => self.command = self.command.filter(|_| libc::WIFSTOPPED(status)),
                _ if libc::WIFSTOPPED(status) => {
                    self.shared.set_stopped(libc::WSTOPSIG(status));
                    self.tell();
                }
                _ => {
                    self.command = None;
                    self.shared.set_ended(status);
                    self.tell();
                }
            }
        }
    }

    /// Does what the supervisor asks. When the supervisor has gone, all is killed.
    #[inline(never)]
    fn obey(&mut self) {
        let mut message = [0; 2];
        while !self.is_orphan && !self.leaves {
            match recv(self.link.as_raw_fd(), &mut message, MsgFlags::MSG_DONTWAIT) {
                Ok(2) => match message[0] {
                    open if open == Request::Open as u8 => self.open(),
                    signal if signal == Request::Signal as u8 => self.signal(message[1]),
                    kill if kill == Request::Kill as u8 => self.kill(),
                    leave if leave == Request::Leave as u8 => self.leaves = self.command.is_none(),
                    _ => {}
                },
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return,
                _ => {
                    self.is_orphan = true;
                    self.kill();
                }
            }
        }
    }

    fn open(&mut self) {
        let Some(go) = self.go.take() else { return };
        self.watch.open();
        self.set_deadline(self.shared.limits().1);
        // Before the command can do anything: from here on we answer for it.
        self.shared.reach(Stage::Open);
        // A command's process that has gone already is reaped next.
        let _ = write(&go, &[1]);
    }

    fn signal(&self, number: u8) {
        if let (Some(command), Some(signal)) = (self.command, Signal::new(number.into())) {
            let _ = signals::send(if self.own_group { -command.as_raw() } else { command.as_raw() }, signal);
        }
    }

    fn kill(&mut self) {
        self.go = None;
        self.watch.kill();
    }

    /// Kills what is to be killed. Returns when to look again.
    #[inline(never)]
    fn enforce(&mut self) -> Option<Instant> {
        let (kill_at, ends_at) = self.shared.limits();
        match self.watch.judge(clock::now(), kill_at, ends_at) {
            Verdict::Idle => None,
            Verdict::Watch { look_at, deadline } => {
                self.set_deadline(deadline);
                Some(look_at)
            }
            Verdict::Kill { lease_over, again_at, deadline } => {
                if let Some(deadline) = deadline {
                    self.set_deadline(deadline);
                }
                if lease_over {
                    // Before the kill: a command that we killed must not pass for one that ended by itself.
                    self.shared.set_lease_over();
                    self.tell();
                }
                self.kill_all();
                self.shared.count_kill();
                Some(again_at)
            }
        }
    }

    #[inline(never)]
    fn kill_all(&mut self) {
        if let (Some(command), true) = (self.command, self.own_group) {
            let _ = signals::send(-command.as_raw(), Signal::KILL);
        }
        for _ in 0..CHASES {
            let mut list = [0; 4096];
            let Some(children) = &self.children else {
                // Without the list, this is the only way, though it allocates.
                descendants::children(getpid().as_raw()).into_iter().for_each(kill_child);
                return;
            };
            let Ok(length) = children.read_at(&mut list, 0) else {
                self.command.into_iter().for_each(|command| kill_child(command.as_raw()));
                return;
            };
            if length == 0 {
                return;
            }
            each_number(&list[..length], kill_child);
            if !self.reap() {
                return;
            }
        }
    }

    /// Moves the kernel's timer.
    fn set_deadline(&self, deadline: Instant) {
        if self.timer.as_ref().is_some_and(|timer| timer.set(deadline).is_err()) {
            self.shared.set_refused(Part::Timer);
        }
    }

    /// What the command has left behind lives on.
    fn disarm(&mut self) {
        self.fuses.iter().for_each(Fuse::remove);
        self.timer = None;
        self.tell();
    }
}

/// Sends SIGKILL to a child, which keeps its pid until it is reaped.
fn kill_child(pid: i32) {
    let _ = signals::send(pid, Signal::KILL);
}

/// Calls `act` with each number of a list that is separated by blanks. A number at the end that may be cut off is left
/// out.
fn each_number(list: &[u8], mut act: impl FnMut(i32)) {
    let mut number = 0;
    for byte in list {
        match byte {
            b'0'..=b'9' => number = number * 10 + i32::from(byte - b'0'),
            _ if number > 0 => {
                act(number);
                number = 0;
            }
            _ => {}
        }
    }
}
