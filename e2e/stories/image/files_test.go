package image

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// requireVariable makes tests fail rather than skip when they cannot run.
const requireVariable = "KUBE_IPVS_E2E"

func assemble(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat("/usr/sbin/xtables-nft-multi"); err != nil || os.Geteuid() != 0 {
		cannot := t.Skipf
		if os.Getenv(requireVariable) == "1" {
			cannot = t.Fatalf
		}
		cannot("SKIPPED, the image's files were not tested: this needs root and Debian's iptables package")
	}
	root := t.TempDir()
	if err := recipe(t).Assemble(root, testVersion, testCommit); err != nil {
		t.Fatal(err)
	}
	return root
}

// commands returns every program that the agent starts.
func commands() []string {
	var all []string
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, variant := range []string{"-nft", "-legacy"} {
			for _, use := range []string{"", "-save", "-restore"} {
				all = append(all, family+variant+use)
			}
		}
	}
	return all
}

func TestFilesOfTheImage(t *testing.T) {
	root := assemble(t)
	t.Run("nothing else", func(t *testing.T) { nothingElse(t, root) })
	t.Run("libraries", func(t *testing.T) { libraries(t, root) })
	t.Run("all start", func(t *testing.T) { allStart(t, root) })
}

// The image must contain no shell and no package manager.
func nothingElse(t *testing.T, root string) {
	extension := regexp.MustCompile(`^/usr/lib/[^/]+/xtables/lib(xt|ipt|ip6t)_[A-Za-z0-9]+\.so$`)
	library := regexp.MustCompile(`^(/usr)?/lib(64|/[^/]+)/[^/]+\.so(\.[0-9]+)?$`)
	license := regexp.MustCompile(`^/usr/share/doc/[^/]+/copyright$`)
	programs := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name := strings.TrimPrefix(path, root)
		if extension.MatchString(name) || library.MatchString(name) || license.MatchString(name) {
			return nil
		}
		programs[name] = ""
		if entry.Type() == fs.ModeSymlink {
			programs[name], err = os.Readlink(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"/usr/local/bin/kube-ipvs": "", "/usr/sbin/xtables-nft-multi": "", "/usr/sbin/xtables-legacy-multi": ""}
	for _, command := range commands() {
		want["/usr/sbin/"+command] = "xtables-" + strings.Split(command, "-")[1] + "-multi"
	}
	if d := cmp.Diff(want, programs); d != "" {
		t.Errorf("files other than libraries and licenses (-want +got):\n%s", d)
	}
}

// libraries requires that the image contains exactly the libraries that its programs need.
func libraries(t *testing.T, root string) {
	needed, have := map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || filepath.Base(path) == "copyright" {
			return err
		}
		if isLibrary := !strings.Contains(path, "/xtables/") && strings.Contains(path, ".so"); isLibrary {
			have[filepath.Base(path)] = true
		}
		all, interpreter := dependencies(t, path)
		for _, name := range append(all, filepath.Base(interpreter)) {
			needed[name] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	delete(needed, filepath.Base("")) // files without a loader
	if d := cmp.Diff(slices.Sorted(maps.Keys(needed)), slices.Sorted(maps.Keys(have))); d != "" {
		t.Errorf("libraries (-needed +in the image):\n%s", d)
	}
	for _, of := range []string{"iptables", "libc6", "libxtables12", "kube-ipvs"} {
		if _, err := os.Stat(filepath.Join(root, "usr/share/doc", of, "copyright")); err != nil {
			t.Errorf("the license of %s is missing: %v", of, err)
		}
	}
}

// allStart runs every program in a root with only the image's files.
func allStart(t *testing.T, root string) {
	start := func(stdin string, args ...string) (string, error) {
		// A new network namespace keeps the rules from affecting the machine.
		c := exec.Command("unshare", append([]string{"--net", "--", "chroot", root}, args...)...)
		c.Env = []string{"PATH=/usr/local/bin:/usr/sbin"}
		c.Stdin = strings.NewReader(stdin)
		out, err := c.CombinedOutput()
		return string(out), err
	}
	if out, err := start("", "kube-ipvs", "version"); err != nil {
		t.Errorf("kube-ipvs version: %v\n%s", err, out)
	}
	for _, name := range commands() {
		if out, err := start("", name, "--version"); err != nil || !strings.Contains(out, "v1.8") {
			t.Errorf("%s --version: %v\n%s", name, err, out)
		}
	}
	// --test loads the extensions that the agent's rules use, but changes nothing.
	rules := "*nat\n:KUBE-X - [0:0]\n-A KUBE-X -m comment --comment x -m conntrack --ctstate NEW -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully\nCOMMIT\n"
	for _, command := range []string{"iptables-nft-restore", "ip6tables-nft-restore"} {
		if out, err := start(rules, command, "--test", "--noflush"); err != nil {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
	}
}
