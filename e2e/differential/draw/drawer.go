package draw

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Drawer draws objects. It allocates the values that must be unique in the API server: names, ClusterIPs and
// node ports.
type Drawer struct {
	world World
	rng   *rand.Rand
	batch int
	label string // part of every name, so that two batches share no name

	drawn     int // Services
	changed   int // how often Change was called
	clusterIP int
	nodePort  int32
	// taken contains the special ClusterIPs that Services of this batch already have.
	taken map[string]bool
	// known contains this batch's node ports with the policy Cluster. Some Service ports must be equal to
	// one of them.
	known []corev1.ServicePort
}

// New returns a drawer for one batch.
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

// patience is the maximum number of Services to draw in search of one with a given feature.
const patience = 20000

// Batch draws the world's nodes and n Services, with at least the minimum number for each feature.
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

// with draws Services until one has the feature.
func (d *Drawer) with(f Feature) Service {
	for range patience {
		if svc := d.service(); f.has(d.world, svc) {
			return d.keep(svc)
		}
	}
	panic(fmt.Sprintf("none of %d random Services has the feature %q", patience, f.Name))
}

// keep adds a drawn Service to the batch and marks its addresses and ports as taken.
func (d *Drawer) keep(svc Service) Service {
	d.drawn++
	name := fmt.Sprintf("%s-%03d-%s", d.label, d.drawn, nouns[d.rng.IntN(len(nouns))])
	rename(svc, name)
	d.take(svc)
	return svc
}

// The names begin with different letters, so that the first by name is not always the first drawn.
var nouns = []string{"api", "cache", "db", "front", "mail", "queue", "shop", "web"}

func rename(svc Service, name string) {
	svc.Object.Name = name
	for i, slice := range svc.Slices {
		slice.Namespace = svc.Object.Namespace
		slice.Name = strings.ToLower(fmt.Sprintf("%s-%s-%d", name, slice.AddressType, i)) // a slice's family is immutable
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

// one returns a random element of a list; chance returns true with the given percentage.
func one[T any](d *Drawer, list ...T) T   { return list[d.rng.IntN(len(list))] }
func (d *Drawer) chance(percent int) bool { return d.rng.IntN(100) < percent }
