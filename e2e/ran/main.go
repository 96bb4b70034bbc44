// Command ran records which tests ran, so that no test is left out of the gate by accident.
//
//	ran test FILE go test ARGS...   runs "go test" and appends the result of each test to FILE
//	ran check DIR...                fails unless each test function of this repository passed in a step with results below DIR
//	ran nightly [-part PART] [-hours N]   runs parts of the long tests in a clone of the last commit
//	ran keep                        adds the results of parts to the record, writes the pages, and commits both
//	ran ages                        prints the age of each part's newest run
//	ran proven                      fails unless every part passed recently
//	ran pages                       writes the pages again
//
// The lab writes the results of kernel tests and stories in the same format. nightly.txt lists the tests that the gate
// excludes.
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
			os.Exit(failed.ExitCode()) // its output shows the reason
		}
		fmt.Fprintln(os.Stderr, "ran:", err)
		os.Exit(2)
	}
}

func run(args []string) error {
	switch {
	case len(args) > 3 && args[0] == "test":
		return recordTests(args[1], args[2:])
	case len(args) > 1 && args[0] == "check":
		return check(os.Stdout, ".", args[1:])
	case len(args) > 0 && args[0] == "nightly":
		return nightly(args[1:])
	case len(args) == 1 && args[0] == "keep":
		return keep()
	case len(args) == 1 && args[0] == "ages":
		return ages(os.Stdout)
	case len(args) == 1 && args[0] == "proven":
		return proven()
	case len(args) == 1 && args[0] == "pages":
		return writePages(nil)
	}
	return errors.New("usage: ran test FILE go test ARGS..., ran check DIR..., or ran nightly|keep|ages|proven|pages")
}
