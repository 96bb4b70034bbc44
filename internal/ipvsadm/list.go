package ipvsadm

import (
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// PrintTable prints virtual servers. For List, it prints them in the request's view; for Save, as the commands that
// create them. If the request names a Service, the table must contain only that Service.
func PrintTable(r Request, table kernel.Table, names Names) string {
	p := printer{request: r, names: names}
	services := table.Servers
	if !r.NoSort {
		services = sortTable(services)
	}
	if r.Command == Save {
		p.save(services)
	} else {
		p.list(table.Info, services)
	}
	return p.String()
}

func (p *printer) list(info kernel.TableInfo, services []kernel.TableServer) {
	if p.request.Service == nil {
		v := info.Version
		p.printf("IP Virtual Server version %d.%d.%d (size=%d)\n", v>>16&0xff, v>>8&0xff, v&0xff, info.ConnSize)
	}
	p.title()
	for _, s := range services {
		p.service(s)
		for _, d := range s.Destinations {
			p.printf("  -> %-28s", p.cutName(d.Addr, s.Key.Protocol))
			p.destination(d)
			p.WriteByte('\n')
		}
	}
}

func (p *printer) title() {
	const counted = "Prot LocalAddress:Port"
	second := "RemoteAddress:Port"
	switch p.request.View {
	case viewStats:
		p.printf("%-33s %8s %8s %8s %8s %8s\n", counted, "Conns", "InPkts", "OutPkts", "InBytes", "OutBytes")
	case viewRate:
		p.printf("%-33s %8s %8s %8s %8s %8s\n", counted, "CPS", "InPPS", "OutPPS", "InBPS", "OutBPS")
	case viewThresholds:
		p.printf("%-33s %-10s %-10s %-10s %-10s\n", counted, "Uthreshold", "Lthreshold", "ActiveConn", "InActConn")
	case viewPersistentConn:
		p.printf("%-33s %-9s %-11s %-10s %-10s\n", counted, "Weight", "PersistConn", "ActiveConn", "InActConn")
	case viewTunnel:
		p.printf("Prot LocalAddress:Port Scheduler Flags\n")
		second = "RemoteAddress:Port           Forward TunnelInfo    Weight ActiveConn InActConn"
	default:
		p.printf("Prot LocalAddress:Port Scheduler Flags\n")
		second = "RemoteAddress:Port           Forward Weight ActiveConn InActConn"
	}
	p.printf("  -> %s\n", second)
}

func (p *printer) service(s kernel.TableServer) {
	name := p.serviceName(s.Key)
	switch p.request.View {
	case viewStats:
		p.printf("%-33s", name)
		p.stats(s.Stats)
	case viewRate:
		p.printf("%-33s", name)
		p.rates(s.Stats)
	default:
		p.printf("%s %s%s", name, s.Scheduler, flags(s))
	}
	p.WriteByte('\n')
}

var protocolNames = map[inet.Protocol]string{inet.TCP: "TCP", inet.UDP: "UDP", inet.SCTP: "SCTP"}

func (p *printer) serviceName(key kernel.TableKey) string {
	if key.Mark == 0 {
		return fmt.Sprintf("%-4s %s", protocolNames[key.Protocol], p.cutName(key.Addr, key.Protocol))
	}
	name := "FWM  " + markText(key.Mark)
	if key.Family == inet.IPv6 {
		name += " IPv6"
	}
	return name
}

func flags(s kernel.TableServer) string {
	text := ""
	if names, ok := serviceFlags(s); ok {
		text += " (" + names + ")"
	}
	if s.Flags&kernel.FlagPersistent != 0 {
		text += fmt.Sprintf(" persistent %d", s.Timeout)
		if mask, ok := maskText(s); ok {
			text += " mask " + mask
		}
		if s.Engine != "" {
			text += " pe " + s.Engine
		}
	}
	if s.Flags&kernel.FlagOnePacket != 0 {
		text += " ops"
	}
	return text
}

var forwardingNames = map[kernel.Forwarding]string{
	kernel.ForwardMasq: "Masq", kernel.ForwardLocal: "Local", kernel.ForwardTunnel: "Tunnel", kernel.ForwardRoute: "Route",
}

func (p *printer) destination(d kernel.TableDestination) {
	forward := forwardingNames[d.Forwarding]
	switch p.request.View {
	case viewStats:
		p.stats(d.Stats)
	case viewRate:
		p.rates(d.Stats)
	case viewThresholds:
		p.printf(" %-10d %-10d %-10d %-10d", d.UpperThreshold, d.LowerThreshold, d.Active, d.Inactive)
	case viewPersistentConn:
		p.printf(" %-9d %-11d %-10d %-10d", d.Weight, d.Persistent, d.Active, d.Inactive)
	case viewTunnel:
		p.printf(" %-7s %-13s %-6d %-10d %-10d", forward, tunnelInfo(d), d.Weight, d.Active, d.Inactive)
	default:
		p.printf(" %-7s %-6d %-10d %-10d", forward, d.Weight, d.Active, d.Inactive)
	}
}

// tunnelInfo formats the type, port and checksum setting of a tunnel, such as "gue:6080:+c".
func tunnelInfo(d kernel.TableDestination) string {
	if d.Forwarding != kernel.ForwardTunnel {
		return "n/a"
	}
	switch d.Tunnel.Type {
	case kernel.TunnelGUE:
		return fmt.Sprintf("gue:%d:%s", d.Tunnel.Port, checksumSign(d.Tunnel.Flags))
	case kernel.TunnelGRE:
		return "gre:" + checksumSign(d.Tunnel.Flags)
	}
	return "ipip"
}

func checksumSign(flags uint16) string { return checksum(flags, "+c", "r+c", "-c") }

// checksum selects the text for a tunnel's checksums: full, remote (completed by the receiver), or none.
func checksum(flags uint16, full, remote, none string) string {
	switch {
	case flags&kernel.TunnelChecksum != 0:
		return full
	case flags&kernel.TunnelRemoteChecksum != 0:
		return remote
	}
	return none
}
