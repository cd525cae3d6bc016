// Package durable replaces files so that a crash leaves the old content or the
// new one.
package durable

import (
	"os"
	"path/filepath"
)

// WriteFile replaces a file, or makes it, with mode 0600. When it returns nil
// the content is on the disk; after an error, and for every reader meanwhile,
// the file is as it was.
func WriteFile(path string, b []byte) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".tmp-*") // 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(b); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil // it is replaced all the same
	}
	defer d.Close()
	d.Sync() // some file systems have none for directories
	return nil
}
