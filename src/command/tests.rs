use super::*;

#[test]
fn programs_are_found_as_execvp_finds_them() {
    let located = |program| locate(OsStr::new(program)).map_err(|error| unstarted(&error));
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
