# shellcheck shell=bash
# What scripts/bench and its parts share: figures, and queues of contenders that hand a lock over. To be sourced.

# median, lowest, highest - of the numbers on stdin, one a line.
median() {
    sort -g | awk '{ at[NR] = $1 } END { print (at[int((NR + 1) / 2)] + at[int(NR / 2) + 1]) / 2 }'
}
lowest() {
    sort -g | head -n 1
}
highest() {
    sort -g | tail -n 1
}

# counter NAME - prints one of ZooKeeper's own counters (mntr), without its prefix zk_.
counter() {
    exec 3<>"/dev/tcp/127.0.0.1/$zookeeper_port"
    printf mntr >&3
    timeout 5 sed -n "s/^zk_$1\t//p" <&3
    exec 3<&-
}

# in_queue NAME - prints how many contenders are in the queue, including the holder. See also `lock`.
in_queue() {
    case $1 in
        # Each contender has one ephemeral node, and no other node is ephemeral.
        zklock | floor | kazoo | curator) counter ephemerals_count ;;
        etcdctl) etcdctl --endpoints="${address[etcd]}" get bench/ --prefix --keys-only | grep -c . || true ;;
        flock) grep -c ":$(stat -c %i "$work/flock" 2>/dev/null || echo none) " /proc/locks || true ;;
        # There is no queue: the connections, except that of redis-cli, once one of them holds.
        redis)
            if (($(redis-cli -p "${address[redis]#*:}" exists bench))); then
                redis-cli -p "${address[redis]#*:}" info clients | awk -F: '/^connected_clients/ { print $2 - 1 }'
            else
                echo 0
            fi
            ;;
        # Each contender has a session.
        consul)
            exec 3<>"/dev/tcp/${address[consul]/://}"
            printf 'GET /v1/session/list?pretty HTTP/1.0\r\n\r\n' >&3
            timeout 5 grep -c '"ID"' <&3 || true
            exec 3<&-
            ;;
    esac
}

# until_in_queue NAME COUNT - waits until COUNT contenders are in the queue.
until_in_queue() {
    local deadline=$((SECONDS + 60 + $2 / 5))
    until (($(in_queue "$1") >= $2)); do
        ((SECONDS < deadline)) || die "$1: only $(in_queue "$1") of $2 contenders have queued"
        sleep 0.1
    done
}

# The command of each contender notes when it began and ended, and the fencing token, if it has one. The first waits for
# a line in the pipe. The others wait for a moment, so that the predecessor's process has exited by the time they end, and
# the contenders behind have learned who holds, as they would have with real jobs. Neither the clock nor the wait starts a process.
write_job() {
    cat >"$work/job" <<'JOB'
begin=$EPOCHREALTIME
read -r ${3:+-t "$3"} <>"$2" || true
printf '%s %s %d\n' "$begin" "$EPOCHREALTIME" "${ZKLOCK_TOKEN-0}" >>"$1"
JOB
}

# queue NAME COUNT - puts a holder and COUNT contenders behind it into a queue.
queue() {
    local name=$1 count=$2 log=$work/log gate=$work/gate words moment
    rm -f "$log" "$gate" "$gate.first"
    mkfifo "$gate" "$gate.first"
    lock "$name" bash "$work/job" "$log" "$gate.first"
    "${words[@]}" >/dev/null </dev/null &
    queued=($!)
    # Opened for reading as well: opened for writing only, this would wait for a reader.
    exec 4<>"$gate.first"
    until_in_queue "$name" 1
    moment=$(awk "BEGIN { print 0.02 + 4 * ${delay:-0} / 1000 }")
    lock "$name" bash "$work/job" "$log" "$gate" "$moment"
    while ((${#queued[@]} <= count)); do
        "${words[@]}" >/dev/null </dev/null 4>&- &
        queued+=($!)
    done
    until_in_queue "$name" $((count + 1))
    # The contenders that queued last may not have found their predecessor yet.
    sleep 0.5
}

# drain NAME - lets the queue run, one after the other. Writes the gaps between the end of one command and the beginning
# of the next to the file `gaps`, in seconds.
drain() {
    local name=$1 count=$((${#queued[@]} - 1)) pid
    echo >&4
    for pid in "${queued[@]}"; do
        wait "$pid" || die "$name: exit status $?"
    done
    exec 4>&-
    queued=()
    sort -n "$work/log" | awk 'NR > 1 { printf "%.6f\n", $1 - end } { end = $2 }' >"$work/gaps"
    (($(wc -l <"$work/gaps") == count)) || die "$name: only $(wc -l <"$work/log") of $((count + 1)) commands ran"
    ! grep -q '^-' "$work/gaps" || die "$name: two commands overlapped"
}
