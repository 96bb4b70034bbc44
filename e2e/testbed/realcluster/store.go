package realcluster

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

// namespace is the containerd namespace of the kubelet's images.
const namespace = "k8s.io"

// store is the directory of a containerd that has unpacked all images.
func store(checkout string) string { return filepath.Join(folder(checkout), "store") }

// unpack makes containerd import the archives on this host, unless the store already contains them.
func unpack(ctx context.Context, checkout string, archives []string, sum string, out io.Writer) error {
	made := filepath.Join(store(checkout), "made-from")
	if text, err := os.ReadFile(made); err == nil && string(text) == sum {
		fmt.Fprintln(out, "images are unpacked")
		return nil
	}
	if err := os.RemoveAll(store(checkout)); err != nil {
		return err
	}
	start := time.Now()
	state, err := os.MkdirTemp("", "containerd-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(state)
	daemon, err := startDaemon(ctx, checkout, state)
	if err != nil {
		return err
	}
	err = importAll(ctx, checkout, state, archives)
	_ = daemon.Process.Signal(syscall.SIGTERM) // containerd then flushes its databases; Wait reports its exit
	_ = daemon.Wait()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "images unpacked after %s\n", time.Since(start).Round(time.Second))
	return os.WriteFile(made, []byte(sum), 0o644)
}

func startDaemon(ctx context.Context, checkout, state string) (*exec.Cmd, error) {
	program, err := upstream.Path(checkout, upstream.Containerd)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(state, "config.toml")
	text := fmt.Sprintf(`version = 3
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images",
  "io.containerd.nri.v1.nri", "io.containerd.podsandbox.controller.v1.podsandbox"]
[grpc]
  address = %q
[ttrpc]
  address = %q
`, store(checkout), filepath.Join(state, "state"), socket(state), filepath.Join(state, "ttrpc.sock"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(folder(checkout), "containerd.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	daemon := exec.CommandContext(ctx, program, "--config", config)
	daemon.Stdout, daemon.Stderr = log, log
	daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	return daemon, daemon.Start()
}

func socket(state string) string { return filepath.Join(state, "containerd.sock") }

func importAll(ctx context.Context, checkout, state string, archives []string) error {
	ctr, err := upstream.Path(checkout, upstream.Ctr)
	if err != nil {
		return err
	}
	run := func(args ...string) ([]byte, error) {
		return exec.CommandContext(ctx, ctr, append([]string{"-a", socket(state), "-n", namespace}, args...)...).CombinedOutput()
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		text, err := run("version")
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("containerd is not responding (log: %s): %w\n%s", filepath.Join(folder(checkout), "containerd.log"), err, text)
		}
	}
	for _, archive := range archives {
		if text, err := run("images", "import", "--local", "--snapshotter", "overlayfs", archive); err != nil {
			return fmt.Errorf("import %s: %w\n%s", archive, err, text)
		}
	}
	return nil
}

// useStore creates the directory of a node's containerd. It copies the databases, because containerd writes to
// them. It links the unpacked images, because each container has a separate upper layer.
func useStore(store, own string) error {
	return filepath.WalkDir(store, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(store, path)
		if err != nil {
			return err
		}
		to := filepath.Join(own, name)
		switch parent := filepath.Base(filepath.Dir(path)); {
		case parent == "snapshots" || parent == "blobs":
			if err := os.Symlink(path, to); err != nil || !entry.IsDir() {
				return err
			}
			return fs.SkipDir
		case entry.IsDir():
			return os.MkdirAll(to, 0o711)
		default:
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(to, text, 0o644)
		}
	})
}
