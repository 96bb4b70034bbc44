// Package cachedir returns the cache for downloads and builds of other projects: kernels, QEMU, etcd, the API server. All
// clones and worktrees of a user share it, because its content takes minutes to create and depends only on pinned versions.
package cachedir

import (
	"os"
	"path/filepath"
)

// Variable names the environment variable that moves the cache.
const Variable = "KUBE_IPVS_CACHE"

// Path is a place in the cache, which need not exist. Without a home directory, the cache is in the checkout at root.
func Path(root string, elem ...string) string {
	return filepath.Join(append([]string{base(root)}, elem...)...)
}

func base(root string) string {
	if dir := os.Getenv(Variable); dir != "" {
		return dir
	}
	if dir, err := os.UserCacheDir(); err == nil {
		return filepath.Join(dir, "kube-ipvs")
	}
	return filepath.Join(root, ".cache", "shared")
}
