#!/bin/sh
# dpkg passes "remove", rpm the number of remaining versions. An upgrade keeps everything.
set -e
case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
	systemctl disable --now kube-ipvs.service
fi
# Otherwise the kernel would keep forwarding, and no program on the host could remove the state.
/usr/bin/kube-ipvs cleanup || echo "kube-ipvs: cleanup failed; virtual servers and rules remain until the next boot" >&2
