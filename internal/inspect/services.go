package inspect

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// ServiceList is the JSON document of the command services.
type ServiceList struct {
	view.Header
	// Agent is true if an agent responded. Unknown lists missing information.
	Agent   bool           `json:"agent"`
	Unknown []string       `json:"unknown"`
	Items   []view.Service `json:"items"`
}

// Servers are the kernel's virtual servers.
type Servers = map[kernel.ServerKey]kernel.ObservedServer

// JoinServices joins the agent's view with the kernel's virtual servers. If one of them is unavailable, it uses the other: v is nil if no agent
// responds, and unread is the reason why the kernel could not be read.
func JoinServices(v *view.View, servers Servers, mode kernel.Mode, ours func(kernel.ServerKey) bool, unread string) (list ServiceList) {
	switch {
	case v == nil:
		return servicesOfKernel(servers, mode, ours)
	case unread != "":
		list = servicesOfAgent(v.Services, v.Node.Mode, unread)
	default:
		list = ServiceListOf(v.Services, servers, v.Node.Mode)
	}
	list.Unknown = append(list.Unknown, v.Missing()...)
	return list
}

// ServiceListOf joins the agent's Services with the kernel's virtual servers and counters.
func ServiceListOf(services []view.Service, servers Servers, mode kernel.Mode) ServiceList {
	list := ServiceList{Header: view.HeaderOf("ServiceList"), Agent: true, Unknown: []string{}, Items: []view.Service{}}
	for _, s := range services {
		joined := s
		joined.Frontends = slices.Clone(s.Frontends)
		for i := range joined.Frontends {
			join(&joined.Frontends[i], servers, mode)
		}
		list.Items = append(list.Items, joined)
	}
	return list
}

// Select removes the Services of other namespaces. If namespace is empty, it keeps all Services.
func (l *ServiceList) Select(namespace string) error {
	if namespace == "" {
		return nil
	}
	if !l.Agent {
		return errors.New("--namespace: the agent does not respond, and only the agent knows which virtual servers belong to a namespace")
	}
	l.Items = slices.DeleteFunc(l.Items, func(s view.Service) bool { return s.Namespace != namespace })
	return nil
}

// servicesOfAgent lists the agent's Services if the kernel could not be read.
func servicesOfAgent(services []view.Service, mode kernel.Mode, why string) ServiceList {
	items := append([]view.Service{}, services...)
	for i := range items {
		items[i].Frontends = slices.Clone(items[i].Frontends)
		for j := range items[i].Frontends {
			showBalancing(&items[i].Frontends[j], mode)
		}
	}
	return ServiceList{
		Header: view.HeaderOf("ServiceList"), Agent: true, Items: items,
		Unknown: []string{"connections, and whether the kernel still has the agent's objects: " + why},
	}
}

// Uncounted removes the numbers of connections, because the kernel's connections could not be read.
func (l *ServiceList) Uncounted(why string) {
	l.Unknown = append(slices.Clone(l.Unknown), "connections: "+why)
	for _, s := range l.Items {
		for i := range s.Frontends {
			s.Frontends[i].Connections = nil
			for j := range s.Frontends[i].Endpoints {
				s.Frontends[i].Endpoints[j].Connections = nil
			}
		}
	}
}

// showBalancing replaces the scheduler that the Service asks for by what the data plane does.
func showBalancing(f *view.Frontend, mode kernel.Mode) {
	if mode.NFTablesBalances() && f.Scheduler != "" {
		f.Scheduler = kernel.AtRandom
	}
}

// join adds the kernel's state to a frontend. The kernel was read after the agent's view, so its state takes
// precedence.
func join(f *view.Frontend, servers Servers, mode kernel.Mode) {
	if !f.Ours() {
		return // the virtual server in the kernel belongs to another Service or program
	}
	server, exists := servers[ServerOf(*f)]
	if !exists {
		f.State, f.Reason = view.Missing, "the kernel has no such virtual server"
		if mode == kernel.Userspace {
			f.Reason = "the agent's process has not opened this port"
		}
		showBalancing(f, mode)
		return
	}
	server = server.For(f.Address.Port())
	f.Scheduler = server.Scheduler
	showBalancing(f, mode)
	f.Endpoints = slices.Clone(f.Endpoints)
	total := view.Connections{}
	for _, d := range server.Destinations {
		counted := connectionsOf(d)
		total.Active += counted.Active
		total.Inactive += counted.Inactive
		i := slices.IndexFunc(f.Endpoints, func(e view.Endpoint) bool { return e.Address == d.Addr })
		if i < 0 {
			i = len(f.Endpoints)
			f.Endpoints = append(f.Endpoints, view.Endpoint{Address: d.Addr, State: view.UnknownEndpoint})
		}
		e := &f.Endpoints[i]
		weight := d.Weight
		e.Weight, e.Connections = &weight, &counted
		if e.State == view.Stopped && weight == 0 && counted == (view.Connections{}) {
			e.State = view.Drained
		}
	}
	f.Connections = &total
}

func keyOf(f view.Frontend) kernel.ServerKey {
	protocol, _ := inet.ParseProtocol(f.Protocol) // an unknown protocol is 0, which matches no server
	return kernel.ServerKey{Addr: f.Address, Protocol: protocol}
}

// ServerOf returns the virtual server of a frontend.
func ServerOf(f view.Frontend) kernel.ServerKey {
	if f.AllPorts {
		return keyOf(f).AllPorts()
	}
	return keyOf(f)
}

// owner is a frontend with its Service.
type owner struct {
	service  view.Service
	frontend view.Frontend
}

// ownersOf returns the owner of each virtual server, and of each port that a Service uses on an all-ports server.
func ownersOf(services []view.Service) map[kernel.ServerKey]owner {
	owners := map[kernel.ServerKey]owner{}
	for _, s := range services {
		for _, f := range s.Frontends {
			if f.Ours() {
				owners[keyOf(f)] = owner{s, f}
				owners[ServerOf(f)] = owner{s, f}
			}
		}
	}
	return owners
}

func connectionsOf(d kernel.ObservedDestination) view.Connections {
	return view.Connections{Active: uint64(d.Stats.Active), Inactive: uint64(d.Stats.Inactive)}
}

var unknownWithoutAgent = []string{
	"the Service of each virtual server",
	"pods, nodes and zones of endpoints; endpoints that are not ready",
	"the time when an endpoint started to drain, and the origin of settings",
	"problems and missing objects",
}

// servicesOfKernel lists the virtual servers with an owner record, if no agent responds.
func servicesOfKernel(servers Servers, mode kernel.Mode, ours func(kernel.ServerKey) bool) ServiceList {
	list := ServiceList{Header: view.HeaderOf("ServiceList"), Unknown: unknownWithoutAgent, Items: []view.Service{}}
	service := view.Service{Frontends: []view.Frontend{}, Problems: []string{}}
	for _, key := range slices.SortedFunc(maps.Keys(servers), kernel.ServerKey.Compare) {
		if ours(key) {
			service.Frontends = append(service.Frontends, frontendOfKernel(servers[key], mode))
		}
	}
	if len(service.Frontends) > 0 {
		list.Items = append(list.Items, service)
	}
	return list
}

func frontendOfKernel(s kernel.ObservedServer, mode kernel.Mode) view.Frontend {
	f := view.Frontend{
		Kind: view.Unknown, Address: s.Key.Addr, Protocol: s.Key.Protocol.String(), State: view.Served, Scheduler: s.Scheduler,
		Affinity: s.Timeout, Server: s.Server.String(), Settings: []view.Setting{}, SetEntries: []view.SetEntry{}, Endpoints: []view.Endpoint{},
	}
	join(&f, Servers{s.Key: s}, mode)
	for i := range f.Endpoints {
		if *f.Endpoints[i].Weight == 0 {
			f.Endpoints[i].State = view.Draining
		}
	}
	if !slices.ContainsFunc(f.Endpoints, takesConnections) {
		f.State = view.NoEndpoints
	}
	return f
}

func takesConnections(e view.Endpoint) bool { return e.Weight != nil && *e.Weight > 0 }

func endpointOf(f view.Frontend, addr netip.AddrPort) view.Endpoint {
	i := slices.IndexFunc(f.Endpoints, func(e view.Endpoint) bool { return e.Address == addr })
	if i < 0 {
		return view.Endpoint{Address: addr}
	}
	return f.Endpoints[i]
}
