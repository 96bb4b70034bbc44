package main

import "fmt"

// facts are the properties of the machine that choose considers.
type facts struct {
	root       bool
	ipvs       bool   // the running kernel has ip_vs, or the command does not need it
	nativeFail string // why the native probe failed; empty if it passed
	release    string // of the running kernel
	amd64      bool
}

// User-mode Linux is used only on request, because no distribution ships its kernel. modeFast selects it if the
// running kernel has no IPVS.
const (
	modeUML  = "uml"
	modeFast = "fast"
)

func choose(want string, f facts) (mode, why string, err error) {
	lack := nativeLack(f)
	switch {
	case want == "native" && lack != "":
		return "", "", userErrorf("LAB=native is not possible: %s; unset LAB to use QEMU", lack)
	case want == "native":
		return "native", "LAB=native", nil
	case want == modeUML && f.amd64:
		return modeUML, "LAB=uml", nil
	case want == modeFast && lack != "" && f.amd64:
		return modeUML, lack, nil
	case want == "qemu" && f.amd64:
		return "qemu", "LAB=qemu", nil
	case want == modeUML, want == "qemu", lack != "" && !f.amd64:
		return "", "", userErrorf("guests run the host's programs, so they need an amd64 host; %s",
			orDefault(lack, "LAB=native works here"))
	case lack == "":
		return "native", fmt.Sprintf("kernel %s has IPVS and the user is root", f.release), nil
	default:
		return "qemu", lack, nil
	}
}

// nativeLack explains why the running kernel cannot serve as the lab, or returns "" if it can.
func nativeLack(f facts) string {
	switch {
	case !f.ipvs:
		return fmt.Sprintf("kernel %s has no ip_vs", f.release)
	case !f.root:
		return "the user is not root"
	case f.nativeFail != "":
		return f.nativeFail
	default:
		return ""
	}
}

type accelFacts struct {
	device bool // /dev/kvm can be opened
	// probe boots a guest under KVM, or returns the cached result. It is called only if the result matters.
	probe func() bool
}

// chooseAccel picks kvm or tcg. Under nested virtualization, kernels may hang even if /dev/kvm exists, so KVM needs a
// test boot.
func chooseAccel(want string, f accelFacts) (accel, why string) {
	switch {
	case want != "auto":
		return want, "LAB_ACCEL=" + want
	case !f.device:
		return "tcg", "no usable /dev/kvm"
	case f.probe():
		return "kvm", "KVM works"
	default:
		return "tcg", "a KVM test boot failed"
	}
}
