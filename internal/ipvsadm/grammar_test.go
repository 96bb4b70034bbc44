package ipvsadm

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

type testNames struct{}

func (testNames) Addr(host string) (netip.Addr, bool) {
	return netip.MustParseAddr("127.0.0.1"), host == "localhost"
}

func (testNames) Port(name, protocol string) (uint16, bool) {
	return 80, name == "http" && protocol == "tcp"
}

func (testNames) Host(a netip.Addr) (string, bool) {
	name, ok := map[string]string{
		"127.0.0.1": "localhost", "10.9.9.7": "short", "10.9.9.9": "a-very-long-host-name-that-goes-on.example.org",
		"fd00::99": "v6name.example.org",
	}[a.String()]
	return name, ok
}

func (testNames) PortName(port uint16, protocol string) (string, bool) {
	return map[uint16]string{80: "http", 8080: "http-alt"}[port], protocol == "tcp" && (port == 80 || port == 8080)
}

func key(protocol inet.Protocol, address string) *kernel.TableKey {
	a := netip.MustParseAddrPort(address)
	return &kernel.TableKey{Family: inet.FamilyOf(a.Addr()), Protocol: protocol, Addr: a}
}

func TestParse(t *testing.T) {
	for line, want := range map[string]Request{
		"":                            {Command: List},
		"-L":                          {Command: List},
		"-l --":                       {Command: List},
		"--list --numeric":            {Command: List, Numeric: true},
		"-LnX --nosort":               {Command: List, Numeric: true, Exact: true, NoSort: true},
		"-Ln --sort --syncid 7":       {Command: List, Numeric: true},
		"-Sn":                         {Command: Save, Numeric: true},
		"--save --sort":               {Command: Save},
		"-hL":                         {Command: Help},
		"--version foo":               {Command: Version},
		"-Lcn --persistent-conn":      {Command: List, Subject: Connections, Numeric: true, PersistentConn: true, View: viewPersistentConn},
		"-L --timeout --tun-info":     {Command: List, Subject: Timeouts, View: viewTunnel},
		"-L --daemon":                 {Command: List, Subject: Daemons},
		"-L --thresholds --rate":      {Command: List, View: viewRate},
		"-L --stats --rate":           {Command: List, View: viewStats},
		"-Lnt 10.0.0.1:80":            {Command: List, Numeric: true, Service: key(inet.TCP, "10.0.0.1:80")},
		"-lnt10.0.0.1:80":             {Command: List, Numeric: true, Service: key(inet.TCP, "10.0.0.1:80")},
		"-lnt=10.0.0.1:80":            {Command: List, Numeric: true, Service: key(inet.TCP, "10.0.0.1:80")},
		"-L --udp-service=10.0.0.1":   {Command: List, Service: key(inet.UDP, "10.0.0.1:0")},
		"-L --sctp-service [::1]:443": {Command: List, Service: key(inet.SCTP, "[::1]:443")},
		"-L -t fd00::2:80":            {Command: List, Service: key(inet.TCP, "[fd00::2:80]:0")},
		"-L -t [1.2.3.4]:bad":         {Command: List, Service: key(inet.TCP, "1.2.3.4:0")},
		"-L -t localhost:http":        {Command: List, Service: key(inet.TCP, "127.0.0.1:80")},
		"-L -t 0x0a600050:0080":       {Command: List, Service: key(inet.TCP, "10.96.0.80:80")},
		"-L -t 010.1:+80":             {Command: List, Service: key(inet.TCP, "8.0.0.1:80")},
		"-L -f 4294967295":            {Command: List, Service: &kernel.TableKey{Family: inet.IPv4, Mark: 1<<32 - 1}},
		"-L -f 01 -6":                 {Command: List, Service: &kernel.TableKey{Family: inet.IPv6, Mark: 1}},
	} {
		got, failure := Parse(strings.Fields(line), testNames{})
		if failure != nil {
			t.Errorf("%s: %s", line, failure.Text)
		} else if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", line, diff)
		}
		if shows := strings.HasPrefix(line, "-L") && (strings.HasSuffix(line, " --stats --rate") || strings.HasSuffix(line, " --rate")); got.Counters() != shows {
			t.Errorf("%s shows counters: %t", line, got.Counters())
		}
	}
}

// TestParseFailures compares errors with the responses of the packaged program.
func TestParseFailures(t *testing.T) {
	for _, c := range []struct {
		line, text string
		status     int
	}{
		{"-n -L", tryHelp, 255},
		{"foo", tryHelp, 255},
		{"-- -L", tryHelp, 255},
		{"-h=1", tryHelp, 255},
		{"-Lz", "-Lz: unknown option", 255},
		{"-L foo --bogus", "--bogus: unknown option", 255},
		{"-L --stats=", "--stats=: option does not take an argument", 255},
		{"-L -n=1", "-n=1: option does not take an argument", 255},
		{"-L -nt", "-nt: missing argument", 255},
		{"foo -L", "unexpected argument foo", 2},
		{"-L -- -n", "unexpected argument -n", 2},
		{"-Ln -Ln", "invalid option `-Ln'", 2},
		{"-L --set 1 2 3", "invalid option `--set'", 2},
		{"-Lnn", "multiple 'numeric' options specified", 2},
		{"-L -f 1 -t bad", "multiple 'service-address' options specified", 2},
		{"-L -6", "-6 used before -f\n", 2},
		{"-L -f 0", "invalid fwmark value `0' specified", 2},
		{"-L -f -1", "invalid fwmark value `-1' specified", 2},
		{"-L -f 4294967296", "invalid fwmark value `4294967296' specified", 2},
		{"-L -t bogus:80", "illegal virtual server address[:port] specified", 2},
		{"-L -t [::1]80", "illegal virtual server address[:port] specified", 2},
		{"-L -t 1.2.3.4:", "illegal virtual server address[:port] specified", 2},
		{"-L -t 1.2.3.4:65536", "illegal virtual server address[:port] specified", 2},
		{"-L -u 1.2.3.4:http", "illegal virtual server address[:port] specified", 2},
		{"-L -t fe80::1%lo", "illegal virtual server address[:port] specified", 2},
		{"-L --syncid 256", "illegal syncid specified", 2},
		{"-L -p -s rr", "Illegal 'scheduler' option with the 'list' command", 2},
		{"-S -w 1 -c", "Illegal 'connection' option with the 'save' command", 2},
		{"-L -t 1.2.3.4:80 -c --timeout", "The option 'service-address' conflicts with the 'connection' option in the 'list' command", 2},
		{"-L --daemon --timeout", "The option 'daemon' conflicts with the 'timeout' option in the 'list' command", 2},
		{"-Lc --stats", "options conflicts in the list command", 2},
		{"-L --timeout --persistent-conn", "options conflicts in the list command", 2},
	} {
		_, failure := Parse(strings.Fields(c.line), testNames{})
		if failure == nil || failure.Text != c.text || failure.Status != c.status {
			t.Errorf("%s: %+v, want status %d: %s", c.line, failure, c.status, c.text)
		}
	}
}

func TestWritingIsRejected(t *testing.T) {
	for _, verb := range strings.Fields("-A -E -D -a -e -d -C -R -Z --set --start-daemon --stop-daemon --add-service --clear") {
		_, failure := Parse([]string{verb, "-t", "1.2.3.4:80"}, testNames{})
		if failure == nil || failure.Status != StatusUsage || !strings.HasPrefix(failure.Text, verb+" is rejected") {
			t.Errorf("%s: %+v", verb, failure)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, line := range []string{"-Lnc", "-L -t [::1]:80", "-S --save", "-lf 1 -6", "-L -p -w 1 --", "-L -t 1.2.3.4 x:80"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		r, failure := Parse(strings.Split(line, " "), testNames{})
		if failure != nil {
			if failure.Status == 0 || failure.Text == "" {
				t.Errorf("%q fails without a message: %+v", line, failure)
			}
			return
		}
		if r.Command == writing || r.Command == Save && (r.Subject != Table || r.Service != nil || r.View != viewDefault) {
			t.Errorf("%q is %+v", line, r)
		}
		if r.Service != nil && r.Service.Mark == 0 && !r.Service.Addr.IsValid() {
			t.Errorf("%q names the service %+v", line, *r.Service)
		}
	})
}
