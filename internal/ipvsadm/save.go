package ipvsadm

import (
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// save prints the commands that create these services. Like ipvsadm, it omits thresholds, timeouts and daemons, and
// prints marks from 2^31 on as negative numbers, which no command accepts.
func (p *printer) save(services []kernel.TableServer) {
	for _, s := range services {
		name := p.serviceOption(s.Key)
		p.printf("-A %s -s %s%s\n", name, s.Scheduler, saveFlags(s))
		for _, d := range s.Destinations {
			p.printf("-a %s -r %s %s -w %d%s\n", name, p.name(d.Addr, s.Key.Protocol), forwardingOptions[d.Forwarding], d.Weight, tunnelOptions(d))
		}
	}
}

var protocolOptions = map[inet.Protocol]string{inet.TCP: "-t", inet.UDP: "-u", inet.SCTP: "--sctp-service"}

func (p *printer) serviceOption(key kernel.TableKey) string {
	if key.Mark == 0 {
		return protocolOptions[key.Protocol] + " " + p.name(key.Addr, key.Protocol)
	}
	option := "-f " + markText(key.Mark)
	if key.Family == inet.IPv6 {
		option += " -6"
	}
	return option
}

func saveFlags(s kernel.TableServer) string {
	text := ""
	if s.Flags&kernel.FlagPersistent != 0 {
		text += fmt.Sprintf(" -p %d", s.Timeout)
		if mask, ok := maskText(s); ok {
			text += " -M " + mask
		}
		if s.Engine != "" {
			text += " --pe " + s.Engine
		}
	}
	if s.Flags&kernel.FlagOnePacket != 0 {
		text += " -o"
	}
	if names, ok := serviceFlags(s); ok {
		text += " -b " + names
	}
	return text
}

var forwardingOptions = map[kernel.Forwarding]string{
	kernel.ForwardMasq: "-m", kernel.ForwardTunnel: "-i", kernel.ForwardRoute: "-g",
}

func tunnelOptions(d kernel.TableDestination) string {
	if d.Forwarding != kernel.ForwardTunnel {
		return ""
	}
	switch d.Tunnel.Type {
	case kernel.TunnelGUE:
		return fmt.Sprintf(" --tun-type gue --tun-port %d %s", d.Tunnel.Port, checksumOption(d.Tunnel.Flags))
	case kernel.TunnelGRE:
		return " --tun-type gre " + checksumOption(d.Tunnel.Flags)
	}
	return " --tun-type ipip"
}

func checksumOption(flags uint16) string {
	return checksum(flags, "--tun-csum", "--tun-remcsum", "--tun-nocsum")
}
