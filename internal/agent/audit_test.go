package agent_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func TestChangesDoNotWaitForAnAudit(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web("10.244.0.1"))
		w.start()
		w.fake.SlowAudits(10*time.Second, 1)
		for range 2 { // the first audit compares everything, and the second compares only differences
			w.sleep(auditInterval + time.Second) // an audit has just begun
			w.takeReports()
			w.put(compiletest.Service("new", "10.96.0.2", "10.244.0.9"))
			w.remove("web")
			if !w.has("ipvsadm -a -t 10.96.0.2:80 -r 10.244.0.9:8080") || w.has("ipvsadm -A -t 10.96.0.1:80") {
				t.Errorf("the changes were delayed by the audit:\n%s", w.fake.Dump())
			}
			if r := w.takeReports(); len(r) != 2 || r[0].Full || r[1].Full {
				t.Errorf("%d syncs", len(r))
			}
			w.fake.TakeCounts()
			w.sleep(10 * time.Second)
			r := w.takeReports()
			if last := r[len(r)-1]; !last.Full || last.Drift > 0 || last.Err != nil || w.fake.TakeCounts().Writes() > 0 {
				t.Errorf("the audit found drift or wrote to the kernel: %+v", last)
			}
			w.is()
			w.remove("new")
			w.put(web("10.244.0.1"))
		}
	})
}

func meanwhile(r *rand.Rand, w *world) {
	n := r.IntN(6)
	name, ip := fmt.Sprintf("svc-%d", n), fmt.Sprintf("10.96.1.%d", n+1)
	if r.IntN(3) == 0 {
		w.remove(name)
		return
	}
	var endpoints []string
	for i := range r.IntN(4) {
		endpoints = append(endpoints, fmt.Sprintf("10.244.%d.%d", i, r.IntN(4)+1))
	}
	svc := compiletest.Service(name, ip, endpoints...)
	if r.IntN(3) == 0 {
		svc = onNodes(svc, uint16(30100+n))
	}
	w.put(svc)
}

// All objects in the kernel are ours, so no audit may write or find drift. A slow audit reads each object either at its
// start or at its end.
func TestAuditsOfAChangingCluster(t *testing.T) {
	for seed := range 4 * *seeds {
		calmBubble(t, func(w *world) {
			r := rand.New(rand.NewPCG(seed, 1))
			w.fake.SlowAudits(7*time.Second, seed)
			w.config.AuditInterval = 8 * time.Second
			w.put(web("10.244.0.1"))
			w.start()
			w.takeReports()
			for range 200 {
				meanwhile(r, w)
				w.sleep(time.Duration(r.IntN(2000)) * time.Millisecond)
				w.drained()
			}
			for _, report := range w.takeReports() {
				if report.Drift > 0 || report.Err != nil {
					t.Errorf("seed %d: a sync reports drift %v and error %v", seed, report.Drifted, report.Err)
				}
			}
			w.converged()
		})
	}
}

func (w *world) drained() {
	w.Helper()
	state := w.fake.State()
	for _, svc := range w.services {
		for _, ip := range svc.ClusterIPs {
			for _, slice := range svc.Slices {
				for _, e := range slice.Endpoints {
					w.serves(state, tcp(ip.String()+":80"), svc, e)
				}
			}
		}
	}
}

func (w *world) serves(state *kernel.State, key kernel.ServerKey, svc *model.Service, e model.Endpoint) {
	w.Helper()
	if !slices.ContainsFunc(state.Servers[key].Destinations, func(d kernel.ObservedDestination) bool {
		return e.Addr == d.Addr.Addr() && d.Weight > 0
	}) {
		w.Errorf("%s has no endpoint %v", svc.ID, e.Addr)
	}
}

var ofTheLedger = []string{"ledger flushed", "ledger destroyed", "set too small"}

func TestDamageDuringAudits(t *testing.T) {
	kinds := []string{}
	for name := range drifts {
		kinds = append(kinds, name)
	}
	// Without its owner record, a virtual server that another program recreated is foreign (I5).
	kinds = slices.DeleteFunc(kinds, func(name string) bool { return slices.Contains(ofTheLedger, name) })
	slices.Sort(kinds)
	damaged(t, kinds)
}

func TestLostOwnerRecords(t *testing.T) {
	kinds := []string{"ipvsadm -C", "ipvsadm -D", "ipvsadm -d", "another weight"}
	damaged(t, append(kinds, ofTheLedger...))
}

func TestLostReplyAndLostRecord(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.start()
		w.fake.LoseNext(kernel.KindServer, syscall.ENOBUFS)
		w.fake.SlowAudits(500*time.Millisecond, 1)
		w.put(web("10.244.0.1"))
		if !w.has("ipvsadm -A -t 10.96.0.1:80") || w.has("ipvsadm -a -t 10.96.0.1:80") {
			t.Fatalf("the reply was not lost:\n%s", w.fake.Dump())
		}
		w.damage(drifts["ledger flushed"])
		w.converged()
	})
}

func damaged(t *testing.T, kinds []string) {
	t.Helper()
	bubble(t, func(w *world) {
		r := rand.New(rand.NewPCG(w.faults.Seed, 2))
		w.fake.SlowAudits(700*time.Millisecond, w.faults.Seed)
		w.config.AuditInterval = time.Second
		w.unwatched = true
		w.fake.OnOp(nil) // the agent reads while the state is damaged, so packets may be lost
		w.put(web("10.244.0.1", "10.244.0.2"), compiletest.Service("other", "10.96.0.2", "10.244.0.1"), compiletest.Service("empty", "10.96.0.3"))
		w.start()
		for range 100 {
			if r.IntN(3) > 0 {
				meanwhile(r, w)
			} else {
				damage := drifts[kinds[r.IntN(len(kinds))]]
				w.damage(func(f *kerneltest.Fake) error {
					_ = damage(f) // the target of the damage may not exist at this time
					return nil
				})
			}
			w.sleep(time.Duration(r.IntN(900)) * time.Millisecond)
		}
		w.converged()
	})
}

type failingAudits struct {
	*kerneltest.Fake
	fails atomic.Bool
}

func (k *failingAudits) Audit(ctx context.Context, asked kernel.Audit) (*kernel.Differences, error) {
	if k.fails.Load() {
		time.Sleep(20 * time.Millisecond)
		return nil, errors.New("input/output error")
	}
	return k.Fake.Audit(ctx, asked)
}

// The known state stays valid while audits fail.
func TestFailingAuditsStopNoChange(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.config.MinInterval = time.Second // one sync handles the change and the end of the audit
		k := &failingAudits{Fake: w.fake}
		w.kernel = k
		const many = 20
		names := make([]*model.Service, many)
		for i := range many {
			names[i] = compiletest.Service(fmt.Sprint("web-", i), fmt.Sprint("10.96.1.", i+1), "10.244.0.1")
		}
		w.put(names...)
		w.start()
		k.fails.Store(true)
		w.takeReports()
		for step := range 1200 {
			i := step % many
			w.put(compiletest.Service(fmt.Sprint("web-", i), fmt.Sprint("10.96.1.", i+1), fmt.Sprintf("10.244.%d.%d", 1+step/many, i+1)))
			w.sleep(500 * time.Millisecond)
		}
		w.sleep(10 * time.Second)
		for id, svc := range w.services {
			if !w.has(fmt.Sprintf("-r %s:8080", svc.Slices[0].Endpoints[0].Addr)) {
				w.Errorf("%s lacks its endpoint", id)
			}
		}
		failed := 0
		for _, r := range w.takeReports() {
			if r.Err != nil {
				failed++
			}
			if r.Full {
				w.Error("a failed audit counts as a full sync")
			}
		}
		if failed < 9 {
			w.Errorf("%d syncs failed in ten minutes", failed)
		}
		k.fails.Store(false)
		w.converged()
	})
}

// What a write that failed during an audit wrote is unknown, so the audit's sync writes nothing there. The node is not in the wanted state.
func TestWriteFailsDuringAnAudit(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web("10.244.0.1"))
		w.start()
		w.fake.SlowAudits(10*time.Second, 1)
		w.audit() // has just begun
		w.fake.FailNext(kernel.KindServer, syscall.ENOBUFS)
		w.put(compiletest.Service("new", "10.96.0.2", "10.244.0.9"))
		if r := w.lastReport(); r.Err == nil || r.Full {
			t.Fatalf("the write did not fail during the audit: %+v", r)
		}
		w.put(compiletest.Service("new", "10.96.0.2", "10.244.0.10"))
		if r := w.lastReport(); r.Err != nil || !r.Partial || w.has("-r 10.244.0.10") {
			t.Errorf("a change of what is unknown counts as written: %+v", r)
		}
		w.takeReports()
		w.sleep(10 * time.Second)
		ended := w.takeReports()
		if len(ended) == 0 || !ended[0].Full || ended[0].Complete() {
			t.Errorf("the audit's sync counts as complete: %+v", ended)
		}
		w.sleep(20 * time.Second)
		if r := w.lastReport(); !r.Complete() {
			t.Errorf("the retry is not complete: %+v", r)
		}
		w.is()
	})
}

// auditing is a kernel in which audits are slow. It calls read whenever one has just read the kernel.
type auditing struct {
	*kerneltest.Fake
	takes time.Duration
	read  func()
}

func (k auditing) Audit(ctx context.Context, asked kernel.Audit) (*kernel.Differences, error) {
	time.Sleep(k.takes)
	d, err := k.Fake.Audit(ctx, asked)
	k.read()
	return d, err
}

// A virtual server could not be created. An audit shows this, but the comparison with its findings fails. The virtual
// server's predecessor serves the port until a later comparison succeeds, even if its last connection ends before.
func TestPredecessorWaitsForAComparison(t *testing.T) {
	calmBubble(t, func(w *world) {
		other := compiletest.Service("other", "10.96.0.2", "10.244.0.1")
		w.kernel = auditing{w.fake, 2 * drainInterval, sync.OnceFunc(func() {
			w.source.mu.Lock()
			w.source.pending[other.ID] = other
			w.source.mu.Unlock()
			w.fake.FailNextRead(syscall.EBUSY) // the lookup of the new virtual server
		})}
		w.put(shop("10.244.0.1"))
		w.start()
		w.open(shopHTTP, "10.244.0.1:80", 1)
		w.fake.FailNext(kernel.KindServer, syscall.EBUSY)
		w.services[other.ID] = other // the agent learns it during the audit
		w.put(together(shop("10.244.0.1")))
		w.sleep(2*drainInterval + 3*time.Second)
		if !slices.ContainsFunc(w.takeReports(), func(r agent.Report) bool { return r.Err != nil && strings.Contains(r.Err.Error(), "look up") }) {
			w.Error("the comparison did not fail")
		}
		w.open(shopHTTP, "10.244.0.1:80", 0)
		w.sleep(drainInterval)
		w.stand(map[kernel.ServerKey]bool{shopHTTP: true, shopTCP: false})
		w.converged()
	})
}

// The kernel refuses a virtual server. Its predecessor serves the port, even if its last connection ends.
func TestPredecessorOfARefusedServer(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(shop("10.244.0.1"))
		w.start()
		w.open(shopHTTP, "10.244.0.1:80", 1)
		w.fake.Refuse(func(op kernel.Op) error {
			if s, is := op.Object.(kernel.Server); is && op.Verb == kernel.Create && s.Key == shopTCP {
				return syscall.EINVAL
			}
			return nil
		})
		w.put(together(shop("10.244.0.1")))
		w.sleep(drainInterval + time.Second)
		w.open(shopHTTP, "10.244.0.1:80", 0)
		w.sleep(2 * drainInterval)
		w.stand(map[kernel.ServerKey]bool{shopHTTP: true, shopTCP: false})
		w.fake.Refuse(nil)
		w.converged()
	})
}
