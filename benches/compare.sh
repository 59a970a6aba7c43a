# shellcheck shell=bash
# Compares zklock with other tools that run a command under a lock. To be sourced by scripts/bench.

all_peers=(floor etcdctl flock redis kazoo curator)
# These take a second for a run: they take part in the first rounds only.
slow_peers=(kazoo curator)
readonly slow_rounds=3

# What CuratorLock.java needs; zookeeper.jar itself names what it needs.
curator_jars=(curator-client curator-framework curator-recipes guava slf4j-api slf4j-nop zookeeper)
curator_path=$(printf '/usr/share/java/%s.jar:' "${curator_jars[@]}")

# Where clients reach the server or the ensemble of this name: HOST:PORT[,HOST:PORT]...
declare -A address=()

# lock NAME COMMAND... - puts the words that run COMMAND under NAME's lock into the array `words`.
lock() {
    local name=$1
    shift
    case $name in
        zklock) words=(zklock -z "${address[zookeeper]}" /bench/zklock -- "$@") ;;
        floor) words=(floor "${address[zookeeper]}" /bench/floor "$@") ;;
        etcdctl) words=(etcdctl "--endpoints=${address[etcd]}" lock bench "$@") ;;
        flock) words=(flock "$work/flock" "$@") ;;
        redis) words=(benches/redis_lock "${address[redis]#*:}" bench "$@") ;;
        kazoo) words=(/usr/bin/python3 benches/kazoo_lock.py "${address[zookeeper]}" /bench/kazoo "$@") ;;
        curator)
            words=(java -Xmx96m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto -XX:-UsePerfData
                -cp "$work:$curator_path" CuratorLock "${address[zookeeper]}" /bench/curator "$@")
            ;;
        consul) words=(consul lock -shell=false "-http-addr=${address[consul]}" bench "$@") ;;
    esac
}

# serve NAME ID BASE DIRECTORY - becomes the member ID of an ensemble, or a server that is alone. Its data are in
# DIRECTORY. Clients reach it at the port BASE + ID, and the other members at ports 10 and 20 higher.
serve() {
    local id=$2 base=$3 directory=$4 member all=()
    local port=$((base + id))
    case $1 in
        zookeeper)
            for member in "${members[@]}"; do
                all+=("server.$member=127.0.0.1:$((base + 10 + member)):$((base + 20 + member))")
            done
            echo "$id" >"$directory/myid"
            # A server that is alone ignores these lines.
            run_zookeeper "$directory" "$port" initLimit=20 syncLimit=20 "${all[@]}"
            ;;
        etcd)
            for member in "${members[@]}"; do
                all+=("$member=http://127.0.0.1:$((base + 10 + member))")
            done
            local client=http://127.0.0.1:$port peer=http://127.0.0.1:$((port + 10)) IFS=,
            exec etcd --name "$id" --data-dir "$directory/data" --listen-client-urls "$client" \
                --advertise-client-urls "$client" --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \
                --initial-cluster "${all[*]}"
            ;;
        redis) exec redis-server --bind 127.0.0.1 --port "$port" --dir "$directory" ;;
        consul)
            exec consul agent -dev -bind 127.0.0.1 -client 127.0.0.1 -http-port "$port" -dns-port -1 -grpc-port -1 \
                -server-port $((port + 10)) -serf-lan-port $((port + 20)) -serf-wan-port $((port + 30))
            ;;
    esac
}

# answers NAME PORT - succeeds if the server at this port serves.
answers() {
    case $1 in
        zookeeper) serving "$2" ;;
        etcd) timeout 5 etcdctl --endpoints="127.0.0.1:$2" endpoint health >/dev/null 2>&1 ;;
        redis) [[ $(redis-cli -p "$2" ping 2>/dev/null) == PONG ]] ;;
        # Before its node is in the catalog, there are no sessions.
        consul) [[ $(consul catalog nodes -http-addr "127.0.0.1:$2" 2>/dev/null) == *127.0.0.1* ]] ;;
    esac
}

# all_answer NAME BASE - succeeds if all members of an ensemble serve.
all_answer() {
    local member
    for member in "${members[@]}"; do
        answers "$1" $(($2 + member)) || return
    done
}

# start NAME - starts a server or an ensemble on free ports of 127.0.0.1, each with its data and its log in a directory of
# its own, and waits until it serves. Sets its address and, for ZooKeeper, zookeeper_port.
start() {
    local name=$1 attempt base member directory deadline
    for attempt in 1 2 3 4 5; do
        # Below the ports that Linux uses for outgoing connections.
        base=$((15000 + RANDOM % 17000))
        for member in "${members[@]}"; do
            directory=$work/$name.$attempt.$member
            mkdir "$directory"
            serve "$name" "$member" "$base" "$directory" >"$directory/log" 2>&1 </dev/null &
            servers+=($!)
        done
        deadline=$((SECONDS + 30))
        while kill -0 "${servers[-1]}" 2>/dev/null; do
            all_answer "$name" "$base" && reach "$name" "$base" && return 0
            ((SECONDS < deadline)) || break 2
            sleep 0.1
        done
    done
    tail -n 20 "$work/$name.$attempt".*/log >&2
    die "$name does not start"
}

# reach NAME BASE - sets the address, behind a relay for each server if the network has a delay.
reach() {
    local member port relay
    for member in "${members[@]}"; do
        port=$(($2 + member))
        # The leader counts the nodes: a follower may be behind.
        [[ $1 != zookeeper || $(zookeeper_port=$port counter server_state) == follower ]] || zookeeper_port=$port
        if [[ $delay ]]; then
            # Nothing comes to its stdin, whose end would be the relay's.
            mkfifo "$work/relay.$port"
            exec {relay}< <(exec meter "127.0.0.1:$port" "$delay" <>"$work/relay.$port")
            servers+=($!)
            read -r port <&"$relay"
            exec {relay}<&-
        fi
        address[$1]+=${address[$1]:+,}127.0.0.1:$port
    done
}

# prepare NAME - installs what a peer needs, prints its version, and starts its server, if it has one of its own.
prepare() {
    case $1 in
        etcdctl)
            install_missing etcd:etcd-server etcdctl:etcd-client
            etcd --version | sed -n 1p
            start etcd
            ;;
        flock) flock --version ;;
        redis)
            install_missing redis-server:redis-server redis-cli:redis-tools
            redis-server --version
            start redis
            ;;
        kazoo)
            install_missing /usr/lib/python3/dist-packages/kazoo:python3-kazoo
            /usr/bin/python3 -c 'import kazoo; print("kazoo", kazoo.__version__)'
            ;;
        curator)
            install_missing javac:default-jdk-headless /usr/share/java/slf4j-nop.jar:libslf4j-java \
                /usr/share/java/curator-recipes.jar:libcurator-recipes-java
            basename /usr/share/java/curator-recipes-*.jar .jar
            quietly javac -J-XX:-UsePerfData -cp "$curator_path" -d "$work" benches/CuratorLock.java
            ;;
        consul)
            command -v consul >/dev/null || die "consul is not in PATH, and Debian 12 has no package of it"
            consul version | sed -n 1p
            start consul
            ;;
    esac
}

# free_lock NAME... - times `true` under each of the locks, without contention, and appends the medians to free-NAME.
free_lock() {
    local name words commands=() line=2
    for name; do
        lock "$name" true
        commands+=("${words[*]}")
    done
    hyperfine --shell=none --warmup 2 --runs "$runs" --style none --export-csv "$work/free.csv" "${commands[@]}" \
        >/dev/null 2>"$work/log" || { cat "$work/log" >&2 && die "hyperfine failed"; }
    for name; do
        # The fourth column from the second is the median, in seconds. The first, the command, may contain commas.
        awk -F , -v line="$line" 'NR == line { print $(NF - 4) }' "$work/free.csv" >>"$work/free-$name"
        line=$((line + 1))
    done
}

# hand_over NAME - lets a queue run, and appends the median of the gaps to handover-NAME and the longest to worst-NAME.
hand_over() {
    queue "$1" "$contenders"
    drain "$1"
    median <"$work/gaps" >>"$work/handover-$1"
    highest <"$work/gaps" >>"$work/worst-$1"
}

# in_round ROUND - puts the tools that take part in this round into the array `names`. Each takes its turn at going first.
in_round() {
    local name first all=(zklock "${peers[@]}")
    names=()
    first=$(($1 % ${#all[@]}))
    for name in "${all[@]:first}" "${all[@]:0:first}"; do
        (($1 < slow_rounds)) || [[ " ${slow_peers[*]} " != *" $name "* ]] || continue
        names+=("$name")
    done
}

# ratio TITLE WHAT PEER [TARGET] - prints zklock's figures divided by PEER's figures of the same rounds.
ratio() {
    local title=$1 what=$2 peer=$3 target=${4-} ratios verdict=
    # A slow peer has figures of the first rounds only.
    ratios=$(paste "$work/$what-zklock" "$work/$what-$peer" | awk 'NF == 2 { printf "%.3f\n", $1 / $2 }')
    # The targets are for a single server without a delay.
    if [[ $target && ! $delay && ${#members[@]} == 1 ]]; then
        verdict=$(median <<<"$ratios" | awk -v target="$target" '{ print $1 <= target ? "met" : "missed" }')
        verdict="at most $target: $verdict"
    fi
    printf '%-22s %-8s %6.2f   %5.2f to %5.2f   %s\n' "$title" "$peer" \
        "$(median <<<"$ratios")" "$(lowest <<<"$ratios")" "$(highest <<<"$ratios")" "$verdict"
}

# ratios TITLE WHAT [PEER=TARGET]... - prints zklock's ratios to all peers.
ratios() {
    local title=$1 what=$2 peer
    local -A targets=()
    shift 2
    for peer; do
        targets[${peer%=*}]=${peer#*=}
    done
    for peer in "${peers[@]}"; do
        ratio "$title" "$what" "$peer" "${targets[$peer]-}"
        title=
    done
}

# times TITLE WHAT - prints the figures behind the ratios: the median, lowest and highest round, in milliseconds. With a
# delay, also the median as a number of round trips.
times() {
    local title=$1 what=$2 name median
    for name in zklock "${peers[@]}"; do
        median=$(median <"$work/$what-$name" | awk '{ print 1000 * $1 }')
        printf '%-22s %-8s %7.2f   %6.2f to %6.2f%s\n' "$title" "$name" "$median" \
            "$(lowest <"$work/$what-$name" | awk '{ print 1000 * $1 }')" \
            "$(highest <"$work/$what-$name" | awk '{ print 1000 * $1 }')" \
            "${delay:+$(awk "BEGIN { printf \"   %.1f round trips\", $median / $delay }")}"
        title=
    done
}

compare() {
    local names name words run round
    install_missing hyperfine:hyperfine
    write_job
    start zookeeper
    for name in "${peers[@]}"; do
        prepare "$name"
    done

    heading "a free lock: $rounds rounds of $runs runs each"
    # The speed of the servers changes while they warm up, above all that of the one in Java. Measure after that.
    for name in zklock "${peers[@]}"; do
        [[ ' zklock etcdctl redis consul ' == *" $name "* ]] || continue
        lock "$name" true
        for ((run = 0; run < 100; run++)); do
            "${words[@]}" >/dev/null </dev/null
        done
    done
    for ((round = 0; round < rounds; round++)); do
        in_round "$round"
        free_lock "${names[@]}"
    done
    heading "hand-over: $rounds rounds of $contenders contenders each"
    for ((round = 0; round < rounds; round++)); do
        in_round "$round"
        for name in "${names[@]}"; do
            hand_over "$name"
        done
    done

    heading "zklock as a ratio to each of the others: median, lowest and highest of the rounds"
    ratios 'run on a free lock' free etcdctl=0.33 floor=1.25
    ratios 'hand-over, median' handover etcdctl=0.6 flock=1.5
    ratios 'hand-over, worst' worst

    heading 'milliseconds on this machine: median, lowest and highest of the rounds'
    times 'run on a free lock' free
    times 'hand-over, median' handover
    times 'hand-over, worst' worst
    [[ -z $plot ]] || draw_comparison
}
