// Command lab runs any command, or any Go test, on a kernel with IPVS.
//
// If the running kernel has IPVS, the lab runs the command in fresh namespaces. Otherwise it boots a guest, with QEMU or user-mode
// Linux, that uses the host's root file system. docs/lab.md is the user manual.
//
// It has 5,700 lines because it needs neither root, a container engine nor a prepared image: it fetches or builds kernels, boots them,
// carries terminals, signals and exit statuses between host and guest, and proves that every test that needs a kernel really ran.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

// These are exit statuses of the lab itself. Any other status is the command's.
const (
	exitUsage   = 2   // wrong arguments, or something the user must install
	exitTimeout = 124 // as timeout(1)
	exitBroken  = 125 // the lab failed, or the guest died
)

func init() {
	// Pdeathsig refers to the thread that started a child. The main goroutine starts all children, so it must stay on
	// the main thread, which lives until the process ends.
	runtime.LockOSThread()
}

func main() {
	os.Exit(run(os.Args))
}

func run(args []string) int {
	if len(args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		return exitUsage
	}
	name := args[1]
	if last := args[len(args)-1]; last == guestInit { // a guest's kernel puts unknown arguments before this one
		name = last
	}
	command, ok := commands[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "lab: unknown command %q\n%s", name, usage)
		return exitUsage
	}
	status, err := command(args[2:])
	if err == nil {
		return status
	}
	fmt.Fprintf(os.Stderr, "lab: %v\n", err)
	var bad *userError
	if errors.As(err, &bad) {
		return exitUsage
	}
	return exitBroken
}

// commands are the subcommands. The lab itself starts the commands below the blank line.
var commands map[string]func(args []string) (int, error)

func init() {
	commands = map[string]func([]string) (int, error){
		"run":         runCommand,
		"shell":       shellCommand,
		"kernel-test": kernelTestCommand,
		"install":     installCommand,

		guestInit:      guestInitCommand,
		"guest-run":    guestRunCommand,
		"uml-host":     umlHostCommand,
		"native-init":  nativeInitCommand,
		"native-probe": nativeProbeCommand,
		"run-tests":    runTestsCommand,
	}
}

// userError is a problem that only the user can fix. Its text names the fix.
type userError struct{ text string }

func (e *userError) Error() string { return e.text }

func userErrorf(format string, args ...any) error {
	return &userError{fmt.Sprintf(format, args...)}
}

// notice prints a line from the lab itself to stderr; stdout is the command's.
func notice(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "lab: "+format+"\n", args...)
}
