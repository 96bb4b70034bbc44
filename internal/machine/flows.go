package machine

import (
	"context"
	"errors"
	"os"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/conntrack"
)

// eventsFile contains 0 if connection tracking sends no events.
const eventsFile = "/proc/sys/net/netfilter/nf_conntrack_events"

func watchFlows(ctx context.Context, take func(kernel.FlowEvent), lost func()) error {
	if text, err := os.ReadFile(eventsFile); err == nil && strings.TrimSpace(string(text)) == "0" {
		return errors.New("connection tracking sends no events; run `sysctl -w net.netfilter.nf_conntrack_events=1`")
	}
	return conntrack.Watch(ctx, take, lost)
}
