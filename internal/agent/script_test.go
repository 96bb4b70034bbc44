package agent_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// scripts maps names to sequences of cluster states.
var scripts = map[string][]services{
	"create, scale, unready, delete, recreate": {
		all(compiletest.Service("web", "10.96.0.1", "10.244.0.1")),
		all(compiletest.Service("web", "10.96.0.1", "10.244.0.1", "10.244.0.2", "10.244.1.3")),
		all(unready(compiletest.Service("web", "10.96.0.1", "10.244.0.1", "10.244.0.2"), 0)),
		all(compiletest.Service("web", "10.96.0.1")),
		all(),
		all(compiletest.Service("web", "10.96.0.1", "10.244.0.2")),
	},
	"change ports and affinity": {
		all(compiletest.Service("web", "10.96.0.1", "10.244.0.1"), compiletest.Service("db", "fd00:10:96::1", "fd00:10:244::1")),
		all(onPort(compiletest.Service("web", "10.96.0.1", "10.244.0.1"), 81, 8080), compiletest.Service("db", "fd00:10:96::1")),
		all(onPort(compiletest.Service("web", "10.96.0.1", "10.244.0.1"), 81, 9090), sticky(compiletest.Service("db", "fd00:10:96::1", "fd00:10:244::1"))),
		all(sticky(onPort(compiletest.Service("web", "10.96.0.1", "10.244.0.1"), 80, 9090))),
	},
	"an IP is reused": {
		all(compiletest.Service("old", "10.96.0.1", "10.244.0.1"), compiletest.Service("other", "10.96.0.2", "10.244.0.1")),
		all(compiletest.Service("new", "10.96.0.1", "10.244.0.1"), compiletest.Service("other", "10.96.0.2", "10.244.0.2")),
		all(compiletest.Service("new", "10.96.0.2", "10.244.0.1"), compiletest.Service("other", "10.96.0.1", "10.244.0.2")),
		all(younger(compiletest.Service("new", "10.96.0.1", "10.244.0.3")), compiletest.Service("other", "10.96.0.1", "10.244.0.2")),
		all(younger(compiletest.Service("new", "10.96.0.1", "10.244.0.3"))),
	},
	"UDP and SCTP": {
		all(proto(compiletest.Service("dns", "10.96.0.1", "10.244.0.1", "10.244.0.2"), inet.UDP)),
		all(proto(compiletest.Service("dns", "10.96.0.1", "10.244.0.2", "10.244.0.3"), inet.UDP), proto(compiletest.Service("sip", "10.96.0.1", "10.244.0.1"), inet.SCTP)),
		all(proto(compiletest.Service("sip", "10.96.0.1", "10.244.0.3"), inet.SCTP)),
	},
	"node port, load balancer": {
		all(web()),
		all(onNodes(web(), 30080), compiletest.Service("db", "fd00:10:96::1", "fd00:10:244::1")),
		all(balanced(onNodes(web(), 30080), "203.0.113.1"), onNodes(compiletest.Service("db", "fd00:10:96::1", "fd00:10:244::1"), 30080)),
		all(balanced(onNodes(web(), 30081), "203.0.113.2", "192.0.2.1")),
		all(balanced(web(), "192.0.2.1")),
		all(compiletest.Service("other", "10.96.0.2", "10.244.0.2"), onNodes(younger(web()), 30080)),
	},
	"source ranges": {
		all(balanced(web(), "203.0.113.1")),
		all(ranges(balanced(web(), "203.0.113.1"), "198.51.100.0/24")),
		all(ranges(balanced(web(), "203.0.113.1"), "198.51.100.0/24", "198.51.100.7/32", "192.0.2.0/24")),
		all(ranges(balanced(web(), "203.0.113.1", "203.0.113.2"), "198.51.100.7/32")),
		all(ranges(balanced(web(), "203.0.113.1"), "0.0.0.0/0")),
		all(ranges(balanced(web(), "203.0.113.1"), "2001:db8::/32")),
	},
	"affinity of all ports": {
		all(shop("10.244.0.1")),
		all(together(shop("10.244.0.1", "10.244.0.2"))),
		all(together(balanced(shop("10.244.0.2"), "203.0.113.1"))),
		all(together(shop()), onPort(balanced(compiletest.Service("other", "10.96.0.2", "10.244.0.3"), "10.96.0.1"), 81, 81)),
		all(shop("10.244.0.1"), together(onPort(sticky(compiletest.Service("other", "10.96.0.1", "10.244.0.3")), 81, 81))),
	},
	"policies": {
		all(balanced(onNodes(local(web("10.244.0.1")), 30080), "203.0.113.1")),
		all(balanced(onNodes(local(remote(web("10.244.1.1"))), 30080), "203.0.113.1")),
		all(ranges(balanced(onNodes(local(remote(web("10.244.1.1"))), 30080), "203.0.113.1"), "198.51.100.0/24")),
		all(balanced(onNodes(remote(web("10.244.1.1")), 30080), "203.0.113.1")),
		all(balanced(onNodes(local(remote(web())), 30080), "203.0.113.1")),
		all(balanced(onNodes(local(remote(web("10.244.1.2"))), 30080), "203.0.113.1")),
		all(balanced(onNodes(local(web("10.244.0.2")), 30080), "203.0.113.1")),
	},
}

func onNodes(svc *model.Service, port uint16) *model.Service {
	svc.Ports[0].NodePort = port
	return svc
}

func balanced(svc *model.Service, addrs ...string) *model.Service {
	for _, a := range addrs {
		svc.LoadBalancerIPs = append(svc.LoadBalancerIPs, netip.MustParseAddr(a))
	}
	return svc
}

func ranges(svc *model.Service, cidrs ...string) *model.Service {
	for _, c := range cidrs {
		svc.SourceRanges = append(svc.SourceRanges, netip.MustParsePrefix(c))
	}
	return svc
}

func local(svc *model.Service) *model.Service {
	svc.InternalLocal, svc.ExternalLocal = true, true
	return svc
}

func remote(svc *model.Service) *model.Service {
	for i := range svc.Slices[0].Endpoints {
		svc.Slices[0].Endpoints[i].Node = "node-b"
	}
	return svc
}

func all(list ...*model.Service) services {
	s := services{}
	for _, svc := range list {
		s[svc.ID] = svc
	}
	return s
}

func unready(svc *model.Service, endpoint int) *model.Service {
	svc.Slices[0].Endpoints[endpoint].Ready = false
	return svc
}

func onPort(svc *model.Service, port, target uint16) *model.Service {
	svc.Ports[0].Port, svc.Slices[0].Ports[0].Port = port, target
	return svc
}

func sticky(svc *model.Service) *model.Service {
	svc.AffinityTimeout = time.Hour
	return svc
}

func younger(svc *model.Service) *model.Service {
	svc.Created = svc.Created.Add(time.Hour)
	return svc
}

func proto(svc *model.Service, p inet.Protocol) *model.Service {
	svc.Ports[0].Protocol, svc.Slices[0].Ports[0].Protocol = p, p
	return svc
}

// replays contains the ways to deliver a script to an agent.
var replays = map[string]func(*world, []services){
	"whole": func(w *world, script []services) {
		for _, step := range script {
			w.change(compiletest.Between(w.services, step))
		}
	},
	"reversed": func(w *world, script []services) {
		for _, step := range slices.Backward(script) {
			w.change(compiletest.Between(w.services, step))
		}
	},
	"split": func(w *world, script []services) {
		for _, step := range script {
			changes := compiletest.Between(w.services, step)
			for _, id := range slices.SortedFunc(maps.Keys(changes), model.ServiceID.Compare) {
				w.change(services{id: changes[id]})
				w.sleep(50 * time.Millisecond)
			}
		}
	},
	"doubled": func(w *world, script []services) {
		for _, step := range script {
			changes := compiletest.Between(w.services, step)
			w.change(changes)
			w.change(changes)
			w.sleep(time.Second)
		}
	},
	"all states at the same time": func(w *world, script []services) {
		for _, step := range script {
			changes := compiletest.Between(w.services, step)
			maps.Copy(w.services, changes)
			maps.DeleteFunc(w.services, func(_ model.ServiceID, s *model.Service) bool { return s == nil })
			w.source.put(changes)
		}
	},
	"with restarts": func(w *world, script []services) {
		for _, step := range script {
			w.change(compiletest.Between(w.services, step))
			w.restart()
		}
	},
	"while the agent writes": func(w *world, script []services) {
		w.calm()
		w.audit()
		w.agent.SetPartSize(2)
		next := func() services {
			changes := compiletest.Between(w.services, script[0])
			w.services, script = maps.Clone(script[0]), script[1:]
			return changes
		}
		w.fake.OnOp(func(op kernel.Op, err error) {
			w.checkStep(op, err)
			if len(script) > 0 {
				w.source.put(next())
			}
		})
		for len(script) > 0 {
			w.source.put(next())
			w.sleep(2 * drainInterval)
		}
		w.is() // before an audit
	},
	"with audits": func(w *world, script []services) {
		for _, step := range script {
			w.change(compiletest.Between(w.services, step))
			w.audit()
		}
	},
}

// I6: the kernel reaches the wanted state despite failures, no matter how changes are delivered.
func TestScriptsConverge(t *testing.T) {
	for name, script := range scripts {
		for how, replay := range replays {
			t.Run(name+"/"+how, func(t *testing.T) {
				bubble(t, func(w *world) {
					w.start()
					replay(w, script)
					w.converged()
				})
			})
		}
	}
}

// I6 also holds for random changes to Services, nodes and addresses without pauses between them.
func TestRandomChangesConverge(t *testing.T) {
	const changes = 30
	t.Attr("figure", fmt.Sprintf("%d changes, compared after every %d", changes*3**seeds**rounds, changes))
	for seed := range 3 * *seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, seed)
				r := rand.New(rand.NewPCG(seed, 1))
				w.start()
				defer func() { w.stop() }()
				for round := range *rounds {
					w.fail(seed + round<<32)
					for range changes {
						w.changeRandomly(r)
					}
					w.converged()
				}
			})
		})
	}
}

func (w *world) changeRandomly(r *rand.Rand) {
	name := compiletest.Small.Names[r.IntN(len(compiletest.Small.Names))]
	switch r.IntN(8) {
	case 0, 1:
		w.remove(name)
	case 2:
		w.move(compiletest.Small.Surroundings(r))
	default:
		w.put(compiletest.Small.Service(name, r))
	}
	w.sleep(time.Duration(r.IntN(200)) * time.Millisecond)
	if r.IntN(10) == 0 {
		w.restart()
	}
}
