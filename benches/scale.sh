# shellcheck shell=bash
# What a hand-over costs, by the length of the queue, and where its time goes; a crowd; a server with many sessions; the
# memory, the system calls and the processor time of a single run. To be sourced by scripts/bench.

# through_meter COMMAND... - puts the words that run COMMAND under zklock's lock into `words`. Its way to the server is the
# meter. The session is so long that there are no pings and no beats, which cost by the hour and not by the hand-over.
through_meter() {
    words=(zklock -z "127.0.0.1:$meter_port" --session-timeout 3600 /bench/zklock -- "$@")
}

# metered - prints bytes to the server, bytes from it, requests, and answers and events, since the server started.
metered() {
    local up down
    echo >&"${meter[1]}"
    read -r up down <&"${meter[0]}"
    echo "$up $down $(counter packets_received) $(counter packets_sent)"
}

# cost - prints requests and bytes for each hand-over in queues of several lengths.
cost() {
    local meter_port length at zero before after first='' used=()
    write_job
    start_zookeeper "$work/zookeeper" maxSessionTimeout=3600000
    coproc meter { exec meter "127.0.0.1:$zookeeper_port" 0; }
    # shellcheck disable=SC2154 # coproc sets it
    servers+=("$meter_PID")
    read -r meter_port <&"${meter[0]}"
    lock() { through_meter "${@:2}"; }

    heading 'for each hand-over: requests, answers and events, bytes to and from the server; bytes as a ratio'
    for length in 10 100 300 1000; do
        queue zklock "$length"
        read -ra zero <<<"$(metered)"
        read -ra before <<<"$(metered)"
        drain zklock
        read -ra after <<<"$(metered)"
        # Asking for the counters counts as well, each time the same.
        for at in 0 1 2 3; do
            used[at]=$((after[at] - before[at] - (before[at] - zero[at])))
        done
        : "${first:=$(((used[0] + used[1]) * 1000 / length))}"
        awk -v n="$length" -v first="$first" '{
            printf "%5d waiters   %.2f requests   %.2f answers and events   %.0f + %.0f bytes   ratio %.2f\n",
                n, $3 / n, $4 / n, $1 / n, $2 / n, ($1 + $2) * 1000 / n / first
        }' <<<"${used[*]}"
        awk -v n="$length" '{ print n, $1 / n, $2 / n }' <<<"${used[*]}" >>"$work/cost.data"
    done
    [[ -z $plot ]] || draw_cost
}

# pss PID... - prints the proportional memory of these processes together, in kB: what each shares with n processes counts
# for one n-th.
pss() {
    local pid
    for pid; do
        cat "/proc/$pid/smaps_rollup"
    done | awk '/^Pss:/ { sum += $2 } END { print sum }'
}

# below PID - prints PID and the processes below it, one a line, without those that have ended and are not reaped.
below() {
    local child
    [[ $(<"/proc/$1/stat") != *') Z '* ]] || return 0
    echo "$1"
    for child in $(cat "/proc/$1/task"/*/children); do
        below "$child"
    done
}

# resting PID... - puts the processes of these waiters into the array `family`, once each has its four.
resting() {
    local pid deadline=$((SECONDS + 60))
    until
        family=()
        for pid; do
            mapfile -t -O "${#family[@]}" family < <(below "$pid" 2>/dev/null)
        done
        ((${#family[@]} == 4 * $#))
    do
        if ((SECONDS >= deadline)); then
            sed 's/^/  said: /' "$work/said" | sort | uniq -c | head >&2
            die "$# waiters have ${#family[@]} processes:" \
                "$(for pid in "${family[@]}"; do cat "/proc/$pid/comm"; done | sort | uniq -c | tr '\n' ' ')"
        fi
        sleep 1
    done
}

# crowd COUNT - COUNT zklocks wait, and are drained: in order, each exactly once, all successful and silent.
crowd() {
    local count=$1 family begin=$SECONDS
    write_job
    start_zookeeper "$work/zookeeper"
    lock() { words=(zklock -z "127.0.0.1:$zookeeper_port" /bench/zklock -- "${@:2}"); }

    heading "a crowd of $count"
    queue zklock "$count" 2>"$work/said"
    resting "${queued[@]:1}"
    echo "at rest after $((SECONDS - begin)) s"
    awk -v kb="$(pss "${family[@]}")" -v n="$count" \
        'BEGIN { printf "%.2f MB of PSS for each of %d waiters\n", kb / n / 1024, n }'
    echo "server: $(($(pss "$zookeeper_pid") / 1024)) MB of PSS"
    begin=$SECONDS
    drain zklock
    [[ ! -s $work/said ]] || { sort "$work/said" | uniq -c | head >&2 && die "not all were silent"; }
    sort -n "$work/log" | awk '$3 <= last { exit 1 } { last = $3 }' || die "not in the order of the queue"
    echo "drained in order after $((SECONDS - begin)) s, all with status 0; hand-over:" \
        "median $(median <"$work/gaps") s, worst $(highest <"$work/gaps") s"
}

# stages - prints where the time between two commands goes, from the kernel's record of which process ran when.
stages() {
    local recorder
    install_missing perf:linux-perf python3:python3-minimal
    write_job
    start_zookeeper "$work/zookeeper"
    lock() { words=(zklock -z "127.0.0.1:$zookeeper_port" /bench/zklock -- "${@:2}"); }
    # The server has to warm up.
    queue zklock 100
    drain zklock
    queue zklock 40
    perf record -q -a -m 4M -o "$work/perf" -e 'sched:sched_switch,sched:sched_process_exec,sched:sched_process_exit' \
        >"$work/perf.log" 2>&1 4>&- &
    recorder=$!
    servers+=("$recorder")
    # Until it records.
    sleep 1
    drain zklock
    kill -INT "$recorder"
    wait "$recorder" || true
    [[ -s $work/perf ]] || { cat "$work/perf.log" >&2 && die "perf has recorded nothing"; }
    heading 'stages of a hand-over'
    perf script -i "$work/perf" -F comm,pid,tid,cpu,time,event,trace 2>/dev/null | python3 benches/stages.py
}

# ask QUESTION - asks `waiters`, which is a coprocess, and prints its answer.
ask() {
    local answer
    echo "$1" >&"${waiters[1]}"
    read -r answer <&"${waiters[0]}"
    echo "$answer"
}

# ticks PID - prints how much processor time a process has used, in hundredths of a second.
ticks() {
    awk '{ print $14 + $15 }' "/proc/$1/stat"
}

# sessions COUNT - a server with 100 waiting sessions, and another with COUNT.
sessions() {
    local count empty answer used median worst
    for count in 100 "$1"; do
        start_zookeeper "$work/zookeeper.$count" maxSessionTimeout=3600000
        empty=$(pss "$zookeeper_pid")
        coproc waiters { exec waiters "127.0.0.1:$zookeeper_port" /bench "$count"; }
        # shellcheck disable=SC2154 # coproc sets it
        servers+=("$waiters_PID")
        read -r answer <&"${waiters[0]}"
        [[ $answer == waiting ]] || die "no waiters"
        heading "$count sessions that wait, from one process"
        echo "server: $(counter num_alive_connections) connections, $(counter watch_count) watches," \
            "$((empty / 1024)) MB of PSS before, $(($(pss "$zookeeper_pid") / 1024)) MB now"
        # The pace of a waiter further back, with the default session timeout of 30 s.
        used=$(ticks "$zookeeper_pid")
        answer=$(ask 'ping 3 10000')
        awk -v pings="$((3 * count))" -v seconds="$answer" -v ticks="$(($(ticks "$zookeeper_pid") - used))" 'BEGIN {
            printf "%.0f pings a second: %.0f %% of one processor\n", pings / seconds, ticks / seconds
        }'
        # The server has to warm up.
        ask 'pass 45' >/dev/null
        read -r median worst <<<"$(ask 'pass 50')"
        echo "from a deletion to its event: median $median us, worst $worst us"
        kill "$waiters_PID" && wait "$waiters_PID" 2>/dev/null || true
        kill -KILL "$zookeeper_pid" && wait "$zookeeper_pid" 2>/dev/null || true
        zookeeper_pid=
    done
}

# before LOCK COUNT - queues COUNT contenders of another program, which share nothing with zklock.
before() {
    local number
    for ((number = 0; number < $2; number++)); do
        floor "127.0.0.1:$zookeeper_port" "$1" tail --pid=$$ -f /dev/null &
        queued+=($!)
        until_in_queue zklock "${#queued[@]}"
    done
}

# weigh TITLE COUNT LOCK - prints the memory of the first COUNT processes of a zklock that queues at LOCK.
weigh() {
    local title=$1 count=$2 pid zklock deadline=$((SECONDS + 30)) family=()
    zklock -z "127.0.0.1:$zookeeper_port" "$3" -- tail --pid=$$ -f /dev/null </dev/null &
    zklock=$!
    queued+=("$zklock")
    until mapfile -t family < <(below "$zklock") && ((${#family[@]} >= count)); do
        ((SECONDS < deadline)) || die "$title: only ${#family[@]} processes"
        sleep 0.1
    done
    # Until it rests.
    sleep 1
    for pid in "${family[@]:0:count}"; do
        printf '%-14s %-12s %5d kB of PSS\n' "$title" "$(cat "/proc/$pid/comm")" "$(pss "$pid")"
        title=
    done
    printf '%-14s %-12s %5d kB of PSS\n' '' together "$(pss "${family[@]:0:count}")"
    kill "$zklock"
    wait "$zklock" || true
    unset 'queued[-1]'
}

# memory - prints the memory of a waiter, of the next in line, and of a holder without its command.
memory() {
    start_zookeeper "$work/zookeeper"
    heading 'memory of one run of zklock, alone on the machine'
    before /bench/waiter 2
    weigh waiter 4 /bench/waiter
    before /bench/next 1
    weigh 'next in line' 4 /bench/next
    weigh holder 3 /bench/holder
}

# footprint - prints what a run on a free lock takes of the machine, all processes together, beside the floor.
footprint() {
    local name words calls
    install_missing strace:strace perf:linux-perf
    start zookeeper
    heading 'a run on a free lock: system calls, page faults, milliseconds of processor time'
    for name in zklock floor; do
        lock "$name" true
        # The lock's node.
        "${words[@]}"
        strace -f -c -o "$work/calls" "${words[@]}"
        calls=$(awk '$NF == "total" { print $4 }' "$work/calls")
        perf stat -x , -r 50 -e page-faults,task-clock -o "$work/perf" "${words[@]}"
        awk -F , -v run="$name: $calls" '$3 != "" { run = run " " $1 } END { print run }' "$work/perf"
    done
}
