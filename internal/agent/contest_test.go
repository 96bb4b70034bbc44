package agent_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
)

func kubeProxySyncs(f *kerneltest.Fake) error {
	return errors.Join(f.FlushChain(inet.IPv4, services4), f.AppendRule(inet.IPv4, services4,
		"-m", "comment", "--comment", "Kubernetes service cluster ip + port for masquerade purpose", "-j", "RETURN"))
}

func TestAnotherProxyOnTheNode(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web("10.244.0.1"))
		w.start()
		w.takeReports()
		const chain = "IPv4 chain KUBE-SERVICES of table nat"
		problem := ""
		for i := range 6 {
			w.logs.TakeAll()
			w.damage(kubeProxySyncs)
			w.sleep(auditInterval)
			w.is()
			drifted := w.logs.FilterMessage("kernel state drifted; repairing").All()
			if len(drifted) != 1 || !strings.Contains(fmt.Sprint(drifted[0].ContextMap()["found"]), "IPv4 table nat: chain KUBE-SERVICES was changed by kube-proxy") {
				w.Fatalf("the log does not attribute audit %d's repair to kube-proxy: %v", i, w.logs.All())
			}
			r := w.takeReports()
			problems := r[len(r)-1].NodeProblems
			if (len(problems) == 1) != (i >= 2) {
				w.Fatalf("after audit %d, the problems are %v", i, problems)
			}
			if i == 2 {
				problem = problems[0].String()
			}
			if i >= 2 && problems[0].String() != problem {
				w.Errorf("after audit %d, the problem is %s; want %s", i, problems[0], problem)
			}
		}
		if !strings.Contains(problem, "Node "+compiletest.Node+": "+chain+": kube-proxy has kept changing this") {
			w.Errorf("problem: %s", problem)
		}
		w.sleep(time.Hour)
		if r := w.takeReports(); len(r[len(r)-1].NodeProblems) > 0 {
			w.Errorf("an hour without changes did not end the contest: %v", r[len(r)-1].NodeProblems)
		}
	})
}

// Each change to the device triggers an early audit. If another program deletes the device repeatedly, these audits
// become less frequent.
func TestNoRaceForTheDevice(t *testing.T) {
	calmBubble(t, func(w *world) {
		disturbed := make(chan struct{}, 1)
		w.config.KernelChanged = disturbed
		w.put(web("10.244.0.1"))
		w.start()
		w.fake.TakeCounts()
		const seconds = 600
		deleted := 0
		for range seconds {
			if w.fake.State().Device {
				w.damage(func(f *kerneltest.Fake) error { return f.DelDevice() })
				deleted++
			}
			select {
			case disturbed <- struct{}{}:
			default:
			}
			w.sleep(time.Second)
		}
		if most := seconds/int(auditInterval/time.Second) + 10; deleted > most || deleted < 10 {
			w.Errorf("the device was created and deleted %d times in %d s, want at most %d", deleted, seconds, most)
		}
	})
}

// Changed Services do not explain differences in the rules.
func TestRulesDriftWhileServicesChange(t *testing.T) {
	calmBubble(t, func(w *world) {
		endpoints := []string{"10.244.0.1"}
		w.put(web(endpoints...))
		w.start()
		w.takeReports()
		for i := range 4 {
			w.damage(kubeProxySyncs)
			endpoints = append(endpoints, fmt.Sprintf("10.244.0.%d", i+2))
			w.putQuietly(web(endpoints...)) // so that the change waits for the audit
			w.sleep(auditInterval)
		}
		r := w.takeReports()
		last := r[len(r)-1]
		if len(last.NodeProblems) != 1 || !last.Full || len(last.Compiled) == 0 {
			w.Errorf("the audit that compiled %[2]v reports the problems %[1]v", last.NodeProblems, last.Compiled)
		}
	})
}
