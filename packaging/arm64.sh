#!/usr/bin/env bash
# Runs the tests of the guard with ZKLOCK, a binary for arm64, in virtual machines with Debian's kernels for pages of
# 4 KiB and 16 KiB, and with each KERNEL. A qemu without help of the processor runs them.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

readonly triple=aarch64-unknown-linux-gnu

# fetch PACKAGE... - downloads these packages of Debian 13 for arm64, and those that they need. apt neither reads nor
# changes what it knows about this machine.
fetch() {
    mkdir -p "$scratch"/apt/{archives,lists,parts}/partial
    touch "$scratch/apt/status"
    echo 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main' \
        >"$scratch/apt/list"
    cat >"$scratch/apt/conf" <<EOF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "root";
Dir::Cache::archives "$scratch/apt/archives";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
Dir::Etc::sourcelist "$scratch/apt/list";
Dir::Etc::sourceparts "$scratch/apt/parts";
Dir::State::lists "$scratch/apt/lists";
Dir::State::status "$scratch/apt/status";
EOF
    APT_CONFIG=$scratch/apt/conf quietly apt-get update
    APT_CONFIG=$scratch/apt/conf quietly apt-get --yes --no-install-recommends --download-only install "$@"
}

# make_root - makes a root directory of the packages and of what cargo has built. The tests look for everything at the
# paths where cargo has put it.
make_root() {
    local deb java built=$root$PWD/target/$triple/debug
    mkdir -p "$root"/{dev,etc,proc,root,sys,usr/{bin,sbin,lib}} "$built/examples" "$root$PWD/target/$triple/tmp"
    mkdir -m 1777 "$root/tmp"
    ln -s usr/bin usr/sbin usr/lib "$root"
    for deb in "$scratch"/apt/archives/*.deb; do
        case $deb in
            */linux-image-arm64*) ;;
            */linux-image-*)
                dpkg-deb --fsys-tarfile "$deb" | tar --directory "$scratch" -x --wildcards './boot/vmlinuz-*'
                ;;
            *) dpkg-deb --extract "$deb" "$root" ;;
        esac
    done
    ln -sf dash "$root/usr/bin/sh"
    java=("$root"/usr/lib/jvm/java-*-openjdk-arm64/bin/java)
    ln -s "${java#"$root"}" "$root/usr/bin/java"
    echo 'root:x:0:0::/root:/bin/sh' >"$root/etc/passwd"
    echo '127.0.0.1 localhost' >"$root/etc/hosts"
    cp "$1" "$built/zklock"
    cp "target/$triple/debug/examples/child" "$built/examples/"
    cp "$2" "$root/tests"
    cat >"$root/init" <<EOF
#!/bin/sh
export PATH=/usr/sbin:/usr/bin HOME=/root ZKLOCK_TEST_ALL=1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
busybox ip link set lo up
cd '$PWD'
echo "Linux \$(uname -r), pages of \$(getconf PAGESIZE) bytes"
/tests --test-threads=1 loss::guard:: 2>&1
busybox poweroff -f
EOF
    chmod 755 "$root/init"
    (cd "$root" && find . | cpio --quiet --create --format=newc --owner=0:0) >"$scratch/initrd"
}

# boot KERNEL - runs the tests with this kernel. That takes three minutes, or more on a machine that does much else.
boot() {
    timeout 1200 qemu-system-aarch64 -machine virt -cpu max,pauth-impdef=on -smp 2 -m 3072 -nic none -nographic \
        -no-reboot -kernel "$1" -initrd "$scratch/initrd" -append 'console=ttyAMA0 quiet panic=-1' </dev/null |
        sed --unbuffered 's/\r//g' | tee "$scratch/log" || die "qemu fails with $1"
    grep -q '^test result: ok\. [1-9]' "$scratch/log" || die "tests fail with $1"
}

(($#)) || die 'usage: packaging/arm64.sh ZKLOCK [KERNEL...]'
zklock=$1
shift
install_missing cpio:cpio qemu-system-aarch64:qemu-system-arm aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
root=$scratch/root
heading 'build the tests for arm64 (takes minutes)'
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
tests=$(cargo build --quiet --locked --target "$triple" --test it --example child --message-format=json |
    sed -n 's/.*"executable":"\([^"]*\/it-[^"]*\)".*/\1/p')
heading 'download packages for arm64'
fetch linux-image-arm64 linux-image-arm64-16k busybox-static coreutils dash libc-bin mount procps util-linux \
    default-jre-headless libslf4j-java libzookeeper-java
make_root "$zklock" "$tests"
for kernel in "$scratch"/boot/vmlinuz-* "$@"; do
    heading "the guard with ${kernel##*/}"
    boot "$kernel"
done
