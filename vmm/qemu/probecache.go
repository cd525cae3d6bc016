package qemu

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// negativeLife is how long a "does not work" is believed.
const negativeLife = 24 * time.Hour

// probeCache is one file per kernel, CPU, host kernel and QEMU.
type probeCache struct{ path string }

func openProbeCache(dir, binary, kernel string) (probeCache, error) {
	if dir == "" {
		return probeCache{}, nil
	}
	id, err := kernelIdentity(kernel)
	if err != nil {
		return probeCache{}, err
	}
	h := sha256.New()
	fmt.Fprintf(h, "kvm-probe-1\n%s\n%s\n%s\n%s\n", id, hostCPU().name, hostKernel(), fileIdentity(binary))
	return probeCache{filepath.Join(dir, "kvm-"+hex.EncodeToString(h.Sum(nil)[:8])+".json")}, nil
}

func (c probeCache) load() (Probed, bool) {
	if c.path == "" {
		return Probed{}, false
	}
	b, err := os.ReadFile(c.path)
	if err != nil {
		return Probed{}, false
	}
	var p Probed
	if json.Unmarshal(b, &p) != nil || p.Time.IsZero() {
		return Probed{}, false
	}
	if age := time.Since(p.Time); !p.Works && (age > negativeLife || age < 0) {
		return Probed{}, false
	}
	p.Cached = true
	return p, true
}

func (c probeCache) save(p Probed) error {
	if c.path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(c.path), 0o700); err != nil {
		return err
	}
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(c.path), ".kvm-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(b, '\n'))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), c.path)
}

// kernelIdentity tells kernels apart by their size and first MiB, which holds version and build in all formats.
func kernelIdentity(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, 1<<20)); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d:%x", st.Size(), h.Sum(nil)[:16]), nil
}

// fileIdentity changes when a package upgrade replaces the file.
func fileIdentity(path string) string {
	st, err := os.Stat(path)
	if err != nil {
		return path
	}
	return fmt.Sprintf("%s:%d:%d", path, st.Size(), st.ModTime().UnixNano())
}

func hostKernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Version[:])
}
