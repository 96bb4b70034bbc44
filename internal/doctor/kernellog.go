package doctor

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

// doctor ignores kernel messages older than this.
const logWithin = time.Hour

// complaint describes a kernel message and its effect on Services.
type complaint struct {
	message *regexp.Regexp
	subject string
	problem string
	remedy  string
}

var complaints = []complaint{
	{
		regexp.MustCompile(`nf_conntrack: .*table full`), "connection tracking", "the table was full; new connections were dropped",
		"raise conntrack.maxPerCore or conntrack.min, or lower conntrack.tcpEstablishedTimeout",
	},
	{
		regexp.MustCompile(`neighbou?r table overflow`), "neighbor table", "it was full; packets to new neighbors were dropped",
		"raise net.ipv4.neigh.default.gc_thresh3 or net.ipv6.neigh.default.gc_thresh3, and make it permanent (/etc/sysctl.d)",
	},
	{
		regexp.MustCompile(`Killed process \d+ \(kube-ipvs\)`), "agent", "the kernel killed it because the memory ran out",
		"raise its memory limit, or find the program that uses the node's memory",
	},
	{
		regexp.MustCompile(`unregister_netdevice: waiting for`), "network interfaces", "the kernel cannot remove one of them because it is still in use",
		"restart the node, and update its kernel",
	},
	{
		regexp.MustCompile(`(RIP|pc) ?:.*\b(ip_vs|nf_conntrack|nf_nat|ip_set|nft)_`), "kernel", "it crashed in code that Services depend on",
		"restart the node, and update its kernel",
	},
}

var logTime = regexp.MustCompile(`^(?:<\d+>)?\[ *(\d+)\.\d+\]`)

// readLog reads the kernel's log and uptime. The timestamps in the log are relative to boot.
func (f *Facts) readLog(h reader) {
	const subject = "kernel's log"
	text, err := h.KernelLog()
	if err != nil {
		f.LogUnread = fmt.Errorf("the kernel's log: %w", err)
		f.unread(subject, err)
	}
	f.Log = text
	uptime, _, _ := strings.Cut(h.must("/proc/uptime", subject), ".")
	f.Uptime, _ = strconv.Atoi(uptime)
}

// checkLog finds kernel messages of the last hour that affect Services.
func checkLog(f Facts) (found []finding.Finding) {
	for _, c := range complaints {
		count, last := 0, ""
		for line := range strings.Lines(f.Log) {
			at := logTime.FindStringSubmatch(line)
			if at == nil || !c.message.MatchString(line) {
				continue
			}
			if seconds, err := strconv.Atoi(at[1]); err == nil && f.Uptime-seconds <= int(logWithin.Seconds()) {
				count, last = count+1, strings.TrimSpace(line)
			}
		}
		if count > 0 {
			found = append(found, finding.New(finding.Warning, c.subject, c.problem,
				[]string{number(count, "message") + " in the kernel's log in the last hour, the latest: " + last}, c.remedy))
		}
	}
	return found
}
