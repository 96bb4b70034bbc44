package command

import "testing"

func TestPortNames(t *testing.T) {
	p := parsePortNames("# comment\nhttp 80/tcp www # WorldWideWeb\nweb 80/tcp\nhttp 80/udp\ndomain 53/udp\nbroken\nworse x/tcp\n")
	for _, c := range []struct {
		number portNumber
		name   string
	}{{portNumber{80, "tcp"}, "http"}, {portNumber{53, "udp"}, "domain"}, {portNumber{53, "tcp"}, ""}} {
		if got := p.names[c.number]; got != c.name {
			t.Errorf("%v is %q, want %q", c.number, got, c.name)
		}
	}
	for name, port := range map[portName]uint16{{"www", "tcp"}: 80, {"web", "tcp"}: 80, {"domain", "tcp"}: 0, {"80/tcp", "tcp"}: 0} {
		if got := p.numbers[name]; got != port {
			t.Errorf("%v is %d, want %d", name, got, port)
		}
	}
}
