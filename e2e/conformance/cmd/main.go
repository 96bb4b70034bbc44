// Command cmd writes docs/conformance.md: go run ./e2e/conformance/cmd [RESULTS...]
//
// RESULTS are folders that were OUT of a lab run, or files from there. Their results are added to those kept in
// e2e/conformance/results.jsonl. It runs at the root of the repository.
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
	results, err := conformance.ReadResults(conformance.ResultsPath)
	if err != nil {
		return err
	}
	for _, run := range runs {
		if results, err = results.Add(run); err != nil {
			return err
		}
	}
	results = results.Of(claims)
	if err := results.Write(conformance.ResultsPath); err != nil {
		return err
	}
	return os.WriteFile(conformance.PagePath, []byte(conformance.Page(claims, results)), 0o644)
}
