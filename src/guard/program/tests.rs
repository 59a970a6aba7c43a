use super::*;

#[test]
fn a_lack_of_processes_is_not_the_programs_fault() {
    for errno in [libc::ESRCH, libc::EAGAIN, libc::ENOMEM, libc::ENOBUFS, libc::EMFILE, libc::EPIPE] {
        assert_eq!(unstarted(&io::Error::from_raw_os_error(errno)), Unstarted::NoProcess);
    }
    assert_eq!(unstarted(&io::Error::from_raw_os_error(libc::EACCES)), Unstarted::CannotExecute);
}

#[test]
fn programs_are_found_as_execvp_finds_them() {
    let located = |program| locate(OsStr::new(program)).map(drop).map_err(|error| unstarted(&error));
    for program in ["sh", "/bin/sh"] {
        assert_eq!(located(program), Ok(()), "{program}");
    }
    for program in ["", "no-such-program-anywhere", "/no/such/program", "/etc/passwd/x"] {
        assert_eq!(located(program), Err(Unstarted::NotFound), "{program}");
    }
    for program in ["/etc", "/etc/passwd"] {
        assert_eq!(located(program), Err(Unstarted::CannotExecute), "{program}");
    }
}
