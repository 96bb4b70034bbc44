package main

import (
	"cmp"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const usage = `usage: lab run [flags] [--] COMMAND [ARG...]   run a command where IPVS works
       lab run [flags]                         run the shell command in $LAB_RUN
       lab shell [flags] [--] [COMMAND [ARG...]]  start an interactive shell, or run a command on this terminal
       lab kernel-test [flags]                 run the tests that need a kernel
       lab install nodes                       install the host programs that a cluster with kubelets needs
       lab install chart                       install promtool, for the chart's tests
       lab install browser                     install Chromium, for the test of the page
"lab run -h" lists the flags; see also docs/lab.md.
`

// options determine where and how long to run. An empty flag means the default, so that a Makefile can always pass
// all flags.
type options struct {
	mode        string // auto, fast, native, uml, qemu
	accel       string // auto, kvm, tcg, counted
	clock       string // real, virtual
	kernel      string // a Debian version from the table in kernel.go, or a path
	kernelNamed bool
	timeout     time.Duration
	hostMost    time.Duration // host time limit with a virtual clock; 0 for virtualLimit
	out         string        // results directory; if empty, the run creates one
	mem         string
	cpus        int
	without     string // kernel modules that the guest refuses to load, separated by commas
}

// withoutVar is the environment variable that lists kernel modules to leave out. e2e/testbed/contained-agent reads it, too.
const withoutVar = "LAB_WITHOUT"

// testOptions are additional options of kernel-test.
type testOptions struct {
	packages []string
	run      string
	count    int
	verbose  bool
	build    bool
}

type flagValues struct {
	mode, accel, clock, kernel, timeout, out, mem, cpus string
	pkg, run, count, verbose                            string
	build                                               bool
}

// parseRunFlags parses the flags that all commands share. It returns the remaining arguments.
func parseRunFlags(name string, defaultTimeout time.Duration, args []string) (options, []string, error) {
	var v flagValues
	set := newFlagSet(name, &v)
	rest, err := parseFlags(set, args)
	if err != nil {
		return options{}, nil, err
	}
	opts, err := v.options(defaultTimeout)
	return opts, rest, err
}

func parseTestFlags(args []string, defaultTimeout time.Duration) (options, testOptions, error) {
	var v flagValues
	set := newFlagSet("kernel-test", &v)
	set.StringVar(&v.pkg, "pkg", "", "packages, separated by spaces (default ./internal/...)")
	set.StringVar(&v.run, "run", os.Getenv("LAB_RUN"), "regular expression of test names (default $LAB_RUN)")
	set.StringVar(&v.count, "count", "", "number of times to run each test (default 1)")
	set.StringVar(&v.verbose, "v", "", "1 prints every test, not only failures")
	set.BoolVar(&v.build, "build", false, "only build the tests")
	rest, err := parseFlags(set, args)
	if err != nil {
		return options{}, testOptions{}, err
	}
	if len(rest) > 0 {
		return options{}, testOptions{}, userErrorf("unexpected argument %q; use -pkg for packages", rest[0])
	}
	opts, err := v.options(defaultTimeout)
	if err != nil {
		return options{}, testOptions{}, err
	}
	tests, err := v.tests()
	return opts, tests, err
}

func (v flagValues) tests() (testOptions, error) {
	tests := testOptions{packages: strings.Fields(v.pkg), run: v.run, count: 1, verbose: v.verbose != "" && v.verbose != "0", build: v.build}
	if len(tests.packages) == 0 {
		tests.packages = []string{"./internal/..."}
	}
	var err error
	if v.count != "" {
		tests.count, err = number("COUNT", v.count)
	}
	return tests, err
}

func newFlagSet(name string, v *flagValues) *flag.FlagSet {
	set := flag.NewFlagSet("lab "+name, flag.ContinueOnError)
	set.StringVar(&v.mode, "lab", "", "where to run: auto, fast, native, uml or qemu (default auto)")
	set.StringVar(&v.accel, "accel", os.Getenv("LAB_ACCEL"), "QEMU acceleration: auto, kvm, tcg or counted (default $LAB_ACCEL, else auto)")
	set.StringVar(&v.clock, "clock", os.Getenv("LAB_CLOCK"), "the guest's clock: real, virtual (-lab=uml), or skipping (-lab=uml, -accel=counted); default $LAB_CLOCK, else real")
	set.StringVar(&v.kernel, "kernel", "", "QEMU kernel: "+kernelNames()+", or the path of a vmlinuz or unpacked package (default 6.1)")
	set.StringVar(&v.timeout, "timeout", "", "time limit such as 90s or 10m; 0 for none")
	set.StringVar(&v.out, "out", "", "directory for results, $LAB_OUT in the lab")
	set.StringVar(&v.mem, "mem", os.Getenv("LAB_MEM"), "memory of the guest (default $LAB_MEM, else 4G)")
	set.StringVar(&v.cpus, "cpus", os.Getenv("LAB_CPUS"), "CPUs of the guest (default $LAB_CPUS, else 2)")
	return set
}

// parseFlags turns an error into a userError. The flag package has already printed an explanation.
func parseFlags(set *flag.FlagSet, args []string) ([]string, error) {
	err := set.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	if err != nil {
		return nil, userErrorf("%v", err)
	}
	return set.Args(), nil
}

func (v flagValues) options(defaultTimeout time.Duration) (options, error) {
	opts := options{
		mode:   orDefault(v.mode, "auto"),
		accel:  orDefault(v.accel, "auto"),
		clock:  orDefault(v.clock, "real"),
		kernel: orDefault(v.kernel, "6.1"),

		kernelNamed: v.kernel != "",
		timeout:     defaultTimeout,
		mem:         orDefault(v.mem, "4G"),
		cpus:        2,
		without:     os.Getenv(withoutVar),
	}
	if opts.accel == counted {
		opts.cpus = 1
	}
	if err := oneOf("LAB", opts.mode, "auto", "fast", "native", modeUML, "qemu"); err != nil {
		return options{}, err
	}
	if err := oneOf("LAB_ACCEL", opts.accel, "auto", "kvm", "tcg", counted); err != nil {
		return options{}, err
	}
	var err error
	if v.timeout != "" {
		if opts.timeout, err = time.ParseDuration(v.timeout); err != nil || opts.timeout < 0 {
			return options{}, userErrorf("TIMEOUT %q must be a duration such as 90s or 10m", v.timeout)
		}
	}
	if text := os.Getenv("LAB_HOST_LIMIT"); text != "" {
		if opts.hostMost, err = time.ParseDuration(text); err != nil || opts.hostMost <= 0 {
			return options{}, userErrorf("LAB_HOST_LIMIT %q must be a duration such as 2h", text)
		}
	}
	if v.cpus != "" {
		if opts.cpus, err = number("LAB_CPUS", v.cpus); err != nil {
			return options{}, err
		}
	}
	if err := opts.chooseMachine(); err != nil {
		return options{}, err
	}
	if v.out != "" {
		if opts.out, err = filepath.Abs(v.out); err != nil {
			return options{}, err
		}
	}
	return opts, nil
}

// virtualClock is a user-mode Linux clock that stops while programs run, and jumps to the next timer when all
// programs wait. A program can sleep for an hour without delay, and the host's load has no effect.
const virtualClock = "virtual"

// skippingClock advances while programs run, and skips the time when all programs wait. Programs that measure their own running time, such as
// containerd, need it. It follows the host's clock in user-mode Linux, and counts instructions in QEMU.
//
// QEMU also skips time while the guest waits for the host, such as for a file: up to the next timer.
const skippingClock = "skipping"

// umlClocks maps the clocks of user-mode Linux to kernel arguments.
var umlClocks = map[string]string{virtualClock: "time-travel=inf-cpu", skippingClock: "time-travel"}

func (o options) virtual() bool { return o.clock == virtualClock }

// virtualLimit is the default limit on host time for a guest with a virtual clock. A program that never waits stops
// that clock.
const virtualLimit = 20 * time.Minute

func (o options) hostLimit() time.Duration {
	most := cmp.Or(o.hostMost, virtualLimit)
	if o.virtual() && (o.timeout == 0 || o.timeout > most) {
		return most
	}
	return o.timeout
}

// chooseMachine checks that the lab supports the requested clock, and can leave modules out.
func (o *options) chooseMachine() error {
	if err := o.setClock(); err != nil {
		return err
	}
	if o.without != "" && o.mode != "qemu" {
		return userErrorf("%s needs LAB=qemu: on other kernels, these modules may be built in", withoutVar)
	}
	return nil
}

// setClock checks that the lab supports the requested clock. A clock that counts instructions needs QEMU and a single
// CPU.
func (o *options) setClock() error {
	if err := oneOf("LAB_CLOCK", o.clock, "real", virtualClock, skippingClock); err != nil {
		return err
	}
	skipsInQEMU := o.clock == skippingClock && o.accel == counted
	switch {
	case umlClocks[o.clock] != "" && !skipsInQEMU && (o.mode != modeUML || o.accel != "auto"):
		return userErrorf("LAB_CLOCK=%s needs LAB=%s without LAB_ACCEL: no other lab has this clock", o.clock, modeUML)
	case o.accel != counted:
		return nil
	case o.mode == "native":
		return userErrorf("LAB_ACCEL=%s is for QEMU; unset LAB=native", counted)
	case o.cpus != 1:
		return userErrorf("LAB_ACCEL=%s needs LAB_CPUS=1: several CPUs would share one clock", counted)
	}
	o.mode = "qemu"
	return nil
}

func orDefault(value, fallback string) string {
	if value == "" {
		return fallback
	}
	return value
}

func oneOf(name, value string, allowed ...string) error {
	for _, a := range allowed {
		if value == a {
			return nil
		}
	}
	return userErrorf("%s=%s must be one of %s", name, value, strings.Join(allowed, ", "))
}

func number(name, value string) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 {
		return 0, userErrorf("%s=%q must be a number of at least 1", name, value)
	}
	return n, nil
}
