// Package cachedir locates the cache for downloads and builds of other projects: kernels, QEMU, etcd and the API
// server. All of a user's checkouts share it, because its content takes minutes to create.
package cachedir

import (
	"os"
	"path/filepath"
)

// Variable names the environment variable that overrides the location of the cache.
const Variable = "KUBE_IPVS_CACHE"

// Path returns a path in the cache. Without a home directory, the cache is in the checkout at root.
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
