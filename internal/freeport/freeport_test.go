package freeport

import (
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

func TestPortsDiffer(t *testing.T) {
	seen := map[uint16]bool{}
	for range 200 {
		port := Get(t)
		if seen[port] || port < first || port > last {
			t.Fatalf("port %d, after %d others", port, len(seen))
		}
		seen[port] = true
	}
}

func TestPortsInUseAreSkipped(t *testing.T) {
	for network, listen := range map[string]func(string) (interface{ Close() error }, error){
		"tcp4": func(at string) (interface{ Close() error }, error) { return net.Listen("tcp4", "127.0.0.1"+at) },
		"tcp6": func(at string) (interface{ Close() error }, error) { return net.Listen("tcp6", "[::1]"+at) },
		"udp4": func(at string) (interface{ Close() error }, error) { return net.ListenPacket("udp4", "127.0.0.1"+at) },
	} {
		port := Get(t)
		socket, err := listen(":" + strconv.Itoa(int(port)))
		if err != nil {
			t.Fatal(err)
		}
		if unused(port) {
			t.Errorf("%s: the used port %d counts as free", network, port)
		}
		_ = socket.Close()
		if !unused(port) {
			t.Errorf("%s: the free port %d counts as in use", network, port)
		}
	}
}

// TestProcessesDoNotShare runs this test binary again, which tries to reserve a port of this process.
func TestProcessesDoNotShare(t *testing.T) {
	const variable = "FREEPORT_TEST_PORT"
	if text := os.Getenv(variable); text != "" {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("reserved: %v", reserve(uint16(port)))
		return
	}
	again := func(port uint16) string {
		cmd := exec.Command(os.Args[0], "-test.run=^TestProcessesDoNotShare$", "-test.v")
		cmd.Env = append(os.Environ(), variable+"="+strconv.Itoa(int(port)))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	port := Get(t)
	if out := again(port); !strings.Contains(out, "reserved: false") {
		t.Errorf("another process reserved port %d\n%s", port, out)
	}
	_ = reserved[port].Close()
	if out := again(port); !strings.Contains(out, "reserved: true") {
		t.Errorf("port %d is still reserved after its owner ended\n%s", port, out)
	}
}
