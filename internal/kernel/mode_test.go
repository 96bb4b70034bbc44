package kernel

import "testing"

func TestModes(t *testing.T) {
	for m, want := range map[Mode][2]string{
		IPVSWithIPTables: {DataPlaneIPVS, RulesIPTables},
		IPVSWithNFTables: {DataPlaneIPVS, RulesNFTables},
		NFTablesOnly:     {DataPlaneNFTables, RulesNFTables},
	} {
		if got := [2]string{m.DataPlane(), m.Rules()}; got != want {
			t.Errorf("%s: %v, want %v", m, got, want)
		}
		text, _ := m.MarshalText()
		var read Mode
		if err := read.UnmarshalText(text); err != nil || read != m {
			t.Errorf("%s is read as %s: %v", text, read, err)
		}
	}
	if err := new(Mode).UnmarshalText([]byte("ipvs")); err == nil {
		t.Error("an unknown mode name was accepted")
	}
}
