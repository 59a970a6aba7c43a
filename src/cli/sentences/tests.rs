use super::*;
use crate::cli;
use crate::rules::message::Refusal;

const START: Instant = Instant::from_boot(Duration::ZERO);

#[test]
fn places_read_well() {
    for (number, expected) in
        [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (21, "21st"), (112, "112th")]
    {
        assert_eq!(ordinal(number), expected);
    }
}

#[test]
fn a_user_who_named_no_servers_is_told_so() {
    let hint = "neither --zookeeper, ZKLOCK_ZOOKEEPER nor a configuration file names the servers";
    for (args, hinted) in [(&["zklock", "/l", "true"][..], true), (&["zklock", "-z", "zk", "/l", "true"], false)] {
        let plan = cli::job(args.iter().map(Into::into), &|_: &str| None).unwrap();
        for notice in [Notice::Unreachable("refused".to_owned()), Notice::TimedOut(Blocker::Servers(None))] {
            let (weight, text) = sentence(&notice, &plan, false, START);
            assert_eq!((weight, text.contains(hint)), (Weight::Error, hinted), "{text}");
        }
    }
}

#[test]
fn a_grace_that_does_not_fit_is_compared_with_what_was_granted() {
    let args = ["zklock", "--session-timeout", "3m", "-k", "1m", "/l", "true"].map(Into::into);
    let plan = cli::job(args, &|_: &str| None).unwrap();
    let granted = Duration::from_secs(40);
    let no_room = Terms::new(granted, plan.settings.kill_after).unwrap_err();
    let text = "--kill-after 1m does not fit into the session timeout of 40s that the servers granted (3m was asked for, \
                their maxSessionTimeout is the limit): write 17.7s at most";
    let sentence = sentence(&Notice::NoRoom { no_room, granted }, &plan, false, START);
    assert_eq!(sentence, (Weight::Error, text.to_owned()));
}

#[test]
fn a_lock_that_is_lost_because_of_a_refusal_names_the_reason() {
    let plan = cli::job(["zklock", "/l", "true"].map(Into::into), &|_: &str| None).unwrap();
    let why = LostWhy::Refused(Refusal::Denied("/l/x-lock-0000000001".to_owned()));
    let text = "lost the lock /l: access to /l/x-lock-0000000001 denied by its ACL; \
                stopping the command";
    assert_eq!(sentence(&Notice::Lost(why), &plan, false, START), (Weight::Error, text.to_owned()));
}

#[test]
fn the_waiting_line_names_place_and_holder() {
    let holder = "db3 (ops, pid 4242, backup.sh)".to_owned();
    let view =
        QueueView { lock: "/l".to_owned(), place: Some((2, 5)), holder, held_since: Some(-60_000), free_at: None };
    assert_eq!(
        queue(&view, START + Duration::from_secs(11 * 60)),
        "2nd of 5, held by db3 (ops, pid 4242, backup.sh) for 12m"
    );
}
