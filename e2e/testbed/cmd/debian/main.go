// Command debian unpacks programs of Debian into the cache: nft, the next release's, which lists the agent's table in
// another way; firewalls, beside which tests run the agent; or Wine, which runs programs for Windows.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/debian"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "debian:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	fetch := map[string]func(root, architecture string) error{"nft": debian.FetchNextNFT, "firewalls": debian.FetchFirewalls, "wine": debian.FetchWine}
	if len(args) != 1 || fetch[args[0]] == nil {
		return errors.New("usage: debian nft|firewalls|wine")
	}
	root, err := upstream.Root()
	if err != nil {
		return err
	}
	return fetch[args[0]](root, runtime.GOARCH)
}
