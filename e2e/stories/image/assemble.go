package image

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// BuildAgent runs the Dockerfile's build command and writes the agent to the directory out.
func (r Recipe) BuildAgent(out, version, commit string, environment ...string) error {
	sources, err := os.MkdirTemp("", "kube-ipvs-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(sources)
	for _, name := range r.copied() {
		if err := copyTo(sources, filepath.Join(r.checkout, name)); err != nil {
			return err
		}
	}
	environment = append([]string{"GOFLAGS=", "GOWORK=off", "OUT=" + out, "VERSION=" + version, "COMMIT=" + commit}, environment...)
	return r.do("go build", sources, environment...)
}

// Assemble creates the image's files as the Dockerfile's last stage does. It needs root and Debian's
// iptables package.
func (r Recipe) Assemble(root, version, commit string) error {
	if _, err := os.Stat("/usr/sbin/xtables-nft-multi"); err != nil {
		return errors.New("the image's files come from Debian's iptables package, which is not installed; use apt-get install iptables")
	}
	stages, err := os.MkdirTemp("", "kube-ipvs-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(stages)
	if err := r.BuildAgent(filepath.Join(stages, "out"), version, commit); err != nil {
		return err
	}
	if err := r.do("ROOTFS", "/", "ROOTFS="+filepath.Join(stages, "rootfs")); err != nil {
		return err
	}
	for _, i := range r.last() {
		if i.word != "COPY" {
			continue
		}
		if err := r.copyInto(root, stages, strings.Fields(i.argument)); err != nil {
			return fmt.Errorf("COPY %s: %w", i.argument, err)
		}
	}
	return nil
}

// copyInto executes a COPY instruction.
func (r Recipe) copyInto(root, stages string, words []string) error {
	from := r.checkout
	if strings.HasPrefix(words[0], "--from=") {
		from, words = stages, words[1:]
	}
	if len(words) != 2 {
		return fmt.Errorf("%d paths, want one source and one destination", len(words))
	}
	source, destination := filepath.Join(from, words[0]), filepath.Join(root, words[1])
	if strings.HasSuffix(words[0], "/") {
		source += "/." // a directory's content
	}
	if err := os.MkdirAll(filepath.Dir(destination), 0o755); err != nil {
		return err
	}
	return copyTo(destination, source)
}

func copyTo(destination, source string) error {
	return output(exec.Command("cp", "-a", source, destination))
}

// do executes a RUN instruction on this machine.
func (r Recipe) do(part, dir string, environment ...string) error {
	text, err := r.run(part)
	if err != nil {
		return err
	}
	shell := exec.Command("sh", "-c", text)
	shell.Dir, shell.Env = dir, append(os.Environ(), environment...)
	return output(shell)
}

func output(c *exec.Cmd) error {
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", c, err, out)
	}
	return nil
}
