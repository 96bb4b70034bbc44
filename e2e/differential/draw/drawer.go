package draw

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Drawer draws objects. It allocates values that must be unique in the API server: names, ClusterIPs and node ports.
type Drawer struct {
	world World
	rng   *rand.Rand
	batch int
	label string // part of every name, so that no two batches share a name

	drawn     int // Services
	changed   int // how often Change was called
	clusterIP int
	nodePort  int32
	// taken contains special ClusterIPs that are already in use.
	taken map[string]bool
	// known contains the batch's node ports with policy Cluster. Some Service ports must equal one of them.
	known []corev1.ServicePort
}

// New returns a drawer for a batch.
func New(world World, seed uint64, batch int) *Drawer {
	rng := rand.New(rand.NewPCG(seed, uint64(batch)))
	return &Drawer{
		world:     world,
		rng:       rng,
		batch:     batch,
		label:     fmt.Sprintf("b%d", batch),
		clusterIP: 256 + rng.IntN(1<<14),
		nodePort:  30000 + rng.Int32N(500),
		taken:     map[string]bool{},
	}
}

// patience is the maximum number of draws when looking for a Service with a given feature.
const patience = 20000

// Batch draws a set with n Services. Each feature occurs at least Min times.
func (d *Drawer) Batch(n int) Set {
	set := Set{Nodes: slices.Clone(d.world.Nodes), NodePorts: d.nodePortSetting()}
	for _, feature := range Features {
		for d.lacks(set, feature) {
			set.Services = append(set.Services, d.with(feature))
		}
	}
	for len(set.Services) < n {
		set.Services = append(set.Services, d.keep(d.service()))
	}
	set.Strays = d.strays()
	d.rng.Shuffle(len(set.Services), func(i, j int) {
		set.Services[i], set.Services[j] = set.Services[j], set.Services[i]
	})
	return set
}

func (d *Drawer) lacks(set Set, f Feature) bool {
	count := 0
	for _, svc := range set.Services {
		if f.has(d.world, svc) {
			count++
		}
	}
	return count < f.Min
}

func (d *Drawer) with(f Feature) Service {
	for range patience {
		if svc := d.service(); f.has(d.world, svc) {
			return d.keep(svc)
		}
	}
	panic(fmt.Sprintf("none of %d random Services has the feature %q", patience, f.Name))
}

// keep adds a Service to the batch and reserves its addresses and ports.
func (d *Drawer) keep(svc Service) Service {
	d.drawn++
	name := fmt.Sprintf("%s-%03d-%s", d.label, d.drawn, nouns[d.rng.IntN(len(nouns))])
	rename(svc, name)
	d.take(svc)
	return svc
}

// The first letters differ, so that the alphabetical order differs from the order of creation.
var nouns = []string{"api", "cache", "db", "front", "mail", "queue", "shop", "web"}

func rename(svc Service, name string) {
	svc.Object.Name = name
	for i, slice := range svc.Slices {
		slice.Namespace = svc.Object.Namespace
		slice.Name = strings.ToLower(fmt.Sprintf("%s-%s-%d", name, slice.AddressType, i)) // the name contains the family, which is immutable
		slice.Labels["kubernetes.io/service-name"] = name
	}
}

func (d *Drawer) take(svc Service) {
	for _, ip := range svc.Object.Spec.ClusterIPs {
		d.taken[ip] = true
	}
	for _, p := range svc.Object.Spec.Ports {
		d.nodePort = max(d.nodePort, p.NodePort+1)
		if p.NodePort != 0 && svc.Object.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyCluster {
			d.known = append(d.known, p)
		}
	}
	d.nodePort = max(d.nodePort, svc.Object.Spec.HealthCheckNodePort+1)
	d.clusterIP++
}

func one[T any](d *Drawer, list ...T) T   { return list[d.rng.IntN(len(list))] }
func (d *Drawer) chance(percent int) bool { return d.rng.IntN(100) < percent }
