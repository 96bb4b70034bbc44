package debian

import (
	"errors"
	"testing"
)

func TestSources(t *testing.T) {
	const signed = "deb [signed-by=" + keyring + "] "
	mirror := "http://mirror.example/debian/ bookworm main\nhttp://mirror.example/debian/ bookworm contrib\n" +
		"http://other.example/debian/ trixie main\nhttp://mirror.example/debian-security/ bookworm-security main\n" +
		"https://apt.example/tool/ stable main\n"
	for _, test := range []struct{ targets, suite, want string }{
		{mirror, "bookworm", signed + "http://mirror.example/debian/ bookworm main\n" +
			signed + "http://mirror.example/debian-security/ bookworm-security main\n"},
		{mirror, "bookworm-backports", signed + "http://mirror.example/debian/ bookworm-backports main\n"},
		{mirror, "sid", signed + "http://mirror.example/debian/ sid main\n"},
	} {
		if got, err := sources(test.targets, test.suite); err != nil || got != test.want {
			t.Errorf("%s: got %v\n%swant\n%s", test.suite, err, got, test.want)
		}
	}
	if got, err := sources("http://archive.example/ubuntu noble main\n", "bookworm"); err == nil || !errors.Is(err, ErrNotHere) {
		t.Errorf("without a Debian source: got %q, %v", got, err)
	}
}
