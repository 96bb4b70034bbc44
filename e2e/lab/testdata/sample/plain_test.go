package sample

import "testing"

func TestPlain(t *testing.T) {
	t.Fatal("this test needs no kernel; the lab must not run it")
}
