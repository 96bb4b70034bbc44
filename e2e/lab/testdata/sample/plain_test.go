package sample

import "testing"

func TestPlain(t *testing.T) {
	t.Fatal("this test is not for the kernel; the lab must leave it out")
}
