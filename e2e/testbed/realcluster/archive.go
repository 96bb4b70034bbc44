package realcluster

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

type archive struct {
	names       []string
	root        string // directory of its files
	entrypoint  []string
	arguments   []string
	environment []string
}

// write writes the image in the format of "docker save". The same files always produce the same bytes.
func (i archive) write(file string) (digest string, err error) {
	layer := file + ".layer"
	defer os.Remove(layer)
	layerDigest, err := writeLayer(layer, i.root)
	if err != nil {
		return "", fmt.Errorf("image %s: %w", i.names[0], err)
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": i.entrypoint, "Cmd": i.arguments, "Env": i.environment, "WorkingDir": "/"},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + layerDigest}},
	})
	if err != nil {
		return "", err
	}
	configName := fmt.Sprintf("%x.json", sha256.Sum256(config))
	manifest, err := json.Marshal([]map[string]any{{"Config": configName, "RepoTags": i.names, "Layers": []string{layerDigest + ".tar"}}})
	if err != nil {
		return "", err
	}
	content, err := os.Open(layer)
	if err != nil {
		return "", err
	}
	defer content.Close()
	info, err := content.Stat()
	if err != nil {
		return "", err
	}
	return writeArchive(file, func(w *tar.Writer) error {
		if err := w.WriteHeader(&tar.Header{Name: layerDigest + ".tar", Mode: 0o644, Size: info.Size()}); err != nil {
			return err
		}
		if _, err := io.Copy(w, content); err != nil {
			return err
		}
		for _, part := range []struct {
			name string
			data []byte
		}{{configName, config}, {"manifest.json", manifest}} {
			if err := w.WriteHeader(&tar.Header{Name: part.name, Mode: 0o644, Size: int64(len(part.data))}); err != nil {
				return err
			}
			if _, err := w.Write(part.data); err != nil {
				return err
			}
		}
		return nil
	})
}

// In the layer, files belong to root and have no timestamps.
func writeLayer(file, root string) (digest string, err error) {
	return writeArchive(file, func(w *tar.Writer) error {
		return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || path == root {
				return err
			}
			return addFile(w, root, path, entry)
		})
	})
}

func addFile(w *tar.Writer, root, path string, entry fs.DirEntry) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	name, err := filepath.Rel(root, path)
	if err != nil {
		return err
	}
	header := &tar.Header{Name: name, Mode: int64(info.Mode().Perm())}
	if info.Mode()&fs.ModeSticky != 0 {
		header.Mode |= 0o1000
	}
	switch {
	case entry.IsDir():
		header.Typeflag = tar.TypeDir
	case info.Mode()&fs.ModeSymlink != 0:
		header.Typeflag = tar.TypeSymlink
		if header.Linkname, err = os.Readlink(path); err != nil {
			return err
		}
	default:
		header.Typeflag, header.Size = tar.TypeReg, info.Size()
	}
	if err := w.WriteHeader(header); err != nil || header.Typeflag != tar.TypeReg {
		return err
	}
	content, err := os.Open(path)
	if err != nil {
		return err
	}
	defer content.Close()
	_, err = io.Copy(w, content)
	return err
}

func writeArchive(file string, fill func(*tar.Writer) error) (digest string, err error) {
	out, err := os.Create(file)
	if err != nil {
		return "", err
	}
	defer out.Close()
	sum := sha256.New()
	w := tar.NewWriter(io.MultiWriter(out, sum))
	if err := fill(w); err != nil {
		return "", err
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), out.Close()
}
