package ipvs

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func TestNoIPVS(t *testing.T) {
	if _, err := os.Stat(procFile); err == nil {
		t.Skip("this kernel has IPVS")
	}
	for range 2 {
		b, err := New()
		if err == nil {
			_ = b.Close()
			t.Skip("this kernel has loaded IPVS")
		}
		if !errors.Is(err, kernel.ErrUnavailable) || !strings.Contains(err.Error(), "modprobe ip_vs") {
			t.Error(err)
		}
	}
}
