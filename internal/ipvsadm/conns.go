package ipvsadm

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const (
	connFormat = "%-3s %-6s %-11s %-18s %-18s %s"
	// engineConnFormat is the format of a connection with persistence engine data (--persistent-conn). Its columns do
	// not match the headings.
	engineConnFormat = "%-3s %-6s %-11s %-18s %-18s %-16s %-18s %s"
)

// PrintConnections prints connections in the order given: ipvsadm does not sort them.
func PrintConnections(r Request, conns []kernel.Connection, names Names) string {
	p := printer{request: r, names: names}
	p.printf("IPVS connection entries\n")
	p.printf(connFormat, "pro", "expire", "state", "source", "virtual", "destination")
	if r.PersistentConn {
		p.printf("        %-16s %s", "pe name", "pe_data")
	}
	p.WriteByte('\n')
	for _, c := range conns {
		p.connection(c)
	}
	return p.String()
}

func (p *printer) connection(c kernel.Connection) {
	protocol, err := inet.ParseProtocol(strings.ToLower(c.Protocol))
	if err != nil {
		protocol = 0 // a persistence template of a fwmark service
	}
	name := func(a netip.AddrPort) string { return p.name(a, protocol) }
	expires := fmt.Sprintf("%02d:%02d", c.Expires/60, c.Expires%60)
	format, fields := connFormat, []any{c.Protocol, expires, c.State, name(c.Client), name(c.Virtual), name(c.Destination)}
	if p.request.PersistentConn && c.Engine != "" {
		format, fields = engineConnFormat, append(fields, c.Engine, c.EngineData)
	}
	p.printf(format+"\n", fields...)
}

// PrintTimeouts prints the timeouts of idle connections.
func PrintTimeouts(t kernel.Timeouts) string {
	return fmt.Sprintf("Timeout (tcp tcpfin udp): %.0f %.0f %.0f\n", t.TCP.Seconds(), t.TCPFin.Seconds(), t.UDP.Seconds())
}

var daemonNames = map[kernel.DaemonState]string{kernel.DaemonMaster: "master", kernel.DaemonBackup: "backup"}

// PrintDaemons prints the synchronization daemons.
func PrintDaemons(daemons []kernel.Daemon) string {
	var b strings.Builder
	for _, d := range daemons {
		fmt.Fprintf(&b, "%s sync daemon (mcast=%s, syncid=%d, maxlen=%d, group=%s, port=%d, ttl=%d)\n",
			daemonNames[d.State], d.Interface, d.SyncID, d.MaxLen, d.Group, d.Port, d.TTL)
	}
	return b.String()
}
