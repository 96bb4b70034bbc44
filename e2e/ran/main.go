// Command ran keeps account of which tests ran, so that no test is forgotten by every step of the gate.
//
//	ran test FILE go test ARGS...   runs "go test" and appends the result of each test to FILE
//	ran check DIR...                fails if a test function of this repository passed in no step that left its results below DIR
//
// The lab leaves the results of kernel tests and stories in the same form. nightly.txt lists what the gate leaves out.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			os.Exit(failed.ExitCode()) // its output says why
		}
		fmt.Fprintln(os.Stderr, "ran:", err)
		os.Exit(2)
	}
}

func run(args []string) error {
	switch {
	case len(args) > 3 && args[0] == "test":
		return record(args[1], args[2:])
	case len(args) > 1 && args[0] == "check":
		return check(os.Stdout, ".", args[1:])
	}
	return errors.New("usage: ran test FILE go test ARGS..., or ran check DIR...")
}

// result is how a test ended. The lab writes the same fields, and more.
type result struct {
	Package string `json:"package"` // directory in the repository
	Test    string `json:"test"`
	Status  string `json:"status"` // PASS, FAIL or SKIP
}
