package kerneltest

import (
	"errors"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Faults make calls fail at random.
type Faults struct {
	// Probability is the probability that a call fails: an operation, Read, Lookup, Summarize, NodeAddresses, Network, Listeners or EndFlows.
	// Half of the failed operations take effect, as if only the reply were lost.
	Probability float64
	Seed        uint64
	// Errors contains the errors to choose from. If it is nil, calls fail with the usual errors under memory pressure.
	Errors []error
}

// DefaultFaults makes one call in ten fail, so that every test of the agent also covers its error paths.
func DefaultFaults(seed uint64) Faults { return Faults{Probability: 0.1, Seed: seed} }

var pressure = []error{syscall.EINTR, syscall.ENOBUFS, syscall.ENOMEM, syscall.EBUSY, syscall.ETIMEDOUT}

var errCrashed = errors.New("the agent was killed")

// A lost call takes effect but returns the error.
type fault struct {
	err  error
	lost bool
}

type faults struct {
	config  Faults
	random  *rand.Rand
	next    map[kernel.Kind][]fault
	reads   []error
	sums    []error
	nodes   []error
	nets    []error
	walks   []error
	missed  map[kernel.ServerKey]struct{}
	refuse  func(kernel.Op) error
	stuck   kernel.RulesError // why rules can be neither read nor written
	crashIn int               // operations until the crash; negative if there is none
	crashed bool
	failIn  int // operations until failAs is returned; 0 if it never is
	failAs  fault
}

func freshFaults() faults {
	return faults{next: map[kernel.Kind][]fault{}, missed: map[kernel.ServerKey]struct{}{}, crashIn: -1}
}

func (f *faults) op(kind kernel.Kind) fault {
	if f.crashed {
		return fault{err: errCrashed}
	}
	if f.crashIn > 0 {
		f.crashIn--
	}
	if f.crashIn == 0 {
		f.crashed = true
		return fault{err: errCrashed, lost: true}
	}
	if f.failIn > 0 {
		if f.failIn--; f.failIn == 0 {
			return f.failAs
		}
	}
	if queue := f.next[kind]; len(queue) > 0 {
		f.next[kind] = queue[1:]
		return queue[0]
	}
	if err := f.roll(); err != nil {
		return fault{err: err, lost: f.random.IntN(2) == 0}
	}
	return fault{}
}

func (f *faults) read() error {
	if f.crashed {
		return errCrashed
	}
	if err := pop(&f.reads); err != nil {
		return err
	}
	return f.roll()
}

func (f *faults) summary() error {
	if f.crashed {
		return errCrashed
	}
	if err := pop(&f.sums); err != nil {
		return err
	}
	return f.roll()
}

func (f *faults) node() error {
	if f.crashed {
		return errCrashed
	}
	if err := pop(&f.nodes); err != nil {
		return err
	}
	return f.roll()
}

func (f *faults) network() error {
	if f.crashed {
		return errCrashed
	}
	if err := pop(&f.nets); err != nil {
		return err
	}
	return f.roll()
}

func (f *faults) walk() fault {
	if f.crashed {
		return fault{err: errCrashed}
	}
	if err := pop(&f.walks); err != nil {
		return fault{err: err}
	}
	if err := f.roll(); err != nil {
		return fault{err: err, lost: f.random.IntN(2) == 0}
	}
	return fault{}
}

func pop(queue *[]error) error {
	if len(*queue) == 0 {
		return nil
	}
	err := (*queue)[0]
	*queue = (*queue)[1:]
	return err
}

func (f *faults) roll() error {
	if f.random == nil || f.random.Float64() >= f.config.Probability {
		return nil
	}
	list := f.config.Errors
	if len(list) == 0 {
		list = pressure
	}
	return list[f.random.IntN(len(list))]
}

// SetFaults replaces the faults; the zero value disables them.
func (f *Fake) SetFaults(config Faults) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults.config = config
	f.faults.random = rand.New(rand.NewPCG(config.Seed, config.Seed))
}

// FailNext makes the next operation of that kind fail without effect. Calls accumulate.
func (f *Fake) FailNext(kind kernel.Kind, err error) { f.queue(kind, fault{err: err}) }

// LoseNext makes the next operation of that kind take effect but return an error. Calls accumulate.
func (f *Fake) LoseNext(kind kernel.Kind, err error) { f.queue(kind, fault{err: err, lost: true}) }

// Refuse makes an operation fail without effect if the function returns an error for it, like a kernel that cannot store an object. Nil
// removes the function.
func (f *Fake) Refuse(refuse func(kernel.Op) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults.refuse = refuse
}

// Stick makes the iptables programs of these families hang, so their rules can be neither read nor written.
func (f *Fake) Stick(families ...inet.Family) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults.stuck = kernel.RulesError{}
	for _, family := range families {
		f.faults.stuck[family] = kernel.StuckError{Part: kernel.Programs(family), Doing: "reading or writing the rules", Since: time.Now()}
	}
}

func (f *Fake) queue(kind kernel.Kind, next fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults.next[kind] = append(f.faults.next[kind], next)
}

// FailAt makes the n-th operation from now (n > 0) fail, with or without effect.
func (f *Fake) FailAt(n int, err error, effect bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults.failIn, f.faults.failAs = n, fault{err: err, lost: effect}
}

// FailNextRead makes the next Read or Lookup fail.
func (f *Fake) FailNextRead(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults.reads = append(f.faults.reads, err)
}

// FailNextSummarize makes the next Summarize fail.
func (f *Fake) FailNextSummarize(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults.sums = append(f.faults.sums, err)
}

// FailNextNodeAddresses makes the next NodeAddresses fail.
func (f *Fake) FailNextNodeAddresses(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults.nodes = append(f.faults.nodes, err)
}

// FailNextNetwork makes the next Network or Listeners fail.
func (f *Fake) FailNextNetwork(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults.nets = append(f.faults.nets, err)
}

// FailNextEndFlows makes the next EndFlows fail before it ends any flow.
func (f *Fake) FailNextEndFlows(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults.walks = append(f.faults.walks, err)
}

// DumpMisses makes the next Read miss these existing virtual servers, as an IPVS dump may while another program writes. Lookup still finds
// them.
func (f *Fake) DumpMisses(keys ...kernel.ServerKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range keys {
		f.faults.missed[key] = struct{}{}
	}
}

// CrashAfter simulates kill -9. The n-th operation from now (n > 0) is the last operation that takes effect. It and every later call
// return errCrashed. The test then discards its agent and calls Restart.
func (f *Fake) CrashAfter(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults.crashIn = n
}

// Restart reports whether the agent has crashed, and makes calls succeed again. The kernel keeps its state.
func (f *Fake) Restart() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	crashed := f.faults.crashed
	f.faults.crashed, f.faults.crashIn = false, -1
	return crashed
}
