//! A terminal for zklock: keys are typed into it, and what it would show is read from it.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use nix::pty::{Winsize, openpty};
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::ttyname;

use super::poll;
use super::running::Running;
use super::zklock::Zklock;

pub(crate) const CTRL_C: u8 = 0x03;
pub(crate) const CTRL_S: u8 = 0x13;
pub(crate) const CTRL_Q: u8 = 0x11;
pub(crate) const CTRL_Z: u8 = 0x1a;

#[derive(Debug)]
pub(crate) struct Terminal {
    keyboard: File,
    /// Open for as long as the terminal is to be there, whether or not a process uses it.
    device: OwnedFd,
    name: PathBuf,
    written: Arc<Mutex<Vec<u8>>>,
    is_closing: Arc<AtomicBool>,
    reader: JoinHandle<()>,
}

impl Terminal {
    /// A terminal of 24 lines with this many columns.
    pub(crate) fn new(columns: u16) -> Self {
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).expect("a pseudo-terminal");
        let mut settings = tcgetattr(&pty.slave).expect("the terminal's settings");
        settings.local_flags.remove(LocalFlags::ECHO);
        tcsetattr(&pty.slave, SetArg::TCSANOW, &settings).expect("the terminal can be set");
        let name = ttyname(&pty.slave).expect("the terminal's name");
        let keyboard = File::from(pty.master);
        let mut screen = keyboard.try_clone().expect("a descriptor for the screen");
        let written = Arc::new(Mutex::new(Vec::new()));
        let is_closing = Arc::new(AtomicBool::new(false));
        let (shared, closing) = (Arc::clone(&written), Arc::clone(&is_closing));
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The read fails when the device is closed everywhere (pty(7)).
            while let Ok(count @ 1..) = screen.read(&mut bytes)
                && !closing.load(Ordering::Relaxed)
            {
                shared.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&bytes[..count]);
            }
        });
        Self { keyboard, device: pty.slave, name, written, is_closing, reader }
    }

    /// Starts `zklock` as the leader of a session with this as its terminal, and its stdin, stdout and stderr.
    #[track_caller]
    pub(crate) fn spawn(&self, zklock: Zklock) -> Running {
        self.spawn_by(r#"exec "$@""#, zklock)
    }

    /// Starts `zklock` below such a leader, as `script` says: bash with job control, in which `"$@"` stands for it.
    #[track_caller]
    pub(crate) fn spawn_by(&self, script: &str, zklock: Zklock) -> Running {
        // The first terminal that the leader of a session without one opens becomes its own (tty(4)).
        let script = format!(r#"exec <"$0" >"$0" 2>&1; set -m; {script}"#);
        zklock.run_by(["bash".into(), "-c".into(), script.into(), self.name.clone().into_os_string()]).spawn()
    }

    pub(crate) fn press(&self, key: u8) {
        (&self.keyboard).write_all(&[key]).expect("the terminal takes keys");
    }

    pub(crate) fn enter(&self, line: &str) {
        (&self.keyboard).write_all(format!("{line}\n").as_bytes()).expect("the terminal takes keys");
    }

    /// Closes it, as a window is closed: SIGHUP for the leader of its session (signal(7)).
    pub(crate) fn close(self) {
        self.is_closing.store(true, Ordering::Relaxed);
        // So that the reader sees it, and closes its descriptor.
        File::from(self.device).write_all(b"\n").expect("the terminal can be written");
        self.reader.join().expect("the reader does not panic");
        drop(self.keyboard);
    }

    pub(crate) fn settings(&self) -> Termios {
        tcgetattr(&self.device).expect("the terminal's settings")
    }

    /// The lines that a screen of any length would show now, without the blank ones at its end.
    pub(crate) fn lines(&self) -> Vec<String> {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        show(&String::from_utf8_lossy(&written))
    }

    /// Nothing but text and the ends of lines was written.
    #[track_caller]
    pub(crate) fn expect_no_escapes(&self) {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(!written.contains(&0x1b), "{:?}", String::from_utf8_lossy(&written));
    }

    /// Waits until the screen is as `what` says, and returns its lines.
    #[track_caller]
    pub(crate) fn wait(&self, what: impl fmt::Display, is_right: impl Fn(&[String]) -> bool) -> Vec<String> {
        let right = poll::within(poll::PATIENCE, || Some(self.lines()).filter(|lines| is_right(lines)));
        right.unwrap_or_else(|| panic!("waited in vain for {what}; the screen shows {:#?}", self.lines()))
    }

    /// Waits until there are this many lines with `part` in them.
    #[track_caller]
    pub(crate) fn wait_count(&self, part: &str, count: usize) {
        self.wait(format_args!("{count} times {part:?}"), |lines| {
            lines.iter().filter(|line| line.contains(part)).count() == count
        });
    }
}

/// What a terminal shows of a text in which there is nothing but lines that are written over, and a screen that is:
/// carriage return, "cursor home", "erase to the end of the line" and "of the screen" (console_codes(4)).
fn show(text: &str) -> Vec<String> {
    const ERASE_REST: &str = "\x1b[J";
    const HOME: &str = "\x1b[H";
    let mut lines = vec![vec![]];
    let (mut row, mut column, mut rest) = (0, 0, text);
    while let Some(character) = rest.chars().next() {
        if let Some(escape) = ["\x1b[K", ERASE_REST, HOME].into_iter().find(|escape| rest.starts_with(escape)) {
            match escape {
                HOME => (row, column) = (0, 0),
                _ => lines[row].truncate(column),
            }
            if escape == ERASE_REST {
                lines.truncate(row + 1);
            }
            rest = &rest[escape.len()..];
            continue;
        }
        match character {
            '\r' => column = 0,
            '\n' => {
                row += 1;
                lines.resize(lines.len().max(row + 1), vec![]);
            }
            _ => {
                let line = &mut lines[row];
                line.resize(line.len().max(column + 1), ' ');
                line[column] = character;
                column += 1;
            }
        }
        rest = &rest[character.len_utf8()..];
    }
    let mut lines: Vec<String> = lines.into_iter().map(|line| line.into_iter().collect()).collect();
    while lines.last().is_some_and(|line| line.trim().is_empty()) {
        lines.pop();
    }
    lines
}
