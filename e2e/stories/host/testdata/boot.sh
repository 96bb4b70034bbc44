# Boots systemd on a copy of this machine's files, as the first process in new namespaces. $1 is a working directory, $2 a file to
# copy into /root.
set -e
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" none "$1/root"
cp "$2" "$1/root/root/"
cd "$1/root"
# Disable all but the basic units, in particular the machine's own services.
rm -rf etc/systemd/system/*.wants
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 none sys/fs/cgroup
mount -t tmpfs none run
mount -t tmpfs none tmp
mount --rbind /dev dev
ip link set lo up
ip link add uplink type dummy
ip addr add 192.168.50.12/24 dev uplink
ip link set uplink up
exec env -i container=lab PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . /lib/systemd/systemd --log-target=console --show-status=no
