package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// kernelPackage is the package that always depends on the newest kernel for virtual machines.
func kernelPackage() string { return "linux-image-cloud-" + runtime.GOARCH }

// FetchKernel fetches the distribution's kernel for virtual machines (Debian's linux-image-cloud-amd64), without
// installing it, and keeps what a sandbox needs from it. A version that the library has already is not fetched again.
func (l *Library) FetchKernel(ctx context.Context, progress Progress) (Kernel, error) {
	k, err := l.fetchKernel(ctx, progress)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("cannot fetch a kernel: %w; check the network and run `apt-get update`, "+
			"or name a kernel of your own with --kernel FILE --modules DIR", err)
	}
	return k, err
}

func (l *Library) fetchKernel(ctx context.Context, progress Progress) (Kernel, error) {
	release, err := l.lock(ctx, "kernel", func() { progress.report("waiting for another msb that fetches a kernel", -1) })
	if err != nil {
		return Kernel{}, err
	}
	defer release()
	sweep(l.kernelsDir())
	tmp, err := newTempDir(l.kernelsDir())
	if err != nil {
		return Kernel{}, err
	}
	defer tmp.discard()
	a, err := newApt(tmp.path, progress)
	if err != nil {
		return Kernel{}, err
	}
	progress.report("looking for a kernel", -1)
	var have Kernel
	pkg, root, err := a.fetch(ctx, func(ctx context.Context) (debPackage, error) {
		pkg, err := resolveKernel(ctx, a)
		if err != nil {
			return pkg, err
		}
		version := strings.TrimPrefix(pkg.name, "linux-image-")
		if info, err := l.kernelInfo(version); err == nil && info.PackageVersion == pkg.version {
			have = l.fetchedKernel(version)
			return pkg, errHave
		}
		return pkg, nil
	})
	if errors.Is(err, errHave) {
		return have, nil
	}
	if err != nil {
		return Kernel{}, err
	}
	return l.keepKernel(ctx, pkg, root, progress)
}

// errHave ends a fetch of what is there already.
var errHave = fmt.Errorf("already there%w", errStop)

// resolveKernel follows the package that depends on the newest kernel.
func resolveKernel(ctx context.Context, a *apt) (debPackage, error) {
	meta, err := a.show(ctx, kernelPackage())
	if err != nil {
		return debPackage{}, err
	}
	for _, dep := range meta.depends {
		if strings.HasPrefix(dep, "linux-image-") {
			return a.show(ctx, dep)
		}
	}
	return debPackage{}, fmt.Errorf("package %s does not depend on a kernel", meta.name)
}

// keepKernel moves the kernel and the modules that a guest needs from an unpacked package into the library.
func (l *Library) keepKernel(ctx context.Context, pkg debPackage, root string, progress Progress) (Kernel, error) {
	progress.report("keeping the kernel and its modules", -1)
	version := strings.TrimPrefix(pkg.name, "linux-image-")
	vmlinuz := filepath.Join(root, "boot", "vmlinuz-"+version)
	file, err := readKernel(vmlinuz)
	if err != nil {
		return Kernel{}, fmt.Errorf("package %s: %w", pkg.name, err)
	}
	modules := filepath.Join(root, "lib", "modules", version)
	if _, err := os.Stat(modules); err != nil {
		modules = filepath.Join(root, "usr", "lib", "modules", version)
	}
	tree, err := openModuleTree(modules)
	if err != nil {
		return Kernel{}, fmt.Errorf("package %s: %w", pkg.name, err)
	}
	plan, err := tree.plan(ctx)
	if err != nil {
		return Kernel{}, fmt.Errorf("package %s: %w", pkg.name, err)
	}
	tmp, err := newTempDir(l.kernelsDir())
	if err != nil {
		return Kernel{}, err
	}
	defer tmp.discard()
	if err := copyFile(vmlinuz, filepath.Join(tmp.path, kernelImage)); err != nil {
		return Kernel{}, err
	}
	if err := writeElf(ctx, vmlinuz, file, filepath.Join(tmp.path, kernelElf)); err != nil {
		return Kernel{}, err
	}
	keep := filepath.Join(tmp.path, kernelModules)
	if err := keepModules(tree, plan, keep); err != nil {
		return Kernel{}, err
	}
	info := kernelInfo{Version: version, Package: pkg.name, PackageVersion: pkg.version, Fetched: time.Now().UTC()}
	data, err := json.MarshalIndent(info, "", "  ")
	if err != nil {
		return Kernel{}, err
	}
	if err := writeFile(filepath.Join(tmp.path, kernelRecord), append(data, '\n')); err != nil {
		return Kernel{}, err
	}
	final := filepath.Join(l.kernelsDir(), version)
	if err := os.RemoveAll(final); err != nil { // an older build of the same version
		return Kernel{}, err
	}
	if err := tmp.commit(final); err != nil {
		return Kernel{}, err
	}
	return l.fetchedKernel(version), nil
}

// writeElf keeps the unpacked kernel where it can be booted.
func writeElf(ctx context.Context, vmlinuz string, file *kernelFile, path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := extractVmlinux(ctx, vmlinuz, file, f); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return os.Remove(path) // it is booted packed, which is only slower
	}
	return f.Sync()
}

func keepModules(tree *moduleTree, plan *modulePlan, dir string) error {
	for _, m := range append(append([]module{}, plan.early...), plan.late...) {
		path := filepath.Join(dir, m.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := copyFile(filepath.Join(tree.dir, m.path), path); err != nil {
			return err
		}
	}
	if !tree.hasBuiltin {
		return nil
	}
	return copyFile(filepath.Join(tree.dir, "modules.builtin"), filepath.Join(dir, "modules.builtin"))
}

// copyFile copies a file to a new path and syncs it.
func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer dst.Close()
	if _, err := io.Copy(dst, src); err != nil {
		return fmt.Errorf("cannot copy %s: %w", from, err)
	}
	if err := dst.Sync(); err != nil {
		return fmt.Errorf("cannot sync %s: %w", to, err)
	}
	return nil
}
