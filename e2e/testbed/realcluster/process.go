package realcluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// process is a daemon of the cluster.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the daemon has exited
}

func start(log string, cmd *exec.Cmd) (*process, error) {
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	cmd.Stdout, cmd.Stderr = file, file
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	p := &process{cmd: cmd, done: make(chan struct{})}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	go func() {
		_ = cmd.Wait() // its log contains the reason
		close(p.done)
	}()
	return p, nil
}

func (p *process) hasEnded() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// kill kills the daemon's process group. Processes in other groups, such as containerd's shims, keep running.
func (p *process) kill() error {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // fails only if the daemon has exited
	select {
	case <-p.done:
		return nil
	case <-time.After(time.Minute):
		return fmt.Errorf("%s is still running a minute after SIGKILL", p.cmd.Path)
	}
}
