# shellcheck shell=bash
# What scripts/deploy does on its hosts db1 and db2. To be sourced by it, as its functions and variables are used here.
# shellcheck disable=SC2016 # the hosts expand much of what is in single quotes
# shellcheck disable=SC2154 # scripts/deploy sets deb, scratch, servers, shared and tree

# The rows of the table at the end.
rows=()

# now - prints the time by the clock of the stamps.
now() {
    on db1 'python3 -c "import time; print(time.monotonic())"'
}

# at_most LIMIT SECONDS WHAT
at_most() {
    awk "BEGIN { exit !($2 <= $1) }" || die "$3: $2 s, which is more than $1 s"
}

# program NAME - gives both hosts this program, whose text is the input.
program() {
    install -m 755 /dev/stdin "$shared/$1"
    both "install -t /usr/local/bin /shared/$1"
}

# unit NAME - gives both hosts this unit, or part of a unit, whose text is the input.
unit() {
    install -D -m 644 /dev/stdin "$shared/unit"
    both "install -D -m 644 /shared/unit /etc/systemd/system/$1; systemctl daemon-reload"
}

# both SCRIPT - runs a script on both hosts, one after the other.
both() {
    on db1 "$1"
    on db2 "$1"
}

# --- The stand-in for a service, and its stamps.

# service NAME - gives both hosts a program that stamps a file every 20 ms. So does its child, in a session of its own
# unless it begins while there is /shared/together. Both clocks are the one of the kernel.
service() {
    program "$1" <<'PROGRAM'
#!/usr/bin/python3
import os, signal, socket, sys, time

name = os.path.basename(sys.argv[0])
stamps = os.open(f"/shared/{name}.stamps", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
whose = f"{socket.gethostname()} {os.environ['ZKLOCK_TOKEN']}"
worker = os.fork()

def stop(*_):
    if not os.path.exists("/shared/stubborn"):
        os.kill(worker, signal.SIGKILL)
        os.wait()
        sys.exit(0)

if worker:
    signal.signal(signal.SIGTERM, stop)
else:
    if not os.path.exists("/shared/together"):
        os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    os.write(stamps, f"{time.monotonic():.3f} {whose} {os.getpid()}\n".encode())
    time.sleep(0.02)
PROGRAM
    : >"$shared/$1.stamps"
}

# runs NAME - prints a line for each run of a service: the host, the seconds since the end of the run before, and the
# beginning. Tokens grow, so a lower one after a higher one is an overlap.
runs() {
    sort -n "$shared/$1.stamps" | awk '
        $3 < token { printf "overlap of %s %s with %s %s\n", $2, $1, host, last }
        $3 > token { printf "%s %.3f %s\n", $2, token ? $1 - last : 0, $1; host = $2; token = $3 }
        { last = $1 }'
}

# has_run NAME COUNT - succeeds if there have been this many runs.
has_run() {
    (($(runs "$1" | wc -l) >= $2))
}

# has_stamps NAME COUNT - succeeds if there are this many stamps.
has_stamps() {
    (($(wc -l <"$shared/$1.stamps") >= $2))
}

# taken_over NAME COUNT HOST - waits until there have been this many runs, the last one on HOST. Sets `gap` to the
# seconds from the last stamp before it to its first one.
taken_over() {
    local last host
    await 60 has_run "$1" "$2"
    # If the run before has not ended, it stamps as well by then.
    await 20 has_stamps "$1" $(($(wc -l <"$shared/$1.stamps") + 50))
    last=$(runs "$1")
    read -r host gap _ <<<"$(tail -n 1 <<<"$last")"
    [[ $(wc -l <<<"$last") == "$2" && $host == "$3" && $last != *overlap* ]] ||
        die "$1 has run elsewhere than $3 at last, or twice at once:"$'\n'"$last"
}

# has_said HOST TEXT - prints the first line of the journal since `forget` that has this pattern, or fails. With --unit
# as well, journalctl would leave out the first line of the unit.
has_said() {
    on "$1" "journalctl --output=cat --after-cursor=\$(</root/cursor) | grep -- '$2'" | sed -n 1p
}

# forget - has `has_said` look only at what comes from here on.
forget() {
    both 'journalctl --sync; journalctl --lines=1 --show-cursor --quiet | sed -n "s/^-- cursor: //p" >/root/cursor'
}

# row EVENT HOST SECONDS TEXT - adds a row to the table, with the line of the journal that has this pattern.
row() {
    local row
    await 40 has_said "$2" "$4"
    printf -v row '%-26s %-4s %7s  %s' "$1" "$2" "$3" "$(has_said "$2" "$4")"
    rows+=("$row")
    echo "$row"
}

# --- The cases.

# install_package DEB - installs it on both hosts as README.md says.
install_package() {
    local command
    command=$(grep -o 'apt install [^`]*' README.md)
    cp "$1" "$shared/zklock_new.deb"
    quietly both "cp /shared/zklock_new.deb .; ${command/install/install --yes}"
}

set_up() {
    heading 'three servers and two hosts boot'
    ssh-keygen -q -t ed25519 -N '' -f "$scratch/ssh/id_ed25519"
    cp "$scratch/ssh/id_ed25519.pub" "$scratch/ssh/authorized_keys"
    sed 's/^/db1,db2 /' "$tree/etc/ssh/ssh_host_ed25519_key.pub" >"$scratch/ssh/known_hosts"
    start_servers
    boot db1 21
    boot db2 22
    local host
    for host in db1 db2; do
        await 60 on "$host" '[[ $(systemctl is-system-running) == running ]]'
    done

    heading 'apt install, and zklock check'
    install_package "$deb"
    on db1 'zklock --version'
    on db1 'zklock check -z zk1,zk2,zk3'
    on db2 'zklock check -q -z zk1,zk2,zk3'
    service scheduler
}

# stands_by HOST - waits until systemctl says that the service of a host waits behind the other one.
stands_by() {
    # systemctl says by its status, too, that a unit of Type=notify has not started.
    await 20 on "$1" '(systemctl status scheduler || true) | grep "Status: \"waiting for .*: 2nd of 2, held by db"'
}

# hand_over EVENT FROM TO LIMIT SCRIPT - runs a script on FROM, and waits until TO has taken over.
hand_over() {
    local count
    count=$(runs scheduler | wc -l)
    forget
    on "$2" "$5"
    taken_over scheduler $((count + 1)) "$3"
    at_most "$4" "$gap" "$1"
}

unit_of_the_readme() {
    heading "README's unit"
    block README.md ini | unit scheduler.service
    both 'systemd-analyze verify scheduler.service'
    on db1 'systemctl enable --quiet --now scheduler'
    taken_over scheduler 1 db1
    on db2 'systemctl enable --quiet --now scheduler'
    stands_by db2

    hand_over 'systemctl stop' db1 db2 3 'systemctl stop scheduler'
    row 'systemctl stop' db2 "$gap" '^zklock: '
    on db1 'systemctl start scheduler'
    stands_by db1

    hand_over 'zklock is killed' db2 db1 3 'systemctl kill --kill-whom=main --signal=KILL scheduler'
    row 'kill -9 of zklock' db1 "$gap" '^zklock: '
    stands_by db2

    # After a thaw, a process in a session of its own may run for an instant: docs/limits.md.
    touch "$shared/together"
    hand_over 'all is killed' db1 db2 36 'systemctl kill --signal=KILL scheduler'
    row 'systemctl kill -s KILL' db2 "$gap" '^zklock: '
    stands_by db1

    hand_over 'a freeze' db2 db1 36 'rm /shared/together; systemctl freeze scheduler'
    on db2 'systemctl thaw scheduler'
    row 'systemctl freeze' db2 "$gap" '^zklock: '
    stands_by db2

    frozen_servers
}

# The command ignores SIGTERM, so it is killed.
frozen_servers() {
    local frozen last count host other=db1
    count=$(runs scheduler | wc -l)
    touch "$shared/stubborn"
    forget
    kill -STOP "${servers[@]}"
    frozen=$(now)
    await 40 has_said db1 'status=76'
    last=$(sort -n "$shared/scheduler.stamps" | tail -n 1 | cut -d ' ' -f 1)
    gap=$(awk "BEGIN { printf \"%.3f\", $last - $frozen }")
    at_most 25 "$gap" 'the command ends'
    row 'servers frozen: it ends' db1 "$gap" '^zklock: '
    rm "$shared/stubborn"
    await 40 longer_ago 35 "$frozen"
    kill -CONT "${servers[@]}"
    await 60 has_run scheduler $((count + 1))
    host=$(runs scheduler | tail -n 1 | cut -d ' ' -f 1)
    taken_over scheduler $((count + 1)) "$host"
    row 'servers frozen for 35 s' "$host" "$gap" '^zklock: '
    [[ $host == db2 ]] || other=db2
    stands_by "$other"
    both 'systemctl stop scheduler'
}

# longer_ago SECONDS TIME - succeeds if that time is longer ago.
longer_ago() {
    awk "BEGIN { exit !($(now) - $2 > $1) }"
}

# The settings of docs/operations.md, after a time-out that a stand-by outlives.
type_notify() {
    heading 'Type=notify, and daemon-reload'
    local pid
    printf '[Service]\nTimeoutStartSec=1\n%s\n' "$(grep -o '^| `Type=notify`\|^| `TimeoutStartSec=[^`]*`' \
        docs/operations.md | tr -d '|` ')" | unit scheduler.service.d/notify.conf
    : >"$shared/scheduler.stamps"
    on db1 'systemctl start scheduler'
    on db2 'systemctl start --no-block scheduler'
    stands_by db2
    await 20 longer_ago 2 "$(now)"
    pid=$(on db2 'systemctl show --value --property=MainPID scheduler')
    on db2 'systemctl daemon-reload'
    hand_over 'daemon-reload' db1 db2 3 'systemctl stop scheduler'
    [[ $(on db2 'systemctl is-active scheduler; systemctl show --value --property=MainPID scheduler') == "active
$pid" ]] || die 'the stand-by has not outlived daemon-reload'
    row 'stop, Type=notify' db2 "$gap" '^zklock: '
    both 'systemctl stop scheduler; rm -r /etc/systemd/system/scheduler.service.d; systemctl daemon-reload'
}

watchdog() {
    heading 'the watchdog'
    local words
    words=$(grep -o -- "-c 'export LISTEN_PID=[^']*'" docs/operations.md)
    program watched <<'PROGRAM'
#!/bin/bash -e
[[ $WATCHDOG_PID == $$ ]]
while systemd-notify WATCHDOG=1; do sleep 0.3; done
PROGRAM
    unit watched.service <<UNIT
[Service]
Type=notify
NotifyAccess=all
WatchdogSec=2
ExecStart=/usr/bin/zklock -z zk1,zk2,zk3 /l ${words/COMMAND//usr/local/bin/watched}
UNIT
    on db1 'systemctl start watched'
    await 20 on db1 '
        eval "$(systemctl show --property=ActiveEnterTimestampMonotonic,WatchdogTimestampMonotonic watched)"
        ((WatchdogTimestampMonotonic > ActiveEnterTimestampMonotonic + 3000000))'
    on db1 '[[ $(systemctl show --value --property=NRestarts,ActiveState watched | xargs) == "0 active" ]]'
    on db1 'systemctl stop watched'
    echo 'the command pings it'
}

# With a schedule of seconds in place of that of ten minutes, and a lock without the success of README's report.
timer_of_the_recipes() {
    heading 'the timer of docs/recipes.md'
    block docs/recipes.md ini 1 | sed 's,/jobs/report,/jobs/timer,' | unit report.service
    block docs/recipes.md ini 2 | unit report.timer
    both 'systemd-analyze verify report.timer'
    printf '[Timer]\nOnCalendar=\nOnCalendar=*:*:0/3\n' | unit report.timer.d/often.conf
    program report <<'PROGRAM'
#!/bin/sh -e
hostname >>/shared/reports
sleep 1
PROGRAM
    both 'systemctl enable --quiet --now report.timer'
    local host
    for host in db1 db2; do
        await 30 on "$host" '(($(journalctl --unit=report --output=cat --grep="^Finished" | wc -l) >= 3))'
    done
    both 'systemctl disable --quiet --now report.timer; ! systemctl is-failed --quiet report'
    [[ $(wc -l <"$shared/reports") == 1 ]] || die "one report was due, and there are $(wc -l <"$shared/reports")"
    echo 'one report in three times on two hosts'
}

# jobs_of_cron WHAT - prints the jobs that cron has started (CMD) or seen the end of (END), with their hosts.
jobs_of_cron() {
    both "journalctl --identifier=CRON --output=cat | sed -n 's|^(root) $1 (.*/\([a-z]*\))\$|'\$(hostname)' \1|p'"
}

# ended COUNT - waits until this many jobs of cron have ended.
ended() {
    await 20 count_is "$1" jobs_of_cron END
}

# count_is COUNT COMMAND... - succeeds if the command prints this many lines.
count_is() {
    (($("${@:2}" | wc -l) == $1))
}

# strike HOUR - lets the cron of both hosts come to a full hour at which three jobs are due, and ends it there.
strike() {
    local before
    before=$(jobs_of_cron CMD | wc -l)
    printf '[Service]\nEnvironment="FAKETIME=@2026-03-02 %02d:59:55 x30" EXTRA_OPTS=-L3\n%s\n' $(($1 - 1)) \
        'Environment=LD_PRELOAD=/usr/$LIB/faketime/libfaketime.so.1' | unit cron.service.d/clock.conf
    both 'systemctl start cron'
    await 20 count_is $((before + 6)) jobs_of_cron CMD
    # This ends cron alone, and no job.
    both 'systemctl stop cron'
}

# calls JOB - prints the hosts on which a job of cron has run.
calls() {
    grep " $1\$" "$shared/calls" | cut -d ' ' -f 1 | sort | xargs
}

# The jobs wait for each other, so that each host has tried before one has ended.
crontab_of_the_readme() {
    heading "README's crontab"
    local job
    both 'systemctl stop cron'
    block README.md crontab >"$shared/crontab"
    both 'crontab /shared/crontab'
    for job in backup prune report fetch; do
        program "$job" <<'PROGRAM'
#!/bin/sh -e
job=${0##*/}
echo "$(hostname) $job" >>/shared/calls
until [ -e /shared/go ]; do sleep 0.05; done
if [ "$job" = prune ] && rmdir /shared/full; then
    echo 'the disk is full'
    exit 1
fi 2>/dev/null
PROGRAM
    done
    program sendmail <<'PROGRAM'
#!/bin/sh -e
mail=$(hostname).$$
cat >"/shared/$mail"
mv "/shared/$mail" /shared/mail/
PROGRAM
    both 'ln -s /usr/local/bin/sendmail /usr/sbin/'
    mkdir "$shared/mail" "$shared/full"

    strike 2
    ended 1
    touch "$shared/go"
    ended 6
    [[ $(calls backup) == 'db1 db2' ]] || die "the backup has run on $(calls backup)"
    [[ $(calls report) == db? && $(calls fetch) == db? ]] || die "report on $(calls report), fetch on $(calls fetch)"

    strike 3
    ended 12
    strike 3
    ended 18
    [[ $(calls prune) == 'db1 db2' ]] || die "it fails once, and then is done, but prune has run on $(calls prune)"
    [[ $(calls report) == db? ]] || die "the report has run on $(calls report)"
    mails_are 1 'the disk is full'

    kill -STOP "${servers[@]}"
    strike 3
    await 40 count_is 5 ls "$shared/mail"
    kill -CONT "${servers[@]}"
    ended 24
    mails_are 4 'zklock: no ZooKeeper server of zk1:2181,zk2:2181,zk3:2181 answered'
    both 'systemctl disable --quiet cron'
}

# mails_are COUNT TEXT - checks how many mails have a line that begins so, and shows one of them.
mails_are() {
    local found
    mapfile -t found < <(grep -l "^$2" "$shared/mail"/*)
    ((${#found[@]} == $1)) || die "not $1 mails say: $2"$'\n'"$(cat "$shared/mail"/*)"
    echo "$1 mails, such as: $(grep '^Subject:' "${found[0]}"; grep "^$2" "${found[0]}")"
}

# start_job HOST NAME LINE - starts a line of shell as a unit.
start_job() {
    echo "exec $3" >"$shared/$2"
    on "$1" "systemd-run --quiet --unit=$2 --property=KillMode=process --working-directory=/root \
        --setenv=ZKLOCK_ZOOKEEPER=zk1,zk2,zk3 bash /shared/$2"
}

# sync_is_lost EVENT LINE DELAY - has the holder of a line that works on db2 by ssh die. What it has started there works
# until the next holder comes, after the DELAY.
sync_is_lost() {
    local killed count
    # A stop does not end the last one at the other end.
    count=$(runs apply | wc -l)
    start_job db1 sync "$2"
    taken_over apply $((count + 1)) db2
    start_job db2 sync "$2"
    await 20 on db2 'zklock status -z zk1 /jobs/sync | grep "1 holds, 1 waits"'
    forget
    killed=$(now)
    on db1 'systemctl kill --kill-whom=main --signal=KILL sync'
    await "$(($3 + 20))" has_run apply $((count + 2))
    taken_over apply $((count + 2)) db2
    gap=$(runs apply | awk "END { printf \"%.3f\", \$3 - $killed }")
    at_most "$gap" "$3" 'the delay is too short'
    at_most $(($3 + 5)) "$gap" "$1"
    row "$1" db2 "$gap" '^zklock: '
    on db2 'systemctl stop sync'
    on db1 'systemctl reset-failed sync'
}

fence_over_ssh() {
    heading 'zklock fence behind ssh'
    service apply
    on db2 'mkdir /var/lib/sync; ln -s /usr/local/bin/apply .'
    sync_is_lost 'zklock fence behind ssh' "$(man_example zklock-fence)" 0
    # The recipe in minutes rather than in tens of them.
    sync_is_lost '--lock-delay 1m, and fence' "$(block docs/recipes.md sh 5 | sed 's/11m/1m/; s/10m/50s/')" 60
    on db2 'status=0
        zklock fence --token 1 /var/lib/sync/fence true 2>/dev/null || status=$?
        ((status == 76))'
    echo 'a lower token is refused'
}

# man_example PAGE - prints the example of this page.
man_example() {
    on db1 "gzip -dc /usr/share/man/man1/$1.1.gz" |
        sed -n "/^\.SH EXAMPLES/,/^\.RE/ { /^\./d; s/\\\\(aq/'/g; s/\\\\//g; p }"
}

# undisturbed_since TIME NAME... - waits until services stamp after that time, and checks that each has run once.
undisturbed_since() {
    local name
    for name in "${@:2}"; do
        await 20 awk "\$1 > $1 { found = 1 } END { exit !found }" "$shared/$name.stamps"
        [[ $(runs "$name" | wc -l) == 1 ]] || die "$name has run again: $(runs "$name")"
    done
}

# A later version comes to hosts where a run holds its lock, one waits, and one is nested. Then zklock goes.
upgrade_and_purge() {
    heading 'an upgrade, and a purge, under runs'
    local later=$scratch/later main
    dpkg-deb --raw-extract "$deb" "$later"
    sed -i 's/^Version: .*/&+later/' "$later/DEBIAN/control"
    quietly dpkg-deb --build "$later"
    : >"$shared/scheduler.stamps"
    service nested
    on db1 'systemctl start scheduler'
    taken_over scheduler 1 db1
    on db2 'systemctl start scheduler'
    stands_by db2
    start_job db1 outer "zklock /jobs/outer -c '
        zklock /jobs/outer -- nested &
        until [ -e /shared/upgraded ]; do sleep 0.05; done
        zklock /jobs/outer -- touch /shared/lent
        wait'"
    taken_over nested 1 db1
    main=$(both 'systemctl show --value --property=MainPID scheduler')

    install_package "$later.deb"
    both 'dpkg-query --show zklock | grep later'
    touch "$shared/upgraded"
    await 20 test -e "$shared/lent"
    undisturbed_since "$(now)" nested scheduler
    [[ $(both 'systemctl show --value --property=MainPID scheduler') == "$main" ]] || die 'a unit has begun again'
    hand_over 'upgrade' db1 db2 3 'systemctl stop scheduler'
    row 'stop after an upgrade' db2 "$gap" '^zklock: '
    on db1 'systemctl start scheduler'
    stands_by db1

    quietly both 'apt purge --yes zklock; ! command -v zklock'
    undisturbed_since "$(now)" nested
    hand_over 'purge' db2 db1 3 'systemctl stop scheduler'
    row 'stop after a purge' db1 "$gap" '^zklock: '
    on db1 'systemctl stop scheduler outer'
}

set_up
unit_of_the_readme
type_notify
watchdog
timer_of_the_recipes
crontab_of_the_readme
fence_over_ssh
upgrade_and_purge

heading 'all passed'
printf '%-26s %-4s %7s  %s\n' event 'on' seconds 'what its journal says'
printf '%s\n' "${rows[@]}"
