package iptables

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// errLocked means that another program held the xtables lock for the whole wait.
var errLocked = errors.New("xtables lock is held by another program")

var errNoCapability = errors.New("not permitted")

type symptom struct {
	text   *regexp.Regexp
	advice string
	is     error // the error that the loop distinguishes; may be nil
}

var symptoms = []symptom{
	{regexp.MustCompile(`holding the xtables lock`), "", errLocked},
	{regexp.MustCompile(`Cannot allocate memory|No buffer space|Resource temporarily unavailable|Device or resource busy|Interrupted`),
		"the kernel was busy, or out of memory", nil},
	{regexp.MustCompile(`Can't open socket to ipset`), "capability NET_RAW is missing", errNoCapability},
	{regexp.MustCompile(`you must be root|Permission denied|Operation not permitted`), "capability NET_ADMIN is missing", errNoCapability},
	{regexp.MustCompile("Couldn't load (match|target) `[^']+'"), "package iptables is incomplete: it lacks this extension", kernel.ErrUnavailable},
	{regexp.MustCompile(`TABLE_ADD failed|Failed to initialize nft|Could not fetch rule set generation id`),
		"the kernel has no nf_tables for this family (module nf_tables)", kernel.ErrUnavailable},
	{regexp.MustCompile(`can't initialize ip6?tables table|Table does not exist`),
		"the kernel lacks a module of iptables-legacy (ip_tables, iptable_filter, iptable_mangle, iptable_nat and the same modules for ip6)", kernel.ErrUnavailable},
}

// missingModule matches the kernel's rejection of a rule with an unknown match or target.
var missingModule = regexp.MustCompile(`missing kernel module|No chain/target/match by that name|RULE_(APPEND|INSERT) failed \(No such file or directory\)`)

func explainProcess(err error) error {
	var p *processError
	if !errors.As(err, &p) {
		return err
	}
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%w: package iptables is not installed", err)
	}
	for _, s := range symptoms {
		if !s.text.MatchString(p.stderr) {
			continue
		}
		if errors.Is(s.is, errLocked) {
			return fmt.Errorf("%w%s: %w", errLocked, lockHolder(), err)
		}
		if s.is != nil {
			return fmt.Errorf("%s: %w: %w", s.advice, s.is, err)
		}
		return fmt.Errorf("%s: %w", s.advice, err)
	}
	return err
}

// explainRestore adds advice to an error of iptables-restore, and names the rejected rule.
func explainRestore(err error, text string) error {
	var p *processError
	if !errors.As(err, &p) {
		return err
	}
	line, rules := refused(p.stderr, text)
	if line == "" {
		return explainProcess(err)
	}
	if missingModule.MatchString(p.stderr) {
		if modules := modulesOf(rules); len(modules) > 0 {
			err = fmt.Errorf("kernel module missing, one of %s: %w: %w", strings.Join(modules, ", "), kernel.ErrUnavailable, err)
		}
	}
	return fmt.Errorf("restore %q: %w", line, explainProcess(err))
}

// lineNumber finds "Error occurred at line: 8", "line 2: RULE_APPEND failed" and "iptables-restore: line 5 failed".
var lineNumber = regexp.MustCompile(`line:? (\d+)`)

// refused finds the line that iptables-restore rejects. If the line is the COMMIT of a table, any rule of the table may be the cause.
func refused(stderr, text string) (line string, rules []string) {
	m := lineNumber.FindStringSubmatch(stderr)
	if m == nil {
		return "", nil
	}
	n, err := strconv.Atoi(m[1])
	lines := strings.Split(text, "\n")
	if err != nil || n < 1 || n > len(lines) {
		return "", nil
	}
	line = lines[n-1]
	if line != "COMMIT" {
		return line, []string{line}
	}
	start := n - 1
	for start > 0 && !strings.HasPrefix(lines[start], "*") {
		start--
	}
	return "COMMIT of table " + strings.TrimPrefix(lines[start], "*"), lines[start:n]
}

// modulesOf lists the kernel modules that implement the matches and targets of rules. Chain names are also in capitals, but contain a
// hyphen.
func modulesOf(rules []string) []string {
	var modules []string
	for _, rule := range rules {
		words := kernel.SplitRule(rule)
		for i, w := range words[:max(len(words)-1, 0)] {
			next := words[i+1]
			switch {
			case w == "-m":
				modules = append(modules, "xt_"+next)
			case w == "-j" && next == "REJECT":
				modules = append(modules, "ipt_REJECT", "ip6t_REJECT")
			case w == "-j" && !strings.Contains(next, "-") && !slices.Contains([]string{"ACCEPT", "DROP", "RETURN"}, next):
				modules = append(modules, "xt_"+next)
			}
		}
	}
	slices.Sort(modules)
	return slices.Compact(modules)
}

// lockFile is the file that all iptables-legacy commands lock.
const lockFile = "/run/xtables.lock"

// lockHolder names the holder of the xtables lock if /proc/locks shows it. In a container, it usually does not.
func lockHolder() string {
	var st unix.Stat_t
	if unix.Stat(lockFile, &st) != nil {
		return ""
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return ""
	}
	pid := holderOf(string(locks), st.Ino)
	name, err := os.ReadFile("/proc/" + pid + "/comm")
	if pid == "" || err != nil {
		return ""
	}
	return fmt.Sprintf(" (%s, process %s)", strings.TrimSpace(string(name)), pid)
}

// holderOf finds the process that holds the lock in lines like "1: FLOCK  ADVISORY  WRITE 1234 00:19:5678 0 EOF"; waiting processes
// have "->" after the number.
func holderOf(locks string, inode uint64) string {
	suffix := ":" + strconv.FormatUint(inode, 10)
	for line := range strings.Lines(locks) {
		f := strings.Fields(line)
		if len(f) >= 6 && f[1] != "->" && strings.HasSuffix(f[5], suffix) {
			return f[4]
		}
	}
	return ""
}
