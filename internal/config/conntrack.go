package config

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Conntrack is how the kernel's connection tracking is set up. A zero timeout means "as it is".
type Conntrack struct {
	MaxPerCore, Min              int
	TCPEstablished, TCPCloseWait time.Duration
	UDP, UDPStream               time.Duration
	TCPBeLiberal                 bool
}

// maxScaled bounds what the number of CPUs can make of the limit: a million entries are about 300 MB of kernel memory.
const maxScaled = 1 << 20

// limit of tracked connections for a number of CPUs; 0 means "as it is".
func (c Conntrack) limit(cpus int) int {
	if c.MaxPerCore == 0 {
		return 0
	}
	return max(c.Min, min(c.MaxPerCore*cpus, maxScaled))
}

// sysctls to set. The hash table is left alone: its size can only be told too small from its present value, and since Linux 5.15
// every node with more than 4 GB has as many buckets as the highest limit that is computed here asks for.
func (c Conntrack) sysctls(cpus int) []kernel.SysctlSetting {
	var all []kernel.SysctlSetting
	set := func(name string, value int) {
		if value > 0 {
			all = append(all, kernel.SysctlSetting{Name: "net/netfilter/nf_conntrack_" + name, Value: strconv.Itoa(value), Optional: true})
		}
	}
	seconds := func(d time.Duration) int { return int(d / time.Second) }
	set("max", c.limit(cpus))
	set("tcp_timeout_established", seconds(c.TCPEstablished))
	set("tcp_timeout_close_wait", seconds(c.TCPCloseWait))
	if c.TCPBeLiberal {
		set("tcp_be_liberal", 1)
	}
	set("udp_timeout", seconds(c.UDP))
	set("udp_timeout_stream", seconds(c.UDPStream))
	return all
}

// onlineCPUs of the machine. A container may be allowed to use fewer, but connections are the machine's.
func onlineCPUs() int {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err == nil {
		if n, ok := countCPUs(string(text)); ok {
			return n
		}
	}
	return runtime.NumCPU()
}

// countCPUs counts a list such as 0-3,8.
func countCPUs(text string) (int, bool) {
	n := 0
	for part := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.ParseUint(first, 10, 16)
		b, errB := strconv.ParseUint(last, 10, 16)
		if errA != nil || errB != nil || b < a {
			return 0, false
		}
		n += int(b-a) + 1
	}
	return n, true
}
