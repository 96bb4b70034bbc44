package rundir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMake: Make rejects a directory in which another user could have created files. Its error suggests a remedy.
func TestMake(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, dir string) error
		refused string
	}{
		"missing":               {func(*testing.T, string) error { return nil }, ""},
		"mode 0755":             {func(_ *testing.T, dir string) error { return os.Mkdir(dir, 0o755) }, ""},
		"other users can write": {func(_ *testing.T, dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)) }, "chmod 700"},
		"symbolic link":         {func(t *testing.T, dir string) error { return os.Symlink(t.TempDir(), dir) }, "not a directory"},
		"file":                  {func(_ *testing.T, dir string) error { return os.WriteFile(dir, nil, 0o600) }, "not a directory"},
		"another user's": {func(t *testing.T, dir string) error {
			if os.Geteuid() != 0 {
				t.Skip("only root can change a directory's owner")
			}
			return errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 1000, 1000))
		}, "belongs to user 1000"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run", "kube-ipvs")
			if err := os.Mkdir(filepath.Dir(dir), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := c.prepare(t, dir); err != nil {
				t.Fatal(err)
			}
			err := Make(dir)
			if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
				t.Errorf("Make: %v; want %q", err, c.refused)
			}
		})
	}
}
