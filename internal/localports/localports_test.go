package localports

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// sysctls are the sysctls of a host, with the record in a directory.
type sysctls struct {
	chosen, reserved kernel.Ports
	refusal          error
	tries, writes    int
}

func (s *sysctls) host(record string) Host {
	return Host{
		Range:    func() (kernel.Ports, error) { return s.chosen, nil },
		Reserved: func() (kernel.Ports, error) { return s.reserved, nil },
		Reserve: func(p kernel.Ports) error {
			s.tries++
			if s.refusal == nil {
				s.reserved = p
				s.writes++
			}
			return s.refusal
		},
		Record: func() (string, error) { return record, nil },
	}
}

func ports(t interface{ Fatal(...any) }, list string) kernel.Ports {
	p, err := kernel.ParsePorts(list)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestSettle follows one host through changes by Services and by other programs.
func TestSettle(t *testing.T) {
	s := &sysctls{chosen: ports(t, "30000-60999"), reserved: ports(t, "8080,30005")}
	h := s.host(filepath.Join(t.TempDir(), "record"))
	for _, step := range []struct {
		why                    string
		change                 func()
		nodePorts, after, ours string
	}{
		{"no node ports", nil, "", "8080,30005", ""},
		{"ports outside the range", nil, "20000,61000", "8080,30005", ""},
		{"ports in the range, one of them reserved by another program", nil, "30004,30005,30010", "8080,30004-30005,30010", "30004,30010"},
		{"again", nil, "30004,30005,30010", "8080,30004-30005,30010", "30004,30010"},
		{"a port is no longer a node port", nil, "30005,30010", "8080,30005,30010", "30010"},
		{"another program replaces the list", func() { s.reserved = ports(t, "9000-9010") }, "30005,30010", "9000-9010,30005,30010", "30005,30010"},
		{"another program adds to the list", func() { s.reserved = s.reserved.With(ports(t, "30020")) }, "30005,30020", "9000-9010,30005,30020", "30005"},
		{"another program replaces the list, with one of our ports removed", func() { s.reserved = ports(t, "30020") }, "", "30020", ""},
		{"another program reserves a port that was ours", func() { s.reserved = ports(t, "30005,30020") }, "", "30005,30020", ""},
		{"the range no longer has the port", func() { s.reserved, s.chosen = nil, ports(t, "32768-60999") }, "30005", "", ""},
	} {
		if step.change != nil {
			step.change()
		}
		ours, _, err := h.settle(ports(t, step.nodePorts))
		added, err2 := h.Added()
		if err = errors.Join(err, err2); err != nil || s.reserved.String() != step.after || ours.String() != step.ours || added.String() != step.ours {
			t.Errorf("%s: %v reserved, %v ours, %v in the record, error %v; want %s and %s", step.why, s.reserved, ours, added, err, step.after, step.ours)
		}
	}
}

// TestOthersKeepTheirPorts: whatever happens, and even if the agent is killed between two writes, Release leaves what other programs have reserved.
func TestOthersKeepTheirPorts(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		record := filepath.Join(dir, "record")
		_ = os.Remove(record)
		few := rapid.SliceOfN(rapid.Map(rapid.Uint16Range(30000, 30012), func(p uint16) kernel.PortRange { return kernel.PortRange{First: p, Last: p} }), 0, 6)
		s := &sysctls{chosen: ports(t, "30003-30010"), reserved: kernel.Ports(few.Draw(t, "others")).With(nil)}
		others := s.reserved
		h := s.host(record)
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			wanted := kernel.Ports(few.Draw(t, "node ports"))
			s.refusal = nil
			if rapid.Bool().Draw(t, "killed after the record is written") {
				s.refusal = errors.New("killed")
			}
			_, _, err := h.settle(wanted)
			if s.refusal == nil && (err != nil || !slices.Equal(s.reserved, others.With(wanted.Common(s.chosen)))) {
				t.Fatalf("node ports %v, others %v: reserved %v, %v", wanted, others, s.reserved, err)
			}
		}
		s.refusal = nil
		if err := h.Release(); err != nil || !slices.Equal(s.reserved, others) {
			t.Fatalf("%v is left, want %v (%v)", s.reserved, others, err)
		}
		if added, err := h.Added(); err != nil || added != nil {
			t.Fatalf("the record still has %v, %v", added, err)
		}
	})
}

func always() bool { return true }

// TestGuardBecomesActive: after the node has moved to IPVS, the ports of Services that have not changed since are reserved, too.
func TestGuardBecomesActive(t *testing.T) {
	s := &sysctls{chosen: ports(t, "30000-60999")}
	var active atomic.Bool
	synctest.Test(t, func(t *testing.T) {
		g := NewGuard(s.host(filepath.Join(t.TempDir(), "record")), active.Load)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go g.Run(ctx, func(kernel.Ports, error) {})
		g.Update(map[model.ServiceID][]model.LoopbackPort{{Name: "web"}: {{Protocol: inet.TCP, Number: 30080}}}, true)
		synctest.Wait()
		if s.writes != 0 {
			t.Errorf("reserved %v without IPVS", s.reserved)
		}
		active.Store(true)
		g.Update(nil, true)
		synctest.Wait()
		if s.reserved.String() != "30080" {
			t.Errorf("reserved %v", s.reserved)
		}
	})
}

// TestGuard: the guard changes nothing before the first complete sync, and reports an error once.
func TestGuard(t *testing.T) {
	s := &sysctls{chosen: ports(t, "30000-60999")}
	g := NewGuard(s.host(filepath.Join(t.TempDir(), "record")), always)
	type told struct {
		ours kernel.Ports
		err  error
	}
	reports := make(chan told)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.Run(ctx, func(ours kernel.Ports, err error) { reports <- told{ours, err} })
	}()
	web := func(number uint16) map[model.ServiceID][]model.LoopbackPort {
		return map[model.ServiceID][]model.LoopbackPort{{Name: "web"}: {{Protocol: inet.TCP, Number: number}}}
	}
	g.Update(web(30080), false)
	g.Update(web(30081), true)
	if r := <-reports; r.err != nil || r.ours.String() != "30081" || s.writes != 1 {
		t.Errorf("got %v, %v, after %d writes", r.ours, r.err, s.writes)
	}
	g.Update(nil, true) // nothing to report
	g.Update(map[model.ServiceID][]model.LoopbackPort{{Name: "web"}: nil}, false)
	if r := <-reports; r.err != nil || len(r.ours) != 0 || s.writes != 2 {
		t.Errorf("got %v, %v, after %d writes", r.ours, r.err, s.writes)
	}
	stop()
	<-ended
}

// TestRefusedPortsAreNotOurs: if the kernel refuses the list and an administrator then reserves the port, it stays reserved.
func TestRefusedPortsAreNotOurs(t *testing.T) {
	s := &sysctls{chosen: ports(t, "30000-60999"), refusal: errors.New("read-only")}
	h := s.host(filepath.Join(t.TempDir(), "record"))
	if _, _, err := h.settle(ports(t, "30080")); !errors.Is(err, s.refusal) {
		t.Errorf("got %v", err)
	}
	s.refusal, s.reserved = nil, ports(t, "30080")
	if err := h.Release(); err != nil || s.reserved.String() != "30080" {
		t.Errorf("%v is left, error %v", s.reserved, err)
	}
}

// TestGuardReportsAnErrorOnce: the guard tries again at each complete sync, and reports only that it starts or stops failing.
func TestGuardReportsAnErrorOnce(t *testing.T) {
	s := &sysctls{chosen: ports(t, "30000-60999"), refusal: errors.New("read-only")}
	synctest.Test(t, func(t *testing.T) {
		g := NewGuard(s.host(filepath.Join(t.TempDir(), "record")), always)
		var reports []error
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go g.Run(ctx, func(_ kernel.Ports, err error) { reports = append(reports, err) })
		g.Update(map[model.ServiceID][]model.LoopbackPort{{Name: "web"}: {{Protocol: inet.TCP, Number: 30080}}}, true)
		synctest.Wait()
		tried := s.tries
		g.Update(nil, true)
		synctest.Wait()
		if len(reports) != 1 || !errors.Is(reports[0], s.refusal) || s.tries == tried {
			t.Errorf("reports %v after %d and %d tries", reports, tried, s.tries)
		}
		s.refusal = nil
		g.Update(nil, true)
		synctest.Wait()
		if len(reports) != 2 || reports[1] != nil {
			t.Errorf("reports %v after the repair", reports)
		}
	})
}
