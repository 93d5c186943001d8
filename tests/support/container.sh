#!/bin/bash
# From fresh namespaces to a running systemd: the inside of support/container.py, which is its only caller.
#
#   container.sh FOLDER NEEDED...
#
# FOLDER/upper keeps what the container writes, FOLDER/work is the file system's own, FOLDER/root becomes its `/`.
# Each NEEDED is a folder of this machine that has to be seen under its name, wherever it lies.
#
# Everything here is mounted in a mount namespace of its own and gone with its last process.
set -euo pipefail

folder=$1
shift
root=$folder/root

# Nothing that happens below gets out, whatever the tree outside is set to.
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$root"
cd "$root"

# The kernel's own trees: what is global to the machine can be read only, so no service of the container tunes the host.
mount -t proc -o nosuid,nodev,noexec proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
for file in sysrq-trigger irq bus; do
    [[ ! -e proc/$file ]] || { mount --bind "proc/$file" "proc/$file" && mount -o remount,bind,ro "proc/$file"; }
done
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs sys
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 sys/fs/cgroup

mount -t tmpfs -o mode=755,nosuid,nodev tmpfs run
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs tmp
mount -t tmpfs -o mode=755,nosuid tmpfs dev
for name in null zero full random urandom tty; do
    : >"dev/$name"
    mount --bind "/dev/$name" "dev/$name"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,nosuid,noexec devpts dev/pts
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for number in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${number%:*}" "dev/${number#*:}"; done

# What is on a file system of its own, or hidden by the new /tmp, gets an overlay of its own.
number=0
for needed; do
    number=$((number + 1))
    [[ ! -e .$needed ]] || continue
    mkdir -p ".$needed" "$folder/needed-$number"/{upper,work}
    mount -t overlay overlay ".$needed" \
        -o "lowerdir=$needed,upperdir=$folder/needed-$number/upper,workdir=$folder/needed-$number/work"
done

# The first boot makes another machine of it: with a name and a journal of its own, and nothing of the host's services.
if [[ ! -e $folder/made ]]; then
    : >etc/fstab
    tr -d - </proc/sys/kernel/random/uuid >etc/machine-id
    echo container >etc/hostname
    rm -rf var/log/journal var/lib/systemd/linger etc/systemd/system/*.wants etc/systemd/system/*.requires
    mkdir -p var/log/journal etc/systemd/journald.conf.d
    printf '[Journal]\nStorage=persistent\nSystemMaxUse=200M\nSystemMaxFileSize=8M\n' >etc/systemd/journald.conf.d/container.conf
    # A container has no terminals, no devices and no kernel of its own; each of these costs time at every boot.
    for unit in getty.target systemd-udevd.service systemd-udev-trigger.service modprobe@.service \
        systemd-modules-load.service proc-sys-fs-binfmt_misc.automount dev-hugepages.mount dev-mqueue.mount \
        sys-kernel-{debug,tracing,config}.mount sys-fs-fuse-connections.mount systemd-remount-fs.service \
        systemd-update-utmp.service systemd-update-utmp-runlevel.service systemd-tmpfiles-clean.timer \
        systemd-firstboot.service systemd-sysusers.service systemd-random-seed.service systemd-timesyncd.service; do
        ln -sf /dev/null "etc/systemd/system/$unit"
    done
    ln -sf /lib/systemd/system/multi-user.target etc/systemd/system/default.target
    : >"$folder/made"
fi

mkdir -p old-root
pivot_root . old-root
cd /
umount -l old-root
# What a service mounts for another one (credentials, a user's runtime folder) has to arrive there.
mount --make-rshared /

exec env -i container=the-loop PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --log-target=journal --show-status=no
