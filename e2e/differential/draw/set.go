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

// Set contains all objects of a cluster, and the setting nodePortAddresses.
type Set struct {
	Nodes    []Node
	Services []Service
	// Strays are EndpointSlices whose Services do not exist.
	Strays    []*discovery.EndpointSlice
	NodePorts []string
}

// Service is a Service with its EndpointSlices.
type Service struct {
	Object *corev1.Service
	Slices []*discovery.EndpointSlice
}

// ID is namespace/name.
func (s Service) ID() string { return s.Object.Namespace + "/" + s.Object.Name }

// Served reports whether the Service is neither headless nor served by another program.
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
	c := Set{Nodes: slices.Clone(s.Nodes), Strays: slices.Clone(s.Strays), NodePorts: s.NodePorts}
	for _, svc := range s.Services {
		c.Services = append(c.Services, svc.clone())
	}
	return c
}

// Only returns a set that contains only the named Services.
func (s Set) Only(ids map[string]bool) Set {
	kept := Set{Nodes: s.Nodes, NodePorts: s.NodePorts}
	for _, svc := range s.Services {
		if ids[svc.ID()] {
			kept.Services = append(kept.Services, svc)
		}
	}
	return kept
}

// Documents returns the Nodes, the Services, and then the slices.
func (s Set) Documents() []Document {
	var docs []Document
	for _, n := range s.Nodes {
		docs = append(docs, n.document())
	}
	for _, svc := range s.Services {
		docs = append(docs, document("Service", svc.Object.Namespace, svc.Object.Name, svc.Object))
	}
	for _, svc := range s.Services {
		for _, slice := range svc.Slices {
			docs = append(docs, document("EndpointSlice", slice.Namespace, slice.Name, slice))
		}
	}
	for _, slice := range s.Strays {
		docs = append(docs, document("EndpointSlice", slice.Namespace, slice.Name, slice))
	}
	return docs
}

// Document is an object and its YAML.
type Document struct {
	Key, YAML string
	Object    any // *corev1.Node, *corev1.Service or *discovery.EndpointSlice
}

func document(kind, namespace, name string, object any) Document {
	text, err := yaml.Marshal(object)
	if err != nil {
		panic(fmt.Sprintf("%s %s/%s cannot be written as YAML: %v", kind, namespace, name, err))
	}
	return Document{Key: kind + " " + namespace + "/" + name, YAML: string(text), Object: object}
}

// YAML returns the set as a single YAML text.
func (s Set) YAML() string {
	docs := s.Documents()
	if s.NodePorts != nil {
		docs = append(docs, document(settings, "", "", map[string]any{"kind": settings, "nodePortAddresses": s.NodePorts}))
	}
	return Join(docs)
}

// settings is the kind of the document that contains NodePorts.
const settings = "KubeProxyConfiguration"

// Join concatenates documents into one text.
func Join(docs []Document) string {
	var b strings.Builder
	for _, d := range docs {
		b.WriteString("---\n")
		b.WriteString(d.YAML)
	}
	return b.String()
}

// document returns a Node object. Its YAML contains only the fields that the programs read.
func (n Node) document() Document {
	object := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
	object.Name, object.Labels = n.Name, map[string]string{}
	if n.Zone != "" {
		object.Labels[corev1.LabelTopologyZone] = n.Zone
	}
	add := func(kind corev1.NodeAddressType, addrs []netip.Addr) {
		for _, a := range addrs {
			object.Status.Addresses = append(object.Status.Addresses, corev1.NodeAddress{Type: kind, Address: a.String()})
		}
	}
	add(corev1.NodeInternalIP, n.Internal)
	add(corev1.NodeExternalIP, n.External)
	d := document("Node", "", n.Name, map[string]any{
		"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{"name": n.Name, "labels": object.Labels},
		"status":   map[string]any{"addresses": object.Status.Addresses},
	})
	d.Object = object
	return d
}

// Parse parses the output of YAML.
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
			if owner, known := byName[o.Namespace+"/"+o.Labels[discovery.LabelServiceName]]; known {
				set.Services[owner].Slices = append(set.Services[owner].Slices, o)
			} else {
				set.Strays = append(set.Strays, o)
			}
		case settings:
			var o struct {
				Kind              string   `json:"kind"`
				NodePortAddresses []string `json:"nodePortAddresses"`
			}
			err = yaml.UnmarshalStrict(doc, &o)
			set.NodePorts = o.NodePortAddresses
		default:
			err = fmt.Errorf("kind %q; it must be Node, Service, EndpointSlice or %s", kind.Kind, settings)
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
		case err != nil: // a host name
		case a.Type == corev1.NodeInternalIP:
			n.Internal = append(n.Internal, addr)
		case a.Type == corev1.NodeExternalIP:
			n.External = append(n.External, addr)
		}
	}
	return n
}
