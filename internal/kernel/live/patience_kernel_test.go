package live

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// slowPrograms adds iptables programs to PATH that wait until a file disappears before they read the rules.
func slowPrograms(t *testing.T) (block, unblock func()) {
	t.Helper()
	dir := t.TempDir()
	gate := filepath.Join(dir, "wait")
	for _, program := range []string{"iptables-nft-save", "ip6tables-nft-save"} {
		path, err := exec.LookPath(program)
		if err != nil {
			t.Fatal(err)
		}
		script := fmt.Sprintf("#!/bin/sh\nwhile [ -e %s ]; do sleep 0.05; done\nexec %s \"$@\"\n", gate, path)
		if err := os.WriteFile(filepath.Join(dir, program), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() {
			if err := os.WriteFile(gate, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, func() {
			if err := os.Remove(gate); err != nil {
				t.Fatal(err)
			}
		}
}

type hanging struct {
	*Kernel
	t     *testing.T
	ended chan struct{}
}

func newHanging(t *testing.T) hanging {
	t.Helper()
	k := hanging{openHere(t, iptables.NFT), t, make(chan struct{}, 1)}
	k.LimitWaits()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go k.Watch(ctx, func() {
		select {
		case k.ended <- struct{}{}:
		default:
		}
	}, func() {})
	return k
}

func (k hanging) read() *kernel.State {
	k.t.Helper()
	s, err := k.Read(context.Background())
	if err != nil {
		k.t.Fatal(err)
	}
	return s
}

// readsTheRest checks that a read returns everything except the rules, and the reason why they are missing.
func (k hanging) readsTheRest() {
	k.t.Helper()
	s := k.read()
	for _, f := range inet.Families {
		if stuck := (kernel.StuckError{}); !errors.As(s.RulesErr[f], &stuck) || stuck.Part != kernel.Programs(f) {
			k.t.Errorf("%s: got error %v, want an error for stuck programs", f, s.RulesErr[f])
		}
	}
	if s.Servers == nil || s.Sets == nil {
		k.t.Errorf("the read is incomplete: %+v", s)
	}
}

func (k hanging) readsEverything() {
	k.t.Helper()
	if s := k.read(); len(s.RulesErr) > 0 || len(s.Rules) != len(inet.Families) {
		k.t.Errorf("the rules: %v, %v", s.Rules, s.RulesErr)
	}
}

// While an iptables program hangs, everything else can be read and written. When the program ends, Watch reports it, and the next read
// returns its result.
func TestIPTablesHangs(t *testing.T) {
	labtest.NetNS(t)
	block, unblock := slowPrograms(t)
	k := newHanging(t)
	rules := kernel.Op{Verb: kernel.Ensure, Object: kernel.Ruleset{Family: inet.IPv4}}
	device := kernel.Op{Verb: kernel.Create, Object: kernel.DummyDevice{}}
	k.readsEverything()
	block()
	for range 3 {
		k.readsTheRest()
	}
	errs := k.Apply(context.Background(), []kernel.Op{rules, device})
	if !errors.As(errs[0], &kernel.StuckError{}) || errs[1] != nil {
		t.Errorf("writing: %v", errs)
	}
	select {
	case <-k.ended: // Watch sends one report when it starts
	default:
	}
	unblock()
	select {
	case <-k.ended:
	case <-time.After(30 * time.Second):
		t.Fatal("Watch did not report that the read ended")
	}
	k.readsEverything()
	if errs := k.Apply(context.Background(), []kernel.Op{rules}); errs[0] != nil {
		t.Error(errs[0])
	}
}
