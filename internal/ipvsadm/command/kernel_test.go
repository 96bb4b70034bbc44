package command

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/ipvsadm"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

type output struct {
	Stdout, Stderr string
	Status         int
}

func ours(t *testing.T, args ...string) output {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status := Run(t.Context(), args, &stdout, &stderr, func(ipvsadm.Request) string { return "" })
	return output{stdout.String(), stderr.String(), status}
}

// packaged runs the real ipvsadm.
func packaged(t *testing.T, stdin string, args ...string) output {
	t.Helper()
	cmd := exec.Command("ipvsadm", args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatalf("run ipvsadm %q: %v", args, err)
	}
	return output{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// same fails the test unless both programs have the same output. It retries, because counters and clocks may change
// between the two calls.
func same(t *testing.T, args ...string) {
	t.Helper()
	const attempts = 4
	var diff string
	for range attempts {
		if diff = cmp.Diff(packaged(t, "", args...), ours(t, args...)); diff == "" {
			return
		}
	}
	t.Errorf("ipvsadm %q (-packaged +ours):\n%s", args, diff)
}

// restore replaces the table with one ipvsadm process, which is faster than one process per line. It skips lines
// that the kernel rejects, and returns the output of list commands among the lines. The test fails if ipvsadm
// itself rejects a line.
func restore(t *testing.T, lines []string) string {
	t.Helper()
	got := packaged(t, "-C\n"+strings.Join(lines, "\n")+"\n", "-R")
	if got.Status == 2 {
		t.Fatalf("ipvsadm -R rejected a line: %s\n%s", got.Stderr, strings.Join(lines, "\n"))
	}
	return got.Stdout
}

var everyRow = []string{
	"-A -t 203.0.113.9:65535 -s fo",
	"-a -t 203.0.113.9:65535 -r 10.244.0.9:65535 -g -w 5",
	"-A -t 10.96.0.80:80 -s lc -p 360",
	"-a -t 10.96.0.80:80 -r 10.244.1.5:8080 -m -w 3 -x 1000 -y 700",
	"-a -t 10.96.0.80:80 -r 10.244.1.5:8081 -m -w 0 -x 2147483647 -y 2147483646",
	"-A -t 10.96.0.81:80 -s sh -b sh-port,sh-fallback -p 10800 -M 255.255.255.0",
	"-A -t 10.96.0.82:80 -s mh -b mh-port",
	"-A -t 10.96.0.83:80 -s mh -b flag-3",
	"-A -t 10.96.0.84:80 -s rr -b flag-1,flag-2,flag-3",
	"-A -t 10.96.0.85:80 -s rr -p 10 -M 0.0.0.0",
	"-A -t 10.96.0.86:80 -s rr -p 10 -M 255.0.255.0",
	"-A -t 10.96.0.87:80 -s rr -M 255.255.0.0",
	"-A -t 10.96.1.1:0 -s lblc -p",
	"-a -t 10.96.1.1:0 -r 10.244.2.3 -i --tun-type gue --tun-port 6080 --tun-csum",
	"-a -t 10.96.1.1:0 -r 10.244.2.4 -i --tun-type gre --tun-csum",
	"-a -t 10.96.1.1:0 -r 10.244.2.5 -i --tun-type gue --tun-port 6080 --tun-remcsum",
	"-a -t 10.96.1.1:0 -r 10.244.2.6 -i --tun-type gue --tun-port 60800",
	"-a -t 10.96.1.1:0 -r 201.2.3.4 -i -w 2147483647",
	"-a -t 10.96.1.1:0 -r 10.244.2.8 -i --tun-type gre",
	"-a -t 10.96.1.1:0 -r [fd00::77]:0 -i --tun-type gre --tun-csum",
	"-a -t 10.96.1.1:0 -r [2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:0 -i",
	"-A -u 203.0.113.9:5060 -s ovf -p 60 --pe sip",
	"-A -u 203.0.113.9:5061 -s rr -b flag-1,flag-3 -p 60 -M 255.255.0.0 --pe sip -o",
	"-A -u 10.96.0.10:53 -s rr -o",
	"-a -u 10.96.0.10:53 -r 10.244.0.3:53 -m -w 0",
	"-A --sctp-service 10.96.7.7:36412 -s wlc",
	"-A --sctp-service 10.96.7.7:5672 -s dh",
	"-a --sctp-service 10.96.7.7:5672 -r 10.244.0.3:5672 -m",
	"-A -t [fd00:10:96::1]:443 -s rr",
	"-a -t [fd00:10:96::1]:443 -r [fd00:10:244:1::5]:6443 -m",
	"-a -t [fd00:10:96::1]:443 -r [2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:6443 -m",
	"-A -t [2001:db8::1]:443 -s wrr",
	"-A -t [::1.2.3.4]:443 -s sed",
	"-A -t [::ffff:1.2.3.4]:443 -s nq",
	"-A -t [::1]:443 -s lblcr",
	"-A -t [::5:0]:443 -s rr",
	"-A -t [fe80:0:0:1::]:443 -s rr",
	"-A -t [1:0:0:2:3:0:0:4]:443 -s rr",
	"-A -t [1:0:2:3:4:5:6:7]:443 -s rr",
	"-A -u [fd00:10:96::a]:53 -s rr -p 10800 -M 64",
	"-A -t 127.0.0.1:22 -s rr",
	"-a -t 127.0.0.1:22 -r 127.0.0.1:8080 -m",
	"-A -f 1 -s rr",
	"-a -f 1 -r 10.1.1.1 -g",
	"-a -f 1 -r 127.0.0.1:53 -m",
	"-A -f 2 -6 -s wlc -p 600 -M 64",
	"-a -f 2 -6 -r [fd00::9]:80 -m",
	"-A -f 2 -s rr -p 9 -M 255.0.0.0 -o",
	"-A -f 2147483647 -s rr",
	"-A -f 2147483648 -s rr",
	"-A -f 3000000000 -6 -s rr",
	"-A -f 4294967295 -s rr",
}

var views = [][]string{nil, {"--stats"}, {"--rate"}, {"--thresholds"}, {"--persistent-conn"}, {"--tun-info"}}

// TestEveryRow compares the output of list and save for a table with every kind of row, in all views.
func TestEveryRow(t *testing.T) {
	labtest.NetNS(t)
	restore(t, everyRow)
	if got := ours(t, "-Sn"); strings.Count(got.Stdout, "\n") != len(everyRow) {
		t.Fatalf("the kernel rejected a part of the table:\n%s", got.Stdout)
	}
	same(t)
	same(t, "-S")
	same(t, "-Sn")
	for _, view := range views {
		same(t, slices.Concat([]string{"-Ln"}, view)...)
		same(t, slices.Concat([]string{"-ln", "--nosort", "-X"}, view)...)
		same(t, slices.Concat([]string{"-Lnt", "10.96.1.1:0"}, view)...)
	}
	for _, args := range []string{
		"-Ln -t 10.96.0.80:80", "-L -t 10.96.0.80:http", "-Ln -t [fd00:10:96::1]:443 --stats", "-L -u [fd00:10:96::a]:domain",
		"-Ln --sctp-service 10.96.7.7:36412", "-Ln -f 1", "-Ln -f 2", "-Ln -f 2 -6", "-Ln -f 3000000000 -6",
		"-Ln -f 4294967295", "-Ln -f 3", "-Ln -t 10.96.0.99:80", "-L -t localhost:ssh", "-Ln -t 0x0a600050:0080",
		"-Ln -t [10.96.1.1]:80", "-Ln --stats --rate --thresholds", "-Ln --thresholds --persistent-conn --tun-info",
		"-L --timeout", "-L --daemon", "-L --syncid 1 -n", "-v",
	} {
		same(t, strings.Fields(args)...)
	}
}

func TestMistakes(t *testing.T) {
	labtest.NetNS(t)
	for _, args := range []string{
		"-n -L", "-nL", "foo", "foo -L", "--", "--lis", "-L foo bar", "-L -- -n", "-Lz", "-L --bogus", "-L --stats=1", "-L -n=1",
		"-Lt", "-L -nt", "-L --tcp-service", "-Ln -Ln", "-LA", "-L --help", "-L -Z=1", "-Lnn", "-L -f 1 -t 1.2.3.4:80",
		"-L -6", "-L -f 0", "-L -f -1", "-L -f 4294967296", "-L -f 1x", "-L -t bogus", "-L -t 1.2.3.4:99999", "-L -t 1.2.3.4:",
		"-L -t [::1]", "-L -t [::1]80", "-L -t fe80::1%lo", "-L -t 256.1.1.1:80", "-L -u 1.2.3.4:ssh", "-L --syncid 256",
		"-Lc -t 1.2.3.4:80", "-L --timeout -t 1.2.3.4:80", "-Lc --timeout", "-L --daemon --timeout", "-Lc --stats",
		"-L --timeout --persistent-conn", "-L -w 1", "-L -p -s rr", "-S -c -w 1", "-S --nosort", "-S -t 1.2.3.4:80", "-S --sort",
		"-L --nosort --sort --exact", "-L -t 1.2.3.4:80:90", "-L -t [1.2.3.4]80", "-L -t [1.2.3.4", "-L -t :80",
	} {
		same(t, strings.Fields(args)...)
	}
}

func TestRandomTables(t *testing.T) {
	labtest.NetNS(t)
	r := rand.New(rand.NewPCG(labtest.Seed(t), 0))
	// The kernel creates the connection table with the first server. ipvsadm queries its size when it starts, not when
	// it lists.
	restore(t, []string{"-A -t 127.0.0.1:1"})
	for done := range 50 {
		lists := []string{randomList(r), randomList(r)}
		want := restore(t, append(randomTable(r), lists...))
		got := ""
		for _, list := range lists {
			got += ours(t, strings.Fields(list)...).Stdout
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("table %d, %q (-packaged +ours):\n%s", done, lists, diff)
		}
	}
}

func oneOf[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

func randomList(r *rand.Rand) string {
	list := oneOf(r, "-Ln", "-Ln", "-Ln", "-Ln", "-Ln", "-Sn", "-Sn", "-L", "-S")
	if list[1] == 'S' {
		return list
	}
	first, second := r.IntN(len(views)), r.IntN(len(views))
	for _, more := range slices.Concat(views[min(first, second)], views[max(first, second)]) {
		if !strings.Contains(list, more) {
			list += " " + more
		}
	}
	for _, more := range []string{" --nosort", " --exact", " --sort"} {
		if r.IntN(4) == 0 {
			list += more
		}
	}
	return list
}

func randomTable(r *rand.Rand) []string {
	var lines []string
	for range r.IntN(14) {
		lines = append(lines, randomService(r)...)
	}
	return lines
}

func randomService(r *rand.Rand) []string {
	v6 := r.IntN(3) == 0
	port := 1 + r.IntN(1<<16-1)
	kind := oneOf(r, "-t", "-u", "--sctp-service", "-f")
	name := fmt.Sprintf("%s %s", kind, randomAddress(r, v6, port))
	if kind == "-f" {
		port = 0
		name = fmt.Sprintf("-f %d", oneOf(r, 1+r.Uint32N(9), 1+r.Uint32N(1<<32-1)))
		if v6 {
			name += " -6"
		}
	}
	lines := []string{"-A " + name + randomFlags(r, kind, v6)}
	for range r.IntN(9) {
		lines = append(lines, "-a "+name+randomDestination(r, v6, port))
	}
	return lines
}

func randomFlags(r *rand.Rand, kind string, v6 bool) string {
	// mh is omitted because each of its destinations is expensive on an emulated machine. TestEveryRow covers it.
	scheduler := oneOf(r, "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf")
	flags := " -s " + scheduler
	if r.IntN(3) == 0 {
		flags += " -b " + oneOf(r, "flag-1", "flag-2", "flag-3", "flag-1,flag-3", "flag-2,flag-1")
	}
	if r.IntN(3) == 0 {
		flags += fmt.Sprintf(" -p %d", 1+r.IntN(100000))
		switch {
		case r.IntN(2) == 0:
		case v6:
			flags += fmt.Sprintf(" -M %d", 1+r.IntN(128))
		default:
			flags += " -M " + oneOf(r, "255.255.255.255", "255.255.255.0", "255.0.0.0", "128.0.0.0")
		}
		if kind == "-u" && r.IntN(2) == 0 {
			flags += " --pe sip"
		}
	}
	if (kind == "-u" || kind == "-f") && r.IntN(4) == 0 {
		flags += " -o"
	}
	return flags
}

func randomDestination(r *rand.Rand, v6 bool, port int) string {
	method := oneOf(r, "-m", "-m", "-g", "-i")
	if method == "-i" && r.IntN(3) == 0 {
		v6 = !v6 // only tunnels support different families
	}
	if method == "-m" {
		port = 1 + r.IntN(1<<16-1)
	}
	d := fmt.Sprintf(" -r %s %s -w %d", randomAddress(r, v6, port), method, oneOf(r, 0, 1, r.IntN(1<<31)))
	if method == "-i" {
		d += oneOf(r, "", " --tun-type ipip", " --tun-type gre", " --tun-type gre --tun-csum", " --tun-type gue --tun-port 6080",
			" --tun-type gue --tun-port 65535 --tun-csum", " --tun-type gue --tun-port 1 --tun-remcsum")
	}
	if r.IntN(4) == 0 {
		d += fmt.Sprintf(" -x %d -y %d", 1000+r.IntN(1<<30), r.IntN(1000))
	}
	return d
}

// randomAddress returns a random address, or an address that differs little from others, because both affect the order.
func randomAddress(r *rand.Rand, v6 bool, port int) string {
	if v6 {
		return fmt.Sprintf("[%s:%x:%x::%s]:%d", oneOf(r, "fd00", "2001", "2a00", "8000", "1"), r.Uint32N(1<<16), r.Uint32N(2),
			oneOf(r, "1", "ffff", "8000:1", "1:0:0:1"), port)
	}
	return fmt.Sprintf("%d.%d.0.%d:%d", 1+oneOf(r, r.IntN(223), r.IntN(2)), r.IntN(3), oneOf(r, r.IntN(3), r.IntN(256)), port)
}

func TestConnections(t *testing.T) {
	labtest.NetNS(t)
	restore(t, []string{
		"-A -u 127.0.0.2:514 -s rr", "-a -u 127.0.0.2:514 -r 127.0.0.1:5140 -m",
		"-A -u [::1]:514 -s rr", "-a -u [::1]:514 -r [::1]:5140 -m",
		"-A -u 127.100.100.100:50000 -s rr -p 77", "-a -u 127.100.100.100:50000 -r 127.100.100.101:50000 -m",
		"-A -t 127.0.0.2:80 -s rr -p 3000", "-a -t 127.0.0.2:80 -r 127.0.0.1:8080 -m",
	})
	send(t, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 2}, Port: 514}, 1, 1)
	send(t, &unix.SockaddrInet4{Addr: [4]byte{127, 100, 100, 100}, Port: 50000}, 1, 1)
	send(t, &unix.SockaddrInet6{Addr: [16]byte{15: 1}, Port: 514}, 1, 1)
	connect(t, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 2}, Port: 80})
	if got := strings.Count(ours(t, "-Lnc").Stdout, "\n"); got != 2+6 { // 4 connections, 2 templates
		t.Errorf("got %d lines, want the headings and 6 connections:\n%s", got, ours(t, "-Lnc").Stdout)
	}
	for _, args := range []string{"-Lnc", "-Lc", "-Lnc --persistent-conn", "-Ln", "-Ln --persistent-conn", "-Ln --stats", "-Ln --rate"} {
		same(t, strings.Fields(args)...)
	}
}

// TestLargeNumbers compares counters that are shown with a suffix: more than 10^8 bytes. TestAbbreviated covers larger
// counters.
func TestLargeNumbers(t *testing.T) {
	labtest.NetNS(t)
	restore(t, []string{"-A -u 127.0.0.2:9 -s rr -o", "-a -u 127.0.0.2:9 -r 127.0.0.1:9 -m"})
	// Up to half of the datagrams fail, because the socket reports ICMP errors for earlier datagrams.
	send(t, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 2}, Port: 9}, 60000, 5000)
	// The kernel updates the shown counters every two seconds.
	shown := ""
	for start := time.Now(); !strings.Contains(shown, "K "); shown = ours(t, "-Ln", "--stats").Stdout {
		if time.Since(start) > time.Minute {
			t.Fatalf("no number has the suffix K:\n%s", shown)
		}
		time.Sleep(100 * time.Millisecond)
	}
	same(t, "-Ln", "--stats")
	same(t, "-Ln", "--stats", "--exact")
	same(t, "-Ln", "--rate")
}

func TestSettings(t *testing.T) {
	labtest.NetNS(t)
	packaged(t, "", "--set", "100", "20", "2678400")
	same(t, "-L", "--timeout")
	packaged(t, "", "--start-daemon", "master", "--mcast-interface", "lo", "--syncid", "7")
	same(t, "-L", "--daemon")
	packaged(t, "", "--start-daemon", "backup", "--mcast-interface", "lo", "--syncid", "9", "--sync-maxlen", "1400",
		"--mcast-group", "ff02::81", "--mcast-port", "99", "--mcast-ttl", "3")
	same(t, "-L", "--daemon")
	if got := strings.Count(ours(t, "-L", "--daemon").Stdout, "\n"); got != 2 {
		t.Errorf("got %d daemons, want 2", got)
	}
	packaged(t, "", "--stop-daemon", "master")
	packaged(t, "", "--stop-daemon", "backup")
}

// send sends datagrams from a new socket. No socket receives them, so ICMP errors are ignored.
func send(t *testing.T, to unix.Sockaddr, size, count int) {
	t.Helper()
	fd := socket(t, to, unix.SOCK_DGRAM)
	for range count {
		if err := unix.Sendto(fd, make([]byte, size), 0, to); err != nil && err != unix.ECONNREFUSED {
			t.Fatal(err)
		}
	}
}

func connect(t *testing.T, to unix.Sockaddr) {
	t.Helper()
	if err := unix.Connect(socket(t, to, unix.SOCK_STREAM), to); err != nil && err != unix.ECONNREFUSED {
		t.Fatal(err)
	}
}

// socket opens a socket on this thread. Package net may open sockets on threads in another namespace.
func socket(t *testing.T, to unix.Sockaddr, kind int) int {
	t.Helper()
	family := unix.AF_INET
	if _, ok := to.(*unix.SockaddrInet6); ok {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}
