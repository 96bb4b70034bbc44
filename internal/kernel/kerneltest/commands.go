package kerneltest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Commands implements Admin for a running kernel. It runs the usual tools in the network namespace of the calling thread.
type Commands struct {
	// IPTables names the program for each family; nil means iptables and ip6tables.
	IPTables map[inet.Family]string
}

var _ Admin = Commands{}

func command(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

func typed(verb kernel.Verb, objects ...kernel.Object) error {
	for _, o := range objects {
		words := strings.Fields(op(verb, o).String())
		if err := command(words[0], words[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// AddServer implements Admin.
func (Commands) AddServer(s kernel.Server, destinations ...kernel.Destination) error {
	objects := []kernel.Object{s}
	for _, d := range destinations {
		objects = append(objects, behind(s.Key, d))
	}
	return typed(kernel.Create, objects...)
}

// DelServer implements Admin.
func (Commands) DelServer(key kernel.ServerKey) error {
	return typed(kernel.Delete, kernel.Server{Key: key})
}

// ClearServers implements Admin.
func (Commands) ClearServers() error { return command("ipvsadm", "-C") }

// SetTimeouts implements Admin.
func (Commands) SetTimeouts(t kernel.Timeouts) error { return typed(kernel.Ensure, t) }

// CreateSet implements Admin.
func (Commands) CreateSet(s kernel.Set) error { return typed(kernel.Create, s) }

// FlushSet implements Admin.
func (Commands) FlushSet(name string) error { return command("ipset", "flush", name) }

// DestroySet implements Admin.
func (Commands) DestroySet(name string) error { return typed(kernel.Delete, kernel.Set{Name: name}) }

// DelDevice implements Admin.
func (Commands) DelDevice() error { return typed(kernel.Delete, kernel.DummyDevice{}) }

// DelAddress implements Admin.
func (Commands) DelAddress(a kernel.BoundAddress) error { return typed(kernel.Delete, a) }

// FlushChain implements Admin.
func (c Commands) FlushChain(f inet.Family, id kernel.ChainID) error { return c.iptables(f, id, "-F") }

// AppendRule implements Admin.
func (c Commands) AppendRule(f inet.Family, id kernel.ChainID, args ...string) error {
	return c.iptables(f, id, "-A", args...)
}

// InsertRule implements Admin.
func (c Commands) InsertRule(f inet.Family, id kernel.ChainID, args ...string) error {
	return c.iptables(f, id, "-I", args...)
}

func (c Commands) iptables(f inet.Family, id kernel.ChainID, verb string, args ...string) error {
	program := iptables[f]
	if c.IPTables != nil {
		program = c.IPTables[f]
	}
	return command(program, append([]string{"-w", "5", "-t", id.Table, verb, id.Chain}, args...)...)
}

// SetSysctl implements Admin. It writes the file because the sysctl program is not installed everywhere.
func (Commands) SetSysctl(s kernel.SysctlSetting) error {
	return os.WriteFile("/proc/sys/"+s.Name, []byte(s.Value), 0o644)
}
