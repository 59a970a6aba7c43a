use super::*;
use crate::cli::{self, Task};
use crate::rules::message::Right;

const ASKED: Duration = Duration::from_secs(30);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn address(number: u8) -> Option<SocketAddr> {
    Some(SocketAddr::from(([10, 0, 0, number], 2181)))
}

/// A server with ZooKeeper's own defaults.
fn server(number: u8) -> Server {
    Server {
        name: format!("zk{number}:2181"),
        address: address(number),
        least: Some(millis(4000)),
        greatest: Some(millis(40_000)),
        beat: Some(millis(2)),
        has_chroot: Some(true),
        is_done: true,
        ..Server::default()
    }
}

fn down(number: u8) -> Server {
    let error = Some(format!("10.0.0.{number}:2181: Connection refused"));
    Server { name: format!("zk{number}:2181"), address: address(number), error, ..Server::default() }
}

fn refusing(number: u8) -> Server {
    let failure = Some(Failure::NotLetIn("it wants a client certificate".to_owned()));
    Server { failure, is_done: true, ..down(number) }
}

fn three() -> [Server; 3] {
    [1, 2, 3].map(server)
}

/// How these arguments reach the servers.
fn access(args: &[&str]) -> Access {
    let args = ["zklock", "check"].iter().chain(args).map(Into::into);
    let Ok(Task::Operation(operation)) = cli::task(args, &|_: &str| None) else { panic!("a subcommand") };
    operation.access
}

fn judged(servers: &[Server], asked: Duration) -> CheckReport {
    judge(servers, asked, &access(&["-z", "zk"]))
}

fn codes(servers: &[Server], asked: Duration) -> Vec<&'static str> {
    judged(servers, asked).findings.iter().map(|finding| finding.code).collect()
}

fn outcome(servers: &[Server]) -> Outcome {
    judged(servers, ASKED).outcome
}

#[test]
fn servers_with_the_defaults_are_well() {
    for servers in [&[server(1)][..], &three()] {
        let report = judged(servers, ASKED);
        assert_eq!((report.findings, report.outcome), (vec![], Outcome::Exited(0)));
        let promise = report.promise.unwrap();
        assert_eq!(promise.session_timeout, ASKED);
        assert_eq!(promise.patience, Terms::with_default_grace(ASKED).patience());
        assert_eq!(promise.takeover, millis(32_000));
    }
}

#[test]
fn a_server_that_is_down_is_found() {
    let servers = [server(1), server(2), down(3)];
    assert_eq!(judged(&servers, ASKED).findings[0].text, "zk3:2181: 10.0.0.3:2181: Connection refused");
    assert_eq!(outcome(&servers), Outcome::Exited(1));
    let by_address = Server { name: "10.0.0.3:2181".to_owned(), ..down(3) };
    let text = judge(&[by_address], ASKED, &access(&[])).findings.remove(0).text;
    assert!(text.starts_with("10.0.0.3:2181: Connection refused; neither --zookeeper, "), "{text}");
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
    assert_eq!(codes(&[other(1), server(1)], ASKED), [""; 0]);
    // Not if it is of the same kind, nor of another name.
    assert_eq!(codes(&[down(1), server(1)], ASKED), ["server-down"]);
    assert_eq!(codes(&[other(2), server(1)], ASKED), ["server-down"]);
    // A name without addresses.
    let nowhere = Server { address: None, ..down(1) };
    assert_eq!(codes(&[nowhere, server(1)], ASKED), ["server-down"]);
}

#[test]
fn the_least_that_is_granted_counts() {
    let mut servers = three();
    servers[1].greatest = Some(millis(20_000));
    let report = judged(&servers, ASKED);
    assert!(report.findings[1].text.starts_with("the servers grant a session timeout of 20s, not 30s: raise max"));
    assert_eq!((report.findings[0].code, report.findings.len()), ("timeouts-differ", 2));
    assert_eq!(report.promise.unwrap().session_timeout, millis(20_000));
    assert_eq!(codes(&three(), millis(40_000)), [""; 0]);
    assert_eq!(codes(&three(), millis(60_000)), ["timeout-not-granted"]);
    assert!(judged(&three(), millis(1000)).findings[0].text.ends_with("or use --session-timeout 4s"));
}

#[test]
fn the_tick_is_limited() {
    let with = |least| [Server { least: Some(millis(least)), ..server(1) }];
    assert_eq!(codes(&with(8000), ASKED), [""; 0]);
    assert_eq!(codes(&with(8002), ASKED), ["tick-too-long"]);
    assert_eq!(judged(&with(8000), ASKED).promise.unwrap().takeover, millis(34_000));
}

#[test]
fn an_answer_may_take_a_tenth_of_the_session_timeout() {
    let with = |beat| [Server { beat: Some(millis(beat)), ..server(1) }];
    assert_eq!(codes(&with(3000), ASKED), [""; 0]);
    assert_eq!(codes(&with(3001), ASKED), ["slow"]);
}

#[test]
fn what_keeps_a_lock_from_being_taken_has_a_status_of_its_own() {
    let lacks = |code| {
        let text = sentences::lacks("/l", Right::Create, &access(&[]).login);
        Server { lacks: Some(vec![Finding { code, text }]), ..server(1) }
    };
    assert_eq!(codes(&[lacks("acl")], ASKED), ["acl"]);
    assert_eq!(outcome(&[down(2), lacks("acl")]), Outcome::Denied);
    assert_eq!(outcome(&[lacks("lock-refused")]), Outcome::Exited(1));
    assert!(!judged(&[lacks("lock-refused")], ASKED).permits_lock);
    assert!(judged(&[Server { lacks: Some(vec![]), ..server(1) }], ASKED).permits_lock);
    let no_chroot = |number| Server { has_chroot: Some(false), ..server(number) };
    assert_eq!(codes(&[no_chroot(1), no_chroot(2)], ASKED), ["no-chroot"]);
    assert_eq!(outcome(&[no_chroot(1)]), Outcome::Unusable);
    // A server that lags.
    assert_eq!(codes(&[no_chroot(1), server(2)], ASKED), [""; 0]);
}

#[test]
fn servers_that_refuse_this_client() {
    assert_eq!(outcome(&[refusing(1), down(2)]), Outcome::Denied);
    assert_eq!(outcome(&[refusing(1), server(2), server(3)]), Outcome::Exited(1));
    // The login is refused in the session.
    let in_session =
        Server { error: Some("they refuse the login".to_owned()), least: Some(millis(4000)), ..refusing(1) };
    assert_eq!(outcome(&[in_session]), Outcome::Denied);
    let keeper = Server { failure: Some(Failure::ClickHouseKeeper("10.0.0.1:2181".to_owned())), ..refusing(1) };
    assert_eq!(codes(std::slice::from_ref(&keeper), ASKED), ["clickhouse-keeper"]);
    assert_eq!(outcome(&[keeper, server(2)]), Outcome::Unusable);
}
