package labtest

import (
	"fmt"
	"strings"
	"testing"
)

func TestMissingNeeds(t *testing.T) {
	for _, lab := range []bool{false, true} {
		t.Run(map[bool]string{false: "outside the lab", true: "in the lab"}[lab], func(t *testing.T) {
			t.Setenv(labEnv, map[bool]string{false: "", true: "1"}[lab])
			fake := &fakeTB{TB: t}
			require(fake, "the kernel has no IPVS")
			if fake.failed != lab || fake.skipped == lab {
				t.Errorf("failed %v, skipped %v", fake.failed, fake.skipped)
			}
			if !strings.Contains(fake.text, "no IPVS") || !lab && !strings.Contains(fake.text, "PKG=./internal/kernel/labtest RUN='^TestMissingNeeds$'") {
				t.Errorf("unhelpful message: %s", fake.text)
			}
		})
	}
}

type fakeTB struct {
	testing.TB
	failed, skipped bool
	text            string
}

func (f *fakeTB) Fatalf(format string, args ...any) {
	f.failed, f.text = true, fmt.Sprintf(format, args...)
}
func (f *fakeTB) Skipf(format string, args ...any) {
	f.skipped, f.text = true, fmt.Sprintf(format, args...)
}
