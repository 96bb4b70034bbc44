package config

import (
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// kind is how a value is written: it decides what a file may hold at its place, and how many words it has.
type kind string

const (
	kindText     kind = "text"
	kindTruth    kind = "truth"
	kindNumber   kind = "number"
	kindDuration kind = "duration"
	kindList     kind = "list"
	kindPairs    kind = "pairs" // key=value, for what is only translated
)

// many says whether a value has any number of words; all others have one.
func (k kind) many() bool { return k == kindList || k == kindPairs }

// value is the place of one setting in Settings.
type value struct {
	kind kind
	// set parses words into the place. Where one is wrong, the place stays as it was.
	set func(words []string) []wrong
	// words that would set the place to what it holds.
	words func() []string
}

// wrong is a word that cannot be, with what would be valid.
type wrong struct {
	word int
	want string
}

// one is a value of one word.
func one[T any](k kind, at *T, parse func(string) (T, error), text func(T) string) value {
	return value{
		kind: k,
		set: func(words []string) []wrong {
			parsed, err := parse(words[0])
			if err != nil {
				return []wrong{{0, err.Error()}}
			}
			*at = parsed
			return nil
		},
		words: func() []string { return []string{text(*at)} },
	}
}

func same(s string) string { return s }

func anyText(at *string) value {
	return one(kindText, at, func(s string) (string, error) { return s, nil }, same)
}

func oneOf(at *string, valid []string) value {
	return one(kindText, at, func(s string) (string, error) {
		if !slices.Contains(valid, s) {
			return "", fmt.Errorf("one of %s", strings.Join(valid, ", "))
		}
		return s, nil
	}, same)
}

func truth(at *bool) value {
	return one(kindTruth, at, func(s string) (bool, error) {
		b, err := strconv.ParseBool(s)
		if err != nil {
			return false, fmt.Errorf("true or false")
		}
		return b, nil
	}, strconv.FormatBool)
}

func number(at *int, least, most int) value {
	return one(kindNumber, at, func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < least || n > most {
			return 0, fmt.Errorf("%d to %d", least, most)
		}
		return n, nil
	}, strconv.Itoa)
}

// rate is a number of requests per second.
func rate(at *float64) value {
	return one(kindNumber, at, func(s string) (float64, error) {
		f, err := strconv.ParseFloat(s, 32)
		if err != nil || f == 0 || math.IsNaN(f) || math.IsInf(f, 0) {
			return 0, fmt.Errorf("a number above 0, or a negative one for no limit")
		}
		return f, nil
	}, func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 32) })
}

func duration(at *time.Duration, least time.Duration, want string) value {
	return one(kindDuration, at, func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		if err != nil || d < least {
			return 0, fmt.Errorf("%s", want)
		}
		return d, nil
	}, time.Duration.String)
}

// maxKernelSeconds is the longest timeout that every kernel takes: it counts in ticks of down to a millisecond, in 31 bits.
const maxKernelSeconds = math.MaxInt32 / 1000

// timeout is one that the kernel keeps in whole seconds.
func timeout(at *time.Duration) value {
	return one(kindDuration, at, func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		if err != nil || d < 0 || d%time.Second != 0 || d > maxKernelSeconds*time.Second {
			return 0, fmt.Errorf("whole seconds such as 90s or 15m, %ds at most, or 0 to leave it as it is", maxKernelSeconds)
		}
		return d, nil
	}, time.Duration.String)
}

// listen is where a server listens; empty for none.
func listen(at *string) value {
	return one(kindText, at, func(s string) (string, error) {
		if addr, err := netip.ParseAddrPort(s); s != "" && (err != nil || addr.Port() == 0) {
			return "", fmt.Errorf("an IP address and a port, 1 to 65535, such as 127.0.0.1:10249 or [::]:10256, or nothing to switch it off")
		}
		return s, nil
	}, same)
}

// maxSocketPath is the kernel's limit for the path of a unix socket, less what the agent adds while it makes one.
const maxSocketPath = 95

// socketPath is where a unix socket is; empty for none.
func socketPath(at *string) value {
	return one(kindText, at, func(s string) (string, error) {
		if s != "" && (!filepath.IsAbs(s) || len(s) > maxSocketPath) {
			return "", fmt.Errorf("an absolute path of at most %d characters, such as %s, or nothing to switch it off", maxSocketPath, StatusSocket)
		}
		return s, nil
	}, same)
}

// maxInterfaceName is the kernel's limit for the name of an interface.
const maxInterfaceName = 15

func interfaceName(at *string) value {
	return one(kindText, at, func(s string) (string, error) {
		if len(s) > maxInterfaceName || strings.ContainsAny(s, "/ +\t\n!") {
			return "", fmt.Errorf("the name of an interface, 1 to %d characters without spaces, '/', '+' and '!'", maxInterfaceName)
		}
		return s, nil
	}, same)
}

var label = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)

// labelValue is one that a label can have; empty for none.
func labelValue(at *string) value {
	return one(kindText, at, func(s string) (string, error) {
		if s != "" && !label.MatchString(s) {
			return "", fmt.Errorf("the value of a label: 1 to 63 letters, digits, '-', '_' and '.', a letter or digit first and last")
		}
		return s, nil
	}, same)
}

// ranges is a list of address ranges.
func ranges(at *[]netip.Prefix) value {
	return value{
		kind: kindList,
		set: func(words []string) []wrong {
			parsed, bad := parseRanges(words)
			if bad == nil {
				*at = parsed
			}
			return bad
		},
		words: func() []string { return printRanges(*at) },
	}
}

// rangePair is a range, or one of each family.
func rangePair(at *[]netip.Prefix) value {
	pair := ranges(at)
	set := pair.set
	pair.set = func(words []string) []wrong {
		if parsed, bad := parseRanges(words); bad == nil && !isPair(parsed) {
			return []wrong{{len(words) - 1, "one range, or one of each family, such as 10.244.0.0/16,fd00:244::/56"}}
		}
		return set(words)
	}
	return pair
}

func isPair(p []netip.Prefix) bool {
	return len(p) < 2 || len(p) == 2 && inet.FamilyOf(p[0].Addr()) != inet.FamilyOf(p[1].Addr())
}

func parseRanges(words []string) ([]netip.Prefix, []wrong) {
	var parsed []netip.Prefix
	var bad []wrong
	for i, word := range words {
		p, err := netip.ParsePrefix(word)
		if err != nil || p.Addr().Is4In6() {
			bad = append(bad, wrong{i, "an address range such as 10.244.0.0/16 or fd00:244::/56"})
			continue
		}
		parsed = append(parsed, p.Masked())
	}
	return parsed, bad
}

func printRanges(list []netip.Prefix) []string {
	words := make([]string, 0, len(list))
	for _, p := range list {
		words = append(words, p.String())
	}
	return words
}

// Words for node port addresses that are no ranges.
const (
	nodePortsPrimary = "primary"
	nodePortsAll     = "all"
)

// nodePorts is a list of ranges, or one of two words.
func nodePorts(at *compile.NodePortAddresses) value {
	return value{
		kind: kindList,
		set: func(words []string) []wrong {
			switch {
			case len(words) == 1 && words[0] == nodePortsPrimary:
				*at = compile.NodePortAddresses{Primary: true}
				return nil
			case len(words) == 1 && words[0] == nodePortsAll:
				*at = compile.NodePortAddresses{}
				return nil
			}
			parsed, bad := parseRanges(words)
			if bad == nil {
				*at = compile.NodePortAddresses{CIDRs: parsed}
			}
			for i := range bad {
				bad[i].want += ", or one of primary and all alone (node ports are never served on loopback addresses)"
			}
			return bad
		},
		words: func() []string {
			if at.Primary {
				return []string{nodePortsPrimary}
			}
			return printRanges(at.CIDRs)
		},
	}
}

// quote shows words in an error: numbers and the like as they are, everything else in quotes.
func quote(k kind, words ...string) string {
	text := strings.Join(words, ",")
	plain := func(r rune) bool {
		return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || strings.ContainsRune("+-.", r)
	}
	if k != kindText && !k.many() && text != "" && !strings.ContainsFunc(text, func(r rune) bool { return !plain(r) }) {
		return text
	}
	return strconv.Quote(text)
}
