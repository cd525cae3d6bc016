package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNotFound is wrapped when a sandbox does not exist.
var ErrNotFound = errors.New("no such sandbox")

// ErrExists is wrapped when a sandbox of that name exists already.
var ErrExists = errors.New("sandbox exists already")

// ErrBroken is wrapped when there is a sandbox of that name, but not enough of it to do anything with.
var ErrBroken = errors.New("broken sandbox")

// ErrLocked is wrapped when another process runs the sandbox or changes it.
var ErrLocked = errors.New("another process holds the sandbox")

// configFile and stateFile are the names in a sandbox's directory.
const (
	configFile = "config.json"
	stateFile  = "state.json"
	mountsDir  = "mounts"
)

// Load reads a sandbox's config; ErrNotFound when there is none of that name.
func (h *Home) Load(name string) (Config, error) {
	var c Config
	if err := ValidateName(name); err != nil {
		return c, err
	}
	err := readJSON(filepath.Join(h.SandboxDir(name), configFile), &c)
	switch {
	case errors.Is(err, fs.ErrNotExist) && h.Exists(name):
		return c, fmt.Errorf("%w: %q has no config any more; remove what is left with `msb rm %s`", ErrBroken, name, name)
	case errors.Is(err, fs.ErrNotExist):
		return c, fmt.Errorf("%w: %q", ErrNotFound, name)
	case errors.As(err, new(*fs.PathError)):
		return c, fmt.Errorf("config of sandbox %q: %w", name, err)
	case err != nil:
		return c, fmt.Errorf("config of sandbox %q is damaged: %w; remove it with `msb rm -f %s`", name, err, name)
	case c.Name != name:
		return c, fmt.Errorf("config of sandbox %q names another one, %q; remove it with `msb rm -f %s`", name, c.Name, name)
	case c.Version > ConfigVersion:
		return c, fmt.Errorf("sandbox %q was made by a newer msb (config version %d, this one reads up to %d): update msb", name, c.Version, ConfigVersion)
	}
	return c, nil
}

// Save replaces the config of an existing sandbox.
func (h *Home) Save(c Config) error {
	if err := ValidateName(c.Name); err != nil {
		return err
	}
	c.Version = ConfigVersion
	return writeJSON(filepath.Join(h.SandboxDir(c.Name), configFile), c)
}

// Update changes the config of an existing sandbox, whether it runs or not. Two updates at a time follow each other.
func (h *Home) Update(name string, change func(*Config) error) (Config, error) {
	if err := ValidateName(name); err != nil {
		return Config{}, err
	}
	dir, err := os.Open(h.SandboxDir(name))
	if errors.Is(err, fs.ErrNotExist) {
		return Config{}, fmt.Errorf("%w: %q", ErrNotFound, name)
	}
	if err != nil {
		return Config{}, fmt.Errorf("config of sandbox %q: %w", name, err)
	}
	defer dir.Close()
	if err := flock(dir, unix.LOCK_EX); err != nil {
		return Config{}, fmt.Errorf("config of sandbox %q: %w", name, err)
	}
	c, err := h.Load(name)
	if err != nil {
		return c, err
	}
	if err := change(&c); err != nil {
		return c, err
	}
	return c, h.Save(c)
}

// List returns the names of all sandboxes, sorted.
func (h *Home) List() ([]string, error) {
	entries, err := os.ReadDir(h.SandboxesDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && ValidateName(e.Name()) == nil {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Exists says whether there is a sandbox of that name.
func (h *Home) Exists(name string) bool {
	if ValidateName(name) != nil {
		return false
	}
	_, err := os.Lstat(h.SandboxDir(name))
	return err == nil
}

// Draft is a sandbox in the making. It is a directory that no one lists until Commit gives it its name.
type Draft struct {
	Dir  string
	home *Home
}

// Draft makes an empty directory for a new sandbox and removes what creations and removals that were
// killed left behind.
func (h *Home) Draft() (*Draft, error) {
	if err := os.MkdirAll(h.SandboxesDir(), 0o700); err != nil {
		return nil, fmt.Errorf("create sandbox: %w", err)
	}
	h.sweep()
	start, err := ProcessStart(os.Getpid())
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(h.SandboxesDir(), fmt.Sprintf(".new-%d-%d-", os.Getpid(), start))
	if err != nil {
		return nil, fmt.Errorf("create sandbox: %w", err)
	}
	d := &Draft{Dir: dir, home: h}
	for _, sub := range []string{"logs", mountsDir} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			d.Discard()
			return nil, fmt.Errorf("create sandbox: %w", err)
		}
	}
	return d, nil
}

// Commit writes the config and gives the sandbox its name, in one step; ErrExists when it is taken.
func (d *Draft) Commit(c Config) error {
	if err := ValidateName(c.Name); err != nil {
		return err
	}
	c.Version = ConfigVersion
	if err := writeJSON(filepath.Join(d.Dir, configFile), c); err != nil {
		return err
	}
	err := unix.Renameat2(unix.AT_FDCWD, d.Dir, unix.AT_FDCWD, d.home.SandboxDir(c.Name), unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		// A file system without it: rename refuses a directory that is not empty, which a sandbox is not.
		err = os.Rename(d.Dir, d.home.SandboxDir(c.Name))
	}
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
		return fmt.Errorf("%w: %q", ErrExists, c.Name)
	}
	if err != nil {
		return fmt.Errorf("create sandbox %q: %w", c.Name, err)
	}
	return syncDir(d.home.SandboxesDir())
}

// Discard removes a draft that was not committed.
func (d *Draft) Discard() error { return os.RemoveAll(d.Dir) }

// Remove deletes a sandbox's directory and sockets. The caller holds its lock.
func (h *Home) Remove(name string) error {
	if err := ValidateName(name); err != nil {
		return err
	}
	start, err := ProcessStart(os.Getpid())
	if err != nil {
		return err
	}
	// Out of sight first: a removal that is killed half way leaves no half sandbox.
	gone := filepath.Join(h.SandboxesDir(), fmt.Sprintf(".old-%d-%d-%s", os.Getpid(), start, name))
	if err := os.Rename(h.SandboxDir(name), gone); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %q", ErrNotFound, name)
	} else if err != nil {
		return fmt.Errorf("remove sandbox %q: %w", name, err)
	}
	if err := errors.Join(os.RemoveAll(gone), os.RemoveAll(h.SocketDir(name))); err != nil {
		return fmt.Errorf("remove sandbox %q: %w", name, err)
	}
	return nil
}

// sweep removes drafts and removals whose process is gone.
func (h *Home) sweep() {
	entries, err := os.ReadDir(h.SandboxesDir())
	if err != nil {
		return
	}
	for _, e := range entries {
		parts := strings.SplitN(e.Name(), "-", 4)
		if len(parts) != 4 || parts[0] != ".new" && parts[0] != ".old" {
			continue
		}
		pid, err1 := strconv.Atoi(parts[1])
		start, err2 := strconv.ParseUint(parts[2], 10, 64)
		if err1 == nil && err2 == nil && !Alive(pid, start) {
			os.RemoveAll(filepath.Join(h.SandboxesDir(), e.Name()))
		}
	}
}
