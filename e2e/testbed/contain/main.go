// Command contain starts a program as a container runtime would: in a new mount namespace with a read-only root,
// with a few capabilities, and under a seccomp filter. It executes the program in its own process, so the
// caller can send signals to the program and read its exit status.
//
//	contain -capabilities NET_ADMIN,NET_RAW -root .cache/image/root -mount /proc/sys/net:/host/proc/sys/net -- /usr/local/bin/kube-ipvs run
//
// Without -root, the program sees the machine's own files and can write only to the -mount targets.
//
// The caller creates all other namespaces. In a new PID namespace, contain mounts that namespace's /proc.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

type container struct {
	root         string
	oomScore     int
	mounts       []mount
	capabilities []uint
	command      []string
}

// mount makes a file or directory of the machine visible inside the container.
type mount struct {
	source, target string
	readOnly       bool
}

func main() {
	// Namespaces, capabilities and no_new_privs are per thread.
	runtime.LockOSThread()
	c, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "contain:", err)
		os.Exit(2)
	}
	fmt.Fprintln(os.Stderr, "contain:", c.become())
	os.Exit(126)
}

func parse(args []string) (container, error) {
	c := container{}
	flags := flag.NewFlagSet("contain", flag.ContinueOnError)
	flags.StringVar(&c.root, "root", "/", "`directory` with the container's files")
	flags.IntVar(&c.oomScore, "oom-score-adj", 0, "the program's oom_score_adj")
	flags.Func("mount", "`source:target[:ro]`, host file or directory to mount; may be repeated", func(text string) error {
		m, err := parseMount(text)
		c.mounts = append(c.mounts, m)
		return err
	})
	flags.Func("capabilities", "`names` of capabilities without CAP_, separated by commas", func(text string) (err error) {
		c.capabilities, err = parseCapabilities(text)
		return err
	})
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	if c.command = flags.Args(); len(c.command) == 0 {
		return c, errors.New("no program to start")
	}
	return c, nil
}

func parseMount(text string) (mount, error) {
	source, rest, _ := strings.Cut(text, ":")
	target, option, _ := strings.Cut(rest, ":")
	if !strings.HasPrefix(source, "/") || !strings.HasPrefix(target, "/") || option != "" && option != "ro" {
		return mount{}, fmt.Errorf("must be /source:/target or /source:/target:ro")
	}
	return mount{source, target, option == "ro"}, nil
}

// become returns only on failure.
func (c container) become() error {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(c.oomScore)), 0o644); err != nil {
		return err
	}
	if err := c.enter(); err != nil {
		return err
	}
	program, err := exec.LookPath(c.command[0])
	if err != nil {
		return err
	}
	if err := limit(c.capabilities); err != nil {
		return err
	}
	if err := installFilter(); err != nil {
		return err
	}
	return fmt.Errorf("start %s: %w", program, unix.Exec(program, c.command, os.Environ()))
}
