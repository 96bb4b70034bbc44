package kubeproxy

import (
	"fmt"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// Node ports of the Services below.
const (
	plainNodePort   = 30080
	healthyNodePort = 30081
	logsNodePort    = 30514
	healthNodePort  = 32100 // of health checks
)

// Numbers of the Services below; those that stories make have others.
const (
	etpNumber = iota + 1
	itpNumber
	itpNodePortNumber
	neighborNumber
	plainNumber
	likeNumber
	rangesNumber
	logsNumber
	hashNumber
	healthNumber
	earlyNumber
	olderNumber
	youngerNumber
	instantNumber // and those behind it
	markerNumber  = 250
)

func (w *world) externalLocalService() service {
	s := defineBalancer("etp", etpNumber, w.web).with("externalTrafficPolicy: Local")
	s.ports = []port{http, dns}
	return s
}

func (w *world) internalLocalService() service {
	return define("itp", itpNumber, w.web).with("internalTrafficPolicy: Local")
}

func (w *world) internalLocalNodePortService() service {
	s := define("itp-node-port", itpNodePortNumber, w.web).with("internalTrafficPolicy: Local")
	s.kind = "NodePort"
	return s
}

func (w *world) neighborService() service {
	s := defineBalancer("neighbor", neighborNumber, w.web).with(fmt.Sprintf("externalIPs: [%q]", w.neighbor.V4))
	s.balancer = []string{w.neighbor.V6.String()}
	return s
}

func (w *world) plainService() service {
	s := define("plain", plainNumber, w.web)
	s.kind, s.ports = "NodePort", []port{http.atNodes(plainNodePort)}
	return s
}

func (w *world) likeService() service {
	s := define("like-node-port", likeNumber, w.web)
	s.ports = []port{{name: "http", protocol: cluster.TCP, port: plainNodePort, target: http.target}}
	return s
}

func (w *world) rangesService() service {
	var ranges []string
	for _, s := range w.sides() {
		ranges = append(ranges, s.outside.V4.String()+"/32", s.outside.V6.String()+"/128")
	}
	svc := defineBalancer("ranges", rangesNumber, w.web).with(`loadBalancerSourceRanges: ["` + strings.Join(ranges, `", "`) + `"]`)
	svc.ports = []port{dns}
	return svc
}

func (w *world) logsService() service {
	s := define("logs", logsNumber, w.web)
	s.kind, s.ports = "NodePort", []port{logs.atNodes(logsNodePort)}
	return s
}

func (w *world) earlyService() service {
	s := defineBalancer("early", earlyNumber, w.web)
	s.ports = []port{dns}
	return s
}

func (w *world) hashService() service { return define("hash", hashNumber, w.web, w.other) }

func (w *world) healthService() service {
	s := define("health", healthNumber, w.web).with("externalTrafficPolicy: Local").
		with(fmt.Sprintf("healthCheckNodePort: %d", healthNodePort))
	s.kind, s.ports = "LoadBalancer", []port{http.atNodes(healthyNodePort)}
	return s
}

// contestedServices want the same external IPs. By name the younger one comes first.
func (w *world) contestedServices() (older, younger service) {
	claim := fmt.Sprintf("externalIPs: [%q, %q]", externalIP(cluster.V4, olderNumber), externalIP(cluster.V6, olderNumber))
	return define("z-older", olderNumber, w.web).with(claim), define("a-younger", youngerNumber, w.other).with(claim)
}

// services are the manifests of all that is there from the start. Those of each part are made a second after those before: the
// API server's clock has seconds, and the older of two Services has the right to an address.
func (w *world) services() []string {
	older, younger := w.contestedServices()
	pending := w.earlyService()
	pending.balancer = nil
	first := ""
	for _, n := range w.Nodes { // server-side apply takes one address of each type
		first += fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: %s}
status: {addresses: [{type: InternalIP, address: %q}, {type: ExternalIP, address: %q}]}
---`, n.Name, n.V4, n.V6)
	}
	for _, s := range []service{w.externalLocalService(), w.internalLocalService(), w.internalLocalNodePortService(), w.neighborService(),
		w.plainService(), w.likeService(), w.rangesService(), w.logsService(), w.hashService(), w.healthService(), pending, older} {
		first += s.manifest()
	}
	return []string{first, younger.manifest()}
}
