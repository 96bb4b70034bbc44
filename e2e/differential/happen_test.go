package differential

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/differential/draw"
	"github.com/kube-ipvs/kube-ipvs/internal/watch/watchtest"
)

// repaired is the maximum time until an audit repairs drift.
const repaired = 3 * time.Minute

// play triggers an event, waits until it is over, and checks the node.
func (w *week) play(e event) error {
	h := happenings[e.what]
	if h.do != nil {
		if err := h.do(w, e, rand.New(rand.NewPCG(e.seed, 9))); err != nil {
			return err
		}
	}
	w.give(e.set)
	return w.check(e.seed, cmp.Or(h.within, settled))
}

// All other events only change objects.
var happenings = map[happening]struct {
	do     func(*week, event, *rand.Rand) error
	within time.Duration // the node must converge within this time; 0 means settled
}{
	apiAway:       {(*week).apiAway, 6 * time.Minute}, // the agent detects a silent watch after three minutes
	apiRestored:   {(*week).restored, 0},
	agentKilled:   {(*week).killed, 0},
	agentRestarts: {(*week).restarts, 0},
	agentStands:   {(*week).stand, 0},
	nodeReboots:   {(*week).reboot, 0},
	othersFlush:   {(*week).flush, repaired},
	programsHang:  {(*week).trouble, 10 * time.Minute}, // includes a backoff
	programsFail:  {(*week).trouble, 10 * time.Minute},
	clockJumps:    {(*week).jump, 0},
	tokensRenewed: {func(w *week, _ event, _ *rand.Rand) error { return w.renewToken(10 * time.Minute) }, 0},
}

func (w *week) restored(e event, _ *rand.Rand) error {
	older, version := w.given, w.server.Version()
	w.give(e.set)
	if err := w.check(e.seed, settled); err != nil {
		return err
	}
	w.restore(older, version/2)
	if err := w.check(e.seed, repaired); err != nil {
		return fmt.Errorf("with the backup: %w", err)
	}
	return nil
}

// killed kills the agent. It then kills the next agent after a random number of writes, unless that agent needs fewer.
func (w *week) killed(_ event, rng *rand.Rand) error {
	w.process.Kill()
	w.startAgent(1 + rng.IntN(60))
	_, _ = w.process.Wait(time.Minute) // otherwise startAgent would stop the agent first
	w.startAgent(0)
	return nil
}

func (w *week) restarts(e event, rng *rand.Rand) error {
	if err := w.process.Stop(time.Minute); err != nil {
		return err
	}
	w.give(e.set)
	if err := w.pass(time.Duration(rng.IntN(30)) * time.Minute); err != nil {
		return err
	}
	w.startAgent(0)
	return nil
}

// reboot deletes the kernel state.
func (w *week) reboot(e event, _ *rand.Rand) error {
	w.disturb(e.what)
	w.process.Kill()
	if err := w.destroy(everyTable); err != nil {
		return err
	}
	w.startAgent(0)
	return nil
}

func (w *week) flush(e event, rng *rand.Rand) error {
	w.disturb(e.what)
	return w.destroy(flushes[rng.IntN(len(flushes))])
}

// apiAway makes the API server unavailable while objects change. The node must keep serving the previous objects.
func (w *week) apiAway(e event, rng *rand.Rand) error {
	fault := outages[rng.IntN(len(outages))]
	over := make(chan struct{})
	w.server.SetFault(func(rw http.ResponseWriter, r *http.Request) bool { return fault(rw, r, over) })
	w.server.CutWatches()
	before := w.given
	half := time.Duration(1+rng.IntN(60)) * time.Minute
	err := w.pass(half)
	w.give(e.set)
	w.given = before // the agent does not see the new objects
	err = errors.Join(err, w.pass(half), w.check(e.seed, settled))
	close(over)
	w.mend()
	if err != nil {
		return fmt.Errorf("while the API server is unavailable: %w", err)
	}
	return nil
}

var outages = []func(rw http.ResponseWriter, r *http.Request, over chan struct{}) bool{
	refuseWith(http.StatusServiceUnavailable), refuseWith(http.StatusTooManyRequests), refuseWith(http.StatusInternalServerError),
	refuseWith(http.StatusUnauthorized), refuseWith(http.StatusForbidden), refuseWith(http.StatusGone),
	func(_ http.ResponseWriter, r *http.Request, over chan struct{}) bool { // no response
		select {
		case <-over:
		case <-r.Context().Done():
		}
		return true
	},
	func(http.ResponseWriter, *http.Request, chan struct{}) bool { // the connection closes
		panic(http.ErrAbortHandler)
	},
}

func refuseWith(code int) func(http.ResponseWriter, *http.Request, chan struct{}) bool {
	return func(rw http.ResponseWriter, _ *http.Request, _ chan struct{}) bool {
		watchtest.Refuse(rw, code, "")
		return true
	}
}

// mend ends the outage. From then on, the API server accepts only the current token.
func (w *week) mend() {
	w.server.SetFault(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") == "Bearer "+w.token {
			return false
		}
		watchtest.Refuse(rw, http.StatusUnauthorized, "Unauthorized")
		return true
	})
}

// renewToken gives the agent a new token. The old token expires after the given time.
func (w *week) renewToken(later time.Duration) error {
	w.t.Helper()
	token := fmt.Sprintf("token-%d", time.Now().UnixNano())
	w.write("token", token)
	err := w.pass(later)
	w.token = token
	w.mend()
	return err
}

// restore replaces the API server with one that serves a backup.
func (w *week) restore(set draw.Set, version int) {
	w.objects = map[string]draw.Document{}
	for _, d := range set.Documents() {
		w.objects[d.Key] = d
	}
	w.given = set
	w.forget()
	w.server.Restore(version, w.everything()...)
}

// stand suspends the agent while objects change. The kernel keeps forwarding.
func (w *week) stand(e event, rng *rand.Rand) error {
	if err := w.process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	err := w.pass(time.Duration(1+rng.IntN(20)) * time.Minute)
	w.give(e.set)
	return errors.Join(err, w.process.Signal(syscall.SIGCONT))
}

// trouble makes iptables-restore hang or fail while objects change and rules need repair.
func (w *week) trouble(e event, rng *rand.Rand) error {
	file := filepath.Join(w.dir, map[happening]string{programsHang: "hang", programsFail: "fail"}[e.what])
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	w.disturb(e.what)
	if err := w.destroy("iptables -w -t nat -F; ip6tables -w -t nat -F"); err != nil {
		return err
	}
	w.give(e.set)
	return errors.Join(w.pass(time.Duration(1+rng.IntN(10))*time.Minute), os.Remove(file))
}

// flushes are commands of other programs that damage the agent's rules.
var flushes = []string{
	"for t in filter nat mangle; do iptables -w -t $t -F; iptables -w -t $t -X; ip6tables -w -t $t -F; ip6tables -w -t $t -X; done",
	"nft flush ruleset",
	"ipset flush",
	"ip addr flush dev kube-ipvs0",
	"ip link del kube-ipvs0",
	"ipvsadm -C",
	"conntrack -F",
}

// everyTable deletes everything that a reboot deletes.
const everyTable = "ipvsadm -C; ip link del kube-ipvs0; nft flush ruleset; for t in filter nat mangle; do iptables -w -t $t -X; ip6tables -w -t $t -X; done; " +
	"ipset destroy; conntrack -F; true"

func (w *week) destroy(script string) error {
	_, err := w.node.Run("sh", "-c", script)
	return err
}

// jump moves the guest's wall clock by up to two hours.
func (w *week) jump(_ event, rng *rand.Rand) error {
	by := time.Duration(rng.Int64N(int64(4*time.Hour))) - 2*time.Hour
	now := syscall.NsecToTimeval(time.Now().Add(by).UnixNano())
	if err := syscall.Settimeofday(&now); err != nil {
		return fmt.Errorf("set the clock %s ahead: %w", by, err)
	}
	return nil
}
