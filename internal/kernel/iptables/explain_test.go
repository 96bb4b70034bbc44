package iptables

import (
	"errors"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const refusedText = `*filter
:KUBE-F - [0:0]
-A KUBE-F -m set --match-set VIPS dst -j REJECT
-A KUBE-F -m conntrack --ctstate NEW -j KUBE-MARK-MASQ
COMMIT
`

// The texts are the output of iptables 1.8.9.
func TestExplainRestore(t *testing.T) {
	for _, tc := range []struct {
		name, stderr string
		want         []string
		is           error
	}{
		{"missing set", "iptables-nft-restore v1.8.9 (nf_tables): Set VIPS doesn't exist.\n\nError occurred at line: 3\n",
			[]string{"-A KUBE-F -m set --match-set VIPS dst -j REJECT", "Set VIPS doesn't exist"}, nil},
		{"missing extension", "Couldn't load match `set':No such file or directory\n\nError occurred at line: 3\n",
			[]string{"--match-set VIPS", "package iptables"}, kernel.ErrUnavailable},
		{"missing module, nft", "line 3: RULE_APPEND failed (No such file or directory): rule in chain KUBE-F\n",
			[]string{"--match-set VIPS", "xt_set"}, kernel.ErrUnavailable},
		{"missing module, legacy", "iptables-restore: line 5 failed: No chain/target/match by that name.\n",
			[]string{"COMMIT of table filter", "ip6t_REJECT, ipt_REJECT, xt_conntrack, xt_set:"}, kernel.ErrUnavailable},
		{"no raw socket", "Can't open socket to ipset.\n\nError occurred at line: 3\n", []string{"NET_RAW"}, nil},
		{"locked", "Another app is currently holding the xtables lock; still 1s 0us time ahead to have a chance to grab the lock...\n",
			[]string{"xtables lock"}, errLocked},
		{"no nf_tables", "iptables-nft-restore v1.8.9 (nf_tables): \nline 1: TABLE_ADD failed (Operation not supported): table nat\n",
			[]string{"nf_tables"}, kernel.ErrUnavailable},
		{"line out of range", "line 99 failed\n", []string{"line 99 failed"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := explainRestore(&processError{command: "iptables-nft-restore", stderr: tc.stderr, err: errors.New("exit status 2")}, refusedText)
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not contain %q", err, want)
				}
			}
			for _, sentinel := range []error{kernel.ErrUnavailable, errLocked} {
				if errors.Is(err, sentinel) != errors.Is(tc.is, sentinel) {
					t.Errorf("error %q: errors.Is(%v) returns %t", err, sentinel, errors.Is(err, sentinel))
				}
			}
		})
	}
	if err := explainRestore(nil, refusedText); err != nil {
		t.Errorf("success explained as %v", err)
	}
}

func TestHolderOf(t *testing.T) {
	locks := `1: POSIX  ADVISORY  READ  777 fd:00:5678 0 EOF
2: FLOCK  ADVISORY  WRITE 1234 00:19:1001 0 EOF
2: -> FLOCK  ADVISORY  WRITE 999 00:19:1001 0 EOF
`
	if got := holderOf(locks, 1001); got != "1234" {
		t.Errorf("holder of 1001 is %q", got)
	}
	if got := holderOf(locks, 1); got != "" {
		t.Errorf("holder of 1 is %q", got)
	}
}
