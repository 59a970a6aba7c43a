//! Directories of processes in /proc, read without allocation.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::read;

use crate::rules::signal::Signal;
use crate::system::process::{Process, pidfd_send_signal};

/// The size of what is read at once. It lies on the stack, several times at each level.
const PIECE: usize = 512;

/// A process, by its directory in /proc.
pub(super) struct Directory(OwnedFd);

impl Directory {
    pub(super) fn open(proc: BorrowedFd<'_>, pid: i32) -> Option<Self> {
        open(proc, pid, c"", OFlag::O_DIRECTORY).map(Self)
    }

    /// What /proc shows of it; `None` if it has been reaped. `pid`: its number.
    pub(super) fn look(&self, pid: i32) -> Option<Process> {
        let stat = openat(self.0.as_fd(), c"stat", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).ok()?;
        let mut text = [0; PIECE];
        let length = read(&stat, &mut text).ok()?;
        Process::parse(pid, &text[..length])
    }

    /// Sends a signal to this process, which has had the number `pid`. Returns whether that is allowed.
    pub(super) fn send(&self, pid: i32, signal: Signal) -> bool {
        match pidfd_send_signal(self.as_fd(), signal) {
            // Before Linux 5.1, or in a sandbox that does not know the call: its parent has just been seen.
            Err(Errno::ENOSYS | Errno::EPERM) => super::send(pid, signal),
            Err(_) | Ok(()) => true,
        }
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What is called with each process of a walk before what is below it, and, if that returns true, once more after all that.
pub(super) type Visit<'a> = &'a mut dyn FnMut(&Process, &Directory, bool) -> bool;

/// Walks through a process and what lives below it. `depth`: how many levels. `budget`: how many processes may still
/// be looked at.
pub(super) fn walk(
    proc: BorrowedFd<'_>,
    process: &Process,
    directory: &Directory,
    depth: u32,
    budget: &mut u32,
    visit: Visit<'_>,
) {
    if !visit(process, directory, false) {
        return;
    }
    if depth > 0 {
        walk_below(proc, process, directory, depth - 1, budget, visit);
    }
    visit(process, directory, true);
}

fn walk_below(
    proc: BorrowedFd<'_>,
    parent: &Process,
    directory: &Directory,
    depth: u32,
    budget: &mut u32,
    visit: Visit<'_>,
) {
    let task =
        openat(directory.as_fd(), c"task", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty());
    let Ok(task) = task else { return };
    let mut entries = [0; PIECE];
    while let length @ 1.. = list(&task, &mut entries) {
        // Each thread has a list of its own.
        each_entry(&entries[..length], |thread| {
            let Some(children) = open(task.as_fd(), thread, c"/children", OFlag::empty()) else { return };
            let (mut numbers, mut piece) = (Numbers::default(), [0; PIECE]);
            while let Ok(length @ 1..) = read(&children, &mut piece)
                && *budget > 0
            {
                numbers.each(&piece[..length], |pid| {
                    *budget = budget.saturating_sub(1);
                    // The number may have been recycled since it was listed: so this must be the parent, and live still.
                    let is_child = |child: &Process| child.parent == parent.pid && directory.look(parent.pid).is_some();
                    if *budget > 0
                        && let Some(below) = Directory::open(proc, pid)
                        && let Some(child) = below.look(pid).filter(is_child)
                        && child.alive
                    {
                        walk(proc, &child, &below, depth, budget, visit);
                    }
                });
            }
        });
    }
}

/// Opens the file whose path is this number with this text after it.
fn open(directory: BorrowedFd<'_>, number: i32, rest: &CStr, flags: OFlag) -> Option<OwnedFd> {
    // Room for a number, for the longest text, and for the NUL.
    let mut path = [0; 32];
    let mut length = 0;
    for place in (0..=number.checked_ilog10()?).rev() {
        path[length] = b'0' + u8::try_from(number / 10_i32.pow(place) % 10).ok()?;
        length += 1;
    }
    let rest = rest.to_bytes_with_nul();
    path.get_mut(length..length + rest.len())?.copy_from_slice(rest);
    let path = CStr::from_bytes_until_nul(&path).ok()?;
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

/// No path of a program is longer, as far as this goes.
pub(super) const PATH: usize = 512;

/// The name of the program that a process executes, without the kernel's mark that the file was deleted or replaced
/// (proc_pid_exe(5)). Not what stat(2) says of the file: a file server that does not answer would block us.
pub(super) fn program<'p>(directory: BorrowedFd<'_>, link: &CStr, path: &'p mut [u8; PATH]) -> Option<&'p [u8]> {
    #[expect(unsafe_code, reason = "nix's readlinkat allocates")]
    // SAFETY: the descriptor is open, the link ends with a NUL, and the call writes no more than the length that it is given.
    let length = unsafe { libc::readlinkat(directory.as_raw_fd(), link.as_ptr(), path.as_mut_ptr().cast(), PATH) };
    let path = path.get(..usize::try_from(length).ok()?)?;
    path.strip_suffix(b" (deleted)").unwrap_or(path).rsplit(|byte| *byte == b'/').next()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

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
}
