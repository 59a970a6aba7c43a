use std::net::SocketAddr;

use super::super::server::SeenTls;
use super::*;
use crate::cli::{self, Task};
use crate::rules::message::Right;

const ASKED: Duration = Duration::from_secs(30);

/// A day in 2027, at noon.
const TODAY: i64 = 1_800_014_400;

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A server with ZooKeeper's own defaults.
fn server(number: u8, role: &str) -> Server {
    Server {
        member: Some(number),
        version: Some("3.8.0".to_owned()),
        role: Some(role.to_owned()),
        least: Some(millis(4000)),
        greatest: Some(millis(40_000)),
        read: Some(millis(1)),
        beat: Some(millis(2)),
        transactions: Some(true),
        chroot: Some(true),
        ..Server::new(format!("zk{number}:2181"), Some(SocketAddr::from(([10, 0, 0, number], 2181))))
    }
}

fn down(number: u8) -> Server {
    let address = Some(SocketAddr::from(([10, 0, 0, number], 2181)));
    Server { error: Some("refused".to_owned()), ..Server::new(format!("zk{number}:2181"), address) }
}

fn three() -> [Server; 3] {
    [server(1, "leader"), server(2, "follower"), server(3, "follower")]
}

/// How these arguments reach the servers.
fn access(args: &[&str]) -> Access {
    let args = ["zklock", "check"].iter().chain(args).map(Into::into);
    let Ok(Task::Operation(operation)) = cli::task(args, &|_: &str| None) else { panic!("a subcommand") };
    operation.access
}

fn judged(servers: &[Server], asked: Duration) -> CheckReport {
    judge(servers, asked, TODAY, &access(&[]))
}

fn codes(servers: &[Server], asked: Duration) -> Vec<&'static str> {
    judged(servers, asked).findings.iter().map(|finding| finding.code).collect()
}

fn outcome(servers: &[Server]) -> Outcome {
    judged(servers, ASKED).outcome
}

#[test]
fn servers_with_the_defaults_are_well() {
    for servers in [&[server(1, "standalone")][..], &three()] {
        let report = judged(servers, ASKED);
        assert_eq!((report.findings, report.outcome), (vec![], Outcome::Exited(0)));
        let promise = report.promise.unwrap();
        assert_eq!(promise.session_timeout, ASKED);
        assert_eq!(promise.patience, Terms::with_default_grace(ASKED).patience());
        assert_eq!(promise.takeover, millis(32_000));
    }
}

#[test]
fn a_server_that_is_down_is_found_and_cannot_be_spared() {
    let spare = |servers: &[Server]| judged(servers, ASKED).promise.unwrap().spare;
    assert_eq!(spare(&three()), Some((3, 1)));
    let servers = [server(1, "leader"), server(2, "follower"), down(3)];
    assert_eq!(
        judged(&servers, ASKED).findings[0].text,
        "zk3:2181 (10.0.0.3:2181) does not answer as it should: refused"
    );
    assert_eq!((spare(&servers), outcome(&servers)), (Some((3, 0)), Outcome::Exited(1)));
    assert_eq!(spare(&[server(1, "leader")]), Some((1, 0)));
    // A server by two names; an observer, which has no vote.
    let by_other_name = Server { name: "zk:2181".to_owned(), ..server(1, "leader") };
    assert_eq!(spare(&[&three()[..], &[by_other_name, server(4, "observer")]].concat()), Some((3, 1)));
    let unknown = Server { role: None, ..server(1, "leader") };
    assert_eq!(spare(&[unknown]), None);
}

#[test]
fn the_newest_configuration_says_who_votes() {
    let spare = |servers: &[Server]| judged(servers, ASKED).promise.unwrap().spare;
    let of = |version, voters: &[u8], servers: Vec<Server>| {
        let voters: BTreeSet<u8> = voters.iter().copied().collect();
        servers
            .into_iter()
            .map(|server| Server { voters: Some((version, voters.clone())), ..server })
            .collect::<Vec<_>>()
    };
    // An observer that is down is no loss.
    let mut four = three().to_vec();
    four.push(down(4));
    assert_eq!(spare(&four), Some((4, 0)));
    assert_eq!(spare(&of(1, &[1, 2, 3], four)), Some((3, 1)));
    // Nor is one a spare that follows and does not vote; it may know no newer configuration.
    let joined = [of(2, &[1, 2, 3], three().to_vec()), of(1, &[1, 4], vec![server(4, "follower")])].concat();
    assert_eq!(spare(&joined), Some((3, 1)));
    assert_eq!(spare(&of(1, &[1, 2, 3, 4, 5], three().to_vec())), None);
    assert_eq!(spare(&of(1, &[1, 2, 3], vec![server(1, "leader")])), Some((1, 0)));
}

#[test]
fn without_any_server_there_is_no_promise() {
    let report = judged(&[down(1), down(2)], ASKED);
    assert_eq!((report.promise, report.outcome), (None, Outcome::Unavailable));
    assert_eq!(report.findings.len(), 2);
}

#[test]
fn a_name_may_have_addresses_of_a_kind_that_the_server_does_not_listen_on() {
    let other = |number| Server { address: Some(SocketAddr::from(([0; 8], 2181))), ..down(number) };
    assert_eq!(codes(&[other(1), server(1, "standalone")], ASKED), [""; 0]);
    // Not if it is of the same kind, nor of another name.
    assert_eq!(codes(&[down(1), server(1, "standalone")], ASKED), ["server-down"]);
    assert_eq!(codes(&[other(2), server(1, "standalone")], ASKED), ["server-down"]);
    // A name without addresses.
    let nowhere = Server { address: None, ..down(1) };
    assert_eq!(codes(&[nowhere, server(1, "standalone")], ASKED), ["server-down"]);
}

#[test]
fn the_least_that_is_granted_counts() {
    let mut servers = three();
    servers[1].greatest = Some(millis(20_000));
    let report = judged(&servers, ASKED);
    assert_eq!(report.findings[1].text, "the servers grant a session timeout of 20s, not 30s");
    assert_eq!((report.findings[0].code, report.findings.len()), ("timeouts-differ", 2));
    assert_eq!(report.promise.unwrap().session_timeout, millis(20_000));
    assert_eq!(codes(&three(), millis(40_000)), [""; 0]);
    assert_eq!(codes(&three(), millis(60_000)), ["timeout-not-granted"]);
    assert!(judged(&three(), millis(1000)).findings[0].remedy.ends_with("or give --session-timeout 4s."));
}

#[test]
fn the_tick_is_limited() {
    let with = |least, tick: Option<u64>| {
        [Server { least: Some(millis(least)), tick: tick.map(millis), ..server(1, "standalone") }]
    };
    assert_eq!(codes(&with(8000, None), ASKED), [""; 0]);
    assert_eq!(codes(&with(8002, None), ASKED), ["tick-too-long"]);
    // What a server tells beats what is guessed.
    assert_eq!(codes(&with(10_000, Some(2000)), ASKED), [""; 0]);
    assert_eq!(codes(&with(1000, Some(4001)), ASKED), ["tick-too-long"]);
    assert_eq!(judged(&with(1000, Some(4000)), ASKED).promise.unwrap().takeover, millis(34_000));
    assert_eq!(codes(&with(1000, Some(4000)), millis(7999)), ["timeout-too-short"]);
    assert_eq!(codes(&with(1000, Some(4000)), millis(8000)), [""; 0]);
}

#[test]
fn an_observer_needs_a_shorter_tick_and_a_longer_session() {
    let with = |tick| {
        let [leader, follower, _] = three();
        [leader, follower, server(3, "observer")].map(|server| Server { tick: Some(millis(tick)), ..server })
    };
    assert_eq!(codes(&with(2000), ASKED), [""; 0]);
    assert_eq!(codes(&with(2001), ASKED), ["observer"]);
    assert_eq!(codes(&with(2000), millis(8000)), [""; 0]);
    assert_eq!(codes(&with(2000), millis(7999)), ["observer"]);
}

#[test]
fn an_answer_may_take_a_tenth_of_the_session_timeout() {
    let with = |read, beat| [Server { read: Some(millis(read)), beat: Some(millis(beat)), ..server(1, "standalone") }];
    assert_eq!(codes(&with(1, 3000), ASKED), [""; 0]);
    assert_eq!(codes(&with(1, 3001), ASKED), ["slow"]);
    assert_eq!(codes(&with(3001, 1), ASKED), ["slow"]);
}

#[test]
fn containers_are_there_since_3_5() {
    for (version, expected) in [
        (Some("3.4.13"), &["no-containers"][..]),
        (Some("3.5.0-alpha"), &[]),
        (Some("3.10.0"), &[]),
        (Some("4.0"), &[]),
        (Some("unknown"), &[]),
        (None, &[]),
    ] {
        let server = Server { version: version.map(str::to_owned), ..server(1, "standalone") };
        assert_eq!(codes(&[server], ASKED), expected, "{version:?}");
    }
}

#[test]
fn what_keeps_a_lock_from_being_taken_has_a_status_of_its_own() {
    let lacks = |lack| Server { lacks: Some(vec![lack]), ..server(1, "standalone") };
    let denied = lacks(Lack::Denied(Right::Create, "/l".to_owned()));
    assert_eq!(codes(std::slice::from_ref(&denied), ASKED), ["acl"]);
    assert_eq!(outcome(&[down(2), denied]), Outcome::Denied);
    let refused = lacks(Lack::Refused("/l".to_owned(), "NoChildrenForEphemerals".to_owned()));
    assert_eq!(codes(std::slice::from_ref(&refused), ASKED), ["lock-refused"]);
    assert_eq!(outcome(&[refused]), Outcome::Exited(1));
    let no_transactions = Server { transactions: Some(false), ..server(1, "standalone") };
    assert_eq!(codes(&[no_transactions], ASKED), ["no-transactions"]);
    let no_chroot = |number| Server { chroot: Some(false), ..server(number, "leader") };
    assert_eq!(codes(&[no_chroot(1), no_chroot(2)], ASKED), ["no-chroot"]);
    assert_eq!(outcome(&[no_chroot(1)]), Outcome::Unusable);
    // A server that lags.
    assert_eq!(codes(&[no_chroot(1), server(2, "leader")], ASKED), [""; 0]);
}

#[test]
fn certificate_that_expires_within_two_weeks() {
    let ends = |seconds: i64| {
        let tls = SeenTls { protocol: "TLSv1.3".to_owned(), not_after: Some(TODAY + seconds) };
        let [first, second, third] = three();
        judged(&[first, Server { tls: Some(tls), ..second }, third], ASKED)
    };
    assert_eq!(ends(14 * DAY).findings, []);
    let report = ends(14 * DAY - 1);
    assert!(report.findings[0].text.ends_with("of zk2:2181 (10.0.0.2:2181) expires in 13 days"), "{report:?}");
    assert_eq!(report.outcome, Outcome::Exited(1));
    assert!(ends(DAY - 1).findings[0].text.ends_with("expires within a day"));
}

#[test]
fn servers_that_refuse_our_certificate() {
    let refusing = Server { cure: Cure::Certificate, ..down(1) };
    assert_eq!(outcome(&[refusing.clone(), down(2)]), Outcome::Denied);
    assert_eq!(outcome(&[refusing, server(2, "leader"), server(3, "follower")]), Outcome::Exited(1));
}

#[test]
fn remedies_fit_the_settings() {
    let remedy = |server: &Server, args: &[&str]| {
        judge(std::slice::from_ref(server), ASKED, TODAY, &access(args)).findings.remove(0).remedy
    };
    let failed = |cure| Server { cure, ..down(1) };
    let lacks = Server { lacks: Some(vec![Lack::Denied(Right::Create, "/l".to_owned())]), ..server(1, "standalone") };
    for (server, args, expected) in [
        (failed(Cure::Server), &["-z", "zk1"][..], "Mend or start this server, or take it out of --zookeeper."),
        (failed(Cure::Server), &[], "Start a server there, or name the servers: "),
        (failed(Cure::Name), &["--tls"], "Name it as its certificate does, or give it a certificate with this name"),
        (failed(Cure::Trust), &["--tls"], "Give the server another certificate, or name the CA"),
        (failed(Cure::Certificate), &["--tls"], "Give a client certificate: "),
        (failed(Cure::Certificate), &["--tls-cert", "c"], "Give a certificate that this server accepts "),
        (failed(Cure::Login), &[], "Log in (--auth-file)."),
        (failed(Cure::Login), &["--auth", "digest:a:b"], "Correct the login "),
        (lacks.clone(), &[], "Log in (--auth-file), or add the permission c to the ACL of /l; "),
        (lacks, &["--auth", "digest:a:b"], "Add the permission c to the ACL of /l for this login, or, with digest, "),
    ] {
        let remedy = remedy(&server, args);
        assert!(remedy.starts_with(expected), "{remedy}");
    }
}
