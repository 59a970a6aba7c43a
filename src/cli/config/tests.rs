use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::cli::{Exit, Operation, Plan, Subject, Task, job, task};
use crate::zookeeper::login::{Credential, Login, Protection};
use crate::zookeeper::net::tls::{OwnCertificate, Tls};

const USER: &str = "/home/ops/.config/zklock.toml";

/// Variables and files that are not those of the machine.
#[derive(Default)]
struct Fake {
    variables: BTreeMap<&'static str, &'static str>,
    files: BTreeMap<&'static str, Result<&'static str, Unread>>,
}

impl Surroundings for Fake {
    fn variable(&self, name: &str) -> Option<OsString> {
        self.variables.get(name).map(Into::into)
    }

    fn file(&self, path: &Path) -> Result<Vec<u8>, Unread> {
        let found = self.files.get(path.to_str().unwrap()).cloned();
        found.unwrap_or(Err(Unread::Missing("no such file".to_owned()))).map(Vec::from)
    }
}

impl Fake {
    fn variable(mut self, name: &'static str, value: &'static str) -> Self {
        self.variables.insert(name, value);
        self
    }

    fn file(mut self, path: &'static str, text: &'static str) -> Self {
        self.files.insert(path, Ok(text));
        self
    }

    /// The user's file and the system's.
    fn files(user: &'static str, system: &'static str) -> Self {
        Self::default().variable("HOME", "/home/ops").file(USER, user).file(SYSTEMS, system)
    }

    #[track_caller]
    fn plan(&self, args: &[&str]) -> Plan {
        self.job(args).unwrap_or_else(|exit| panic!("{args:?}: {exit:?}"))
    }

    fn job(&self, args: &[&str]) -> Result<Plan, Exit> {
        job(["zklock"].iter().chain(args).chain(&["/l", "true"]).map(OsString::from), self)
    }

    #[track_caller]
    fn refusal(&self, args: &[&str]) -> String {
        match self.job(args) {
            Err(Exit::Usage(error)) => error.as_str().to_owned(),
            other => panic!("not refused: {other:?}"),
        }
    }

    fn check(&self, args: &[&str]) -> Operation {
        match task(["zklock", "check"].iter().chain(args).map(OsString::from), self) {
            Ok(Task::Operation(operation)) => *operation,
            other => panic!("{args:?}: {other:?}"),
        }
    }

    /// Where each setting comes from.
    fn origins(&self, args: &[&str]) -> BTreeMap<&'static str, String> {
        let settings = self.check(args).access.origins;
        settings.into_iter().map(|setting| (setting.name, setting.origin.to_string())).collect()
    }
}

#[test]
fn an_option_beats_its_variable_which_beats_the_users_file_which_beats_the_systems() {
    let all = Fake::files("zookeeper = 'user'\nsession-timeout = 50", "session-timeout = 40\nzookeeper = 'system'");
    let variables = all.variable("ZKLOCK_ZOOKEEPER", "variable").variable("ZKLOCK_SESSION_TIMEOUT", "60");
    let seen = |plan: Plan| (plan.access.servers.hosts[0].host.clone(), plan.settings.session_timeout.as_secs());
    let options = ["-z", "option", "--session-timeout", "70"];
    assert_eq!(seen(variables.plan(&options)), ("option".to_owned(), 70));
    // Each by itself.
    assert_eq!(seen(variables.plan(&options[..2])), ("option".to_owned(), 60));
    assert_eq!(seen(variables.plan(&[])), ("variable".to_owned(), 60));
    let empty = Fake::files("zookeeper = 'user'\nsession-timeout = 50", "").variable("ZKLOCK_ZOOKEEPER", "");
    assert_eq!(seen(empty.plan(&[])), ("user".to_owned(), 50));
    let one_each = Fake::files("zookeeper = 'user'", "session-timeout = 40\nzookeeper = 'system'");
    assert_eq!(seen(one_each.plan(&[])), ("user".to_owned(), 40));
    assert_eq!(seen(Fake::files("", "zookeeper = 'system'").plan(&[])), ("system".to_owned(), 30));
    assert!(one_each.plan(&[]).access.servers_given && !Fake::files("", "").plan(&[]).access.servers_given);
}

#[test]
fn every_key_does_what_its_option_does() {
    let text = "zookeeper = 'zk1:1,zk2:2/app'\nconnect-timeout = 2.5\nsession-timeout = '1m'\ntls = true\n\
                tls-ca = '/ca'\ntls-cert = '/cert'\ntls-key = '/key'\ntls-no-verify-hostname = true\n\
                auth-file = '/login'\nacl = 'creator'\nlock-delay = '1m'\n";
    // But for where they come from.
    let without_origins = |mut plan: Plan| {
        plan.access.origins.clear();
        plan
    };
    let options = [
        "--zookeeper=zk1:1,zk2:2/app",
        "--connect-timeout=2.5",
        "--session-timeout=1m",
        "--tls",
        "--tls-ca=/ca",
        "--tls-cert=/cert",
        "--tls-key=/key",
        "--tls-no-verify-hostname",
        "--auth-file=/login",
        "--acl=creator",
        "--lock-delay=1m",
    ];
    let plan = without_origins(Fake::files(text, "").plan(&[]));
    assert_eq!(plan, without_origins(Fake::default().plan(&options)));
    assert_eq!(options.len(), keys().count());
    for key in keys() {
        assert!(text.lines().any(|line| line.starts_with(key)), "{key}");
        assert!(crate::cli::command().get_arguments().any(|arg| arg.get_long() == Some(key)), "{key} is an option");
    }
}

#[test]
fn a_named_file_is_the_only_one() {
    let named = || Fake::files("zookeeper = 'user'\nacl = 1", "frobnicate = 1").file("own", "session-timeout = 50");
    for plan in [named().plan(&["--config", "own"]), named().variable("ZKLOCK_CONFIG", "own").plan(&[])] {
        assert_eq!((plan.access.servers_given, plan.settings.session_timeout), (false, Duration::from_secs(50)));
    }
    let both = named().file("other", "session-timeout = 60").variable("ZKLOCK_CONFIG", "own");
    assert_eq!(both.plan(&["--config=other"]).settings.session_timeout, Duration::from_secs(60));
    assert_eq!(named().refusal(&["--config=gone"]), "--config: gone: no such file");
    assert_eq!(named().variable("ZKLOCK_CONFIG", "gone").refusal(&[]), "ZKLOCK_CONFIG: gone: no such file");
    assert_eq!(named().refusal(&["--config="]), "--config '': write the path of a file, or /dev/null for none");
    assert!(named().variable("ZKLOCK_CONFIG", "").refusal(&[]).starts_with(USER), "an empty variable is unset");
}

#[test]
fn the_users_file_is_where_the_variables_say() {
    let place = |name, value| {
        let fake = Fake::default().variable(name, value);
        users_file(&fake).map(|path| path.into_os_string().into_string().unwrap())
    };
    assert_eq!(users_file(&Fake::default()), None);
    assert_eq!(place("HOME", "/home/ops").as_deref(), Some(USER));
    assert_eq!(place("HOME", ""), None);
    assert_eq!(place("HOME", "home"), None);
    assert_eq!(place("XDG_CONFIG_HOME", "/xdg").as_deref(), Some("/xdg/zklock.toml"));
    let relative = Fake::default().variable("HOME", "/home/ops").variable("XDG_CONFIG_HOME", "xdg");
    assert_eq!(users_file(&relative).as_deref(), Some(Path::new(USER)));
    Fake::default().file(SYSTEMS, "").plan(&[]);
}

#[test]
fn a_file_that_is_there_but_unusable_is_an_error() {
    for path in [USER, SYSTEMS] {
        let mut fake = Fake::files("", "");
        fake.files.insert(path, Err(Unread::Unusable("it is odd".to_owned())));
        assert_eq!(fake.refusal(&[]), format!("{path}: it is odd"));
        fake.file("/ok", "").plan(&["--config", "/ok"]);
    }
}

#[test]
fn a_key_belongs_to_the_certificate_of_its_file() {
    let own = |fake: &Fake, args: &[&str]| {
        let own = fake.plan(args).access.tls.unwrap().own.unwrap();
        [own.certificate.as_path(), own.key()].map(|path| path.to_str().unwrap().to_owned())
    };
    let pair = "tls-cert = '/u/c'\ntls-key = '/u/k'";
    let user = Fake::files(pair, "");
    assert_eq!(own(&user, &[]), ["/u/c", "/u/k"]);
    assert_eq!(own(&user, &["--tls-cert=c"]), ["c", "c"]);
    assert_eq!(own(&user, &["--tls-cert=c", "--tls-key=k"]), ["c", "k"]);
    assert_eq!(own(&user, &["--tls-key=k"]), ["/u/c", "k"]);
    let variable = Fake::files(pair, "").variable("ZKLOCK_TLS_CERT", "c");
    assert_eq!(own(&variable, &[]), ["c", "c"]);
    assert_eq!(own(&Fake::files("tls-cert = '/u/c'", "tls-cert = '/s/c'\ntls-key = '/s/k'"), &[]), ["/u/c", "/u/c"]);
    assert_eq!(own(&Fake::files("tls-key = '/u/k'", "tls-cert = '/s/c'\ntls-key = '/s/k'"), &[]), ["/s/c", "/u/k"]);
    let refused = Fake::files("tls-key = '/u/k'", "").refusal(&[]);
    assert_eq!(refused, format!("{USER}: line 1: tls-key '/u/k': a key without a certificate; write tls-cert as well"));
}

#[test]
fn a_no_to_tls_is_overruled_by_what_is_stronger() {
    let tls = |user, system, args: &[&str]| Fake::files(user, system).plan(args).access.tls.is_some();
    assert!(tls("", "tls = true", &[]));
    assert!(!tls("tls = false", "tls = true\ntls-ca = '/ca'", &[]));
    assert!(!tls("tls = false\ntls-ca = '/ca'", "", &[]));
    assert!(tls("tls-ca = '/ca'", "tls = false", &[]));
    assert!(!tls("", "tls = false\ntls-ca = '/ca'", &[]));
    assert!(tls("tls = false", "tls = true", &["--tls"]));
    assert!(tls("tls = false", "", &["--tls-ca=ca"]));
    assert!(!tls("tls-no-verify-hostname = false", "", &[]));
    assert!(tls("tls-no-verify-hostname = true", "", &[]));
    let files = || Fake::files("tls = true\ntls-ca = '/ca'", "");
    assert_eq!(files().variable("ZKLOCK_TLS", "0").plan(&[]).access.tls, None);
    let verified = Fake::files("tls-no-verify-hostname = true\ntls = true", "");
    assert_eq!(
        verified.variable("ZKLOCK_TLS_NO_VERIFY_HOSTNAME", "0").plan(&[]).access.tls,
        Some(Tls { ca: None, own: None, verify_hostname: true })
    );
    let on = Fake::files("tls = false", "").variable("ZKLOCK_TLS_CERT", "c").plan(&[]).access.tls;
    assert_eq!(on.unwrap().own, Some(OwnCertificate { certificate: "c".into(), key: None }));
}

#[test]
fn a_login_of_the_run_beats_that_of_a_file() {
    let files = || Fake::files("auth-file = '/u/login'", "auth-file = '/s/login'\nacl = 'creator'");
    let login = files().plan(&[]).access.login;
    assert_eq!((login.file, login.protection), (Some("/u/login".into()), Protection::Creator));
    let bob = vec![Credential { scheme: "digest".to_owned(), secret: b"bob:b".to_vec() }];
    let login = files().variable("ZKLOCK_AUTH", "digest:bob:b").plan(&["--acl", "read"]).access.login;
    assert_eq!((login.file, &login.credentials, login.protection), (None, &bob, Protection::Read));
    let login = files().plan(&["--auth", "digest:bob:b"]).access.login;
    assert_eq!((login.file, &login.credentials), (None, &bob));
    assert_eq!(files().plan(&["--auth-file", "f"]).access.login.file, Some("f".into()));
    // No login at all, whatever the files say.
    let login = files().plan(&["--auth-file", "/dev/null", "--acl=open"]).access.login;
    assert_eq!((login.is_given(), login.protection), (false, Protection::Open));
    let user = Fake::files("auth-file = '/dev/null'", "auth-file = '/s/login'\nacl = 'creator'");
    assert_eq!(user.plan(&["--acl=open"]).access.login, Login::default());
    assert!(user.refusal(&["--acl=creator"]).starts_with("--acl 'creator': for those who log in"));
    let nobody = Fake::files("", "# for all\nacl = 'creator'");
    assert_eq!(
        nobody.refusal(&[]),
        "/etc/zklock.toml: line 2: acl 'creator': for those who log in; write auth-file or tls-cert as well"
    );
    assert_eq!(nobody.plan(&["--acl=open"]).access.login.protection, Protection::Open);
}

#[test]
fn a_file_is_sought_beside_the_configuration() {
    let tls = |plan: Plan| plan.access.tls.unwrap().ca.unwrap();
    assert_eq!(tls(Fake::files("", "tls-ca = 'tls/ca.pem'").plan(&[])), Path::new("/etc/tls/ca.pem"));
    for (named, ca) in [("conf/zk.toml", "conf/ca.pem"), ("zk.toml", "ca.pem"), ("/a/../zk.toml", "/a/../ca.pem")] {
        let fake = Fake::default().file(named, "tls-ca = 'ca.pem'\nauth-file = '/login'");
        let plan = fake.plan(&["--config", named]);
        assert_eq!(plan.access.login.file.as_deref(), Some(Path::new("/login")));
        assert_eq!(tls(plan), Path::new(ca));
    }
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    let keys = "zookeeper, connect-timeout, tls, tls-ca, tls-cert, tls-key, tls-no-verify-hostname, auth-file, \
                session-timeout, acl, lock-delay";
    for (text, why) in [
        ("\n# servers\nservers = 'zk1'\n", format!("line 3: unknown key 'servers'; write one of {keys}")),
        ("tls_ca = 'a'", "line 1: unknown key 'tls_ca'; did you mean tls-ca?".to_owned()),
        ("zookeper = 'a'", "line 1: unknown key 'zookeper'; did you mean zookeeper?".to_owned()),
        ("tls = true\ntls = false", {
            "line 2: not TOML: duplicate key; write each key once, in lines such as zookeeper = \"zk1,zk2\"".to_owned()
        }),
        ("'a\\u001bb' = 1", format!("line 1: unknown key 'a\\u001bb'; write one of {keys}")),
        ("\"a\\u001bb\" = 1", format!("line 1: unknown key 'a<U+001B>b'; write one of {keys}")),
        ("zookeeper.host = 'a'", "line 1: zookeeper: write a text, in quotes".to_owned()),
        ("[tls]\nca = 'a'", "line 1: tls: write true or false".to_owned()),
        ("tls = 'yes'", "line 1: tls: write true or false".to_owned()),
        ("tls = 1", "line 1: tls: write true or false".to_owned()),
        ("zookeeper = ['a', 'b']", "line 1: zookeeper: write a text, in quotes".to_owned()),
        ("tls-ca = true", "line 1: tls-ca: write a text, in quotes".to_owned()),
        ("session-timeout = true", "line 1: session-timeout: write a duration such as \"30s\"".into()),
        ("session-timeout = 0x10", "line 1: session-timeout: write a duration such as \"30s\"".into()),
        ("session-timeout = 1979-05-27", "line 1: session-timeout: write a duration such as \"30s\"".into()),
        ("session-timeout = 0", "line 1: session-timeout '0': too short for a lease; write at least 100ms".into()),
        ("\nconnect-timeout = 0.0", {
            "line 2: connect-timeout '0.0': no server can answer in no time; write a longer one, such as 15s".to_owned()
        }),
        ("zookeeper = 'a,,b'", {
            "line 1: zookeeper 'a,,b': a server is missing; write HOST:PORT,HOST:PORT, and IPv6 addresses in brackets: [ADDRESS]:PORT"
                .to_owned()
        }),
        ("acl = 'all'", "line 1: acl 'all': write open, creator or read".to_owned()),
        ("auth-file = ''", "line 1: auth-file '': write the path of a file".to_owned()),
        ("tls-ca = '~/ca.pem'", "line 1: tls-ca '~/ca.pem': no shell expands ~ here; write the whole path".to_owned()),
        ("timeout = 3", {
            "line 1: timeout does not belong in this file, but to a single run; write --timeout there".to_owned()
        }),
        ("auth = 'digest:bob:hidden'", {
            "line 1: auth: no password belongs in this file; write it into a file of its own, and name that with \
             auth-file"
                .to_owned()
        }),
        // The first one in the file, whatever the order of the alphabet.
        ("zookeeper = 1\nacl = 1", "line 1: zookeeper: write a text, in quotes".to_owned()),
    ] {
        assert_eq!(Fake::files(text, "").refusal(&[]), format!("{USER}: {why}"), "{text}");
        // Even if an option would win over it.
        assert!(Fake::files("", text).refusal(&["-z", "zk", "--session-timeout=6s"]).starts_with(SYSTEMS));
    }
}

#[test]
fn what_is_no_toml_is_named_with_its_line() {
    for (text, line) in [
        ("zookeeper = zk1", 1),
        ("\nzookeeper", 2),
        ("tls = true\ntls = false\n", 2),
        ("zookeeper = 'zk1\n'", 1),
        ("\n\n[", 3),
        ("tls = true tls-ca = 'x'", 1),
        ("ZKLOCK_ZOOKEEPER=zk1,zk2", 1),
        ("\u{1b}", 1),
    ] {
        let refused = Fake::files(text, "").refusal(&[]);
        assert!(refused.starts_with(&format!("{USER}: line {line}: not TOML: ")), "{text:?}: {refused}");
        assert!(!refused.contains(char::is_control), "{refused:?}");
    }
    let not_utf_8 = entries(Path::new("f"), b"# \n# caf\xe9\n").unwrap_err();
    assert_eq!(not_utf_8.to_string(), "f: line 2: not UTF-8; write the file in UTF-8");
    Fake::files("\u{feff}tls = false\r\n", "").plan(&[]);
}

#[test]
fn every_setting_says_where_it_comes_from() {
    let fake = Fake::files("tls-ca = 'ca'\n\nauth-file = 'login'", "zookeeper = 'zk'\nacl = 'read'");
    let fake = fake.variable("ZKLOCK_SESSION_TIMEOUT", "1m");
    let expected = [
        ("acl", "/etc/zklock.toml: line 2"),
        ("auth-file", "/home/ops/.config/zklock.toml: line 3"),
        ("config", "default"),
        ("connect-timeout", "--connect-timeout"),
        ("session-timeout", "ZKLOCK_SESSION_TIMEOUT"),
        ("tls", "/home/ops/.config/zklock.toml: line 1"),
        ("tls-ca", "/home/ops/.config/zklock.toml: line 1"),
        ("zookeeper", "/etc/zklock.toml: line 1"),
    ];
    let expected = expected.map(|(name, origin)| (name, origin.to_owned()));
    assert_eq!(fake.origins(&["--connect-timeout", "2"]), expected.into());
    let files = |fake: &Fake| -> Vec<_> {
        let settings = fake.check(&[]).access.origins.into_iter();
        settings.filter(|setting| setting.name == "config").map(|setting| setting.value.unwrap()).collect()
    };
    assert_eq!(files(&fake), [USER, SYSTEMS]);
    assert_eq!(files(&Fake::default().file(SYSTEMS, "")), [SYSTEMS]);
    assert_eq!(files(&Fake::default()), Vec::<String>::new());

    let secret = Fake::default().variable("ZKLOCK_AUTH", "digest:bob:hidden").check(&[]);
    assert!(secret.access.origins.iter().any(|setting| setting.name == "auth" && setting.value.is_none()));
    assert_eq!(Fake::files("tls-ca = 'c'\ntls = false", "").origins(&[])["tls"], format!("{USER}: line 2"));
    assert_eq!(Fake::files("tls = false", "").origins(&["--tls-ca=c"])["tls"], "--tls-ca");
    assert!(matches!(secret.subject, Subject::Check(_)));
}

#[test]
fn check_shows_the_acl_that_a_run_would_use() {
    let both = Fake::files("", "auth-file = 'login'\nacl = 'creator'");
    assert_eq!(both.origins(&[])["acl"], format!("{SYSTEMS}: line 2"));
    assert_eq!(both.check(&[]).access.login, both.plan(&[]).access.login);
    for text in ["acl = 'creator'", "acl = 'read'\nauth-file = '/dev/null'"] {
        let nobody = Fake::files("", text);
        let Err(Exit::Usage(refused)) = task(["zklock", "check"].map(OsString::from), &nobody) else {
            panic!("{text}")
        };
        assert_eq!(refused.as_str(), nobody.refusal(&[]));
    }
}

#[test]
fn a_fence_reads_no_configuration() {
    let fake = Fake::files("frobnicate", "frobnicate").variable("ZKLOCK_CONFIG", "/gone");
    let args = ["zklock", "fence", "--token", "1", "file", "true"].map(OsString::from);
    assert!(matches!(task(args, &fake), Ok(Task::Run(_))));
}
