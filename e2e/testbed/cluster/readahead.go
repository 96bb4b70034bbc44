package cluster

import (
	"io/fs"
	"os"
	"path/filepath"
)

// ReadAhead reads files into the page cache before a proxy needs them. While the CPU waits for the disk, the clock of an
// instruction-counting guest follows the host's clock.
func (n *Node) ReadAhead(t T, files ...string) {
	t.Helper()
	for _, program := range []string{"iptables-nft-save", "iptables-legacy-save", "modprobe"} {
		n.MustRun(t, program, "--version")
	}
	size := 0
	for _, path := range append(files, "/lib/modules/"+os.Getenv("LAB_KERNEL")+"/kernel/net") {
		err := filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			content, err := os.ReadFile(path)
			size += len(content)
			return err
		})
		if err != nil {
			t.Fatalf("%v", err)
		}
	}
	t.Logf("%d MB read ahead", size>>20)
}
