//! The crontab of the README, under Debian's cron. For cron a minute passes in two seconds, but its jobs, and the server,
//! have the time of this machine.

use std::collections::BTreeSet;
use std::fs;

use super::block_of_the_readme;
use crate::harness::host::{Host, Site};
use crate::harness::poll;
use crate::harness::rights::{Right, refused};
use crate::harness::server::Settings;

/// With this crontab on both hosts, and a sendmail that keeps the mail. Each job appends its host and its name to `calls`,
/// and then does what `script` says.
#[track_caller]
fn site(script: &str) -> Site {
    let site = Site::new(&Settings::default());
    fs::create_dir(site.shared("mail")).expect("a directory can be created");
    for host in site.hosts() {
        host.write("/var/spool/cron/crontabs/root", 0o600, block_of_the_readme("crontab"));
        for job in ["backup", "prune", "report", "fetch"] {
            host.write_program(job, &format!("echo \"$(hostname) {job}\" >>/shared/calls\n{script}"));
        }
        let keep = "#!/bin/sh\nmail=/shared/mail/$(hostname).$$\ncat >$mail.new\nmv $mail.new $mail\n";
        host.write("/usr/sbin/sendmail", 0o755, keep);
    }
    site
}

/// Lets a host's cron come to this full hour, and ends it there. Waits until it has started this many jobs.
#[track_caller]
fn strike(host: &Host, hour: u8, jobs: usize) {
    let earlier = hour - 1;
    let clock = format!(
        "[Service]\nEnvironment=EXTRA_OPTS=-L3 \"FAKETIME=@2026-03-02 {earlier:02}:59:55 x30\"\n\
         Environment=LD_PRELOAD=/usr/$LIB/faketime/libfaketime.so.1\n"
    );
    host.write("/etc/systemd/system/cron.service.d/clock.conf", 0o644, &clock);
    let done = logged(host, "CMD").len();
    host.sh("systemctl daemon-reload\nsystemctl start cron");
    poll::until("cron starts jobs", || (logged(host, "CMD").len() >= done + jobs).then_some(()));
    // This ends cron alone, and no job.
    host.sh("systemctl stop cron");
    assert_eq!(logged(host, "CMD").len(), done + jobs);
}

/// The jobs that cron has started (`CMD`) or seen the end of (`END`), by their names.
fn logged(host: &Host, what: &str) -> Vec<String> {
    let log = host.sh("journalctl --identifier=CRON --output=cat");
    let lines = log.lines().filter_map(|line| line.strip_prefix(&format!("(root) {what} (")));
    lines.filter_map(|line| Some(line.strip_suffix(')')?.rsplit_once('/')?.1.to_owned())).collect()
}

fn count_ended(site: &Site) -> usize {
    site.hosts().map(|host| logged(host, "END").len()).iter().sum()
}

#[track_caller]
fn wait_ended(site: &Site, count: usize) {
    poll::until(format_args!("{count} jobs have ended"), || (count_ended(site) >= count).then_some(()));
}

/// The calls so far, without their order.
fn calls(site: &Site) -> Vec<String> {
    let calls = fs::read_to_string(site.shared("calls")).unwrap_or_default();
    let mut calls: Vec<_> = calls.lines().map(str::to_owned).collect();
    calls.sort();
    calls
}

/// Each kept mail: the host that sent it, and the mail.
fn mails(site: &Site) -> Vec<(String, String)> {
    let files = fs::read_dir(site.shared("mail")).expect("a directory").map(|file| file.expect("a file").path());
    let whole = files.filter(|path| path.extension().is_none_or(|extension| extension != "new"));
    whole
        .map(|path| {
            let name = path.file_stem().and_then(|stem| stem.to_str()).expect("UTF-8").to_owned();
            (name, fs::read_to_string(path).expect("a mail"))
        })
        .collect()
}

#[test]
fn each_job_runs_on_as_many_hosts_as_the_readme_says() {
    if refused([Right::Hosts]) {
        return;
    }
    // The first run of each job lasts until both hosts have tried.
    let site = site("until [ -e /shared/go ]; do sleep 0.01; done\n[ ${0##*/} != prune ] || mkdir /shared/pruned");
    for host in site.hosts() {
        strike(host, 2, 3);
    }
    poll::until("one host skips", || site.hosts().iter().any(|host| logged(host, "END") == ["fetch"]).then_some(()));
    fs::write(site.shared("go"), "").expect("a file can be written");
    wait_ended(&site, 6);
    let second = calls(&site);
    let of = |job: &str, calls: &[String]| -> Vec<String> {
        calls.iter().filter_map(|call| call.strip_suffix(&format!(" {job}"))).map(str::to_owned).collect()
    };
    assert_eq!(of("backup", &second), ["a", "b"]);
    assert_eq!(["report", "fetch"].map(|job| of(job, &second).len()), [1, 1], "{second:?}");

    // The hour before a period has passed: the report is still the same one. Pruning fails where there is `pruned`.
    fs::create_dir(site.shared("pruned")).expect("a directory can be created");
    strike(&site.a, 3, 3);
    wait_ended(&site, 9);
    fs::remove_dir(site.shared("pruned")).expect("it is there");
    strike(&site.b, 3, 3);
    wait_ended(&site, 12);
    strike(&site.a, 3, 3);
    wait_ended(&site, 15);
    let third = calls(&site);
    assert_eq!(of("prune", &third), ["a", "b"], "it fails on one host, runs on the other, and then is done");
    assert_eq!(of("report", &third), of("report", &second));
    // What prune says when it fails is the only mail.
    let mails = mails(&site);
    let [(host, mail)] = &mails[..] else { panic!("not one mail: {mails:?}") };
    assert!(host == "a" && mail.contains("File exists"), "{mails:?}");
}

/// The command of a mail of cron's, if the mail says which servers did not answer, and nothing else.
fn is_unreachable(mail: &str) -> Option<&str> {
    let (head, text) = mail.split_once("\n\n")?;
    let why = text.strip_prefix("zklock: no ZooKeeper server of zk1:2181,zk2:2181,zk3:2181 answered")?;
    let is_all = why.ends_with(":2181: Connection refused\n") && text.lines().count() == 1;
    let subject = head.lines().find_map(|line| line.strip_prefix("Subject: Cron <root@")).filter(|_| is_all);
    subject?.split_once("> ").map(|(_, command)| command)
}

/// A job whose line has --connect-timeout waits for as long, the others for 15 seconds.
#[test]
fn where_no_server_answers_cron_mails_why_a_job_has_not_run() {
    if refused([Right::Hosts]) {
        return;
    }
    let site = site("");
    for host in site.hosts() {
        host.network().refuse();
        strike(host, 3, 3);
    }
    let at_three = block_of_the_readme("crontab").lines().filter(|line| !line.starts_with("0 2 "));
    let commands = at_three.filter_map(|line| line.find("/usr/bin/").map(|begin| &line[begin..]));
    let (patient, hasty): (BTreeSet<_>, BTreeSet<_>) =
        commands.partition(|command| command.contains(" --connect-timeout "));
    poll::until("mails", || (mails(&site).len() >= 2 * hasty.len()).then_some(()));
    let mails = mails(&site);
    for host in ["a", "b"] {
        let of_host = mails.iter().filter(|(sender, _)| sender == host);
        let told: Option<BTreeSet<_>> = of_host.map(|(_, mail)| is_unreachable(mail)).collect();
        assert_eq!(told.as_ref(), Some(&hasty), "{host}: {mails:#?}");
    }
    assert_eq!(calls(&site), [""; 0]);
    for host in site.hosts() {
        host.accept();
    }
    wait_ended(&site, 6);
    assert_eq!(calls(&site).len(), patient.len(), "those that have waited run once: {:?}", calls(&site));
}
