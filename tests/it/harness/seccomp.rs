//! Programs for which system calls fail (seccomp(2)).

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::scratch::Scratch;

const SOURCE: &str = r#"
    #include <errno.h>
    #include <linux/filter.h>
    #include <linux/seccomp.h>
    #include <stddef.h>
    #include <sys/prctl.h>
    #include <sys/socket.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    #define LOAD(what) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, what))
    #define FAIL(error) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error)
    #define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
    #define UNLESS(test, value, skipped) BPF_JUMP(BPF_JMP | BPF_ ## test | BPF_K, value, 0, skipped)
    #define DENY(number, error) UNLESS(JEQ, number, 1), FAIL(error)
    int main(int count, char **words) {
        struct sock_filter filter[] = {
            LOAD(nr),
            RULES
            ALLOW,
        };
        struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 99;
        execvp(words[1], words + 1);
        return 98;
    }"#;

/// A program that executes its arguments under a filter with these rules, written in the macros above. The number of the
/// system call is loaded when they begin, and what they do not decide is allowed.
#[track_caller]
pub(crate) fn filtering(scratch: &Scratch, rules: &str) -> PathBuf {
    let (source, program) = (scratch.file("seccomp.c"), scratch.file("seccomp"));
    fs::write(&source, SOURCE.replace("RULES\n", &format!("{rules}\n"))).expect("a file can be written");
    let compiler = Command::new("cc").arg("-o").args([&program, &source]).status();
    assert!(compiler.expect("a C compiler").success());
    program
}
