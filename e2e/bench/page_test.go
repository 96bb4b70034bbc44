package bench

import "testing"

// Results from before a cost was measured stay on the page.
func TestPacketCells(t *testing.T) {
	for want, got := range map[string]string{
		"49.3 (0.71, 0.81)": packet(49_300, 35_000, 40_000),
		"49.3 (0.71, –)":    packet(49_300, 35_000, 0),
		"not measured":      packet(0, 35_000, 40_000),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
