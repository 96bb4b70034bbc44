package main

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseRunFlags(t *testing.T) {
	withoutSettings(t)
	defaults := options{mode: "auto", accel: "auto", clock: "real", kernel: "6.1", timeout: time.Minute, mem: "4G", cpus: 2}
	with := func(change func(*options)) options {
		o := defaults
		change(&o)
		return o
	}
	for _, test := range []struct {
		name string
		args []string
		want options
		rest []string
	}{
		{"nothing", nil, defaults, nil},
		{"empty values are defaults", []string{"-lab=", "-kernel=", "-timeout=", "-out="}, defaults, nil},
		{"a command", []string{"-kernel=6.12", "--", "ls", "-l"}, with(func(o *options) { o.kernel, o.kernelNamed = "6.12", true }), []string{"ls", "-l"}},
		{"no limit", []string{"-timeout=0"}, with(func(o *options) { o.timeout = 0 }), nil},
		{"places", []string{"-lab=qemu", "-accel=tcg", "-out=/o", "-mem=1G", "-cpus=1"},
			options{mode: "qemu", accel: "tcg", clock: "real", kernel: "6.1", timeout: time.Minute, out: "/o", mem: "1G", cpus: 1}, nil},
		{"counted", []string{"-accel=counted"},
			options{mode: "qemu", accel: "counted", clock: "real", kernel: "6.1", timeout: time.Minute, mem: "4G", cpus: 1}, nil},
		{"counted, without waiting", []string{"-accel=counted", "-clock=skipping"},
			options{mode: "qemu", accel: "counted", clock: "skipping", kernel: "6.1", timeout: time.Minute, mem: "4G", cpus: 1}, nil},
		{"virtual", []string{"-lab=uml", "-clock=virtual"}, with(func(o *options) { o.mode, o.clock = "uml", "virtual" }), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, rest, err := parseRunFlags("run", time.Minute, test.args)
			if err != nil || got != test.want || !slices.Equal(rest, test.rest) {
				t.Errorf("got %+v %q %v\nwant %+v %q", got, rest, err, test.want, test.rest)
			}
		})
	}
	for _, bad := range []string{"-lab=native -accel=counted", "-accel=counted -cpus=2", "-lab=vm", "-accel=fast", "-timeout=soon", "-timeout=-1s", "-cpus=0",
		"-clock=virtual", "-clock=virtual -lab=fast", "-clock=virtual -lab=qemu", "-clock=virtual -lab=native", "-clock=virtual -lab=uml -accel=counted",
		"-clock=skipping -lab=qemu", "-clock=virtual -accel=counted", "-clock=slow"} {
		if _, _, err := parseRunFlags("run", time.Minute, strings.Fields(bad)); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
}

// TestWithout checks that LAB_WITHOUT needs LAB=qemu. Other kernels may have the modules built in, and would ignore the list.
func TestWithout(t *testing.T) {
	withoutSettings(t)
	t.Setenv(withoutVar, "ip_set,x_tables")
	for mode, want := range map[string]bool{"qemu": true, "uml": false, "native": false, "auto": false, "fast": false} {
		opts, _, err := parseRunFlags("run", time.Minute, []string{"-lab=" + mode})
		if (err == nil) != want {
			t.Errorf("LAB=%s: %v", mode, err)
		}
		if args := kernelArgs(machineConfig{without: opts.without}, 0); want && !strings.Contains(args, " module_blacklist=ip_set,x_tables ") {
			t.Errorf("the kernel's arguments are %s", args)
		}
	}
}

func TestHostLimit(t *testing.T) {
	for _, test := range []struct {
		clock         string
		timeout, want time.Duration
	}{
		{"real", 0, 0}, {"real", 90 * time.Minute, 90 * time.Minute},
		{virtualClock, 0, virtualLimit}, {virtualClock, 90 * time.Minute, virtualLimit}, {virtualClock, time.Minute, time.Minute},
		{skippingClock, 90 * time.Minute, 90 * time.Minute},
	} {
		if got := (options{clock: test.clock, timeout: test.timeout}).hostLimit(); got != test.want {
			t.Errorf("clock %s, timeout %s: limit %s, want %s", test.clock, test.timeout, got, test.want)
		}
	}
}

func TestParseTestFlags(t *testing.T) {
	withoutSettings(t)
	t.Setenv("LAB_RUN", "TestX")
	_, got, err := parseTestFlags([]string{"-pkg=./a ./b", "-count=3", "-v=1"}, time.Minute)
	want := testOptions{packages: []string{"./a", "./b"}, run: "TestX", count: 3, verbose: true}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v %v, want %+v", got, err, want)
	}
	if _, got, err = parseTestFlags(nil, time.Minute); err != nil || got.packages[0] != "./internal/..." || got.count != 1 {
		t.Errorf("defaults are %+v %v", got, err)
	}
}

// withoutSettings hides the settings of the environment in which this test runs.
func withoutSettings(t *testing.T) {
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "LAB_") {
			t.Setenv(name, "")
		}
	}
}
