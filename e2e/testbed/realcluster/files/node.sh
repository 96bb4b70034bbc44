# Runs as the first process of a node, in its namespaces, and becomes the program that keeps them alive.
# $1 is the node's name, $2 the folder of its containerd, $3 the program pause.
set -e
hostname "$1"
mount --make-rprivate /
mount -t proc proc /proc
mount -t sysfs sysfs /sys # this network's interfaces
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /var/lib/containerd
mount --bind "$2" /var/lib/containerd
umount "$2" # the kubelet finds the file system by its device, so it must have only one mount
for folder in /var/lib/kubelet /var/lib/cni /var/log/pods /var/log/containers /etc/cni/net.d; do
	mkdir -p "$folder"
	mount -t tmpfs tmpfs "$folder"
done
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/netns
mount --make-rshared / # volumes and network namespaces of pods are mounted by one program and used by others
if grep -q 'User Mode Linux' /proc/cpuinfo; then
	# This kernel has no clock speed, keyrings or BPF programs. The kubelet needs the clock speed and the limits of keyrings. runc
	# restricts devices with BPF programs, unless it is rootless.
	sed '/^bogomips/a cpu MHz\t\t: 1000.000' /proc/cpuinfo >/run/cpuinfo
	mount --bind /run/cpuinfo /proc/cpuinfo
	mkdir -p /run/sysctl/keys
	cp -r /proc/sys/kernel/. /run/sysctl 2>/dev/null || true # some files cannot be read
	echo 1000000 >/run/sysctl/keys/root_maxkeys
	echo 25000000 >/run/sysctl/keys/root_maxbytes
	mount --bind /run/sysctl /proc/sys/kernel
	printf '#!/bin/sh\nexec runc --rootless=true "$@"\n' >/run/runc
else
	printf '#!/bin/sh\nexec runc "$@"\n' >/run/runc
fi
chmod 755 /run/runc
exec "$3"
