package config

import "testing"

// The trials need a kernel, but this test does not.
func TestEverySettingWithBoundsHasATrial(t *testing.T) {
	wanted := map[string]bool{}
	for _, row := range table {
		if wanted[row.path] = needsTrial(row); !wanted[row.path] {
			continue
		}
		if _, found := boundsTrials[row.path]; !found {
			t.Errorf("%s has no trial: add its bounds, or the reason why the kernel never receives it", row.path)
		}
	}
	for path := range boundsTrials {
		if !wanted[path] {
			t.Errorf("there is a trial for %s, which is not a setting with bounds", path)
		}
	}
}
