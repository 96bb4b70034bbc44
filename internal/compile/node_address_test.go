package compile

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// TestNodeAddressIsNotServed: if the agent bound the node's own address as a virtual address, it would close all
// other ports there.
func TestNodeAddressIsNotServed(t *testing.T) {
	nodeIP, good := netip.MustParseAddr("192.168.50.10"), netip.MustParseAddr("10.96.0.1")
	cluster := NewCluster(Config{Host{Families: inet.Families}, Settings{Scheduler: "rr"}})
	cluster.SetAddresses([]netip.Addr{nodeIP}, want.NewTouched())
	services := map[model.ServiceID]*model.Service{}
	for name, ip := range map[string]netip.Addr{"thief": nodeIP, "good": good} {
		id := model.ServiceID{Namespace: "default", Name: name}
		services[id] = &model.Service{ID: id, ClusterIPs: []netip.Addr{ip}, Ports: []model.ServicePort{{Protocol: inet.TCP, Port: 80}}}
	}
	cluster.Update(services, want.NewTouched())

	problems := cluster.Problems(model.ServiceID{Namespace: "default", Name: "thief"})
	if len(problems) != 1 || problems[0].Value != nodeIP.String() || !strings.Contains(problems[0].Reason, "belongs to this node") {
		t.Errorf("problems: %v", problems)
	}
	state := cluster.Want()
	if len(state.ServersAt(nodeIP)) > 0 || len(state.Servers) != 1 || state.Servers[kernel.ServerKey{
		Addr: netip.AddrPortFrom(good, 80), Protocol: inet.TCP,
	}] == nil {
		t.Errorf("got virtual servers %v, want only the good Service's", state.Servers)
	}
}
