// Package guestbin finds the guest agent that belongs to this msb: embedded in it (make build), beside it, or where
// $MSB_GUEST says.
package guestbin

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Path returns the path of an executable guest agent. The embedded one is written once to cacheDir, under its hash.
func Path(cacheDir string) (string, error) {
	if p := os.Getenv("MSB_GUEST"); p != "" {
		return check(p)
	}
	if len(embedded) > 0 {
		return extract(cacheDir, embedded)
	}
	if exe, err := os.Executable(); err == nil {
		if p, err := check(filepath.Join(filepath.Dir(exe), "msb-guest")); err == nil {
			return p, nil
		}
	}
	return "", errors.New("no guest agent: this msb was built without one; run `make build`, or set MSB_GUEST to a msb-guest binary")
}

func check(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	fi, err := os.Stat(abs)
	if err != nil {
		return "", fmt.Errorf("guest agent: %w; run `make build`", err)
	}
	if !fi.Mode().IsRegular() || fi.Mode()&0o111 == 0 {
		return "", fmt.Errorf("guest agent %s is not an executable file; run `make build`", abs)
	}
	return abs, nil
}

func extract(dir string, data []byte) (string, error) {
	sum := sha256.Sum256(data)
	path := filepath.Join(dir, "msb-guest-"+hex.EncodeToString(sum[:8]))
	if have, err := os.ReadFile(path); err == nil && sha256.Sum256(have) == sum {
		return path, nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("guest agent: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("guest agent: %w", err)
	}
	tmp, err := os.CreateTemp(dir, ".msb-guest-*")
	if err != nil {
		return "", fmt.Errorf("guest agent: %w", err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Chmod(0o755)
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return "", fmt.Errorf("write the guest agent to %s: %w", dir, err)
	}
	return path, nil
}
