package model

import "cmp"

// Kind is a kind of object in the cluster.
type Kind string

// The kinds of objects. KindFile is used for problems that concern a whole manifest file.
const (
	KindService       Kind = "Service"
	KindEndpointSlice Kind = "EndpointSlice"
	KindNode          Kind = "Node"
	KindFile          Kind = "File"
)

// ObjectRef names an object in the cluster, or a manifest file. Nodes and files have no namespace.
type ObjectRef struct {
	Kind            Kind
	Namespace, Name string
}

// NodeRef names a Node.
func NodeRef(name string) ObjectRef { return ObjectRef{Kind: KindNode, Name: name} }

// FileRef names a manifest file by its path.
func FileRef(path string) ObjectRef { return ObjectRef{Kind: KindFile, Name: path} }

// String returns "Service default/web", "Node worker-1", or the path of a file.
func (r ObjectRef) String() string {
	switch {
	case r.Kind == KindFile:
		return r.Name
	case r.Namespace == "":
		return string(r.Kind) + " " + r.Name
	}
	return string(r.Kind) + " " + r.Namespace + "/" + r.Name
}

// Compare orders by kind, namespace and name.
func (r ObjectRef) Compare(o ObjectRef) int {
	return cmp.Or(cmp.Compare(r.Kind, o.Kind), cmp.Compare(r.Namespace, o.Namespace), cmp.Compare(r.Name, o.Name))
}

// ServiceID names a Service.
type ServiceID struct{ Namespace, Name string }

// Ref returns a reference to the Service.
func (id ServiceID) Ref() ObjectRef { return ObjectRef{KindService, id.Namespace, id.Name} }

func (id ServiceID) String() string { return id.Namespace + "/" + id.Name }

// Compare orders by namespace, then name.
func (id ServiceID) Compare(o ServiceID) int {
	return cmp.Or(cmp.Compare(id.Namespace, o.Namespace), cmp.Compare(id.Name, o.Name))
}

// Vital reports whether every pod needs the Service: the API server, or DNS if dns is true.
func (id ServiceID) Vital(dns bool) bool {
	return id == ServiceID{"default", "kubernetes"} || dns && (id.Namespace == "kube-system" || id.Namespace == "openshift-dns")
}

// ServicePortRef names a port of a Service. Port is empty if the port has no name, or if the reference covers all
// ports.
type ServicePortRef struct {
	Service ServiceID
	Port    string
}

// String returns "default/web:http", or "default/web" if Port is empty.
func (r ServicePortRef) String() string {
	if r.Port == "" {
		return r.Service.String()
	}
	return r.Service.String() + ":" + r.Port
}
