package kerneltest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// NFTCommands implements Admin for a running kernel whose sets and rules are in the agent's own nftables table.
type NFTCommands struct {
	Commands
	Table string
}

var _ Admin = NFTCommands{}

func (c NFTCommands) nft(verb, object, name string, rest ...string) error {
	return command("nft", append([]string{verb, object, "inet", c.Table, name}, rest...)...)
}

// CreateSet implements Admin, but only for sets of addresses.
func (c NFTCommands) CreateSet(s kernel.Set) error {
	if err := command("nft", "add", "table", "inet", c.Table); err != nil {
		return err
	}
	return c.nft("add", "set", s.Name, fmt.Sprintf("{ type ipv4_addr; size %d; flags dynamic; }", s.MaxElem))
}

// FlushSet implements Admin.
func (c NFTCommands) FlushSet(name string) error { return c.nft("flush", "set", name) }

// DestroySet implements Admin.
func (c NFTCommands) DestroySet(name string) error { return c.nft("delete", "set", name) }

func nftChain(f inet.Family, id kernel.ChainID) string {
	return fmt.Sprintf("%s-%s-%d", id.Table, id.Chain, f)
}

// FlushChain implements Admin.
func (c NFTCommands) FlushChain(f inet.Family, id kernel.ChainID) error {
	return c.nft("flush", "chain", nftChain(f, id))
}

// AppendRule implements Admin, but only for rules of the form "[-p PROTOCOL] -j VERDICT".
func (c NFTCommands) AppendRule(f inet.Family, id kernel.ChainID, args ...string) error {
	return c.writeRule("add", f, id, args)
}

// InsertRule implements Admin, but only for the rules that AppendRule accepts.
func (c NFTCommands) InsertRule(f inet.Family, id kernel.ChainID, args ...string) error {
	return c.writeRule("insert", f, id, args)
}

func (c NFTCommands) writeRule(verb string, f inet.Family, id kernel.ChainID, args []string) error {
	var words []string
	if len(args) == 4 && args[0] == "-p" {
		words, args = []string{"meta", "l4proto", args[1]}, args[2:]
	}
	if len(args) != 2 || args[0] != "-j" {
		return fmt.Errorf("rule %q: must be [-p PROTOCOL] -j VERDICT", args)
	}
	return c.nft(verb, "rule", nftChain(f, id), append(words, strings.ToLower(args[1]))...)
}

// Disturber returns a function that starts another writer. The writer adds and removes these objects between the messages of a dump.
func Disturber(t *testing.T, write func(context.Context, []kernel.Op) []error, toggled ...kernel.Object) func() func() {
	n := 0
	return func() func() {
		last := n + 300 // the kernel does not finish a dump while the number of elements changes
		return func() {
			if n >= last {
				return
			}
			n++
			verb := kernel.Create
			if n%2 == 0 {
				verb = kernel.Delete
			}
			var ops []kernel.Op
			for _, o := range toggled {
				ops = append(ops, kernel.Op{Verb: verb, Object: o})
			}
			if err := errors.Join(write(t.Context(), ops)...); err != nil {
				t.Error(err)
			}
		}
	}
}
