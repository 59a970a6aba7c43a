# shellcheck shell=bash
# Functions that the scripts share. To be sourced, not run.

# The jar and the logger that a server needs. The package zookeeper has the same jar, but pulls in Java for a desktop.
readonly zookeeper_jar=/usr/share/java/zookeeper.jar
readonly zookeeper_logger=/usr/share/java/slf4j-simple.jar

heading() {
    printf '\n== %s\n' "$*"
}

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# quietly COMMAND... - runs COMMAND, and shows its output only if it fails.
quietly() {
    local log in out status=0
    log=$(mktemp)
    # A file without a name disappears with this shell, however the shell ends.
    exec {out}>"$log"
    exec {in}<"$log"
    rm "$log"
    "$@" >&"$out" 2>&1 || status=$?
    ((status == 0)) || cat <&"$in" >&2
    exec {in}<&- {out}>&-
    return "$status"
}

# install_missing THING:PACKAGE... - installs the Debian package of each thing that is missing. A thing is a command, or
# a file if it begins with a slash. Does not run apt if nothing is missing.
install_missing() {
    local pair thing package missing=()
    for pair in "$@"; do
        thing=${pair%%:*} package=${pair#*:}
        if [[ $thing == /* ]]; then
            [[ -e $thing ]] || missing+=("$package")
        else
            command -v "$thing" >/dev/null || missing+=("$package")
        fi
    done
    ((${#missing[@]})) || return 0

    heading "install ${missing[*]} (takes a minute)"
    if ! command -v apt-get >/dev/null; then
        die "this is not Debian: install what Debian calls ${missing[*]}, then try again"
    fi
    local as_root=()
    if ((EUID != 0)); then
        command -v sudo >/dev/null || die "root or sudo is needed to install ${missing[*]}"
        as_root=(sudo)
    fi
    # Debian would start this one at once, and at each boot; the tests only need the program.
    if [[ " ${missing[*]} " == *" openssh-server "* && ! -e /etc/ssh/sshd_not_to_be_run ]]; then
        "${as_root[@]}" install -D -m 644 /dev/null /etc/ssh/sshd_not_to_be_run
    fi
    quietly apt_install "${missing[@]}"
}

# apt_install PACKAGE... - runs apt through the array `as_root`: with sudo, or directly if it is empty.
apt_install() {
    # A Debian that has just booted updates itself and has the locks meanwhile. apt waits only for those of dpkg.
    local attempt
    for attempt in 1 2 3 4 5 6; do
        "${as_root[@]}" apt-get -o Acquire::Retries=3 update && break
        # Go on even if all attempts failed: the old lists may do.
        ((attempt < 6)) && sleep 10
    done
    # Installing Java runs it; without this option it would leave a directory in /tmp.
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive JAVA_TOOL_OPTIONS=-XX:-UsePerfData \
        apt-get install -y --no-install-recommends -o Acquire::Retries=3 -o DPkg::Lock::Timeout=600 "$@"
}

install_zookeeper() {
    install_missing java:default-jre-headless \
        "$zookeeper_jar:libzookeeper-java" "$zookeeper_logger:libslf4j-java"
}

# The other clients that take the same locks in the tests. The tests compile the Java program themselves.
install_peers() {
    install_missing javac:default-jdk-headless \
        /usr/share/java/curator-recipes.jar:libcurator-recipes-java \
        /usr/share/java/slf4j-nop.jar:libslf4j-java /usr/share/java/zookeeper-recipes-lock.jar:libzookeeper-java \
        /usr/lib/python3/dist-packages/kazoo:python3-kazoo
}

# Checks for cargo, and installs the linker and the certificates for crates.io that it needs. rustup may have put cargo
# into a directory that is not in this shell's PATH.
need_rust() {
    local cargo=${CARGO_HOME:-${HOME-}/.cargo}/bin
    [[ -e $cargo/cargo ]] && PATH=$PATH:$cargo
    command -v cargo >/dev/null || die "cargo is missing: install Rust, see https://rustup.rs"
    install_missing cc:gcc /usr/include/stdlib.h:libc6-dev /etc/ssl/certs/ca-certificates.crt:ca-certificates
}

# build ARGUMENT... - runs `cargo build ARGUMENT...`, which downloads missing crates.
build() {
    heading "cargo build $* (the first time takes minutes)"
    cargo build --quiet --locked "$@"
}

# tell_skipped LOG - tells which tests were skipped, and what they need that this machine refuses, from what they said.
tell_skipped() {
    local skipped
    skipped=$(sed -n 's/^skipped: //p' "$1" | sort -u)
    [[ -z $skipped ]] || heading "$(wc -l <<<"$skipped") tests were skipped"$'\n'"$skipped"
}

# serving PORT - succeeds if a ZooKeeper server answers on this port of 127.0.0.1.
serving() {
    local answer
    # A subshell, because a failed redirection of exec ends the shell.
    answer=$( (exec 3<>"/dev/tcp/127.0.0.1/$1" && printf srvr >&3 && timeout 2 cat <&3) 2>/dev/null) || return 1
    [[ $answer == *Mode:* ]]
}

# run_zookeeper DIRECTORY PORT [LINE...] - becomes a server on this port of 127.0.0.1, with its data in DIRECTORY. The
# LINEs are for its configuration.
# shellcheck disable=SC2317 # it is called, in the background
run_zookeeper() {
    printf '%s\n' tickTime=500 maxSessionTimeout=120000 "dataDir=$1" "clientPort=$2" clientPortAddress=127.0.0.1 \
        admin.enableServer=false 4lw.commands.whitelist=srvr,mntr maxClientCnxns=0 "${@:3}" >"$1/zoo.cfg"
    # With -UsePerfData it leaves no directory in /tmp.
    exec java -Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData \
        -cp "$zookeeper_jar:$zookeeper_logger" \
        org.apache.zookeeper.server.quorum.QuorumPeerMain "$1/zoo.cfg"
}

# start_zookeeper DIRECTORY [LINE...] - starts a server on a free port of 127.0.0.1, with its data and its log in
# DIRECTORY, and waits until it serves. The LINEs are for its configuration. Sets zookeeper_port, and zookeeper_pid before
# it waits.
start_zookeeper() {
    local directory=$1 attempt deadline
    shift
    # If another program takes the port first, the server exits, and the next attempt uses another port.
    for attempt in 1 2 3 4 5; do
        # Below the ports that Linux uses for outgoing connections.
        zookeeper_port=$((15000 + RANDOM % 17000))
        mkdir -p "$directory/$attempt"
        run_zookeeper "$directory/$attempt" "$zookeeper_port" "$@" >>"$directory/log" 2>&1 </dev/null &
        zookeeper_pid=$!
        deadline=$((SECONDS + 30))
        while kill -0 "$zookeeper_pid" 2>/dev/null; do
            serving "$zookeeper_port" && return 0
            ((SECONDS < deadline)) || break 2
            sleep 0.1
        done
    done
    tail -n 20 "$directory/log" >&2
    die "ZooKeeper does not start"
}
