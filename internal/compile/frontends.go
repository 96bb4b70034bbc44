package compile

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// frontend is the address, port and protocol at which clients reach a Service port.
type frontend struct {
	key  kernel.ServerKey
	kind frontendKind
	// port is the index in the Service's ports.
	port int
	// ownAddress is true if the address is the node's own, and therefore not bound to kube-ipvs0.
	ownAddress bool
	// field and value identify the part of the Service that requests the frontend.
	field, value string
}

type frontendKind uint8

const (
	clusterIP frontendKind = iota
	loadBalancerIP
	externalIP
	nodePort
	// healthCheck is not a frontend, but it can be claimed: see nodeWideClaims.
	healthCheck
)

type addressGroup struct {
	kind  frontendKind
	field string
	addrs []netip.Addr
}

// addressGroups returns the groups in order of precedence, which matters if a Service has one address in two groups. Groups that restrict clients
// come before groups that do not.
func addressGroups(svc *model.Service) []addressGroup {
	return []addressGroup{
		{clusterIP, "spec.clusterIPs", svc.ClusterIPs},
		{loadBalancerIP, "status.loadBalancer.ingress", svc.LoadBalancerIPs},
		{externalIP, "spec.externalIPs", svc.ExternalIPs},
	}
}

func hasFamily(svc *model.Service, f inet.Family) bool {
	return slices.ContainsFunc(svc.ClusterIPs, func(a netip.Addr) bool { return inet.FamilyOf(a) == f })
}

// unique keeps the first frontend with each key.
func unique(all []frontend) []frontend {
	seen := make(map[kernel.ServerKey]struct{}, len(all))
	return slices.DeleteFunc(all, func(f frontend) bool {
		_, duplicate := seen[f.key]
		seen[f.key] = struct{}{}
		return duplicate
	})
}

// FrontendKey identifies a frontend that may already be in the kernel: its virtual server, and whether the address is a ClusterIP.
type FrontendKey struct {
	Key       kernel.ServerKey
	ClusterIP bool
}

func (f frontend) frontendKey() FrontendKey { return FrontendKey{f.key, f.kind == clusterIP} }

// groupByPort groups frontends by port and family. A group's frontends share their endpoints.
func groupByPort(list []frontend) [][]frontend {
	type portAndFamily struct {
		port   int
		family inet.Family
	}
	var groups [][]frontend
	at := map[portAndFamily]int{}
	for _, f := range list {
		key := portAndFamily{f.port, f.key.Family()}
		i, known := at[key]
		if !known {
			i = len(groups)
			at[key] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], f)
	}
	return groups
}

func isLocal(svc *model.Service, kind frontendKind) bool {
	if kind == clusterIP {
		return svc.InternalLocal
	}
	return svc.ExternalLocal
}

func asksForNodePort(svc *model.Service) bool {
	return svc.HealthCheckPort != 0 || slices.ContainsFunc(svc.Ports, func(p model.ServicePort) bool { return p.NodePort != 0 })
}

func hasAddress(svc *model.Service, addrs map[netip.Addr]struct{}) bool {
	among := func(a netip.Addr) bool {
		_, ok := addrs[a]
		return ok
	}
	return slices.ContainsFunc(svc.ClusterIPs, among) || slices.ContainsFunc(svc.LoadBalancerIPs, among) ||
		slices.ContainsFunc(svc.ExternalIPs, among)
}

// refusal contains the reason why part of a Service cannot be served, and the remedy.
type refusal struct{ reason, remedy string }

func problem(svc *model.Service, field, value, reason, remedy string) model.Problem {
	return model.Problem{Object: svc.ID.Ref(), Service: svc.ID, Field: field, Value: value, Reason: reason, Remedy: remedy}
}

// maxProblems limits the Problems of one Service, because each is a log line and may become an Event.
const maxProblems = 16

// firstOf returns the first problems in their order, without duplicates, and counts the others.
func firstOf(problems []model.Problem) (first []model.Problem, more int) {
	slices.SortFunc(problems, model.Problem.Compare)
	problems = slices.Compact(problems)
	n := min(len(problems), maxProblems)
	return slices.Clone(problems[:n]), len(problems) - n
}

// listed returns the problems of a Service that are shown. unlisted counts problems that are already omitted.
func listed(svc *model.Service, problems []model.Problem, unlisted int) []model.Problem {
	first, more := firstOf(problems)
	if more += unlisted; more > 0 {
		first = append(first, problem(svc, "", "", fmt.Sprintf("%d more problems like these", more), ""))
	}
	return first
}
