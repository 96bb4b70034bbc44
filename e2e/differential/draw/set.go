package draw

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Set is a whole cluster's objects.
type Set struct {
	Nodes    []Node
	Services []Service
}

// Service is a Service with its EndpointSlices.
type Service struct {
	Object *corev1.Service
	Slices []*discovery.EndpointSlice
}

// ID is namespace/name.
func (s Service) ID() string { return s.Object.Namespace + "/" + s.Object.Name }

// Served says whether a node's proxy has anything to do with the Service.
func (s Service) Served() bool {
	o := s.Object
	return o.Labels[otherProxy] == "" && o.Spec.ClusterIP != "" && o.Spec.ClusterIP != corev1.ClusterIPNone
}

func (s Service) clone() Service {
	c := Service{Object: s.Object.DeepCopy()}
	for _, slice := range s.Slices {
		c.Slices = append(c.Slices, slice.DeepCopy())
	}
	return c
}

// Clone copies everything.
func (s Set) Clone() Set {
	c := Set{Nodes: slices.Clone(s.Nodes)}
	for _, svc := range s.Services {
		c.Services = append(c.Services, svc.clone())
	}
	return c
}

// Only keeps the Services with these names.
func (s Set) Only(ids map[string]bool) Set {
	kept := Set{Nodes: s.Nodes}
	for _, svc := range s.Services {
		if ids[svc.ID()] {
			kept.Services = append(kept.Services, svc)
		}
	}
	return kept
}

// Documents are the objects as YAML, by kind and name: Nodes, Services and then their slices, each in the order of the set.
func (s Set) Documents() []Document {
	var docs []Document
	for _, n := range s.Nodes {
		docs = append(docs, document("Node", "", n.Name, n.object()))
	}
	for _, svc := range s.Services {
		docs = append(docs, document("Service", svc.Object.Namespace, svc.Object.Name, svc.Object))
	}
	for _, svc := range s.Services {
		for _, slice := range svc.Slices {
			docs = append(docs, document("EndpointSlice", slice.Namespace, slice.Name, slice))
		}
	}
	return docs
}

// Document is one object as YAML.
type Document struct{ Key, YAML string }

func document(kind, namespace, name string, object any) Document {
	text, err := yaml.Marshal(object)
	if err != nil {
		panic(fmt.Sprintf("%s %s/%s cannot be written as YAML: %v", kind, namespace, name, err))
	}
	return Document{Key: kind + " " + namespace + "/" + name, YAML: string(text)}
}

// YAML is the set as one text.
func (s Set) YAML() string { return Join(s.Documents()) }

// Join is documents as one text.
func Join(docs []Document) string {
	var b strings.Builder
	for _, d := range docs {
		b.WriteString("---\n")
		b.WriteString(d.YAML)
	}
	return b.String()
}

// object is the Node with what the programs read of it, and no more.
func (n Node) object() map[string]any {
	addresses := []map[string]string{}
	add := func(kind corev1.NodeAddressType, addrs []netip.Addr) {
		for _, a := range addrs {
			addresses = append(addresses, map[string]string{"type": string(kind), "address": a.String()})
		}
	}
	add(corev1.NodeInternalIP, n.Internal)
	add(corev1.NodeExternalIP, n.External)
	labels := map[string]string{}
	if n.Zone != "" {
		labels[corev1.LabelTopologyZone] = n.Zone
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{"name": n.Name, "labels": labels},
		"status":   map[string]any{"addresses": addresses},
	}
}

// Parse reads what YAML wrote.
func Parse(text []byte) (Set, error) {
	var set Set
	byName := map[string]int{}
	for i, doc := range bytes.Split(text, []byte("---\n")) {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			return set, fmt.Errorf("document %d: %w", i, err)
		}
		var err error
		switch kind.Kind {
		case "":
		case "Node":
			o := &corev1.Node{}
			err = yaml.UnmarshalStrict(doc, o)
			set.Nodes = append(set.Nodes, nodeOf(o))
		case "Service":
			o := &corev1.Service{}
			err = yaml.UnmarshalStrict(doc, o)
			byName[o.Namespace+"/"+o.Name] = len(set.Services)
			set.Services = append(set.Services, Service{Object: o})
		case "EndpointSlice":
			o := &discovery.EndpointSlice{}
			err = yaml.UnmarshalStrict(doc, o)
			owner, known := byName[o.Namespace+"/"+o.Labels[discovery.LabelServiceName]]
			if err == nil && !known {
				err = fmt.Errorf("EndpointSlice %s/%s: its Service does not come before it", o.Namespace, o.Name)
			}
			if err == nil {
				set.Services[owner].Slices = append(set.Services[owner].Slices, o)
			}
		default:
			err = fmt.Errorf("kind %q: want Node, Service or EndpointSlice", kind.Kind)
		}
		if err != nil {
			return set, fmt.Errorf("document %d: %w", i, err)
		}
	}
	return set, nil
}

func nodeOf(o *corev1.Node) Node {
	n := Node{Name: o.Name, Zone: o.Labels[corev1.LabelTopologyZone]}
	for _, a := range o.Status.Addresses {
		addr, err := netip.ParseAddr(a.Address)
		switch {
		case err != nil: // a name
		case a.Type == corev1.NodeInternalIP:
			n.Internal = append(n.Internal, addr)
		case a.Type == corev1.NodeExternalIP:
			n.External = append(n.External, addr)
		}
	}
	return n
}
