package host

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// patience bounds every wait. Only a failing test waits that long.
const patience = 2 * time.Minute

type machine struct {
	process *os.Process
	deb     string // the package's path on the machine
	// enter is a command prefix, for example to run commands in a new namespace.
	enter []string
}

func boot(t *testing.T) *machine {
	t.Helper()
	labtest.Need(t)
	deb := os.Getenv("KUBE_IPVS_DEB")
	if deb == "" {
		t.Fatal("KUBE_IPVS_DEB is not set; use `make e2e`, which builds the package")
	}
	if _, err := os.Stat("/lib/systemd/systemd"); err != nil {
		t.Fatal("systemd not found; use apt-get install systemd")
	}
	console, err := os.Create(filepath.Join(t.TempDir(), "console"))
	if err != nil {
		t.Fatal(err)
	}
	start := exec.Command("sh", "testdata/boot.sh", t.TempDir(), deb)
	start.Stdout, start.Stderr = console, console
	start.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWCGROUP,
		// Unlike a clone flag, this also hides the mounts from the machine that runs the test.
		Unshareflags: unix.CLONE_NEWNS,
	}
	if err := start.Start(); err != nil {
		t.Fatal(err)
	}
	m := &machine{process: start.Process, deb: "/root/" + filepath.Base(deb)}
	t.Cleanup(func() {
		if err := m.process.Kill(); err != nil {
			t.Error(err)
		}
		_ = start.Wait() // killed
		if t.Failed() {
			text, _ := os.ReadFile(console.Name())
			t.Logf("console:\n%s", text)
		}
	})
	cluster.Eventually(t, patience, "systemd has booted", func() error {
		out, err := m.try("systemctl", "is-system-running")
		if state := strings.TrimSpace(out); state != "running" && state != "degraded" {
			return fmt.Errorf("%s (%w)", state, err)
		}
		return nil
	})
	return m
}

func (m *machine) try(args ...string) (string, error) {
	args = slices.Concat([]string{"-t", fmt.Sprint(m.process.Pid), "--all", "--root", "--wdns=/", "--"}, m.enter, args)
	c := exec.Command("nsenter", args...)
	c.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	out, err := c.CombinedOutput()
	return string(out), err
}

func (m *machine) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := m.try(args...)
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return out
}

func (m *machine) isActive() bool {
	_, err := m.try("systemctl", "is-active", "kube-ipvs")
	return err == nil
}

const served = "TCP  10.96.0.10:80 rr\n  -> 192.168.50.12:8080"

func (m *machine) isServed(t *testing.T) bool {
	t.Helper()
	return strings.Contains(m.run(t, "kube-ipvs", "ipvsadm", "-Ln"), served)
}

func (m *machine) awaitService(t *testing.T) {
	t.Helper()
	cluster.Eventually(t, patience, "the agent serves the Service", func() error {
		if out, err := m.try("kube-ipvs", "explain", "default/web"); err != nil {
			log, _ := m.try("journalctl", "-u", "kube-ipvs", "--no-pager", "-n", "30")
			return fmt.Errorf("%w: %s\n%s", err, out, log)
		}
		return nil
	})
}

func TestPackage(t *testing.T) {
	m := boot(t)
	m.install(t)
	t.Run("restrictions", func(t *testing.T) { m.restrictions(t) })
	t.Run("doctor", func(t *testing.T) { m.doctor(t) })
	t.Run("killed agent", func(t *testing.T) { m.killed(t) })
	t.Run("upgrade", func(t *testing.T) { m.upgrade(t) })
	t.Run("removal", func(t *testing.T) { m.removal(t) })
}

func (m *machine) install(t *testing.T) {
	t.Helper()
	m.run(t, "dpkg", "-i", m.deb)
	if m.isActive() {
		t.Error("installing the package started the service; only the administrator may start it")
	}
	manifest, err := os.ReadFile("testdata/web.yaml")
	if err != nil {
		t.Fatal(err)
	}
	m.run(t, "sh", "-c", "cat > /etc/kube-ipvs/manifests/web.yaml <<'EOT'\n"+string(manifest)+"EOT\n")
	// The conntrack limit is global, and this container cannot set it.
	m.run(t, "sh", "-c", "echo 'conntrack: {maxPerCore: 0, min: 0}' >> /etc/kube-ipvs/config.yaml")
	m.run(t, "systemd-run", "--unit", "web", "systemd-socket-activate", "--listen", "192.168.50.12:8080", "--accept", "--inetd", "cat")
	m.run(t, "systemctl", "enable", "--now", "kube-ipvs")
	m.awaitService(t)
}

// restrictions checks that the unit's restrictions block nothing that the agent needs.
func (m *machine) restrictions(t *testing.T) {
	status := m.run(t, "sh", "-c", "cat /proc/$(systemctl show --value -p MainPID kube-ipvs)/status")
	for _, line := range []string{"CapBnd:\t0000000000003000", "CapEff:\t0000000000003000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(status, line) {
			t.Errorf("the agent's process status lacks %q:\n%s", line, status)
		}
	}
	log := m.run(t, "journalctl", "-u", "kube-ipvs", "--no-pager", "-o", "cat")
	for _, word := range []string{"WARN", "ERROR", "permitted", "denied", "read-only"} {
		if strings.Contains(log, word) {
			t.Errorf("the agent's log contains %q:\n%s", word, log)
		}
	}
	if got := m.run(t, "stat", "-c", "%a %U", "/var/lib/kube-ipvs"); got != "700 root\n" {
		t.Errorf("the snapshot's directory is %q", got)
	}
	// The threshold is systemd's exposure score times ten. A unit without restrictions scores 96.
	if out, err := m.try("systemd-analyze", "security", "--no-pager", "--threshold=30", "kube-ipvs"); err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
}

func (m *machine) doctor(t *testing.T) {
	m.diagnose(t, 0, "verdict: well", "kube-ipvs", "doctor")
	// Only doctor sees this value, so a running agent cannot repair the damage.
	m.diagnose(t, 1, "sysctl net/ipv4/vs/expire_nodest_conn: is 0, must be 1", "unshare", "--mount", "sh", "-c",
		"echo 0 >/run/zero; mount --bind /run/zero /proc/sys/net/ipv4/vs/expire_nodest_conn && exec kube-ipvs doctor")
	for _, c := range []struct {
		spoil, mend string
		status      int
		want        string
	}{
		{"iptables -I INPUT -j DROP", "iptables -D INPUT -j DROP", 2, "-t filter -A INPUT -j DROP"},
		{"nft add table ip kube-proxy; nft add chain ip kube-proxy services '{ type nat hook prerouting priority 0; }'", "nft delete table ip kube-proxy", 1, "table ip kube-proxy"},
		{"cp /bin/sleep /root/kube-proxy; /root/kube-proxy 600 >/dev/null 2>&1 & sleep 1", "killall kube-proxy || pkill -x kube-proxy", 1, "kube-proxy (process"},
		{"systemctl stop kube-ipvs", "systemctl start kube-ipvs", 2, "no kube-ipvs agent responds"},
	} {
		m.run(t, "sh", "-c", c.spoil)
		m.diagnose(t, c.status, c.want, "kube-ipvs", "doctor")
		m.run(t, "sh", "-c", c.mend)
	}
	m.awaitService(t)
	cluster.Eventually(t, patience, "the machine is healthy again", func() error {
		if out, err := m.try("kube-ipvs", "doctor"); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
}

func (m *machine) diagnose(t *testing.T, status int, want string, command ...string) {
	t.Helper()
	out, err := m.try(command...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if got != status || !strings.Contains(out, want) {
		t.Errorf("doctor: exit status %d, want %d and %q\n%s", got, status, want, out)
	}
}

func (m *machine) killed(t *testing.T) {
	before := m.run(t, "systemctl", "show", "--value", "-p", "MainPID", "kube-ipvs")
	m.run(t, "systemctl", "kill", "--signal=KILL", "kube-ipvs")
	cluster.Eventually(t, patience, "systemd starts another agent", func() error {
		if after := m.run(t, "systemctl", "show", "--value", "-p", "MainPID", "kube-ipvs"); after == before || after == "0\n" {
			return fmt.Errorf("process %s", after)
		}
		return nil
	})
	m.awaitService(t)
}

// dpkg runs the same scripts when it reinstalls a version as when it upgrades to a newer one.
func (m *machine) upgrade(t *testing.T) {
	before := m.run(t, "systemctl", "show", "--value", "-p", "MainPID", "kube-ipvs")
	m.run(t, "dpkg", "-i", m.deb)
	if !m.isServed(t) {
		t.Error("the upgrade removed the virtual server")
	}
	if after := m.run(t, "systemctl", "show", "--value", "-p", "MainPID", "kube-ipvs"); after == before {
		t.Error("the old agent is still running after the upgrade")
	}
	m.awaitService(t)
	if text := m.run(t, "cat", "/etc/kube-ipvs/config.yaml"); !strings.Contains(text, "maxPerCore: 0") {
		t.Errorf("the upgrade removed the administrator's settings:\n%s", text)
	}
}

func (m *machine) removal(t *testing.T) {
	m.run(t, "dpkg", "-r", "kube-ipvs")
	if m.isActive() {
		t.Error("the agent is still running")
	}
	left := m.run(t, "ipvsadm", "-Sn") + m.run(t, "sh", "-c", "ip -o link show kube-ipvs0 2>/dev/null || true; ipset list -n; iptables-save | grep -i kube-ipvs || true")
	if left != "" {
		t.Errorf("the kernel still has:\n%s", left)
	}
	if out := m.run(t, "sh", "-c", "find /etc/kube-ipvs /usr/bin/kube-ipvs /usr/lib/systemd/system/kube-ipvs.service -type f 2>/dev/null || true"); out !=
		"/etc/kube-ipvs/config.yaml\n/etc/kube-ipvs/manifests/web.yaml\n" && out != "/etc/kube-ipvs/manifests/web.yaml\n/etc/kube-ipvs/config.yaml\n" {
		t.Errorf("files left after removal:\n%s", out)
	}
	m.run(t, "dpkg", "-P", "kube-ipvs")
	if out := m.run(t, "find", "/etc/kube-ipvs", "-type", "f"); out != "/etc/kube-ipvs/manifests/web.yaml\n" {
		t.Errorf("files left after purge: %q; want only the administrator's manifest", out)
	}
}
