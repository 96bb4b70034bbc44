#!/bin/sh
# The service is not started: it changes sysctls and rules. An upgrade restarts it if it runs; Services keep working meanwhile.
set -e
if [ -d /run/systemd/system ]; then
	systemd-tmpfiles --create /usr/lib/tmpfiles.d/kube-ipvs.conf
	systemctl daemon-reload
	systemctl try-restart kube-ipvs.service
fi
