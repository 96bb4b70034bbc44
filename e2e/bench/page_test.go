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

func TestReached(t *testing.T) {
	for want, got := range map[string]string{
		"2.83":                    reached(2.83, &Start{Limit: 300, Probed: 40, Usable: 40}),
		"not within 300: 0 of 40": reached(0, &Start{Limit: 300, Probed: 40}),
		"not within 600":          reached(0, &Start{Limit: 600}),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
