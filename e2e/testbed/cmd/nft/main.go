// Command nft unpacks the next Debian release's nft into the cache, for tests that list the agent's table with it.
package main

import (
	"fmt"
	"os"
	"runtime"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/debian"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

func main() {
	root, err := upstream.Root()
	if err == nil {
		err = debian.FetchNextNFT(root, runtime.GOARCH)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nft:", err)
		os.Exit(1)
	}
}
