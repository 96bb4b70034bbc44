package iptables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Detection describes the iptables variant that this node uses.
type Detection struct {
	Variant Variant
	// Why is the reason for the choice. The agent logs it.
	Why string
	// Families lists the families that work. Without contains the reason why each of the other families does not work. Unsure contains
	// failures that may be temporary: the programs of a family failed or hung, or the kernel did not answer. A family with such a failure
	// counts as working.
	Families []inet.Family
	Without  map[inet.Family]error
	Unsure   map[inet.Family]error
	// Version is the version of the iptables command. It is empty if the command did not answer.
	Version string
}

// hints are chains that the kubelet creates in the mangle table of the variant that the host uses.
// https://kubernetes.io/docs/reference/networking/virtual-ips/ (iptables chains made by kubelet)
var hints = []string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"}

// detectLimit is how long the programs that Detect starts may run in total. The agent waits for them before it does anything else.
const detectLimit = 10 * time.Second

// Detect determines whether the host uses iptables-nft or iptables-legacy. Rules of both variants on one host interfere, so Detect follows
// kubelet. Without kubelet's hints, Detect prefers nft if the kernel supports it. It changes nothing in the kernel, and runs no
// iptables-legacy command that loads a table unless legacy is the result.
//
// The agent uses the result until it restarts. Therefore, a program that fails or hangs counts as working unless its message shows that a
// kernel feature is missing.
func Detect(ctx context.Context) (Detection, error) {
	limited, cancel := context.WithTimeout(ctx, detectLimit)
	defer cancel()
	return detect(ctx, limited)
}

// detect kills its programs when limited ends, and fails when ctx ends.
func detect(ctx, limited context.Context) (Detection, error) {
	d := &detector{tried: map[attempt]error{}, unasked: map[inet.Family]error{}}
	variant, why, err := d.choose(limited)
	if err != nil {
		return Detection{}, err
	}
	result := Detection{Variant: variant, Why: why, Without: map[inet.Family]error{}, Unsure: map[inet.Family]error{}}
	for _, f := range inet.Families {
		err := d.tryRestore(limited, variant, f)
		if lasting(err) {
			result.Without[f] = err
			continue
		}
		if err == nil && variant == NFT {
			err = d.unasked[f]
		}
		if err != nil {
			result.Unsure[f] = err
		}
		result.Families = append(result.Families, f)
	}
	if ctx.Err() != nil {
		return Detection{}, fmt.Errorf("detect iptables: %w", ctx.Err())
	}
	if len(result.Families) == 0 {
		return Detection{}, fmt.Errorf("use iptables-%s (%s): %w; %w", variant, why, result.Without[inet.IPv4], result.Without[inet.IPv6])
	}
	out, err := d.runner.run(limited, "", variant.command(result.Families[0], ""), "--version")
	if err == nil {
		result.Version = version.FindString(out.stdout)
	}
	return result, nil
}

var version = regexp.MustCompile(`\d+(\.\d+)+`)

// lasting reports whether an error returned by tryRestore is permanent. All other errors may be temporary.
func lasting(err error) bool {
	return errors.Is(err, ErrNoIPv6) || errors.Is(err, kernel.ErrUnavailable) || errors.Is(err, errNoCapability) || errors.Is(err, exec.ErrNotFound)
}

// ErrNotInstalled means that no iptables variant is in PATH.
var ErrNotInstalled = fmt.Errorf("neither %s nor %s is in PATH", NFT.command(inet.IPv4, "-restore"), Legacy.command(inet.IPv4, "-restore"))

// Install is the remedy for ErrNotInstalled.
const Install = "install package iptables, version 1.8 or newer (RHEL: iptables-nft)"

type detector struct {
	runner runner
	tried  map[attempt]error // results of tryRestore
	// unasked contains, for each family, the reason why the agent could not determine whether nftables contains kubelet's chains.
	unasked map[inet.Family]error
}

type attempt struct {
	variant Variant
	family  inet.Family
}

func (d *detector) choose(ctx context.Context) (Variant, string, error) {
	installed := slices.DeleteFunc([]Variant{NFT, Legacy}, func(v Variant) bool { return !installed(v) })
	if len(installed) == 0 {
		return "", "", fmt.Errorf("%w; %s", ErrNotInstalled, Install)
	}
	for _, v := range installed {
		if hint := d.hint(ctx, v); hint != "" {
			return v, hint, nil
		}
	}
	if !slices.Contains(installed, NFT) {
		return Legacy, "iptables-nft is not installed", nil
	}
	err := d.tryRestore(ctx, NFT, inet.IPv4)
	if lasting(err) && lasting(d.tryRestore(ctx, NFT, inet.IPv6)) {
		if slices.Contains(installed, Legacy) {
			return Legacy, fmt.Sprintf("iptables-nft does not work: %v", err), nil
		}
		return "", "", fmt.Errorf("use iptables-nft: %w; iptables-legacy is not installed (package iptables)", err)
	}
	switch {
	case len(d.unasked) > 0:
		return NFT, "could not determine whether kubelet's hint chains are in nftables; they are not in iptables-legacy", nil
	case err != nil:
		return NFT, "no kubelet hint chain, and no evidence that the kernel lacks nf_tables", nil
	}
	return NFT, "no kubelet hint chain, and the kernel supports nf_tables", nil
}

func installed(v Variant) bool {
	for _, suffix := range []string{"", "-save", "-restore"} {
		if _, err := exec.LookPath(v.command(inet.IPv4, suffix)); err != nil {
			return false
		}
	}
	return true
}

func (d *detector) hint(ctx context.Context, v Variant) string {
	if v == Legacy {
		return d.hintInLegacy(ctx)
	}
	for _, f := range inet.Families {
		if hint := d.hintInNFT(ctx, f); hint != "" {
			return hint
		}
	}
	return ""
}

func isIn(chain string, f inet.Family, v Variant) string {
	return fmt.Sprintf("kubelet's chain %s is in the %s rules of iptables-%s", chain, f, v)
}

// hintInLegacy treats an existing mangle table as a hint if iptables-legacy-save fails to read it. Otherwise, the agent could use the wrong
// variant until it restarts. kubelet creates its chains in both families, so the answer from either family's program applies to both.
func (d *detector) hintInLegacy(ctx context.Context) (hint string) {
	answered := false
	for _, f := range inet.Families {
		out, err := d.runner.save(ctx, Legacy, f)
		tables, _ := kernelTables(ctx, Legacy, f)
		hasTable := slices.Contains(tables, "mangle")
		if err = explainProcess(err); err != nil {
			if !lasting(err) && hasTable {
				hint = fmt.Sprintf("iptables-legacy has a mangle table for %s, which may contain kubelet's chains; reading it failed: %v", f, err)
			}
			continue
		}
		for line := range strings.Lines(out.stdout) {
			if name, _, _ := strings.Cut(strings.TrimPrefix(line, ":"), " "); slices.Contains(hints, name) {
				return isIn(name, f, Legacy)
			}
		}
		answered = answered || hasTable
	}
	if answered {
		return ""
	}
	return hint
}

// hintInNFT looks the chains up by name, because iptables-nft-save would print all rules of the node. If the agent lacks permission,
// tryRestore returns the error.
func (d *detector) hintInNFT(ctx context.Context, f inet.Family) string {
	objects := make([]nftObject, len(hints))
	for i, name := range hints {
		objects[i] = nftObject{"mangle", name}
	}
	exist, err := inNFT(ctx, f, objects)
	if err != nil && !errors.Is(err, unix.EPERM) {
		d.unasked[f] = err
	}
	if i := slices.Index(exist, true); i >= 0 {
		return isIn(hints[i], f, NFT)
	}
	return ""
}

// dryRun declares a chain in each table that the agent uses.
const dryRun = `*filter
:KUBE-IPVS-PROBE - [0:0]
COMMIT
*mangle
:KUBE-IPVS-PROBE - [0:0]
COMMIT
*nat
:KUBE-IPVS-PROBE - [0:0]
COMMIT
`

// tryRestore runs iptables-restore --test. With nft, the kernel checks everything and commits nothing.
func (d *detector) tryRestore(ctx context.Context, v Variant, f inet.Family) error {
	if f == inet.IPv6 && !KernelHasIPv6() {
		return ErrNoIPv6
	}
	err, known := d.tried[attempt{v, f}]
	if !known {
		_, err = d.runner.run(ctx, dryRun, v.command(f, "-restore"), "-w", strconv.Itoa(lockWait), "--test", "--noflush")
		d.tried[attempt{v, f}] = err
	}
	return explainProcess(err)
}

// ErrNoIPv6 means that the kernel has no IPv6.
var ErrNoIPv6 = errors.New("IPv6 is disabled in the kernel (no /proc/sys/net/ipv6)")

// KernelHasIPv6 reports whether the kernel was booted with IPv6 enabled.
func KernelHasIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}
