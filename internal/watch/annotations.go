package watch

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

const annotationPrefix = "kube-ipvs.io/"

// annotation is one row of the table that defines how annotations are parsed and documented.
type annotation[T any] struct {
	// Alias is kube-router's name for the annotation. It is used if Key is missing or invalid.
	Key, Alias              string
	Valid, Meaning, Example string
	parse                   func(into *T, value string) error
}

// The parsers run in this order.
var serviceAnnotations = []annotation[model.Service]{
	{
		Key: annotationPrefix + "scheduler", Alias: "kube-router.io/service.scheduler",
		Valid:   "one of " + strings.Join(model.Schedulers, ", "),
		Meaning: "IPVS scheduler for all virtual servers of the Service", Example: "lc",
		parse: func(s *model.Service, v string) error {
			if !model.KnownScheduler(v) {
				return fmt.Errorf("must be one of %s", strings.Join(model.Schedulers, ", "))
			}
			s.Balancing.Scheduler = v
			return nil
		},
	},
	{
		Key: annotationPrefix + "scheduler-flags", Alias: "kube-router.io/service.schedflags",
		Valid: "a comma-separated list of sh-fallback, sh-port (scheduler sh) or mh-fallback, mh-port (scheduler mh); or none. " +
			"flag-1 and flag-2 are aliases for the scheduler's first and second flag",
		Meaning: "flags of the scheduler in the annotation above. With port, connections from the same client are spread over endpoints; " +
			"with fallback, IPVS skips endpoints that accept no new connections. Default: sh-fallback; mh-fallback,mh-port",
		Example: "mh-fallback", parse: parseSchedulerFlags,
	},
	{
		Key:     annotationPrefix + "affinity-timeout",
		Valid:   "a duration from 1s to 744h (31 days)",
		Meaning: "keeps a client on its endpoint until the client has opened no connection for this time; overrides sessionAffinity", Example: "10m",
		parse: func(s *model.Service, v string) (err error) {
			s.AffinityTimeout, err = duration(v, time.Second, 31*24*time.Hour)
			s.Balancing.AffinitySet = true
			return err
		},
	},
	{
		Key:     annotationPrefix + "affinity-prefix-ipv4",
		Valid:   "a number of bits from 1 to 32",
		Meaning: "treats all IPv4 clients of one subnet as one client; requires session affinity", Example: "24",
		parse: func(s *model.Service, v string) error { return number(&s.Balancing.ClientBits4, v, 1, 32) },
	},
	{
		Key:     annotationPrefix + "affinity-prefix-ipv6",
		Valid:   "a number of bits from 1 to 128",
		Meaning: "treats all IPv6 clients of one subnet as one client; requires session affinity", Example: "64",
		parse: func(s *model.Service, v string) error { return number(&s.Balancing.ClientBits6, v, 1, 128) },
	},
	{
		Key:   annotationPrefix + "affinity-ports",
		Valid: "each or all",
		Meaning: "with all, a client gets the same endpoint on all ports of an address that have the same protocol (each node port keeps its own affinity); " +
			"requires session affinity, ports that equal their target ports, and the same endpoints on all ports. Default: each",
		Example: "all",
		parse: func(s *model.Service, v string) error {
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
		Meaning: "balances every UDP datagram separately, for pods that send datagrams and expect no response", Example: "true",
		parse: func(s *model.Service, v string) (err error) {
			s.Balancing.OnePacket, err = boolean(v)
			return err
		},
	},
	{
		Key:   annotationPrefix + "proxy-protocol",
		Valid: "v1, v2 or none",
		Meaning: "TCP connections to endpoints begin with a header of the PROXY protocol, which contains the client's address. " +
			"Only the [data plane in user space](data-planes.md#clients-addresses) sends it, and all endpoints must expect it. Default: none",
		Example: "v2",
		parse: func(s *model.Service, v string) error {
			version, known := map[string]uint8{"none": 0, "v1": 1, "v2": 2}[v]
			if !known {
				return errors.New("must be v1, v2 or none")
			}
			s.Balancing.ProxyProtocol = version
			return nil
		},
	},
	{
		Key:     annotationPrefix + "max-connections",
		Valid:   "a number from 1 to 2147483647",
		Meaning: "an endpoint gets no new connections while it has this many; each node counts only its own connections", Example: "1000",
		parse: func(s *model.Service, v string) error {
			return number(&s.Balancing.MaxConnections, v, 1, model.MaxConnectionLimit)
		},
	},
	{
		Key:     annotationPrefix + "resume-connections",
		Valid:   "a number below max-connections",
		Meaning: "an endpoint that has reached max-connections gets new connections again when it has fewer than this number. Default: three quarters of max-connections",
		Example: "800",
		parse: func(s *model.Service, v string) error {
			return number(&s.Balancing.ResumeConnections, v, 1, model.MaxConnectionLimit)
		},
	},
	{
		Key:     annotationPrefix + "weight",
		Valid:   "a number from 0 to 2147483647",
		Meaning: "weight of endpoints to which none of the next three annotations applies. Default: 1", Example: "100",
		parse: func(s *model.Service, v string) error {
			s.Balancing.Weights.DefaultSet = true
			return number(&s.Balancing.Weights.Default, v, 0, model.MaxWeight)
		},
	},
	{
		Key:     annotationPrefix + "weight-by-zone",
		Valid:   "comma-separated list of zone=weight, with weights as above",
		Meaning: "weight of the endpoints in a zone", Example: "zone-a=10,zone-b=1",
		parse: func(s *model.Service, v string) error { return namedWeights(&s.Balancing.Weights.Zones, v) },
	},
	{
		Key:     annotationPrefix + "weight-by-node",
		Valid:   "comma-separated list of node=weight",
		Meaning: "weight of the endpoints on a node; takes precedence over the weight of the zone", Example: "big-node=4",
		parse: func(s *model.Service, v string) error { return namedWeights(&s.Balancing.Weights.Nodes, v) },
	},
	{
		Key:     annotationPrefix + "weight-by-pod",
		Valid:   "comma-separated list of pod=weight, for pods in the namespace of the Service",
		Meaning: "weight of an endpoint; takes precedence over the weight of the node. 0 drains the endpoint: it gets no new connections, but open ones continue",
		Example: "web-0=0,canary-1=5",
		parse: func(s *model.Service, v string) error {
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
		Meaning: "raises the weight of a new endpoint to its full value over this time", Example: "60s",
		parse: func(s *model.Service, v string) (err error) {
			s.Balancing.SlowStart, err = duration(v, time.Second, time.Hour)
			return err
		},
	},
}

var nodeAnnotations = []annotation[model.Node]{
	{
		Key:     annotationPrefix + "weight",
		Valid:   "a number from 0 to 2147483647",
		Meaning: "multiplies the weights of all endpoints on the node. 0 drains the node: its endpoints get no new connections, but open ones continue",
		Example: "4",
		parse: func(n *model.Node, v string) error {
			n.WeightSet = true
			return number(&n.Weight, v, 0, model.MaxWeight)
		},
	},
}

// An invalid annotation is a Problem and counts as missing.
func annotate[T any](into *T, annotations map[string]string, table []annotation[T], p *Problems) {
	for _, row := range table {
		for _, key := range []string{row.Key, row.Alias} {
			value, given := annotations[key]
			if !given || key == "" {
				continue
			}
			before := *into
			err := row.parse(into, strings.TrimSpace(value))
			if err == nil {
				break
			}
			*into = before
			p.Add("metadata.annotations["+key+"]", value, "%v. The annotation has no effect", err)
		}
	}
	unknownAnnotations(annotations, table, p)
}

func unknownAnnotations[T any](annotations map[string]string, table []annotation[T], p *Problems) {
	var unknown []string
	for key := range annotations {
		known := slices.ContainsFunc(table, func(row annotation[T]) bool { return row.Key == key })
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
		p.AddWithRemedy("metadata.annotations["+key+"]", annotations[key],
			"unknown kube-ipvs.io annotation for this kind of object; ignored", "use one of these names after the slash: "+strings.Join(valid, ", "))
	}
}

// balancing parses the annotations of a Service and checks that they are consistent with each other and with the Service.
func balancing(s *model.Service, annotations map[string]string, p *Problems) {
	annotate(s, annotations, serviceAnnotations, p)
	b := &s.Balancing
	wrong := func(name, format string, args ...any) {
		key := annotationPrefix + name
		p.Add("metadata.annotations["+key+"]", annotations[key], format+". The annotation has no effect", args...)
	}
	if b.ResumeConnections > 0 && b.ResumeConnections >= b.MaxConnections {
		wrong("resume-connections", "must be less than the value of the annotation %smax-connections", annotationPrefix)
		b.ResumeConnections = 0
	}
	if b.ClientBits4 > 0 {
		b.ClientBits4 = clientPrefix(s, inet.IPv4, b.ClientBits4, "affinity-prefix-ipv4", wrong)
	}
	if b.ClientBits6 > 0 {
		b.ClientBits6 = clientPrefix(s, inet.IPv6, b.ClientBits6, "affinity-prefix-ipv6", wrong)
	}
	if b.AllPorts && s.AffinityTimeout == 0 {
		wrong("affinity-ports", requiresAffinity)
		b.AllPorts = false
	}
	if b.OnePacket && !hasPort(s, inet.UDP) {
		wrong("one-packet", "requires a UDP port, and the Service has none")
		b.OnePacket = false
	}
	if b.ProxyProtocol > 0 && !hasPort(s, inet.TCP) {
		wrong("proxy-protocol", "requires a TCP port, and the Service has none")
		b.ProxyProtocol = 0
	}
}

func hasPort(s *model.Service, protocol inet.Protocol) bool {
	return slices.ContainsFunc(s.Ports, func(port model.ServicePort) bool { return port.Protocol == protocol })
}

const requiresAffinity = "requires session affinity: set spec.sessionAffinity to ClientIP, or the annotation " + annotationPrefix + "affinity-timeout"

// clientPrefix returns the number of address bits that identify a client, or 0 if the annotation has no effect.
func clientPrefix(s *model.Service, f inet.Family, bits uint8, name string, wrong func(name, format string, args ...any)) uint8 {
	ofFamily := func(a netip.Addr) bool { return inet.FamilyOf(a) == f }
	switch {
	case s.AffinityTimeout == 0:
		wrong(name, requiresAffinity)
	case !slices.ContainsFunc(s.ClusterIPs, ofFamily):
		wrong(name, "applies to %s, but the Service has no %[1]s address", f)
	default:
		return bits
	}
	return 0
}

func parseSchedulerFlags(s *model.Service, value string) error {
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
		return 0, errors.New("requires a valid annotation " + annotationPrefix + "scheduler")
	case len(valid) == 0:
		return 0, fmt.Errorf("must be none: the scheduler %s has no flags", scheduler)
	}
	return 0, fmt.Errorf("%q is not a flag of the scheduler %s: must be none, or a list of %s",
		clip(name, maxValue), scheduler, strings.Join(valid, ", "))
}

func namedWeights(into *[]model.NamedWeight, value string) error {
	var list []model.NamedWeight
	for pair := range strings.SplitSeq(value, ",") {
		name, text, ok := strings.Cut(strings.TrimSpace(pair), "=")
		w := model.NamedWeight{Name: strings.TrimSpace(name)}
		if !ok || w.Name == "" || strings.Contains(w.Name, "/") {
			return fmt.Errorf("%q must be name=weight, such as web-0=5, without a namespace; separate entries with commas",
				clip(pair, maxValue))
		}
		if err := number(&w.Weight, strings.TrimSpace(text), 0, model.MaxWeight); err != nil {
			return fmt.Errorf("the weight of %q: %w", clip(w.Name, maxValue), err)
		}
		list = append(list, w)
	}
	slices.SortFunc(list, func(a, b model.NamedWeight) int { return strings.Compare(a.Name, b.Name) })
	for i := range list[1:] {
		if list[i].Name == list[i+1].Name {
			return fmt.Errorf("%q must appear only once", clip(list[i].Name, maxValue))
		}
	}
	*into = list
	return nil
}

func number[N uint8 | uint32](into *N, value string, least, most uint64) error {
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil || n < least || n > most {
		return fmt.Errorf("must be an integer from %d to %d", least, most)
	}
	*into = N(n)
	return nil
}

// A number without a unit is in seconds.
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
