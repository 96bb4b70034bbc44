package kubeproxy

import (
	_ "embed"
	"fmt"
	"net/netip"

	"golang.org/x/tools/txtar"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/manifest"
)

//go:embed testdata/services.txtar
var servicesArchive []byte

var (
	http   = manifest.Port{Protocol: cluster.TCP, Number: 80, Target: 8080}
	dns    = manifest.Port{Protocol: cluster.UDP, Number: 53, Target: 5353}
	logs   = manifest.Port{Protocol: cluster.UDP, Number: 514, Target: 5514}
	daemon = manifest.Port{Protocol: cluster.TCP, Number: daemonPort}
)

// These node ports are in testdata/services.txtar.
const (
	plainNodePort  = 30080
	logsNodePort   = 30514
	healthNodePort = 32100 // for health checks
)

var balancers = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:cb::/64")}

func (w *world) readServices() {
	w.maker = manifest.Maker{Cluster: w.Cluster, Ports: "ports: [{name: http, port: 80, targetPort: 8080}]"}
	w.services = map[string]manifest.Service{}
	for _, file := range txtar.Parse(servicesArchive).Files {
		w.services[file.Name] = w.maker.Service(string(file.Data))
	}
}

// The second part of the manifests must be created a second after the first: the older of two Services gets a
// contested address, and creation timestamps have a resolution of one second.
func (w *world) manifests() []string {
	first := ""
	for _, n := range w.Nodes { // server-side apply accepts only one address of each type
		first += fmt.Sprintf(`---
apiVersion: v1
kind: Node
metadata: {name: %s}
status: {addresses: [{type: InternalIP, address: %q}, {type: ExternalIP, address: %q}]}
`, n.Name, n.V4, n.V6)
	}
	for name, svc := range w.services {
		if name != "a-younger" && name != "marker" {
			first += svc.YAML()
		}
	}
	return []string{first, w.services["a-younger"].YAML()}
}

// marker returns the marker Service and its port. settle increments the epoch, which changes the port.
func (w *world) marker(epoch int) (manifest.Service, manifest.Port) {
	number := uint16(1000 + epoch)
	return w.services["marker"].With(fmt.Sprintf("spec: {ports: [{name: marker, port: %d, targetPort: 8080}]}", number)),
		manifest.Port{Protocol: cluster.TCP, Number: number}
}
