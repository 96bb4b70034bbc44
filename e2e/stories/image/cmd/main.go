// Command cmd writes the image's files to a directory and prints their size.
package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kube-ipvs/kube-ipvs/e2e/stories/image"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./e2e/stories/image/cmd DIRECTORY (from the top of the checkout; the directory is replaced)")
		os.Exit(2)
	}
	if err := assemble(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func assemble(root string) error {
	recipe, err := image.Read(".")
	if err != nil {
		return err
	}
	if err := os.RemoveAll(root); err != nil {
		return err
	}
	if err := recipe.Assemble(root, "dev", ""); err != nil {
		return err
	}
	files, bytes, err := size(root)
	if err != nil {
		return err
	}
	_, err = fmt.Printf("image: %d files, %.1f MB in %s\n", files, float64(bytes)/1e6, root)
	return err
}

func size(root string) (files int, bytes int64, err error) {
	err = filepath.WalkDir(root, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		files, bytes = files+1, bytes+info.Size()
		return nil
	})
	return files, bytes, err
}
