package vmm

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"msb/vmm/engine"
	"msb/vmm/runtime"
	"msb/vmm/store"
)

// Bounds that keep a typing error from being believed.
const (
	maxCPUs      = engine.MaxMachineCPUs
	maxMemoryMiB = 16 << 20
	maxRootDisk  = 1 << 50
	maxLabels    = 64
	maxText      = 4096
)

// config checks the options and fills in the defaults. Errors wrap ErrOption or store.ErrName.
func (o CreateOptions) config() (store.Config, error) {
	if err := store.ValidateName(o.Name); err != nil {
		return store.Config{}, err
	}
	c := store.Config{
		Name: o.Name, Created: time.Now().UTC(),
		Image: cmp.Or(o.Image, "debian"), Engine: cmp.Or(o.Engine, "qemu"), Accel: cmp.Or(o.Accel, engine.AccelAuto),
		CPUs: cmp.Or(o.CPUs, DefaultCPUs), MemoryMiB: cmp.Or(o.MemoryMiB, DefaultMemoryMiB),
		RootDisk: cmp.Or(o.RootDisk, DefaultRootDisk), Kernel: o.Kernel, Modules: o.Modules,
		Net: o.Net, DualPort: !o.SinglePort, Env: slices.Clone(o.Env), Labels: maps.Clone(o.Labels),
		User: cmp.Or(o.User, runtime.DefaultUser), Workdir: cmp.Or(o.Workdir, runtime.DefaultWorkdir),
		Hostname:    cmp.Or(o.Hostname, hostname(o.Name)),
		IdleTimeout: store.Duration(o.IdleTimeout), MaxDuration: store.Duration(o.MaxDuration),
	}
	c.MaxCPUs, c.MaxMemoryMiB = cmp.Or(o.MaxCPUs, c.CPUs), cmp.Or(o.MaxMemoryMiB, c.MemoryMiB)
	bad := func(format string, args ...any) (store.Config, error) {
		return store.Config{}, badOption(format, args...)
	}
	if err := CheckSize(c); err != nil {
		return store.Config{}, err
	}
	switch {
	case c.Engine != "qemu" && c.Engine != "process":
		return bad("engine %q: there are qemu and process", c.Engine)
	case c.Accel != engine.AccelAuto && c.Accel != engine.AccelKVM && c.Accel != engine.AccelTCG:
		return bad("accelerator %q: there are auto, kvm and tcg", c.Accel)
	case c.RootDisk < MinRootDisk:
		return bad("a root disk of %d bytes: at least %d MiB", c.RootDisk, MinRootDisk>>20)
	case c.RootDisk > maxRootDisk:
		return bad("a root disk of %d bytes: at most %d TiB", c.RootDisk, maxRootDisk>>40)
	case c.Kernel == "" && c.Modules != "":
		return bad("modules without a kernel: give both")
	case c.IdleTimeout < 0 || c.MaxDuration < 0:
		return bad("a timeout cannot be negative")
	case !filepath.IsAbs(c.Workdir) || !plain(c.Workdir):
		return bad("working directory %q: give an absolute path in the sandbox", c.Workdir)
	case !plain(c.User) || strings.HasPrefix(c.User, "-"):
		return bad("user %q", c.User)
	case !validHostname(c.Hostname):
		return bad("host name %q: 1 to 63 letters, digits and '-', in parts joined by '.'", c.Hostname)
	case len(c.Labels) > maxLabels:
		return bad("%d labels: at most %d", len(c.Labels), maxLabels)
	}
	for _, kv := range c.Env {
		if k, _, ok := strings.Cut(kv, "="); !ok || k == "" || strings.ContainsRune(kv, 0) || len(kv) > 1<<17 {
			return bad("environment %.60q: it must be NAME=VALUE", kv)
		}
	}
	for k, v := range c.Labels {
		if k == "" || !plain(k) || len(v) > maxText || strings.ContainsFunc(v, control) {
			return bad("label %.60q", k)
		}
	}
	for _, path := range []*string{&c.Kernel, &c.Modules} {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return bad("%s: %v", *path, err)
		}
		if _, err := os.Stat(abs); err != nil {
			return bad("%v", err)
		}
		*path = abs
	}
	return c, nil
}

func badOption(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrOption}, args...)...)
}

// CheckSize checks the CPUs and the memory of a config against each other and the bounds. Errors wrap ErrOption.
func CheckSize(c store.Config) error {
	switch {
	case c.CPUs < 1:
		return badOption("%d CPUs: a sandbox needs at least 1", c.CPUs)
	case c.MaxCPUs > maxCPUs:
		return badOption("%d CPUs: at most %d", c.MaxCPUs, maxCPUs)
	case c.CPUs > c.MaxCPUs:
		return badOption("%d CPUs are more than the maximum of %d", c.CPUs, c.MaxCPUs)
	case c.MemoryMiB < MinMemoryMiB:
		return badOption("%d MiB of memory: a sandbox needs at least %d MiB", c.MemoryMiB, MinMemoryMiB)
	case c.MaxMemoryMiB > maxMemoryMiB:
		return badOption("%d MiB of memory: at most %d MiB", c.MaxMemoryMiB, maxMemoryMiB)
	case c.MemoryMiB > c.MaxMemoryMiB:
		return badOption("%d MiB of memory are more than the maximum of %d MiB", c.MemoryMiB, c.MaxMemoryMiB)
	}
	return nil
}

func control(r rune) bool { return r < ' ' || r == 0x7f }

func plain(s string) bool {
	return s != "" && len(s) <= maxText && !strings.ContainsFunc(s, control)
}

// hostname makes a host name of a sandbox name, which may also hold '_' and end in a '.' or '-'.
func hostname(name string) string {
	return strings.Trim(strings.ReplaceAll(strings.ReplaceAll(name, "_", "-"), "..", "."), ".-")
}

func validHostname(s string) bool {
	if len(s) > 63 {
		return false
	}
	for part := range strings.SplitSeq(s, ".") {
		if part == "" || part[0] == '-' || part[len(part)-1] == '-' {
			return false
		}
		for _, c := range []byte(part) {
			if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-') {
				return false
			}
		}
	}
	return true
}
