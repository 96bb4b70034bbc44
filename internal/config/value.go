package config

import (
	"fmt"
	"math"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// kind is the form of a value. It determines which YAML types a file may use, and how many words the value has. Help
// shows the kind after a flag.
type kind string

const (
	kindText     kind = "string"
	kindBool     kind = "bool"
	kindSwitch   kind = "true|false|auto"
	kindNumber   kind = "int"
	kindDuration kind = "duration"
	kindList     kind = "strings"
	kindPairs    kind = "pairs"   // a list of key=value, only in settings of kube-proxy
	kindUnused   kind = "ignored" // a field of kube-proxy that has no effect
)

// isList reports whether values of this kind can have any number of words. All other kinds have one word.
func (k kind) isList() bool { return k == kindList || k == kindPairs }

// value parses and prints one setting.
type value struct {
	kind kind
	// choices lists the valid words. bounds contains the smallest and the largest valid number. Both are nil if the
	// kind is the only limit.
	choices []string
	bounds  *[2]int
	// set parses words. If any word is invalid, the setting does not change.
	set func(words []string) []invalidWord
	// words returns the words that set would parse to the current value.
	words func() []string
}

// invalidWord is a word that cannot be parsed, and the rule that it breaks ("must be ...").
type invalidWord struct {
	index int
	rule  string
}

func scalar[T any](k kind, at *T, rule string, parse func(string) (T, bool), print func(T) string) value {
	return value{
		kind: k,
		set: func(words []string) []invalidWord {
			parsed, ok := parse(words[0])
			if !ok {
				return []invalidWord{{0, rule}}
			}
			*at = parsed
			return nil
		},
		words: func() []string { return []string{print(*at)} },
	}
}

func text(at *string, rule string, valid func(string) bool) value {
	return scalar(kindText, at, rule, func(s string) (string, bool) { return s, valid(s) }, func(s string) string { return s })
}

func anyText(at *string) value { return text(at, "", func(string) bool { return true }) }

func oneOf(at *string, valid []string) value {
	v := text(at, "must be one of "+strings.Join(valid, ", "), func(s string) bool { return slices.Contains(valid, s) })
	v.choices = valid
	return v
}

func boolean(at *bool) value {
	return scalar(kindBool, at, "must be true or false", func(s string) (bool, bool) {
		b, err := strconv.ParseBool(s)
		return b, err == nil
	}, strconv.FormatBool)
}

// automatic is the value that lets the agent decide.
const automatic = "auto"

func onOffAuto(at *string) value {
	return scalar(kindSwitch, at, onOffAutoRule, func(s string) (string, bool) {
		b, err := strconv.ParseBool(s)
		if err == nil {
			s = strconv.FormatBool(b)
		}
		return s, err == nil || s == automatic
	}, strings.Clone)
}

const onOffAutoRule = "must be true, false or " + automatic

func number(at *int, least, most int) value {
	v := scalar(kindNumber, at, fmt.Sprintf("must be from %d to %d", least, most), func(s string) (int, bool) {
		n, err := strconv.Atoi(s)
		return n, err == nil && least <= n && n <= most
	}, strconv.Itoa)
	v.bounds = &[2]int{least, most}
	return v
}

func rate(at *float64) value {
	return scalar(kindNumber, at, "must be above 0, or negative for no limit", func(s string) (float64, bool) {
		f, err := strconv.ParseFloat(s, 32)
		return f, err == nil && f != 0 && !math.IsNaN(f) && !math.IsInf(f, 0)
	}, func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 32) })
}

func duration(at *time.Duration, rule string, valid func(time.Duration) bool) value {
	return scalar(kindDuration, at, rule, func(s string) (time.Duration, bool) {
		d, err := time.ParseDuration(s)
		return d, err == nil && valid(d)
	}, time.Duration.String)
}

func longerThanZero(at *time.Duration) value {
	return duration(at, "must be a duration longer than 0, such as 24h", func(d time.Duration) bool { return d > 0 })
}

// maxKernelSeconds is the longest timeout that every kernel accepts. The kernel counts ticks of at least 1 ms in 31
// bits.
const maxKernelSeconds = math.MaxInt32 / 1000

// kernelTimeout is a timeout that the kernel keeps in whole seconds.
func kernelTimeout(at *time.Duration) value {
	rule := fmt.Sprintf("must be a whole number of seconds such as 90s or 15m, at most %ds, or 0 to keep the kernel's value", maxKernelSeconds)
	return duration(at, rule, func(d time.Duration) bool { return d >= 0 && d%time.Second == 0 && d <= maxKernelSeconds*time.Second })
}

func listenAddress(at *string) value {
	const rule = "must be an IP address and a port from 1 to 65535, such as 127.0.0.1:10249 or [::]:10256, or empty to disable it"
	return text(at, rule, func(s string) bool {
		addr, err := netip.ParseAddrPort(s)
		return s == "" || err == nil && addr.Port() != 0
	})
}

// maxSocketPath is the kernel's limit on the length of a Unix socket's path, minus the suffix that the agent adds while creating it.
const maxSocketPath = 95

func socketPath(at *string) value {
	rule := fmt.Sprintf("must be an absolute path of at most %d characters, such as %s, or empty to disable it", maxSocketPath, StatusSocket)
	return text(at, rule, func(s string) bool { return s == "" || path.IsAbs(s) && len(s) <= maxSocketPath })
}

func filePath(at *string) value {
	const rule = "must be an absolute path, such as /var/lib/kube-ipvs/snapshot, or empty to disable it"
	return text(at, rule, func(s string) bool { return s == "" || path.IsAbs(s) && !strings.HasSuffix(s, "/") })
}

// maxInterfaceName is the kernel's limit on the length of an interface name. A prefix must be one character shorter, because iptables counts
// the trailing +.
const maxInterfaceName, maxInterfacePrefix = 15, 14

func interfaceName(at *string) value { return partOfName(at, "an interface name", maxInterfaceName) }

func interfacePrefix(at *string) value {
	return partOfName(at, "the beginning of interface names", maxInterfacePrefix)
}

func partOfName(at *string, what string, most int) value {
	rule := fmt.Sprintf("must be %s: 1 to %d characters without spaces, '/', '+' and '!'", what, most)
	return text(at, rule, func(s string) bool { return len(s) <= most && !strings.ContainsAny(s, "/ +\t\n!") })
}

var label = regexp.MustCompile(`^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$`)

func labelValue(at *string) value {
	const rule = "must be a label value: 1 to 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"
	return text(at, rule, label.MatchString)
}

const rangeRule = "must be an address range such as 10.244.0.0/16 or fd00:244::/56"

func ranges(at *[]netip.Prefix) value {
	return value{
		kind: kindList,
		set: func(words []string) []invalidWord {
			parsed, invalid := parseRanges(words, rangeRule)
			if invalid == nil {
				*at = parsed
			}
			return invalid
		},
		words: func() []string { return printRanges(*at) },
	}
}

func rangePair(at *[]netip.Prefix) value {
	pair := ranges(at)
	set := pair.set
	pair.set = func(words []string) []invalidWord {
		if parsed, invalid := parseRanges(words, rangeRule); invalid == nil && !isPair(parsed) {
			return []invalidWord{{len(words) - 1, "must be one range, or one per family, such as 10.244.0.0/16,fd00:244::/56"}}
		}
		return set(words)
	}
	return pair
}

func isPair(p []netip.Prefix) bool {
	return len(p) < 2 || len(p) == 2 && inet.FamilyOf(p[0].Addr()) != inet.FamilyOf(p[1].Addr())
}

func parseRanges(words []string, rule string) (parsed []netip.Prefix, invalid []invalidWord) {
	for i, word := range words {
		p, err := netip.ParsePrefix(word)
		if err != nil || p.Addr().Is4In6() {
			invalid = append(invalid, invalidWord{i, rule})
			continue
		}
		parsed = append(parsed, p.Masked())
	}
	return parsed, invalid
}

func printRanges(list []netip.Prefix) []string {
	words := make([]string, 0, len(list))
	for _, p := range list {
		words = append(words, p.String())
	}
	return words
}

// nodePorts is a list of ranges and of kube-proxy's keywords. A keyword must not be repeated, as for kube-proxy.
func nodePorts(at *compile.NodePortAddresses) value {
	return value{
		kind: kindList,
		set: func(words []string) (invalid []invalidWord) {
			var parsed compile.NodePortAddresses
			for i, word := range words {
				if keyword := nodePortKeyword(&parsed, word); keyword != nil {
					if *keyword {
						invalid = append(invalid, invalidWord{i, "must not be repeated"})
					}
					*keyword = true
					continue
				}
				one, wrong := parseRanges([]string{word}, rangeRule+", or one of "+strings.Join(nodePortKeywords, ", "))
				for _, w := range wrong {
					invalid = append(invalid, invalidWord{i, w.rule})
				}
				parsed.CIDRs = append(parsed.CIDRs, one...)
			}
			if invalid == nil {
				*at = parsed
			}
			return invalid
		},
		words: func() (words []string) {
			for _, word := range nodePortKeywords {
				if *nodePortKeyword(at, word) {
					words = append(words, word)
				}
			}
			return append(words, printRanges(at.CIDRs)...)
		},
	}
}

var nodePortKeywords = []string{"primary", "localhost", "all"}

// nodePortKeyword returns the field that a keyword sets, or nil if the word is not a keyword.
func nodePortKeyword(n *compile.NodePortAddresses, word string) *bool {
	switch word {
	case "primary":
		return &n.Primary
	case "localhost":
		return &n.Localhost
	case "all":
		return &n.All
	}
	return nil
}

// quote formats words for a message. It quotes everything except numbers and durations.
func quote(k kind, words ...string) string {
	joined := strings.Join(words, ",")
	special := func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && !strings.ContainsRune("+-.", r)
	}
	if k != kindText && !k.isList() && joined != "" && !strings.ContainsFunc(joined, special) {
		return joined
	}
	return strconv.Quote(joined)
}
