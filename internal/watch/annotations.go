package watch

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// annotationPrefix starts every annotation of ours.
const annotationPrefix = "kube-ipvs.io/"

// Annotation is one row of the table that annotations are read by, and documented from.
type Annotation[T any] struct {
	// Key is the annotation's name. Alias is another agent's name for the same thing, read where Key is missing.
	Key, Alias string
	// Valid says which values are, Meaning what they do.
	Valid, Meaning, Example string
	read                    func(into *T, value string) error
}

// ServiceAnnotations are those of Services, in the order in which they are read.
var ServiceAnnotations = []Annotation[model.Service]{
	{
		Key: annotationPrefix + "scheduler", Alias: "kube-router.io/service.scheduler",
		Valid:   "one of " + strings.Join(model.Schedulers, ", "),
		Meaning: "IPVS scheduler of all virtual servers of the Service", Example: "lc",
		read: func(s *model.Service, v string) error {
			if !model.KnownScheduler(v) {
				return fmt.Errorf("must be one of %s", strings.Join(model.Schedulers, ", "))
			}
			s.Balancing.Scheduler = v
			return nil
		},
	},
	{
		Key: annotationPrefix + "scheduler-flags", Alias: "kube-router.io/service.schedflags",
		Valid: "sh-fallback, sh-port for the scheduler sh; mh-fallback, mh-port for mh; several with commas; or none. " +
			"flag-1 and flag-2 are other names for a scheduler's first and second",
		Meaning: "settings of the scheduler in the annotation beside it. With port, connections of one client spread; " +
			"with fallback, an endpoint that takes no new connections is passed over. Not given: sh-fallback; mh-fallback,mh-port",
		Example: "mh-fallback", read: readSchedulerFlags,
	},
	{
		Key:     annotationPrefix + "affinity-timeout",
		Valid:   "a duration from 1s to 744h (31 days)",
		Meaning: "keeps a client with its endpoint for so long after its last connection; overrides sessionAffinity", Example: "10m",
		read: func(s *model.Service, v string) (err error) {
			s.AffinityTimeout, err = duration(v, time.Second, 31*24*time.Hour)
			s.Balancing.AffinitySet = true
			return err
		},
	},
	{
		Key:     annotationPrefix + "affinity-prefix-ipv4",
		Valid:   "a number of bits from 1 to 32",
		Meaning: "takes all IPv4 clients of one subnet for one client; needs session affinity", Example: "24",
		read: func(s *model.Service, v string) error { return number(&s.Balancing.ClientBits4, v, 1, 32) },
	},
	{
		Key:     annotationPrefix + "affinity-prefix-ipv6",
		Valid:   "a number of bits from 1 to 128",
		Meaning: "takes all IPv6 clients of one subnet for one client; needs session affinity", Example: "64",
		read: func(s *model.Service, v string) error { return number(&s.Balancing.ClientBits6, v, 1, 128) },
	},
	{
		Key:   annotationPrefix + "affinity-ports",
		Valid: "each or all",
		Meaning: "with all, a client meets the same endpoint on every port of one protocol at an address (node ports go on by themselves); " +
			"needs session affinity, ports that equal their target ports, and the same endpoints on all of them. each if not given",
		Example: "all",
		read: func(s *model.Service, v string) error {
			if v != "each" && v != "all" {
				return errors.New("must be each or all")
			}
			s.Balancing.AllPorts = v == "all"
			return nil
		},
	},
	{
		Key:     annotationPrefix + "one-packet",
		Valid:   "true or false",
		Meaning: "balances every UDP datagram on its own, for pods that send and expect no answer", Example: "true",
		read: func(s *model.Service, v string) (err error) {
			s.Balancing.OnePacket, err = boolean(v)
			return err
		},
	},
	{
		Key:     annotationPrefix + "max-connections",
		Valid:   "a number from 1 to 4294967295",
		Meaning: "sends an endpoint no new connections while it has so many; every node counts its own", Example: "1000",
		read: func(s *model.Service, v string) error {
			return number(&s.Balancing.MaxConnections, v, 1, math.MaxUint32)
		},
	},
	{
		Key:     annotationPrefix + "resume-connections",
		Valid:   "a number below max-connections",
		Meaning: "how far an endpoint's connections must fall before it gets new ones again; three quarters of max-connections if not given",
		Example: "800",
		read: func(s *model.Service, v string) error {
			return number(&s.Balancing.ResumeConnections, v, 1, math.MaxUint32)
		},
	},
	{
		Key:     annotationPrefix + "weight",
		Valid:   "a number from 0 to 2147483647",
		Meaning: "weight of every endpoint that none of the next three annotations names; 1 if not given", Example: "100",
		read: func(s *model.Service, v string) error {
			s.Balancing.Weights.DefaultSet = true
			return number(&s.Balancing.Weights.Default, v, 0, model.MaxWeight)
		},
	},
	{
		Key:     annotationPrefix + "weight-by-zone",
		Valid:   "zone=weight with weights as above, several with commas",
		Meaning: "weight of the endpoints of a zone", Example: "zone-a=10,zone-b=1",
		read: func(s *model.Service, v string) error { return namedWeights(&s.Balancing.Weights.Zones, v) },
	},
	{
		Key:     annotationPrefix + "weight-by-node",
		Valid:   "node=weight, several with commas",
		Meaning: "weight of the endpoints of a node; counts before the zone's", Example: "big-node=4",
		read: func(s *model.Service, v string) error { return namedWeights(&s.Balancing.Weights.Nodes, v) },
	},
	{
		Key:     annotationPrefix + "weight-by-pod",
		Valid:   "pod=weight, several with commas; pods of the Service's own namespace",
		Meaning: "weight of one endpoint; counts before the node's. 0 drains it: no new connections, open ones go on",
		Example: "web-0=0,canary-1=5",
		read: func(s *model.Service, v string) error {
			err := namedWeights(&s.Balancing.Weights.Pods, v)
			for i := range s.Balancing.Weights.Pods {
				s.Balancing.Weights.Pods[i].Name = s.ID.Namespace + "/" + s.Balancing.Weights.Pods[i].Name
			}
			return err
		},
	},
	{
		Key:     annotationPrefix + "slow-start",
		Valid:   "a duration from 1s to 1h",
		Meaning: "lets the weight of a new endpoint rise to its full value over this time", Example: "60s",
		read: func(s *model.Service, v string) (err error) {
			s.Balancing.SlowStart, err = duration(v, time.Second, time.Hour)
			return err
		},
	},
}

// NodeAnnotations are those of Nodes.
var NodeAnnotations = []Annotation[model.Node]{
	{
		Key:     annotationPrefix + "weight",
		Valid:   "a number from 0 to 2147483647",
		Meaning: "multiplies the weights of all endpoints on the node. 0 drains it: no new connections to its endpoints, open ones go on",
		Example: "4",
		read: func(n *model.Node, v string) error {
			n.WeightSet = true
			return number(&n.Weight, v, 0, model.MaxWeight)
		},
	},
}

// annotate reads the annotations of an object by a table. A bad one is a Problem, and as if it were not there.
func annotate[T any](into *T, annotations map[string]string, table []Annotation[T], p *problems) {
	for _, row := range table {
		key := row.Key
		value, given := annotations[key]
		if !given && row.Alias != "" {
			key = row.Alias
			value, given = annotations[key]
		}
		if !given {
			continue
		}
		before := *into
		if err := row.read(into, strings.TrimSpace(value)); err != nil {
			*into = before
			p.add("metadata.annotations["+key+"]", value, "%v; this annotation is without effect", err)
		}
	}
	unknownAnnotations(annotations, table, p)
}

func unknownAnnotations[T any](annotations map[string]string, table []Annotation[T], p *problems) {
	var unknown []string
	for key := range annotations {
		known := slices.ContainsFunc(table, func(row Annotation[T]) bool { return row.Key == key })
		if strings.HasPrefix(key, annotationPrefix) && !known {
			unknown = append(unknown, key)
		}
	}
	slices.Sort(unknown)
	valid := make([]string, len(table))
	for i, row := range table {
		valid[i] = strings.TrimPrefix(row.Key, annotationPrefix)
	}
	for _, key := range unknown {
		p.add("metadata.annotations["+key+"]", annotations[key],
			"is no annotation of kube-ipvs for this kind of object, and without effect; valid after the slash: %s", strings.Join(valid, ", "))
	}
}

// balancing reads the Service's annotations and checks what they say together.
func balancing(s *model.Service, annotations map[string]string, p *problems) {
	annotate(s, annotations, ServiceAnnotations, p)
	b := &s.Balancing
	wrong := func(name, format string, args ...any) {
		key := annotationPrefix + name
		p.add("metadata.annotations["+key+"]", annotations[key], format+"; this annotation is without effect", args...)
	}
	if b.ResumeConnections > 0 && b.ResumeConnections >= b.MaxConnections {
		wrong("resume-connections", "must be less than the annotation %smax-connections", annotationPrefix)
		b.ResumeConnections = 0
	}
	if b.ClientBits4 > 0 {
		b.ClientBits4 = clientPrefix(s, inet.IPv4, b.ClientBits4, "affinity-prefix-ipv4", wrong)
	}
	if b.ClientBits6 > 0 {
		b.ClientBits6 = clientPrefix(s, inet.IPv6, b.ClientBits6, "affinity-prefix-ipv6", wrong)
	}
	if b.AllPorts && s.AffinityTimeout == 0 {
		wrong("affinity-ports", needsAffinity)
		b.AllPorts = false
	}
	if b.OnePacket && !slices.ContainsFunc(s.Ports, func(port model.ServicePort) bool { return port.Protocol == inet.UDP }) {
		wrong("one-packet", "needs a UDP port, of which this Service has none")
		b.OnePacket = false
	}
}

const needsAffinity = "needs session affinity: set spec.sessionAffinity to ClientIP, or the annotation " + annotationPrefix + "affinity-timeout"

// clientPrefix returns the bits of a client's address that count, or 0 where they have no use.
func clientPrefix(s *model.Service, f inet.Family, bits uint8, name string, wrong func(name, format string, args ...any)) uint8 {
	ofFamily := func(a netip.Addr) bool { return inet.FamilyOf(a) == f }
	switch {
	case s.AffinityTimeout == 0:
		wrong(name, needsAffinity)
	case !slices.ContainsFunc(s.ClusterIPs, ofFamily):
		wrong(name, "is for %s, of which this Service has no address", f)
	default:
		return bits
	}
	return 0
}

// readSchedulerFlags reads the flags of the scheduler that the annotation before it names.
func readSchedulerFlags(s *model.Service, value string) error {
	if value == "none" && s.Balancing.Scheduler != "" {
		s.Balancing.Flags, s.Balancing.FlagsSet = 0, true
		return nil
	}
	var flags model.SchedulerFlags
	for name := range strings.SplitSeq(value, ",") {
		name = strings.TrimSpace(name)
		bit, err := schedulerFlag(s.Balancing.Scheduler, name)
		if err != nil {
			return err
		}
		flags |= bit
	}
	s.Balancing.Flags, s.Balancing.FlagsSet = flags, true
	return nil
}

func schedulerFlag(scheduler, name string) (model.SchedulerFlags, error) {
	valid := model.SchedulerNamed(scheduler).Flags
	for i, flag := range valid {
		if name == flag || name == "flag-"+strconv.Itoa(i+1) {
			return 1 << i, nil
		}
	}
	switch {
	case scheduler == "":
		return 0, errors.New("needs a valid annotation " + annotationPrefix + "scheduler beside it")
	case len(valid) == 0:
		return 0, fmt.Errorf("must be none: the scheduler %s has no flags", scheduler)
	}
	return 0, fmt.Errorf("%q is no flag of the scheduler %s: must be none, or some of %s",
		clip(name, maxValue), scheduler, strings.Join(valid, ", "))
}

// namedWeights reads a list of name=weight.
func namedWeights(into *[]model.NamedWeight, value string) error {
	var list []model.NamedWeight
	for pair := range strings.SplitSeq(value, ",") {
		name, text, ok := strings.Cut(strings.TrimSpace(pair), "=")
		w := model.NamedWeight{Name: strings.TrimSpace(name)}
		if !ok || w.Name == "" || strings.Contains(w.Name, "/") {
			return fmt.Errorf("%q must be name=weight, such as web-0=5, with commas between several; a name without its namespace",
				clip(pair, maxValue))
		}
		if err := number(&w.Weight, strings.TrimSpace(text), 0, model.MaxWeight); err != nil {
			return fmt.Errorf("the weight of %q: %w", clip(w.Name, maxValue), err)
		}
		if slices.ContainsFunc(list, func(o model.NamedWeight) bool { return o.Name == w.Name }) {
			return fmt.Errorf("%q must be named once only", clip(w.Name, maxValue))
		}
		list = append(list, w)
	}
	slices.SortFunc(list, func(a, b model.NamedWeight) int { return strings.Compare(a.Name, b.Name) })
	*into = list
	return nil
}

// number reads a whole number within bounds.
func number[N uint8 | uint32](into *N, value string, least, most uint64) error {
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil || n < least || n > most {
		return fmt.Errorf("must be a whole number from %d to %d", least, most)
	}
	*into = N(n)
	return nil
}

// duration reads a duration of whole seconds within bounds; a number alone is seconds.
func duration(value string, least, most time.Duration) (time.Duration, error) {
	if _, err := strconv.ParseUint(value, 10, 32); err == nil {
		value += "s"
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < least || d > most || d%time.Second != 0 {
		return 0, fmt.Errorf("must be a duration of whole seconds from %s to %s, such as 90s or 10m", least, most)
	}
	return d, nil
}

func boolean(value string) (bool, error) {
	switch value {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, errors.New("must be true or false")
}
