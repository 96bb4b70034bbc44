package ipvs

import (
	"strings"
	"testing"
	"time"

	lib "github.com/moby/ipvs"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

func TestTimeouts(t *testing.T) {
	labtest.Need(t)
	b, _ := openBackend(t)
	before, err := b.Timeouts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	must(t, b, op(kernel.Ensure, kernel.Timeouts{TCP: 1000 * time.Second, UDP: 20 * time.Second}))
	after, err := b.Timeouts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := kernel.Timeouts{TCP: 1000 * time.Second, TCPFin: before.TCPFin, UDP: 20 * time.Second}
	if after != want || before.TCPFin == 0 {
		t.Errorf("got %s after %s, want %s", after, before, want)
	}
	if got := libraryTimeouts(t); got != want {
		t.Errorf("the library reads %s, want %s", got, want)
	}
	must(t, b, op(kernel.Ensure, kernel.Timeouts{TCPFin: maxTimeout}))
	for _, refused := range []kernel.Timeouts{{TCP: -time.Second}, {UDP: 1500 * time.Millisecond}, {TCPFin: 1 << 31 * time.Second}} {
		err := apply(t, b, kernel.Ensure, refused)
		if err == nil || !strings.Contains(err.Error(), "596h31m23s") {
			t.Errorf("%+v: %v, want an error that names the valid timeouts", refused, err)
		}
	}
}

func libraryTimeouts(t *testing.T) kernel.Timeouts {
	t.Helper()
	h, err := lib.New("")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	c, err := h.GetConfig()
	if err != nil {
		t.Fatal(err)
	}
	return kernel.Timeouts{TCP: c.TimeoutTCP, TCPFin: c.TimeoutTCPFin, UDP: c.TimeoutUDP}
}
