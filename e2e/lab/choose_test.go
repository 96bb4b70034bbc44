package main

import (
	"errors"
	"testing"
)

func TestChoose(t *testing.T) {
	capable := facts{root: true, ipvs: true, release: "6.1", amd64: true}
	with := func(change func(*facts)) facts {
		f := capable
		change(&f)
		return f
	}
	noIPVS := with(func(f *facts) { f.ipvs = false })
	for _, test := range []struct {
		name      string
		want      string
		facts     facts
		mode, why string
		bad       bool
	}{
		{"all there", "auto", capable, "native", "kernel 6.1 has IPVS and the user is root", false},
		{"no IPVS", "auto", noIPVS, "qemu", "kernel 6.1 has no ip_vs", false},
		{"not root", "auto", with(func(f *facts) { f.root = false }), "qemu", "the user is not root", false},
		{"a container", "auto", with(func(f *facts) { f.nativeFail = "EPERM" }), "qemu", "EPERM", false},
		{"QEMU requested", "qemu", capable, "qemu", "LAB=qemu", false},
		{"native requested", "native", capable, "native", "LAB=native", false},
		{"native cannot work", "native", noIPVS, "", "", true},
		{"user-mode Linux requested", "uml", capable, "uml", "LAB=uml", false},
		{"user-mode Linux on arm", "uml", with(func(f *facts) { f.amd64 = false }), "", "", true},
		{"fast, all there", "fast", capable, "native", "kernel 6.1 has IPVS and the user is root", false},
		{"fast, no IPVS", "fast", noIPVS, "uml", "kernel 6.1 has no ip_vs", false},
		{"fast, nothing on arm", "fast", with(func(f *facts) { f.amd64, f.ipvs = false, false }), "", "", true},
		{"native on arm", "auto", with(func(f *facts) { f.amd64 = false }), "native", "kernel 6.1 has IPVS and the user is root", false},
		{"QEMU on arm", "qemu", with(func(f *facts) { f.amd64 = false }), "", "", true},
		{"nothing on arm", "auto", with(func(f *facts) { f.amd64, f.ipvs = false, false }), "", "", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			mode, why, err := choose(test.want, test.facts)
			var bad *userError
			if errors.As(err, &bad) != test.bad {
				t.Fatalf("error is %v", err)
			}
			if mode != test.mode || why != test.why {
				t.Errorf("got %s (%s), want %s (%s)", mode, why, test.mode, test.why)
			}
		})
	}
}

func TestChooseAccelProbesOnlyWhenNeeded(t *testing.T) {
	for _, test := range []struct {
		want          string
		device, works bool
		accel         string
		probed        bool
	}{
		{"auto", true, true, "kvm", true},
		{"auto", true, false, "tcg", true},
		{"auto", false, true, "tcg", false},
		{"kvm", false, false, "kvm", false},
		{"tcg", true, true, "tcg", false},
	} {
		probed := false
		accel, _ := chooseAccel(test.want, accelFacts{device: test.device, probe: func() bool { probed = true; return test.works }})
		if accel != test.accel || probed != test.probed {
			t.Errorf("%+v: got %s, probed %v", test, accel, probed)
		}
	}
}
