package netdev

import (
	"slices"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func TestLocalPorts(t *testing.T) {
	for text, want := range map[[2]string]kernel.Ports{
		{"32768\t60999", ""}:                  {{First: 32768, Last: 60999}},
		{"1024 65535", "1024,8080,9000-9010"}: {{First: 1025, Last: 8079}, {First: 8081, Last: 8999}, {First: 9011, Last: 65535}},
		{"32768 60999", "1-65535"}:            nil,
	} {
		if got, err := localPorts(text[0], text[1]); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range [][2]string{{"", ""}, {"1 2 3", ""}, {"1 70000", ""}, {"1 2", "x"}, {"1 2", "3-"}} {
		if got, err := localPorts(text[0], text[1]); err == nil || !slices.Equal(got, kernel.DefaultLocalPorts) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	if got, err := LocalPorts(); err != nil || len(got) == 0 {
		t.Errorf("this machine: %v, %v", got, err)
	}
}
