#!/bin/sh
# host.sh DIRECTORY NAME CGROUP ZKLOCK CHILD WORD...
#
# Becomes a host: runs WORDs, such as systemd, as its first process. To be started as root in new namespaces for mounts,
# processes, names, System V objects and the network. What has to be undone later is the cgroup alone.
#
# The host has the programs of this machine, from a /usr that it may change for itself, and nothing else of it: an /etc of
# its own, no units but those that it needs, and nothing of the kernel's to set. DIRECTORY is its /shared.
set -eu
directory=$1 name=$2 cgroup=$3 zklock=$4 child=$5
shift 5

# file PATH - writes the input to a file of the host.
file() {
    mkdir -p "$(dirname "$1")"
    cat >"$1"
}

# put FILE PATH - has FILE at this path of the host as well.
put() {
    : >"$2"
    mount --bind "$1" "$2"
}

cd "$directory"
mkdir "$name"
mount -t tmpfs -o mode=755 "$name" "$name"
cd "$name"
mkdir changes work root
# What is to become the root must be a mount.
mount --bind root root
mkdir -m 1777 root/tmp
mkdir root/dev root/mnt root/proc root/root root/run root/shared root/sys root/usr root/var
mount -t overlay -o "lowerdir=/usr,upperdir=$PWD/changes,workdir=$PWD/work" usr root/usr
cd root
for part in bin lib lib64 sbin; do
    ln -s "usr/$part" "$part"
done
ln -s ../run var/run
mount --bind "$directory" shared
put "$zklock" usr/bin/zklock
rm -rf usr/local/*
mkdir usr/local/bin
put "$child" usr/local/bin/child

mount -t proc proc proc
for part in proc/sys proc/sysrq-trigger; do
    [ -e "$part" ] || continue
    mount --bind "$part" "$part"
    mount -o remount,bind,ro "$part"
done
mount -t sysfs -o ro sys sys
mount -t tmpfs -o mode=755 run run
mount -t tmpfs -o mode=755 dev dev
for part in full null random tty urandom zero; do
    put "/dev/$part" "dev/$part"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666,mode=620 pts dev/pts
mount -t tmpfs shm dev/shm
ln -s pts/ptmx dev/ptmx
ln -s null dev/console
ln -s /proc/self/fd dev/fd

hostname "$name"
echo "$name" | file etc/hostname
tr -d - </proc/sys/kernel/random/uuid | file etc/machine-id
echo root:x:0:0:root:/root:/bin/sh | file etc/passwd
echo root:x:0: | file etc/group
echo 'hosts: files' | file etc/nsswitch.conf
printf '%s\n' "127.0.0.1 localhost $name" '127.0.0.2 zk1' '127.0.0.3 zk2' '127.0.0.4 zk3' | file etc/hosts
for kind in auth account session; do
    echo "$kind required pam_permit.so"
done | file etc/pam.d/other
units=usr/lib/systemd/system
rm -rf "$units"/*.wants
mkdir -p "$units/sockets.target.wants" etc/systemd/system
for unit in systemd-journald.socket systemd-journald-dev-log.socket; do
    ln -s "../$unit" "$units/sockets.target.wants"
done
ln -s /lib/systemd/system/multi-user.target etc/systemd/system/default.target
ip link set lo up

mkdir mnt/cgroup
mount -t cgroup2 cgroup mnt/cgroup
mkdir "mnt/cgroup/$cgroup"
echo 0 >"mnt/cgroup/$cgroup/cgroup.procs"
umount mnt/cgroup
rmdir mnt/cgroup
# Only from here on is this cgroup the root of those that are seen.
exec unshare --cgroup sh -euc '
    mount -t cgroup2 cgroup sys/fs/cgroup
    pivot_root . mnt
    exec chroot . sh -euc '\''
        umount --lazy /mnt
        exec env -i container=zklock-test PATH=/usr/local/bin:/usr/sbin:/usr/bin "$@"
    '\'' sh "$@"
' sh "$@"
