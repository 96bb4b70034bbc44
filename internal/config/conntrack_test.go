package config

import "testing"

func TestConntrackLimit(t *testing.T) {
	for _, c := range []struct{ perCore, least, cpus, want int }{
		{32768, 131072, 1, 131072},
		{32768, 131072, 4, 131072},
		{32768, 131072, 5, 163840},
		{32768, 131072, 32, 1 << 20},
		{32768, 131072, 256, 1 << 20},
		{32768, 2 << 20, 256, 2 << 20}, // conntrack.min is not reduced
		{1000, 0, 3, 3000},
		{0, 131072, 64, 0},
	} {
		if got := (Conntrack{MaxPerCore: c.perCore, Min: c.least}).limit(c.cpus); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// The defaults are the same as in kube-proxy, and the agent does not set a timeout of 0.
func TestConntrackSysctls(t *testing.T) {
	for _, c := range []struct {
		args []string
		want map[string]string
	}{
		{nil, map[string]string{"max": "262144", "tcp_timeout_established": "86400", "tcp_timeout_close_wait": "3600"}},
		{[]string{"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0s"}, map[string]string{}},
		{[]string{"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=2s",
			"--conntrack-tcp-be-liberal", "--conntrack-udp-timeout=30s", "--conntrack-udp-timeout-stream=2m"},
			map[string]string{"tcp_timeout_close_wait": "2", "tcp_be_liberal": "1", "udp_timeout": "30", "udp_timeout_stream": "120"}},
	} {
		l, err := parse(t, c.args...).Load()
		if err != nil {
			t.Fatal(err)
		}
		got := l.Conntrack.sysctls(8)
		if len(got) != len(c.want) {
			t.Errorf("%q: got %v, want %v", c.args, got, c.want)
		}
		for _, s := range got {
			if want := c.want[s.Name[len("net/netfilter/nf_conntrack_"):]]; s.Value != want {
				t.Errorf("%q: got %v, want %q", c.args, s, want)
			}
		}
	}
}

func TestCountCPUs(t *testing.T) {
	for text, want := range map[string]int{"0\n": 1, "0-3\n": 4, "0-3,8,10-11\n": 7} {
		if got, ok := countCPUs(text); !ok || got != want {
			t.Errorf("%q: got %d, %t, want %d", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "\n", "3-0", "a", "0-", "-1", "0-70000"} {
		if got, ok := countCPUs(text); ok {
			t.Errorf("%q: got %d, want none", text, got)
		}
	}
}
