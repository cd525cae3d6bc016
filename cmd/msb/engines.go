package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"msb/cmd/msb/guestbin"
	"msb/vmm"
	"msb/vmm/engine"
	"msb/vmm/image"
	"msb/vmm/process"
	"msb/vmm/qemu"
	"msb/vmm/store"
)

// engineByName returns the engine that a sandbox runs on.
func engineByName(name string) (engine.Engine, error) {
	switch name {
	case "", "qemu":
		return qemu.New(), nil
	case "process":
		return process.New(), nil
	}
	return nil, &usageError{fmt.Errorf("--engine %q: there are qemu and process", name)}
}

// checkEngine says what an engine lacks on this host.
func checkEngine(ctx context.Context, name string) error {
	e, err := engineByName(name)
	if err != nil {
		return err
	}
	if err := e.Check(ctx); err != nil {
		return fmt.Errorf("engine %s: %w; `msb doctor` shows everything that is missing", e.Name(), err)
	}
	return nil
}

// guest is the path of the guest agent that belongs to this msb.
func (a *app) guest() (string, error) {
	h, err := a.home()
	if err != nil {
		return "", err
	}
	return guestbin.Path(h.CacheDir())
}

// makeDisk gives a new sandbox its disk, over its image.
func (a *app) makeDisk(ctx context.Context, c *store.Config, path string, report vmm.Progress) error {
	e, err := engineByName(c.Engine)
	if err != nil {
		return err
	}
	if err := checkEngine(ctx, c.Engine); err != nil {
		return err
	}
	lib, err := a.library()
	if err != nil {
		return err
	}
	img, err := lib.Get(c.Image)
	if errors.Is(err, image.ErrNotFound) && c.ImageSHA256 != "" {
		img, err = lib.Get(c.ImageSHA256) // only the name is gone
	}
	if err != nil {
		return err
	}
	if err := lib.Verify(ctx, img, nil); err != nil {
		return fmt.Errorf("image %s: %w; %s", img.Name, err, rebuildHint(img.Name))
	}
	if c.RootDisk > 0 && c.RootDisk < img.Size {
		return fmt.Errorf("%w: --root-disk %s is smaller than the image %s (%s)", vmm.ErrOption, formatSize(c.RootDisk), img.Name, formatSize(img.Size))
	}
	if err := e.CreateDisk(ctx, img.Path, path, c.RootDisk); err != nil {
		return err
	}
	c.ImageSHA256 = img.SHA256
	return nil
}

// checkDisk says what to do when a sandbox's disk, or the image that it lies on, is not there any more.
func (a *app) checkDisk(c store.Config) error {
	h, err := a.home()
	if err != nil {
		return err
	}
	disk := h.DiskPath(c.Name, c.Engine)
	if _, err := os.Stat(disk); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("its disk %s is gone: `msb reset %s` gives it a fresh one", disk, c.Name)
	}
	if c.Engine == "process" || c.ImageSHA256 == "" {
		return nil // the disk is whole by itself
	}
	base := filepath.Join(h.ImagesDir(), c.ImageSHA256+".raw")
	if _, err := os.Stat(base); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the image %s that its disk lies on is gone (%s): put that file back, or `msb reset %s` gives it a fresh disk and loses what is on this one",
			c.Image, base, c.Name)
	}
	return nil
}

// unpacker returns what unpacks the tars of images: a machine, or for root the guest agent in a namespace.
func (a *app) unpacker(engineName, guest string) (image.Unpacker, error) {
	if engineName == "process" {
		return image.UnpackOnLoop(guest), nil
	}
	lib, err := a.library()
	if err != nil {
		return nil, err
	}
	e, err := engineByName(engineName)
	if err != nil {
		return nil, err
	}
	k, err := lib.Kernel()
	if err != nil {
		return nil, err
	}
	return lib.UnpackInVM(e, k, guest, engine.AccelAuto), nil
}

// examineEngines checks the engines and whether guests run under KVM.
func (a *app) examineEngines(ctx context.Context) []finding {
	q := qemu.New()
	found := []finding{}
	if v, err := q.Version(ctx); err != nil {
		found = append(found, failedFinding("qemu", err.Error(), "apt-get install qemu-system-x86 qemu-utils"))
	} else if err := q.Check(ctx); err != nil {
		found = append(found, failedFinding("qemu", err.Error(), "apt-get install qemu-utils"))
	} else {
		found = append(found, finding{"qemu", findingOK, "version " + v, ""}, a.examineKVM(ctx, q))
	}
	if err := process.New().Check(ctx); err != nil {
		found = append(found, finding{"process", findingWarning, "engine process: " + err.Error(), ""})
	} else {
		found = append(found, finding{"process", findingOK, "engine process can run (no hardware boundary: development only)", ""})
	}
	return found
}

func (a *app) examineKVM(ctx context.Context, q *qemu.Engine) finding {
	lib, err := a.library()
	if err != nil {
		return failedFinding("kvm", err.Error(), "")
	}
	k, err := lib.Kernel()
	if err != nil {
		return finding{"kvm", findingWarning, "not tried: there is no kernel to try it with", "msb image build, then msb doctor"}
	}
	guest, err := a.guest()
	if err != nil {
		return finding{"kvm", findingWarning, "not tried: there is no guest agent to try it with", "make build"}
	}
	initrd, err := lib.Initramfs(ctx, k, guest)
	if err != nil {
		return failedFinding("kvm", err.Error(), "")
	}
	p, err := q.Probe(ctx, k.Boot, initrd, filepath.Join(lib.Dir(), "cache"))
	switch {
	case err != nil:
		return failedFinding("kvm", err.Error(), "")
	case !p.Works:
		return finding{"kvm", findingWarning, "sandboxes use emulation, which is slower: " + p.Reason, ""}
	}
	return finding{"kvm", findingOK, p.Reason, ""}
}
