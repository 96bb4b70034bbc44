package bundle

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

func check(path string, force bool) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("write the bundle: %w", err)
	case info.IsDir():
		return fmt.Errorf("%s is a directory; name a file in it", path)
	case !force:
		return fmt.Errorf("%s exists; use another name, or --force to replace it", path)
	}
	return nil
}

// Save writes a file that only its owner can read. The file appears under its name when it is complete.
func Save(path string, force bool, write func(io.Writer) error) error {
	if err := check(path, force); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // with mode 0600
	if err != nil {
		return fmt.Errorf("write the bundle: %w", err)
	}
	err = write(file)
	if closing := file.Close(); err == nil && closing != nil {
		err = fmt.Errorf("write the bundle: %w", closing)
	}
	if err == nil {
		err = check(path, force) // another process may have created it
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}
