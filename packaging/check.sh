# shellcheck shell=bash
# The tests of what is in target/dist. To be sourced by scripts/package, whose `distribute` and variables they use.
# shellcheck disable=SC2154 # scripts/package and scripts/lib.sh set debian, glibc, machines, version and zookeeper_port

zookeeper_pid=
scratch=$(mktemp -d)

clean_up() {
    trap - EXIT
    if [[ $zookeeper_pid ]]; then
        kill -KILL "$zookeeper_pid" 2>/dev/null || true
        wait "$zookeeper_pid" 2>/dev/null || true
    fi
    rm -rf --one-file-system -- "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# says TEXT COMMAND... - fails unless COMMAND exits with the status `wanted`, or 0, and TEXT is in its output.
says() {
    local text=$1 output status=0
    shift
    output=$("$@" 2>&1) || status=$?
    ((status == ${wanted:-0})) || die "$*: status $status: $output"
    [[ $output == *"$text"* ]] || die "$*: wanted $text: $output"
}

# inside ROOT COMMAND... - runs COMMAND as the first process of a PID namespace, with ROOT as its root directory and
# almost no environment. /proc and /dev are there if ROOT has directories for them. `user`, if set, is USER:GROUP.
inside() {
    # shellcheck disable=SC2016 # the inner shell expands these
    unshare --mount --pid --fork --kill-child --propagation private bash -euc '
        root=$1 user=$2
        shift 2
        [[ ! -d $root/proc ]] || mount -t proc proc "$root/proc"
        [[ ! -d $root/dev ]] || mount --rbind /dev "$root/dev"
        exec env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot --userspec="$user" "$root" "$@"' bash \
        "$1" "${user:-0:0}" "${@:2}"
}

# files ROOT - lists the files of a Debian, without those in which dpkg and the users of a program leave notes.
files() {
    (cd "$1" && find . -xdev \
        \( -path ./proc -o -path ./dev -o -path ./root -o -path ./tmp -o -path ./var/log -o -path ./var/cache \
        -o -path ./var/lib/dpkg \) -prune -o -print | sort)
}

# check_binaries MACHINE
check_binaries() {
    heading "check: what the binaries for $1 need"
    local gnu=$unpacked-$1-linux/zklock static=$unpacked-$1-linux-static/zklock needed newest binary path
    needed=$(readelf --dynamic "$gnu" | sed -n 's/^.*(NEEDED).*\[\(.*\)\]$/\1/p')
    [[ $needed ]] || die "$gnu needs no library"
    # Only what Debian's libc6 has.
    ! grep -Ev '^(libc|libm|libpthread|libdl|librt)\.so\.|^ld-linux' <<<"$needed" || die 'these libraries are needed'
    newest=$(readelf --version-info "$gnu" | grep -o 'GLIBC_[0-9.]*' | sort --version-sort --unique | tail -n 1)
    [[ $(printf '%s\n' "GLIBC_$glibc" "$newest" | sort --version-sort | tail -n 1) == "GLIBC_$glibc" ]] ||
        die "a symbol is of $newest"
    ! readelf --program-headers "$static" | grep INTERP || die 'the static binary has an interpreter'
    for binary in "$gnu" "$static"; do
        for path in "$PWD" "$crates"; do
            ! grep --quiet --text --fixed-strings "$path" "$binary" || die "$path is in $binary"
        done
    done
}

check_crate() {
    heading 'check: the crate has all that is needed to build it'
    cargo package --quiet --locked --no-verify --target-dir "$scratch/crate"
    tar --directory "$scratch" -xf "$scratch/crate/package/zklock-$version.crate"
    # As the tests are built, so that the dependencies are there already.
    quietly cargo install --locked --debug --path "$scratch/zklock-$version" --root "$scratch/root" --target-dir target
    says "zklock $version" "$scratch/root/bin/zklock" --version
}

check_lint() {
    heading 'check: lintian and rpmlint'
    says '' lintian --allow-root --fail-on=error,warning target/dist/*.deb
    says '' rpmlint --strict --config packaging/rpmlint.toml target/dist/*.rpm
}

# check_links DIRECTORY - checks that the links between its pages lead somewhere.
check_links() {
    local page link
    while IFS=: read -r page link; do
        [[ -e ${page%/*}/$link ]] || die "$page has a link to $link"
    done < <(grep --recursive --only-matching --perl-regexp '\]\(\K[^)#:]+(?=[)#])' --include='*.md' "$1")
}

# check_deb SUITE [PACKAGE...] - also checks what works together with the PACKAGEs if there are any.
check_deb() {
    local suite=$1
    shift
    heading "check: the Debian package on $suite"
    local root=$scratch/$suite in=(inside "$scratch/$suite")
    quietly debootstrap --variant=minbase ${1+--include="$(IFS=, && echo "$*")"} "$suite" "$root"
    echo '127.0.0.1 zk.test' >"$root/etc/hosts"
    files "$root" >"$scratch/before"
    cp "$deb" "$root/tmp/zklock.deb"
    says 'Setting up zklock' "${in[@]}" dpkg --install /tmp/zklock.deb

    check_lock "$root"
    if (($#)); then
        check_companions
    else
        # Some of the PACKAGEs need the library themselves.
        wanted=78 says 'Kerberos needs the package libgssapi-krb5-2' \
            "${in[@]}" zklock -z "zk.test:$zookeeper_port" --auth gssapi:zookeeper /package true
    fi
    says 'Version' "${in[@]}" gzip -dc /usr/share/doc/zklock/changelog.Debian.gz
    says "$version" "${in[@]}" gzip -dc /usr/share/doc/zklock/changelog.gz
    says 'MIT License' "${in[@]}" cat /usr/share/doc/zklock/copyright
    says 'zklock status --json' "${in[@]}" cat /usr/share/doc/zklock/docs/status.schema.json
    says zookeeper "${in[@]}" cat /usr/share/doc/zklock/examples/zklock.toml
    check_links "$root/usr/share/doc/zklock"

    says 'Removing zklock' "${in[@]}" dpkg --purge zklock
    files "$root" | diff "$scratch/before" - || die 'the package leaves these files'
}

# check_lock ROOT - checks that the zklock of a Debian takes locks.
check_lock() {
    says "zklock $version" inside "$1" zklock --version
    says held inside "$1" zklock -z "127.0.0.1:$zookeeper_port" /package -- echo held
    says held inside "$1" zklock -z "zk.test:$zookeeper_port" /package -- echo held
}

check_companions() {
    local page name
    for page in man/*.[157]; do
        name=${page#man/}
        says "${name##*.}" "${in[@]}" man --where "${name##*.}" "${name%.*}"
    done
    says 'ZKLOCK-STATUS(1)' "${in[@]}" man --pager=cat zklock-status
    # shellcheck disable=SC2016 # the other shells expand these
    {
        says ' zklock' "${in[@]}" bash -c \
            '. /usr/share/bash-completion/bash_completion; _completion_loader zklock; complete -p zklock'
        says _zklock "${in[@]}" zsh -fc 'autoload -U compinit; compinit -D; print $_comps[zklock]'
        says --shared "${in[@]}" fish -c 'complete --do-complete "zklock --sha"'
    }
}

# check_rpm ROOT - in a Debian, the one system that is there.
check_rpm() {
    heading 'check: the .rpm'
    local listed name
    listed=$(rpm -qpil "$rpm")
    for name in zklock.1.gz zklock.toml.5.gz bash-completion/completions/zklock zsh/site-functions/_zklock \
        fish/vendor_completions.d/zklock.fish examples/zklock.toml licenses/zklock/copyright; do
        grep --quiet "/$name\$" <<<"$listed" || die "$name is not in $rpm: $listed"
    done
    says "glibc >= $glibc" rpm -qp --requires "$rpm"

    # Fedora's package `filesystem` has this directory.
    mkdir -p "$1/usr/share/licenses"
    files "$1" >"$scratch/before"
    local in=(rpm --root "$1" --dbpath /tmp/rpm)
    "${in[@]}" --initdb
    # dpkg installed the C library of this root, so rpm does not know it.
    quietly "${in[@]}" --install --nodeps "$rpm"
    check_lock "$1"
    quietly "${in[@]}" --erase zklock
    files "$1" | diff "$scratch/before" - || die 'the package leaves these files'
}

# check_emulated MACHINE - the packages for another machine than this one have the same files but for the binary, which
# runs in an emulator. The command is a program of this machine.
check_emulated() {
    heading "check: $1, in an emulator"
    # Older ones refuse PR_SET_CHILD_SUBREAPER.
    [[ $("qemu-$1" --version) =~ version\ 1[0-9] ]] || die 'qemu-user 10 is needed; bookworm-backports has it'
    local binary run
    diff <(dpkg-deb --fsys-tarfile "$deb" | tar -t) \
        <(dpkg-deb --fsys-tarfile target/dist/*_"${debian[$1]}.deb" | tar -t) || die 'the files of the packages differ'
    diff <(rpm -qpl "$rpm") <(rpm -qpl target/dist/*."$1.rpm") || die 'the files of the packages differ'
    for binary in "$unpacked-$1-linux"{,-static}/zklock; do
        run=("qemu-$1" -L "/usr/$1-linux-gnu" "$binary")
        says "zklock $version" "${run[@]}" --version
        says held "${run[@]}" -z "127.0.0.1:$zookeeper_port" /emulated -- echo held
        says 'a command survives an outage' "${run[@]}" check -z "127.0.0.1:$zookeeper_port"
    done
}

check_static() {
    heading 'check: the static binary, with only /proc and /dev beside it'
    local root=$scratch/alone
    install -D "$static" "$root/zklock"
    says "zklock $version" inside "$root" /zklock --version
    mkdir "$root/dev" "$root/proc"
    says "zklock $version" inside "$root" /zklock -z "127.0.0.1:$zookeeper_port" /static -- /zklock --version

    # Names: a module that is named in nsswitch.conf is not loaded.
    mkdir "$root/etc"
    echo 'hosts: resolve [!SUCCESS=return] files' >"$root/etc/nsswitch.conf"
    echo '127.0.0.1 zk.test' >"$root/etc/hosts"
    says "zklock $version" inside "$root" /zklock -z "zk.test:$zookeeper_port" /static -- /zklock --version

    wanted=78 says 'the static zklock cannot load any' \
        inside "$root" /zklock -z "zk.test:$zookeeper_port" --auth gssapi:zookeeper /static /zklock --version

    # A name server, in a network namespace, as its port is 53. It answers each question with 127.0.0.77.
    rm "$root/etc/hosts"
    echo 'nameserver 127.0.0.1' >"$root/etc/resolv.conf"
    cat >"$scratch/dns.py" <<'EOF'
import socket, subprocess, sys, threading
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
def serve():
    while True:
        query, client = server.recvfrom(512)
        end = query.index(b"\0", 12) + 5
        ours = query[end - 4 : end - 2] == b"\0\1"
        answer = b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4\x7f\0\0\x4d" if ours else b""
        counts = b"\0\1" + (b"\0\1" if ours else b"\0\0") + b"\0\0\0\0"
        server.sendto(query[:2] + b"\x81\x80" + counts + query[12:end] + answer, client)
threading.Thread(target=serve, daemon=True).start()
sys.exit(subprocess.run(sys.argv[1:]).returncode == 0)
EOF
    # Nothing serves there, so the check fails.
    says ': 127.0.0.77:2181: ' unshare --net bash -euc 'ip link set lo up; exec python3 "$@"' bash "$scratch/dns.py" \
        bash -euc "$(declare -f inside); inside \"\$@\"" bash "$root" /zklock check -z zk.test
}

# Docker itself needs a service; its recipe is followed by hand.
check_image() {
    heading 'check: the image'
    local root=$scratch/image word arguments from to user='' entry='' recipe
    recipe=$(<packaging/Dockerfile)
    while read -r word arguments; do
        case $word in
            '' | '#'*) ;;
            FROM) [[ $arguments == scratch ]] || die "an image from $arguments" ;;
            COPY)
                read -r from to <<<"${arguments/\$TARGETARCH/"${debian[$machine]}"}"
                install -D "target/dist/static/$from" "$root$to"
                ;;
            ARG) ;;
            LABEL)
                [[ $arguments =~ ^org\.opencontainers\.image\.[a-z]+=\".+\"$ ]] || die "the label $arguments"
                [[ $arguments != *\$* ]] || says "ARG ${arguments//[^A-Z]/}"$'\n' echo "$recipe"
                ;;
            USER) user=$arguments ;;
            ENTRYPOINT) entry=$(tr -d '[]"' <<<"$arguments") ;;
            *) die "$word in packaging/Dockerfile" ;;
        esac
    done <<<"$recipe"
    says "$(sed -n 's/^description = //p' Cargo.toml)" echo "$recipe"
    # As a container has them.
    mkdir -p "$root"/{dev,etc,proc}
    echo '127.0.0.1 zk.test' >"$root/etc/hosts"
    [[ $user =~ ^[1-9][0-9]*:[1-9] ]] || die "the image runs as $user"
    says "zklock $version" inside "$root" "$entry" -z "zk.test:$zookeeper_port" /image -- /zklock --version
}

check_again() {
    heading 'check: the same from another directory'
    git clone --quiet --no-hardlinks . "$scratch/somewhere/else"
    (cd "$scratch/somewhere/else" && distribute "$scratch/cargo")
    diff target/dist/SHA256SUMS "$scratch/somewhere/else/target/dist/SHA256SUMS" || die 'the checksums differ'
}

machine=$(uname -m)
[[ $machine == x86_64 ]] && other=aarch64 || other=x86_64
install_zookeeper
install_missing lintian:lintian debootstrap:debootstrap readelf:binutils ip:iproute2 rpmlint:rpmlint \
    "qemu-$other:qemu-user"
crates=${CARGO_HOME:-$HOME/.cargo}/registry
deb=$(realpath target/dist/*_"${debian[$machine]}.deb")
rpm=$(realpath target/dist/*."$machine.rpm")
for archive in target/dist/*.tar.gz; do
    tar --directory "$scratch" -xf "$archive"
done
unpacked=$scratch/zklock-$version
static=$unpacked-$machine-linux-static/zklock
start_zookeeper "$scratch/zookeeper"

check_binaries "$machine"
check_binaries "$other"
check_emulated "$other"
[[ $other != aarch64 ]] || packaging/arm64.sh "$unpacked-aarch64-linux/zklock"
check_links "$unpacked-$machine-linux"
check_lint
check_static
check_image
check_deb bookworm man-db bash-completion zsh fish
check_deb trixie
check_rpm "$scratch/trixie"
check_crate
check_again
