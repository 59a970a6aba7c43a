//! The processes below the guard's children.
//!
//! As a rule the guard needs its children only: what loses its parent becomes a child of the guard. But a child that
//! cannot die, because a file system does not answer or because it has become another user, keeps what is below it. Here
//! that is found and killed, without allocation, in /proc. None of the files that are read here makes the kernel wait for
//! the process that it describes: neither `children` nor `stat` takes the lock of its memory map.
//!
//! A number may have been recycled since it was read. So each process is held by its directory in /proc, which stands for
//! that process for ever, and the signal goes there. Its parent is looked at through that directory, and then the
//! parent's own directory shows whether the number is still the parent's.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::read;

use crate::descendants::Process;
use crate::rules::signal::Signal;
use crate::signals;

/// How deep to look below a process before its siblings are looked at, because each level needs room on the stack.
const DEPTH: u32 = 8;

/// How many of the processes that are deeper are kept to be looked at after that. What finds no room is found in another
/// round, when some of these have died.
const KEPT: usize = 64;

/// How many processes to look at in one round.
pub(super) const MOST: u32 = 10_000;

/// The size of what is read at once. Eight times that lies on the stack, several times over.
const PIECE: usize = 512;

/// The functions of this module that a guard needs, which are not inlined: their pages are locked in memory.
pub(super) fn functions() -> [*const (); 5] {
    [
        kill as *const (),
        walk as *const (),
        kill_with_all_below as *const (),
        Directory::look as *const (),
        Process::parse as *const (),
    ]
}

/// Sends SIGKILL to all that is found below `child`, which is a child of this process that has not been reaped. `proc`:
/// /proc. `budget`: how many processes may still be looked at.
#[inline(never)]
pub(super) fn kill(proc: BorrowedFd<'_>, child: i32, budget: &mut u32) {
    let mut deep = Deep([const { None }; KEPT]);
    let top = Directory::open(proc, child);
    top.and_then(|directory| directory.look()).into_iter().for_each(|process| deep.push(process));
    while let Some(process) = deep.pop() {
        // Its number may be another's by now.
        let there =
            Directory::open(proc, process.pid).filter(|there| there.look().is_some_and(|now| now.is_same(&process)));
        there.into_iter().for_each(|directory| walk(proc, &directory, DEPTH, &mut deep, budget));
    }
}

/// Processes to look below, in any order. None is kept open, because only so many descriptors may be.
struct Deep([Option<Process>; KEPT]);

impl Deep {
    fn push(&mut self, process: Process) {
        if let Some(place) = self.0.iter_mut().find(|place| place.is_none()) {
            *place = Some(process);
        }
    }

    fn pop(&mut self) -> Option<Process> {
        self.0.iter_mut().find_map(Option::take)
    }
}

/// A process, by its directory in /proc.
struct Directory {
    pid: i32,
    fd: OwnedFd,
}

impl Directory {
    fn open(proc: BorrowedFd<'_>, pid: i32) -> Option<Self> {
        let fd = open(proc, &[Word::Number(pid)], OFlag::O_DIRECTORY)?;
        Some(Self { pid, fd })
    }

    /// What /proc shows of it; `None` if it has been reaped.
    #[inline(never)]
    fn look(&self) -> Option<Process> {
        let stat = open(self.fd.as_fd(), &[Word::Text(b"stat")], OFlag::empty())?;
        let mut text = [0; PIECE];
        let length = read(&stat, &mut text).ok()?;
        Process::parse(self.pid, &text[..length])
    }

    /// SIGKILL to this process.
    fn kill(&self) {
        let nothing = std::ptr::null::<libc::siginfo_t>();
        let (fd, number) = (self.fd.as_raw_fd(), Signal::KILL.number());
        #[expect(unsafe_code, reason = "neither nix nor std has pidfd_send_signal(2)")]
        // SAFETY: the descriptor is open; with no siginfo the call reads no memory of ours.
        let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, number, nothing, 0) };
        // Before Linux 5.1, or in a sandbox that refuses the call: its parent has just been seen.
        if result < 0 && Errno::last() != Errno::ESRCH {
            let _ = signals::send(self.pid, Signal::KILL);
        }
    }
}

/// Sends SIGKILL to all that is found below `parent`, so many levels deep. `deep`: those in the last of them.
#[inline(never)]
fn walk(proc: BorrowedFd<'_>, parent: &Directory, depth: u32, deep: &mut Deep, budget: &mut u32) {
    let Some(tasks) = open(parent.fd.as_fd(), &[Word::Text(b"task")], OFlag::O_DIRECTORY) else { return };
    let mut entries = [0; PIECE];
    loop {
        // Each thread has a list of its own.
        let length = list(&tasks, &mut entries);
        if length == 0 {
            return;
        }
        each_entry(&entries[..length], |thread| {
            let path = [Word::Number(thread), Word::Text(b"/children")];
            let Some(children) = open(tasks.as_fd(), &path, OFlag::empty()) else { return };
            let mut numbers = Numbers::default();
            let mut piece = [0; PIECE];
            while let Ok(length @ 1..) = read(&children, &mut piece) {
                numbers.each(&piece[..length], |child| kill_with_all_below(proc, parent, child, depth, deep, budget));
                if *budget == 0 {
                    return;
                }
            }
        });
        if *budget == 0 {
            return;
        }
    }
}

/// Sends SIGKILL to a process that was listed as a child of `above`, if it is one, and to all below it.
#[inline(never)]
fn kill_with_all_below(
    proc: BorrowedFd<'_>,
    above: &Directory,
    child: i32,
    depth: u32,
    deep: &mut Deep,
    budget: &mut u32,
) {
    if *budget == 0 {
        return;
    }
    *budget -= 1;
    let Some(directory) = Directory::open(proc, child) else { return };
    let Some(process) = directory.look().filter(|process| process.parent == above.pid) else { return };
    if above.look().is_none() {
        return;
    }
    directory.kill();
    if depth > 1 {
        walk(proc, &directory, depth - 1, deep, budget);
    } else {
        deep.push(process);
    }
}

/// A part of a path.
enum Word<'a> {
    Text(&'a [u8]),
    Number(i32),
}

/// Opens the file whose path is made of these words.
fn open(directory: BorrowedFd<'_>, path: &[Word<'_>], flags: OFlag) -> Option<OwnedFd> {
    // Room for a number, for the longest text, and for the NUL.
    let mut bytes = [0; 32];
    let mut length = 0;
    for word in path {
        match word {
            Word::Text(text) => {
                bytes.get_mut(length..length + text.len())?.copy_from_slice(text);
                length += text.len();
            }
            Word::Number(number) => {
                let digits = (*number).checked_ilog10()?;
                for place in (0..=digits).rev() {
                    let digit = number / 10_i32.pow(place) % 10;
                    *bytes.get_mut(length)? = b'0' + u8::try_from(digit).ok()?;
                    length += 1;
                }
            }
        }
    }
    let path = std::ffi::CStr::from_bytes_until_nul(&bytes).ok()?;
    openat(directory, path, OFlag::O_RDONLY | OFlag::O_CLOEXEC | flags, Mode::empty()).ok()
}

/// Reads the next entries of a directory (getdents64(2)). Returns their length in bytes, 0 at the end.
fn list(directory: &OwnedFd, entries: &mut [u8; PIECE]) -> usize {
    let fd = directory.as_raw_fd();
    #[expect(unsafe_code, reason = "the safe ways to list a directory allocate")]
    // SAFETY: the descriptor is open, and the call writes no more than the length that it is given.
    let length = unsafe { libc::syscall(libc::SYS_getdents64, fd, entries.as_mut_ptr(), entries.len()) };
    usize::try_from(length).unwrap_or(0)
}

/// Calls `act` with each entry whose name is a number.
fn each_entry(mut entries: &[u8], mut act: impl FnMut(i32)) {
    // What precedes the name: d_ino, d_off, d_reclen and d_type.
    const LENGTH_AT: usize = 16;
    const NAME_AT: usize = 19;
    while let Some([low, high]) = entries.get(LENGTH_AT..LENGTH_AT + 2) {
        let length = usize::from(u16::from_ne_bytes([*low, *high]));
        let Some((entry, rest)) = entries.split_at_checked(length).filter(|_| length > NAME_AT) else { return };
        // The name up to its NUL: what pads an entry is not cleared.
        let name = entry[NAME_AT..].split_inclusive(|byte| *byte == 0).next().unwrap_or_default();
        Numbers::default().each(name, &mut act);
        entries = rest;
    }
}

/// Reads numbers that are separated by other bytes, piece by piece.
#[derive(Default)]
pub(super) struct Numbers {
    number: i32,
}

impl Numbers {
    /// Calls `act` with each number that ends in this piece.
    pub(super) fn each(&mut self, piece: &[u8], mut act: impl FnMut(i32)) {
        for byte in piece {
            match byte {
                b'0'..=b'9' => self.number = self.number.wrapping_mul(10).wrapping_add(i32::from(byte - b'0')),
                _ if self.number > 0 => act(std::mem::take(&mut self.number)),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_number_may_be_cut_in_two() {
        let mut found = vec![];
        let mut numbers = Numbers::default();
        for piece in [&b"12 3"[..], b"4", b"5 ", b"", b"6 7"] {
            numbers.each(piece, |number| found.push(number));
        }
        assert_eq!(found, [12, 345, 6]);
    }

    #[test]
    fn a_long_directory_is_listed_to_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let names: Vec<i32> = (1..=200).map(|number| number * 12_345).collect();
        for name in &names {
            File::create(directory.path().join(name.to_string())).unwrap();
        }
        let opened = OwnedFd::from(File::open(directory.path()).unwrap());
        let (mut found, mut entries) = (vec![], [0; PIECE]);
        while let length @ 1.. = list(&opened, &mut entries) {
            each_entry(&entries[..length], |number| found.push(number));
        }
        found.sort_unstable();
        assert_eq!(found, names);
    }

    /// The shell stands for a child that cannot die.
    #[test]
    fn what_is_below_a_child_is_killed() {
        let noted = tempfile::NamedTempFile::new().unwrap();
        let script = r#"sleep 1000 & echo $! >"$0"; wait $!; exit $?"#;
        let mut shell = Command::new("sh")
            .args(["-c", script])
            .arg(noted.path())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let sleeper = loop {
            if let Ok(number) = fs::read_to_string(noted.path()).unwrap().trim().parse::<u32>() {
                break number;
            }
        };
        let proc = File::open("/proc").unwrap();
        let shell_id = shell.id().cast_signed();
        let mut budget = MOST;
        kill(proc.as_fd(), shell_id, &mut budget);
        assert_eq!(MOST - budget, 1);
        while crate::descendants::started(sleeper).unwrap().is_some() {
            std::thread::yield_now();
        }
        // It was killed.
        assert_eq!(shell.wait().unwrap().code(), Some(137));
    }
}
