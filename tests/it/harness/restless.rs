//! A program that forks all the time.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

/// It prints `restless ready`. A process of it is replaced by a child, without a pause, for a minute, in a session of
/// their own; its first process does nothing and ignores SIGTERM.
const SOURCE: &str = "
    #include <signal.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <time.h>
    #include <unistd.h>
    int main(void) {
        time_t end = time(NULL) + 60;
        signal(SIGTERM, SIG_IGN);
        puts(\"restless ready\");
        fflush(stdout);
        if (fork()) for (;;) pause();
        setsid();
        while (time(NULL) < end) if (fork()) _exit(0);
        return 0;
    }";

/// The program, in a directory that goes with this value.
pub(crate) struct Restless(TempDir);

impl Restless {
    pub(crate) fn build() -> Self {
        let built = Self(tempfile::tempdir().expect("a directory"));
        let source = built.0.path().join("restless.c");
        fs::write(&source, SOURCE).expect("a file can be written");
        // Static: the less there is to copy, the faster it is.
        let compiler = Command::new("cc").args(["-O1", "-static", "-o"]).args([built.program(), source]).status();
        assert!(compiler.expect("a C compiler").success());
        built
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.0.path().join("restless")
    }
}
