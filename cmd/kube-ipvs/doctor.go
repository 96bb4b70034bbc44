package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"slices"
	"sort"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipset"
)

// The exit statuses of doctor, beside 0.
const (
	statusWarnings   = statusError(1)
	statusBroken     = statusError(2)
	statusUnexamined = statusError(3)
)

func newDoctor(m *machine) *cobra.Command {
	var flags config.Flags
	l := inspection{forms: textForms}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Examine this node and its agent, and give one verdict",
		Long: `doctor examines this node: the agent and its ports, its sources, other proxies, foreign rules, the
connection tables, kernel modules, sysctls and certificates, and everything that preflight checks. It
changes nothing, but a check can load a kernel module.

doctor checks the node against the settings of the running agent or, without an agent, against the flags
below.

It prints its findings, the most serious first, each with the evidence and a remedy, and lists the
checks that could not run.

The exit status is the verdict: 0 if the node is well, 1 for warnings, 2 if something is broken (or the
command line is wrong), and 3 if doctor lacks permissions, such as when it does not run as root.`,
		Example: "  kube-ipvs doctor\n  kube-ipvs doctor -o json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := l.check(cmd); err != nil {
				return err
			}
			loaded, err := loadFlags(cmd, &flags)
			if err != nil {
				return err
			}
			facts, err := examine(cmd, m, &l, loaded)
			if err != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), "kube-ipvs:", err)
				return statusUnexamined
			}
			report := doctor.Examine(facts)
			out := cmd.OutOrStdout()
			if err := l.print(out, doctorDocument{headerOf("Diagnosis"), report}, func() error { return printReport(out, report) }); err != nil {
				return err
			}
			return map[string]error{string(finding.Warning): statusWarnings, string(finding.Broken): statusBroken}[report.Verdict]
		},
	}
	flags.AddCompile(cmd.Flags())
	l.addFlags(cmd)
	return cmd
}

// doctorDocument is the JSON and YAML output of doctor.
type doctorDocument struct {
	header
	doctor.Report
}

// examine reads the facts.
func examine(cmd *cobra.Command, m *machine, l *inspection, loaded *config.Loaded) (doctor.Facts, error) {
	v, silence, err := l.askWhy(cmd, agent.Query{})
	switch {
	case err != nil:
		return doctor.Facts{}, err
	case errors.Is(silence, fs.ErrPermission):
		return doctor.Facts{}, silence
	}
	facts := doctor.Facts{Now: time.Now(), View: v, Release: m.release()}
	if v == nil {
		facts.Silence = silence.Error()
		facts.Preflight = m.Preflight(cmd.Context(), &loaded.Settings).Findings
	} else {
		facts.Now = v.Time
		facts.Preflight = m.Check(cmd.Context(), facts.Needs()).Findings
	}
	k := m.kernel(cmd.Context(), lookedAt{concerns: func(kernel.ServerKey) bool { return false }, withoutConnections: true})
	facts.Rules, facts.Chains, facts.VirtualServers = k.Rules, k.Chains, len(k.Servers)
	for _, s := range k.Servers {
		facts.Destinations += len(s.Destinations)
		for _, d := range s.Destinations {
			facts.Connections += uint64(d.Stats.Active) + uint64(d.Stats.Inactive)
		}
	}
	for part, unread := range k.Unread {
		facts.Unread = append(facts.Unread, fmt.Sprintf("%s: %s", part, unread.Why))
	}
	sort.Strings(facts.Unread)
	facts.Read(m.host(cmd.Context()))
	return facts, nil
}

func printReport(w io.Writer, r doctor.Report) error {
	err := finding.Print(w, r.Findings)
	for _, u := range r.Unchecked {
		_, failed := fmt.Fprintf(w, "not checked: %s\n", u)
		err = errors.Join(err, failed)
	}
	_, failed := fmt.Fprintf(w, "verdict: %s\n", r.Verdict)
	return errors.Join(err, failed)
}

// thisHost is the machine that the command runs on.
type thisHost struct{ ctx context.Context }

func (thisHost) ReadFile(name string) ([]byte, error) { return os.ReadFile(name) }

func (thisHost) Names(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// SetNames lists no ipsets on a kernel without them.
func (h thisHost) SetNames(prefix string) (names []string, err error) {
	err = using(ipset.New, func(b *ipset.Backend) error {
		found, err := b.Summaries(h.ctx, prefix)
		names = slices.Collect(maps.Keys(found))
		return err
	})
	if errors.Is(err, kernel.ErrUnavailable) {
		return nil, nil
	}
	return names, err
}

func (thisHost) ClockSynchronized() (bool, error) {
	const timeError = 5 // TIME_ERROR in linux/timex.h
	state, err := unix.Adjtimex(&unix.Timex{})
	return state != timeError, err
}

// Get reads only the beginning of a response: metrics of a large node can be megabytes.
func (h thisHost) Get(url string) (int, string, error) {
	const longest, patience = 1024, 3 * time.Second
	ctx, cancel := context.WithTimeout(h.ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, longest))
	return response.StatusCode, string(body), err
}
