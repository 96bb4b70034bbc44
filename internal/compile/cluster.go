package compile

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Cluster compiles a changing cluster: it remembers each Service's fragment and who claims which address, so that a change
// recompiles the Services it concerns and no other.
type Cluster struct {
	cfg      Config
	services map[model.ServiceID]*compiled
	claims   map[kernel.ServerKey][]*model.Service // sorted: the first one has it
	state    *want.State
}

type compiled struct {
	service  *model.Service
	fragment want.Fragment
	problems []model.Problem
}

// NewCluster returns a cluster without Services.
func NewCluster(cfg Config) *Cluster {
	return &Cluster{
		cfg:      cfg,
		services: map[model.ServiceID]*compiled{},
		claims:   map[kernel.ServerKey][]*model.Service{},
		state:    want.New(Base(cfg)),
	}
}

// Want is the wanted state; it changes with Update.
func (c *Cluster) Want() *want.State { return c.state }

// Services counts the Services served.
func (c *Cluster) Services() int { return len(c.services) }

// Problems returns the problems of a Service.
func (c *Cluster) Problems(id model.ServiceID) []model.Problem {
	if s := c.services[id]; s != nil {
		return s.problems
	}
	return nil
}

// Update takes changed Services (nil for a deleted one) and returns the Services that were compiled: the changed ones and
// those whose claims they won, lost or freed. The kernel objects concerned are added to touched.
func (c *Cluster) Update(changed map[model.ServiceID]*model.Service, touched *want.Touched) []model.ServiceID {
	concerned := map[model.ServiceID]struct{}{}
	for id, svc := range changed {
		concerned[id] = struct{}{}
		c.replaceClaims(id, svc, concerned)
	}
	ids := make([]model.ServiceID, 0, len(concerned))
	for id := range concerned {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, model.ServiceID.Compare)

	// All fragments leave before any enters: a key may pass from one Service to another.
	fresh := make([]*compiled, len(ids))
	for i, id := range ids {
		fresh[i] = c.compile(id)
	}
	for _, id := range ids {
		if old := c.services[id]; old != nil {
			c.state.Replace(old.fragment, nil, touched)
		}
	}
	for i, id := range ids {
		if fresh[i].service == nil {
			delete(c.services, id)
			continue
		}
		c.state.Replace(nil, fresh[i].fragment, touched)
		c.services[id] = fresh[i]
	}
	return ids
}

// SetLocalCIDRs changes the ranges whose clients are local, where the configuration takes them from the node's object.
func (c *Cluster) SetLocalCIDRs(cidrs []netip.Prefix, touched *want.Touched) {
	c.cfg.Local.CIDRs = cidrs
	c.state.Base = Base(c.cfg)
	touched.Rules = true
}

// compile compiles a Service as the claims now stand.
func (c *Cluster) compile(id model.ServiceID) *compiled {
	svc := c.services[id].serviceOrNil()
	if svc == nil {
		return &compiled{}
	}
	fragment, problems := Service(svc, c.cfg, c.winner)
	return &compiled{svc, fragment, problems}
}

func (c *compiled) serviceOrNil() *model.Service {
	if c == nil {
		return nil
	}
	return c.service
}

func (c *Cluster) winner(key kernel.ServerKey) model.ServiceID { return c.claims[key][0].ID }

// replaceClaims puts the claims of a Service's new version in place of the old one's. Whoever else claims one of these keys
// is concerned, because the first in line may now be another.
func (c *Cluster) replaceClaims(id model.ServiceID, svc *model.Service, concerned map[model.ServiceID]struct{}) {
	old := c.services[id]
	if old == nil {
		old = &compiled{}
		c.services[id] = old
	}
	for _, key := range keysOrNone(old.service, c.cfg) {
		left := slices.DeleteFunc(c.claims[key], func(s *model.Service) bool { return s.ID == id })
		c.setClaims(key, left)
		concernAll(left, concerned)
	}
	for _, key := range keysOrNone(svc, c.cfg) {
		if slices.ContainsFunc(c.claims[key], func(s *model.Service) bool { return s.ID == id }) {
			continue // the Service names this port twice
		}
		line := append(c.claims[key], svc)
		slices.SortFunc(line, (*model.Service).Compare)
		c.setClaims(key, line)
		concernAll(line, concerned)
	}
	// The fragment stays: it is what the wanted state still holds until Update takes it out.
	c.services[id] = &compiled{svc, old.fragment, old.problems}
}

func (c *Cluster) setClaims(key kernel.ServerKey, line []*model.Service) {
	if len(line) == 0 {
		delete(c.claims, key)
		return
	}
	c.claims[key] = line
}

func concernAll(services []*model.Service, concerned map[model.ServiceID]struct{}) {
	for _, s := range services {
		concerned[s.ID] = struct{}{}
	}
}

func keysOrNone(svc *model.Service, cfg Config) []kernel.ServerKey {
	if svc == nil {
		return nil
	}
	return keys(svc, cfg)
}
