// Command cmd writes docs/conformance.md: go run ./e2e/conformance/cmd [RESULTS...]
//
// RESULTS are directories that earlier lab runs wrote (OUT). The command adds their results to those kept in e2e/conformance.
// It must run in the root of the repository.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/kube-ipvs/kube-ipvs/e2e/conformance"
)

func main() {
	flag.Parse()
	if err := write(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func write(runs []string) error {
	claims, err := conformance.FindClaims("e2e")
	if err != nil {
		return err
	}
	found, err := conformance.ReadRecord(conformance.Folder)
	if err != nil {
		return err
	}
	for _, run := range runs {
		if found, err = found.Add(run, claims); err != nil {
			return err
		}
	}
	found = found.Of(claims)
	if err := found.Write(conformance.Folder); err != nil {
		return err
	}
	return os.WriteFile(conformance.PagePath, []byte(conformance.Page(claims, found)), 0o644)
}
