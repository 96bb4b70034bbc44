#!/bin/sh
# dpkg passes "remove", and rpm the number of versions that stay installed. An upgrade keeps everything.
set -e
case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
	systemctl disable --now kube-ipvs.service
fi
# The kernel would keep forwarding, and nothing on the host could remove it any more.
/usr/bin/kube-ipvs cleanup || echo "kube-ipvs: cleanup failed, so virtual servers and rules stay until the next boot" >&2
