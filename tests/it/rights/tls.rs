//! TLS: it works as without, and each thing that can be wrong with it has a sentence of its own.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::harness::client::Refusal;
use crate::harness::poll;
use crate::harness::proxy::Proxy;
use crate::harness::release::{Feature, lacks};
use crate::harness::running::{Output, Running, finish, only_line, silent};
use crate::harness::schema::expect_valid;
use crate::harness::scratch::{LASTING_VERBOSE, LOCK, Scratch};
use crate::harness::server::Data;
use crate::harness::tls::{Authority, Good, LOCAL, Protocol, server_12, server_13};
use crate::harness::zklock::Zklock;

/// Options of a run that does not wait for a server that is of no use.
const SOON: [&str; 2] = ["--connect-timeout", "1s"];

/// Without the TLS of the harness.
fn at(servers: impl fmt::Display) -> Zklock {
    Zklock::at(servers).own_tls()
}

/// Runs `true` under a lock on this server.
fn run(address: &str, args: &[&str]) -> Zklock {
    at(address).args(args).arg(LOCK).arg("true")
}

/// What is said of a server that cannot be used, without the address.
#[track_caller]
fn reason(address: &str, output: Output) -> String {
    let line = only_line(&output.expect_code(69));
    let rest = line.strip_prefix(&format!("no ZooKeeper server of {address} answered within "));
    let reason = rest.and_then(|rest| rest.split_once("s: 127.0.0.1:")?.1.split_once(' '));
    reason.unwrap_or_else(|| panic!("{line}")).1.to_owned()
}

/// A contender that reaches a server by TLS, as `client`.
fn contend(scratch: &Scratch, address: &str, name: &str, options: &[&str]) -> Running {
    Authority::shared().known_as("client", scratch.job(address, name, options, &["--exit-on", "TERM"])).spawn()
}

#[test]
fn name_that_the_user_wrote() {
    if lacks(Feature::Tls) {
        return;
    }
    let (server, authority) = (server_12(), Authority::shared());
    silent(authority.trusted(run(&server.secure_address("localhost"), &[])).run()).expect_code(0);
    let address = server.secure_address("127.0.0.1");
    let output = authority.trusted(run(&address, &SOON)).run();
    assert_eq!(reason(&address, output), "its certificate is for localhost, zk.example, not for 127.0.0.1");
    let check =
        authority.trusted(at(&address).args(["check", "--connect-timeout", "0"])).run().expect_code(69).stdout();
    assert!(check.contains("its certificate is for localhost, zk.example, not for 127.0.0.1"), "{check}");
    silent(authority.trusted(run(&address, &["--tls-no-verify-hostname"])).run()).expect_code(0);
    silent(authority.trusted(run(&address, &[])).env("ZKLOCK_TLS_NO_VERIFY_HOSTNAME", "1").run()).expect_code(0);
    // Two names of one address. The certificate is for the second one.
    let both = format!("{address},{}", server.secure_address("localhost"));
    silent(authority.trusted(run(&both, &[])).run()).expect_code(0);
}

#[test]
fn certificates_that_are_not_accepted() {
    let authority = Authority::new();
    authority.issue("expired", LOCAL, Good::Past);
    authority.issue("nameless", "extendedKeyUsage=serverAuth", Good::Days(30));
    authority.issue("old", "", Good::Days(30));
    authority.issue("client", "extendedKeyUsage=clientAuth", Good::Days(30));
    authority.issue("good", LOCAL, Good::Days(30));
    let other = Authority::new();
    let unfit = |why: &str| format!("its certificate cannot be accepted: Other(OtherError({why}))");
    for (name, ca, why) in [
        ("expired", Some(&authority), "its certificate has expired".to_owned()),
        (
            "nameless",
            Some(&authority),
            "its certificate is for no name (subjectAltName), not for localhost".to_owned(),
        ),
        (
            "client",
            Some(&authority),
            "its certificate cannot be accepted: certificate does not allow extended key usage for server authentication, allows client authenticati…"
                .to_owned(),
        ),
        ("old", Some(&authority), unfit("UnsupportedCertVersion")),
        ("ca", Some(&authority), unfit("CaUsedAsEndEntity")),
        ("good", Some(&other), format!("its certificate is not signed by a CA in {}", other.file("ca.pem"))),
        (
            "good",
            None,
            "its certificate is not signed by a CA that this system trusts: name its CA with --tls-ca".to_owned(),
        ),
    ] {
        let server = authority.handshaker(name);
        let address = server.address("localhost");
        let zklock = run(&address, &SOON).env("ZKLOCK_TLS", "1");
        let zklock = match ca {
            Some(ca) => ca.trusted(zklock),
            None => zklock,
        };
        let output = zklock.run();
        assert_eq!(reason(&address, output), why, "{name}");
    }
    // That it is for another name does not make it good.
    let server = authority.handshaker("expired");
    let address = server.address("localhost");
    let output = authority.trusted(run(&address, &SOON)).env("ZKLOCK_TLS_NO_VERIFY_HOSTNAME", "1").run();
    assert_eq!(reason(&address, output), "its certificate has expired");
    // What docs/troubleshooting.md says of `CaUsedAsEndEntity`.
    authority.openssl(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout self.key -out self.pem -days 30 -subj /CN=self \
         -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=DNS:localhost",
    );
    let server = authority.handshaker("self");
    let address = server.address("localhost");
    let output = run(&address, &SOON).env("ZKLOCK_TLS_CA", authority.path("self.pem")).run();
    assert!(!reason(&address, output).contains("certificate"), "it is accepted");
}

#[test]
fn files_of_our_own() {
    let authority = Authority::new();
    let file = |name: &str| authority.file(name);
    for name in ["one", "two"] {
        authority.issue(name, "extendedKeyUsage=clientAuth", Good::Days(30));
    }
    authority.openssl("pkcs8 -topk8 -in one.key -out encrypted.key -passout pass:secret");
    authority.openssl("genrsa -traditional -aes128 -passout pass:secret -out encrypted1.key 2048");
    fs::write(authority.path("damaged.pem"), "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n").unwrap();
    fs::write(authority.path("empty.pem"), "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n").unwrap();
    let (one, two, ca) = (file("one.pem"), file("two.key"), file("ca.pem"));
    let no_key = "no private key in this file, or an encrypted one; name its file with --tls-key, and write it in PEM (BEGIN \
                  PRIVATE KEY, as openssl pkey does)";
    let cases = [
        (vec!["--tls-ca", "/nowhere"], "--tls-ca: /nowhere: No such file or directory".to_owned()),
        (
            vec!["--tls-ca", "/dev/null"],
            "--tls-ca: /dev/null: no regular file; write one that can be read again".to_owned(),
        ),
        (
            vec!["--tls-ca", &two],
            format!("--tls-ca: {two}: no certificate in this file; write one in PEM (BEGIN CERTIFICATE)"),
        ),
        (vec!["--tls-cert", &ca], format!("--tls-cert: {ca}: {no_key}")),
        (vec!["--tls-cert", &one, "--tls-key", &one], format!("--tls-key: {one}: {no_key}")),
        (vec!["--tls-cert", &one, "--tls-key", &ca], format!("--tls-key: {ca}: {no_key}")),
        (
            vec!["--tls-cert", &one, "--tls-key", &two],
            format!("the key in {two} does not belong to the certificate in {one}"),
        ),
        (vec!["--tls-key", &two], format!("--tls-key '{two}': a key without a certificate; write --tls-cert as well")),
        (vec!["--tls-ca", ""], "--tls-ca '': write the path of a file".to_owned()),
    ];
    // No server: they are looked at first.
    for (args, why) in cases {
        let output = run("127.0.0.1:1", &args).run().expect_code(64);
        assert_eq!(only_line(&output), why);
        let status = at("127.0.0.1:1").args(["status", LOCK]).args(&args).run().expect_code(64);
        assert_eq!(only_line(&status), why);
    }
    for key in ["encrypted.key", "encrypted1.key"] {
        let key = file(key);
        let output = run("127.0.0.1:1", &["--tls-cert", &one, "--tls-key", &key]).run().expect_code(64);
        assert!(only_line(&output).starts_with(&format!("--tls-key: {key}: ")), "{}", output.stderr());
    }
    for damaged in ["damaged.pem", "empty.pem"] {
        let output = run("127.0.0.1:1", &["--tls-ca", &file(damaged)]).run().expect_code(64);
        assert!(only_line(&output).starts_with(&format!("--tls-ca: {}", file(damaged))), "{}", output.stderr());
    }
}

#[test]
fn server_that_wants_a_certificate() {
    if lacks(Feature::Tls) {
        return;
    }
    let authority = Authority::shared();
    let old = authority.settings("server12", Protocol::Tls12, "need");
    server_12();
    let old = old.server();
    server_13();
    let other = Authority::new();
    other.issue("stranger", "", Good::Days(30));
    authority.issue("ex-client", "", Good::Past);
    for address in [old.secure_address("localhost"), server_13().secure_address("127.0.0.1")] {
        silent(authority.known_as("client", run(&address, &[])).run()).expect_code(0);
        let refused = |output: Output| {
            let line = only_line(&output.expect_code(77));
            let rest = line
                .strip_prefix("ZooKeeper does not accept this client: 127.0.0.1:")
                .unwrap_or_else(|| panic!("{line}"));
            rest.split_once(": ").expect("a port").1.to_owned()
        };
        let without = "it wants a client certificate: use --tls-cert and --tls-key";
        assert_eq!(refused(authority.trusted(run(&address, &[])).run()), without);
        let status = at(&address).args(["status", LOCK]);
        assert_eq!(refused(authority.trusted(status).run()), without);
        let stranger = other.known_as("stranger", run(&address, &[])).env("ZKLOCK_TLS_CA", authority.path("ca.pem"));
        let why = refused(stranger.run());
        let says = |why: String, file: String| {
            let (begin, end) = why.split_once(" (").expect("an alert");
            assert_eq!(begin, format!("it refuses the certificate in {file}"));
            assert!(
                end.ends_with("the certificate may have expired, or its CA is not in the server's truststore"),
                "{why}"
            );
        };
        says(why, other.file("stranger.pem"));
        let expired = refused(authority.known_as("ex-client", run(&address, &[])).run());
        says(expired, authority.file("ex-client.pem"));
        let check = authority.trusted(at(&address).args(["check", "--json"])).run().expect_code(77);
        let json: Value = serde_json::from_slice(&check.stdout).unwrap();
        // By its name it may have another address as well, at which nothing listens.
        let servers = json["servers"].as_array().unwrap();
        let says = |server: &Value| server["error"].as_str().is_some_and(|error| error.ends_with(without));
        assert!(servers.iter().any(says), "{json}");
    }
    // A server that asks, and does not insist.
    let asks = authority.settings("server13", Protocol::Tls13, "want").server();
    silent(authority.trusted(run(&asks.secure_address("127.0.0.1"), &[])).run()).expect_code(0);
}

#[test]
fn one_speaks_tls_and_the_other_does_not() {
    if lacks(Feature::Tls) {
        return;
    }
    let authority = Authority::shared();
    let plain = server_13().address();
    let output = authority.trusted(run(&plain, &SOON)).run();
    assert_eq!(
        reason(&plain, output),
        "speaks ZooKeeper without TLS: name its secureClientPort, or connect without TLS"
    );
    let secure = server_13().secure_address("127.0.0.1");
    // It waits for a fifth byte of the word srvr before it says anything.
    assert_eq!(
        reason(&secure, run(&secure, &["--connect-timeout", "3s"]).run()),
        "closes connections before it answers: it is starting, or full (maxClientCnxns), wants TLS (--tls), or is no ZooKeeper server"
    );
    let check = authority.trusted(at(&plain).args(["check", "--connect-timeout", "0"])).run().expect_code(69).stdout();
    assert!(check.contains("speaks ZooKeeper without TLS: name its secureClientPort"), "{check}");
}

/// Servers that ask for a certificate count it as a login.
#[test]
fn nodes_that_belong_to_a_certificate() {
    if lacks(Feature::Tls) {
        return;
    }
    let (server, authority) = (server_13(), Authority::shared());
    let address = server.secure_address("127.0.0.1");
    let scratch = Scratch::on(server.chroot());
    let mut holder = contend(&scratch, &address, "holder", &["--acl", "read"]);
    holder.wait_stdout("holder ready");
    let node = holder.variable("ZKLOCK_NODE");
    assert_eq!(scratch.client().get(&node).map(drop), Ok(()));
    assert_eq!(scratch.client().set(&node, b""), Err(Refusal::NO_AUTH));
    assert_eq!(scratch.client().delete(&node), Err(Refusal::NO_AUTH));
    finish(&mut holder);
    let chroot = server.chroot();
    let zklock = |args: &[&str]| authority.known_as("client", at(chroot.by(&address)).args(args));
    for _ in 0..2 {
        silent(zklock(&["--acl", "creator", LOCK, "true"]).run()).expect_code(0);
    }
    at(&chroot).args(["status", LOCK]).run().expect_code(77);
    // A server that does not ask.
    let address = server_12().secure_address("127.0.0.1");
    let config = scratch.file("zklock.toml");
    fs::write(&config, "acl = 'read'\ntls-no-verify-hostname = true\n").unwrap();
    let told =
        "they know no login of this run that nodes can belong to; a certificate counts as one if they ask for it";
    let run = authority.known_as("client", run(&address, &["--config", config.to_str().unwrap()])).run();
    assert!(only_line(&run.expect_code(77)).starts_with(&format!("ZooKeeper does not accept this client: {told}")));
    let check = at(&address).args(["check", "--config", config.to_str().unwrap(), LOCK]);
    let check = authority.known_as("client", check).run().expect_code(77).stdout();
    assert!(check.contains(told), "{check}");
}

#[test]
fn keys_of_all_kinds() {
    if lacks(Feature::Tls) {
        return;
    }
    server_13();
    let authority = Authority::shared();
    let address = server_13().secure_address("127.0.0.1");
    authority.openssl("ec -in client.key -out sec1.key");
    authority.openssl("req -newkey rsa:2048 -nodes -keyout rsa.key -out rsa.csr -subj /CN=rsa");
    authority.openssl("ca -batch -notext -config cnf -cert ca.pem -keyfile ca.key -in rsa.csr -out rsa.pem -days 30");
    authority.openssl("rsa -in rsa.key -traditional -out pkcs1.key");
    for (certificate, key, kind) in [
        ("client.pem", "client.key", "BEGIN PRIVATE KEY"),
        ("client.pem", "sec1.key", "BEGIN EC PRIVATE KEY"),
        ("rsa.pem", "rsa.key", "BEGIN PRIVATE KEY"),
        ("rsa.pem", "pkcs1.key", "BEGIN RSA PRIVATE KEY"),
        ("client-both.pem", "client-both.pem", "BEGIN PRIVATE KEY"),
    ] {
        assert!(fs::read_to_string(authority.path(key)).unwrap().contains(kind));
        let zklock = authority.trusted(run(&address, &["--tls-cert", &authority.file(certificate)]));
        let zklock = if key == certificate { zklock } else { zklock.env("ZKLOCK_TLS_KEY", authority.path(key)) };
        silent(zklock.run()).expect_code(0);
    }
}

#[test]
fn key_that_every_user_can_read() {
    if lacks(Feature::Tls) {
        return;
    }
    server_13();
    let authority = Authority::shared();
    let key = authority.path("exposed.key");
    fs::copy(authority.path("client.key"), &key).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let zklock = |args: &[&str]| {
        let zklock = run(&server_13().secure_address("127.0.0.1"), args);
        authority.known_as("client", zklock).env("ZKLOCK_TLS_KEY", &key)
    };
    let path = key.display();
    let warning = format!("warning: every user can read the key in {path}: chmod 600 {path}");
    assert_eq!(only_line(&zklock(&[]).run().expect_code(0)), warning);
    silent(zklock(&["-q"]).run()).expect_code(0);
}

#[test]
fn run_queue_status_and_check() {
    if lacks(Feature::Tls) {
        return;
    }
    let (server, authority) = (server_13(), Authority::shared());
    let scratch = Scratch::on(server.chroot()).with_lock();
    let address = server.secure_address("127.0.0.1");
    let mut holder = contend(&scratch, &address, "holder", &[]);
    holder.wait_stdout("holder ready");
    let mut next = contend(&scratch, &address, "next", &[]);
    scratch.wait_queue(2);
    let subcommand =
        |args: &[&str]| silent(authority.known_as("client", at(scratch.chroot().by(&address)).args(args)).run());
    assert!(subcommand(&["status", LOCK]).expect_code(0).stdout().contains("1 holds, 1 waits"));
    let list = subcommand(&["list"]).expect_code(0).stdout();
    assert!(list.starts_with("/lock\t1\t1\t"), "{list}");
    let node = scratch.contenders()[0].path.clone();
    subcommand(&["break", LOCK, "--node", &node]).expect_code(0);
    holder.wait().expect_code(76);
    finish(&mut next);
    scratch.expect_tidy(&["holder", "next"]);

    let output = subcommand(&["check", "--json", LOCK]).expect_code(0);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    expect_valid("check", &json);
    let one = &json["servers"][0];
    assert!(server.tell("srvr").contains(one["version"].as_str().unwrap()), "{one}");
    assert_eq!(json["findings"], json!([]));
    let old = authority.trusted(at(server_12().secure_address("localhost"))).args(["check", "-q"]).run();
    silent(old.expect_code(0));
}

/// The same session over another connection, for which no full handshake is made.
#[test]
fn reconnection() {
    if lacks(Feature::Tls) {
        return;
    }
    for (server, host, protocol) in [(server_12(), "localhost", "TLSv1.2"), (server_13(), "127.0.0.1", "TLSv1.3")] {
        server_13();
        let scratch = Scratch::on(server.chroot()).with_lock();
        let proxy = Proxy::plain(server.secure_address("127.0.0.1").parse().unwrap());
        let address = format!("{host}:{}", proxy.port());
        let mut holder = contend(&scratch, &address, "holder", &[&LASTING_VERBOSE[..], &["-v"]].concat());
        holder.wait_stdout("holder ready");
        let before = scratch.only_contender();
        for round in 1..=3 {
            proxy.reset();
            poll::until("the connection is restored", || {
                (holder.stderr().matches("connection to ZooKeeper restored\n").count() == round).then_some(())
            });
        }
        assert_eq!(scratch.only_contender(), before);
        let said = holder.stderr();
        let full = if Feature::ResumedHandshakes.is_there() { 1 } else { 4 };
        assert_eq!(said.matches(&format!("{protocol}, full handshake\n")).count(), full, "{said}");
        assert_eq!(said.matches(&format!("{protocol}, resumed handshake\n")).count(), 4 - full, "{said}");
        holder.end();
        scratch.wait_queue(0);
    }
}

/// Everything is replaced while zklock runs: the CA, the server's certificate, and ours.
#[test]
fn rotation() {
    if lacks(Feature::Tls) {
        return;
    }
    let authority = Authority::new();
    authority.issue("server", LOCAL, Good::Days(30));
    authority.issue("client", "", Good::Days(30));
    let server = authority.settings("server", Protocol::Tls12, "need").server();
    let scratch = Scratch::on(server.chroot()).with_lock();
    let address = server.secure_address("127.0.0.1");
    let job = scratch.job(&address, "holder", &[&LASTING_VERBOSE[..], &["-v"]].concat(), &["--exit-on", "TERM"]);
    let mut holder = authority.known_as("client", job).spawn();
    holder.wait_stdout("holder ready");
    let before = scratch.only_contender();
    server.kill();
    authority.openssl(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -days 30 -subj /CN=new",
    );
    authority.issue("server", LOCAL, Good::Days(30));
    // The certificate alone, for a moment.
    fs::rename(authority.path("client.key"), authority.path("away")).unwrap();
    holder.wait_stderr("using the earlier certificates: ");
    authority.issue("client", "", Good::Days(30));
    server.restart(Data::Kept);
    holder.wait_stderr("connection to ZooKeeper restored");
    assert_eq!(scratch.only_contender(), before);
    assert_eq!(holder.stderr().matches("TLSv1.2, full handshake\n").count(), 2, "{}", holder.stderr());
    holder.end();
    scratch.wait_queue(0);
}
