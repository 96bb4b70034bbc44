package config

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Conntrack configures the kernel's connection tracking. Zero keeps the kernel's value.
type Conntrack struct {
	MaxPerCore, Min              int
	TCPEstablished, TCPCloseWait time.Duration
	UDP, UDPStream               time.Duration
	TCPBeLiberal                 bool
}

// maxScaled is the largest limit that is computed from the number of CPUs. A million entries use about 300 MB of kernel memory.
const maxScaled = 1 << 20

// limit returns the limit of tracked connections for a number of CPUs. 0 keeps the kernel's value.
func (c Conntrack) limit(cpus int) int {
	if c.MaxPerCore == 0 {
		return 0
	}
	return max(c.Min, min(c.MaxPerCore*cpus, maxScaled))
}

// The agent does not set the size of the hash table. Since Linux 5.15, every node with more than 4 GB of memory has
// enough buckets for the largest computed limit.
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

// onlineCPUs returns the number of CPUs of the machine. A container may be limited to fewer CPUs, but connection tracking covers the whole machine.
func onlineCPUs() int {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err == nil {
		if n, ok := countCPUs(string(text)); ok {
			return n
		}
	}
	return runtime.NumCPU()
}

// countCPUs counts the CPUs in a list such as 0-3,8.
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
