package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoKernel is returned (wrapped) when the library has no kernel yet.
var ErrNoKernel = errors.New("no kernel")

// Kernel is a Linux kernel that a sandbox can boot.
type Kernel struct {
	Version    string // kernel release, as uname -r prints it; "" when the file does not tell
	Image      string // path of the vmlinuz
	Boot       string // path to hand to QEMU: an unpacked vmlinux where the kernel has a PVH entry, else Image
	ModulesDir string // the tree that holds the kernel's modules: all or part of a /lib/modules/<version>; "" = none
}

// Names in a kernel's folder.
const (
	kernelImage   = "vmlinuz"
	kernelElf     = "vmlinux"
	kernelModules = "modules"
	kernelRecord  = "kernel.json"
)

// kernelInfo is what is recorded about a fetched kernel.
type kernelInfo struct {
	Version        string    `json:"version"`
	Package        string    `json:"package"`
	PackageVersion string    `json:"package_version"`
	Fetched        time.Time `json:"fetched"`
}

// Kernel returns the kernel that was fetched last, or an error that wraps ErrNoKernel.
func (l *Library) Kernel() (Kernel, error) {
	entries, err := os.ReadDir(l.kernelsDir())
	if err != nil {
		return Kernel{}, fmt.Errorf("image library: %w", err)
	}
	var newest kernelInfo
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			continue
		}
		info, err := l.kernelInfo(e.Name())
		if err == nil && (newest.Version == "" || info.Fetched.After(newest.Fetched)) {
			newest = info
		}
	}
	if newest.Version == "" {
		return Kernel{}, fmt.Errorf("%w in %s: `msb image build` fetches one, or name yours with --kernel FILE --modules DIR",
			ErrNoKernel, l.kernelsDir())
	}
	return l.fetchedKernel(newest.Version), nil
}

func (l *Library) kernelInfo(version string) (kernelInfo, error) {
	var info kernelInfo
	dir := filepath.Join(l.kernelsDir(), version)
	data, err := os.ReadFile(filepath.Join(dir, kernelRecord))
	if err != nil {
		return info, err
	}
	if err := json.Unmarshal(data, &info); err != nil {
		return info, fmt.Errorf("%s: %w", filepath.Join(dir, kernelRecord), err)
	}
	if info.Version != version {
		return info, fmt.Errorf("%s is about another kernel", filepath.Join(dir, kernelRecord))
	}
	_, err = os.Stat(filepath.Join(dir, kernelImage))
	return info, err
}

func (l *Library) fetchedKernel(version string) Kernel {
	dir := filepath.Join(l.kernelsDir(), version)
	k := Kernel{
		Version:    version,
		Image:      filepath.Join(dir, kernelImage),
		Boot:       filepath.Join(dir, kernelElf),
		ModulesDir: filepath.Join(dir, kernelModules),
	}
	if _, err := os.Stat(k.Boot); err != nil {
		k.Boot = k.Image
	}
	return k
}

// UseKernel returns the kernel of any other distribution: a bzImage or vmlinux and its module tree, a
// /lib/modules/<version> whose modules may be compressed with xz, zstd or gzip ("" for a kernel without modules).
// Neither is copied. The unpacked kernel is cached.
func (l *Library) UseKernel(ctx context.Context, vmlinuz, modulesDir string) (Kernel, error) {
	file, err := readKernel(vmlinuz)
	if err != nil {
		return Kernel{}, err
	}
	k := Kernel{Version: file.release}
	if k.Image, err = filepath.Abs(vmlinuz); err != nil {
		return Kernel{}, fmt.Errorf("kernel %s: %w", vmlinuz, err)
	}
	k.Boot = k.Image
	if modulesDir != "" {
		if k.ModulesDir, err = filepath.Abs(modulesDir); err != nil {
			return Kernel{}, fmt.Errorf("modules directory %s: %w", modulesDir, err)
		}
	}
	tree, err := openModuleTree(modulesDir)
	if err != nil {
		return Kernel{}, err
	}
	plan, err := tree.plan(ctx)
	if err != nil {
		return Kernel{}, err
	}
	if err := checkRelease(k.Version, plan.vermagic, modulesDir); err != nil {
		return Kernel{}, err
	}
	if boot, err := l.cachedVmlinux(ctx, k.Image, file); err == nil {
		k.Boot = boot
	} else if ctx.Err() != nil {
		return Kernel{}, context.Cause(ctx)
	} // else it is booted packed, which is only slower
	return k, nil
}

// checkRelease refuses modules that the kernel would refuse.
func checkRelease(release, vermagic, modulesDir string) error {
	built, _, _ := strings.Cut(vermagic, " ")
	if release == "" || built == "" || release == built {
		return nil
	}
	return fmt.Errorf("the kernel is %s but the modules in %s are for %s: name the ones that belong to the kernel with --modules",
		release, modulesDir, cleanText(built))
}

// cachedVmlinux unpacks a kernel once for each state of its file.
func (l *Library) cachedVmlinux(ctx context.Context, path string, file *kernelFile) (string, error) {
	if file.elf {
		return path, nil
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", fmt.Errorf("kernel %s: %w", path, err)
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%d\x00%d.%d", path, st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec))
	cached := filepath.Join(l.cacheDir(), "vmlinux-"+hex.EncodeToString(key[:8]))
	if _, err := os.Stat(cached); err == nil {
		return cached, nil
	}
	t, err := newTempFile(l.cacheDir())
	if err != nil {
		return "", err
	}
	defer t.discard()
	if err := extractVmlinux(ctx, path, file, t.f); err != nil {
		return "", err
	}
	if err := t.commit(cached); err != nil {
		return "", err
	}
	l.trimCache("vmlinux-*", 2)
	return cached, nil
}

// trimCache removes the oldest files of a pattern in the cache but for the newest keep ones.
func (l *Library) trimCache(pattern string, keep int) {
	paths, err := filepath.Glob(filepath.Join(l.cacheDir(), pattern))
	if err != nil {
		return
	}
	type file struct {
		path string
		used time.Time
	}
	var files []file
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil {
			files = append(files, file{path, info.ModTime()})
		}
	}
	for len(files) > keep {
		oldest := 0
		for i := range files {
			if files[i].used.Before(files[oldest].used) {
				oldest = i
			}
		}
		if err := os.Remove(files[oldest].path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return
		}
		files = append(files[:oldest], files[oldest+1:]...)
	}
}
