#!/bin/sh
# Do not start the service, because it changes sysctls and rules. An upgrade restarts a running service; Services keep working.
set -e
if [ -d /run/systemd/system ]; then
	systemd-tmpfiles --create /usr/lib/tmpfiles.d/kube-ipvs.conf
	systemctl daemon-reload
	systemctl try-restart kube-ipvs.service
fi
