package differential

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
)

// kube-proxy starts one of these programs for each changed set entry, and a hundred more in each sync. In an emulated
// guest, the root file system is on the host. The programs would therefore spend most of their time opening files.
var programs = []string{"ipset", "modprobe", "iptables", "iptables-restore", "iptables-save", "ip6tables", "ip6tables-restore", "ip6tables-save"}

// inMemory copies the programs with their libraries into a directory in memory. It returns an environment that uses
// the copies.
func inMemory(dir string) ([]string, error) {
	libraries, err := filepath.Glob("/usr/lib/*/xtables/*.so")
	if err != nil {
		return nil, err
	}
	for _, name := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			return nil, err
		}
		// A multi-call binary selects its function by its name.
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return nil, err
		}
		if err := copyTo(dir, path); err != nil {
			return nil, err
		}
		if filepath.Base(path) != name {
			if err := os.Symlink(filepath.Base(path), filepath.Join(dir, name)); err != nil {
				return nil, err
			}
		}
		needs, err := exec.Command("ldd", path).Output()
		if err != nil {
			return nil, err
		}
		for _, match := range library.FindAllSubmatch(needs, -1) {
			libraries = append(libraries, string(match[1]))
		}
	}
	for _, path := range libraries {
		if err := copyTo(dir, path); err != nil {
			return nil, err
		}
	}
	return append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "LD_LIBRARY_PATH="+dir, "XTABLES_LIBDIR="+dir), nil
}

// library matches files in the output of ldd.
var library = regexp.MustCompile(`=> (/\S+)`)

func copyTo(dir, path string) error {
	to := filepath.Join(dir, filepath.Base(path))
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o755)
}
