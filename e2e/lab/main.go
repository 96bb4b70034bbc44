// Command lab runs any command, or any Go test, on a kernel with IPVS.
//
// If the running kernel has IPVS, the lab runs the command in fresh namespaces. Otherwise it boots a guest, with QEMU or user-mode
// Linux, that uses the host's root file system. docs/lab.md is the user manual.
//
// It does not need root, a container engine or a prepared image. It fetches or builds kernels and boots them, relays
// terminals, signals and exit statuses, and checks that every test that needs a kernel really ran.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

// Exit statuses of the lab itself. Other statuses come from the command.
const (
	exitUsage   = 2   // invalid arguments, or a missing program that the user must install
	exitTimeout = 124 // as timeout(1)
	exitBroken  = 125 // the lab failed, or the guest died
)

func init() {
	// Pdeathsig takes effect when the thread that started a child ends. The main goroutine starts all children and
	// must stay on the main thread, which lives until the process ends.
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
	if last := args[len(args)-1]; last == guestInit { // the kernel puts unknown arguments first
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

// commands contains the subcommands. Only the lab itself runs the ones below the blank line.
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

// userError is an error that only the user can fix. Its text says how.
type userError struct{ text string }

func (e *userError) Error() string { return e.text }

func userErrorf(format string, args ...any) error {
	return &userError{fmt.Sprintf(format, args...)}
}

// notice prints a message of the lab to stderr. stdout belongs to the command.
func notice(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "lab: "+format+"\n", args...)
}
