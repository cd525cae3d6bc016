package image

import (
	"context"
	"errors"
)

// ErrNoKernel is returned (wrapped) when the library has no kernel yet.
var ErrNoKernel = errors.New("no kernel")

// Kernel is a Linux kernel that a sandbox can boot.
type Kernel struct {
	Version    string // kernel release, as uname -r prints it
	Image      string // path of the vmlinuz
	Boot       string // path to hand to QEMU: an uncompressed vmlinux where that boots faster, else Image
	ModulesDir string // the tree that holds the kernel's modules: a copy or part of /lib/modules/<version>
}

// FetchKernel fetches the distribution's kernel for virtual machines (Debian's linux-image-cloud-amd64), without
// installing it, and keeps what a sandbox needs from it. A kernel that the library has already is not fetched again.
func (l *Library) FetchKernel(ctx context.Context, progress Progress) (Kernel, error) {
	return Kernel{}, errors.New("not there yet")
}

// UseKernel returns the kernel of any other distribution: a bzImage or vmlinux and its module tree
// (/lib/modules/<version>; modules may be compressed with xz, zstd or gzip).
func (l *Library) UseKernel(vmlinuz, modulesDir string) (Kernel, error) {
	return Kernel{}, errors.New("not there yet")
}

// Kernel returns the newest fetched kernel, or an error that wraps ErrNoKernel.
func (l *Library) Kernel() (Kernel, error) { return Kernel{}, errors.New("not there yet") }
