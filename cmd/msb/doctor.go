package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"msb/cmd/msb/progress"
	"msb/vmm/image"
)

// finding is what doctor found out about one thing.
type finding struct {
	Name   string `json:"name"`
	Status string `json:"status"` // ok, warning or failed
	Text   string `json:"text"`
	Cure   string `json:"cure,omitempty"`
}

const (
	findingOK      = "ok"
	findingWarning = "warning"
	findingFailed  = "failed"
)

func newDoctorCmd(app *app) *cobra.Command {
	var list listing
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check everything msb needs, and say how to get what is missing",
		Long: `Check everything msb needs on this machine. Exits 1 when something that it cannot do without
is missing; each such line says how to cure it.`,
		Example:           "  msb doctor\n  msb doctor --json",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: interruptible(func(ctx context.Context, _ []string) error {
			asJSON, err := list.asJSON()
			if err != nil {
				return err
			}
			found := app.examine(ctx)
			failed := 0
			for _, f := range found {
				if f.Status == findingFailed {
					failed++
				}
			}
			if asJSON {
				err = writeJSON(app.io.Out, found)
			} else {
				err = app.writeFindings(found)
			}
			if err == nil && failed > 0 {
				return &exitError{exitFailure, fmt.Errorf("%d of %d checks failed", failed, len(found))}
			}
			return err
		}),
	}
	list.flags(cmd, "")
	return cmd
}

func (a *app) writeFindings(found []finding) error {
	marks := map[string]string{findingOK: "ok  ", findingWarning: "warn", findingFailed: "FAIL"}
	colours := map[string]string{findingOK: "\x1b[32m", findingWarning: "\x1b[33m", findingFailed: "\x1b[31m"}
	for _, f := range found {
		mark := marks[f.Status]
		if a.io.OutTTY() && a.io.Colour() {
			mark = colours[f.Status] + mark + "\x1b[0m"
		}
		if _, err := fmt.Fprintf(a.io.Out, "%s  %-12s %s\n", mark, f.Name, f.Text); err != nil {
			return err
		}
		if f.Cure != "" {
			if _, err := fmt.Fprintf(a.io.Out, "%19s-> %s\n", "", f.Cure); err != nil {
				return err
			}
		}
	}
	return nil
}

// examine runs every check; none depends on another.
func (a *app) examine(ctx context.Context) []finding {
	found := []finding{a.examineHome(), a.examineSockets()}
	found = append(found, a.examineEngines(ctx)...)
	found = append(found, a.examineGuest(), examineFUSE(), examineTools(), examineGit(), a.examineKernel())
	return append(found, a.examineImages(ctx)...)
}

func failedFinding(name, text, cure string) finding {
	return finding{name, findingFailed, text, cure}
}

func (a *app) examineHome() finding {
	h, err := a.home()
	if err != nil {
		return failedFinding("home", err.Error(), "set MSB_HOME to a directory of your own")
	}
	if err := os.MkdirAll(h.Root, 0o700); err != nil {
		return failedFinding("home", err.Error(), "set MSB_HOME to a directory that you may write")
	}
	if err := unix.Access(h.Root, unix.W_OK|unix.X_OK); err != nil {
		return failedFinding("home", fmt.Sprintf("%s: %v", h.Root, err), "chown it to yourself, or set MSB_HOME")
	}
	var st unix.Statfs_t
	if err := unix.Statfs(h.Root, &st); err != nil {
		return failedFinding("home", fmt.Sprintf("%s: %v", h.Root, err), "")
	}
	free := int64(st.Bavail) * st.Bsize
	f := finding{"home", findingOK, fmt.Sprintf("%s, %s free", h.Root, progress.Bytes(free)), ""}
	if free < 2<<30 {
		f.Status, f.Cure = findingWarning, "images and disks need room: make some, or set MSB_HOME to another disk"
	}
	return f
}

func (a *app) examineSockets() finding {
	h, err := a.home()
	if err != nil {
		return failedFinding("sockets", err.Error(), "")
	}
	if err := h.CheckSockets("name"); err != nil {
		return failedFinding("sockets", err.Error(), "set MSB_HOME (or XDG_RUNTIME_DIR) to a directory with a shorter path")
	}
	if err := os.MkdirAll(h.Run, 0o700); err != nil {
		return failedFinding("sockets", err.Error(), "set MSB_HOME (or XDG_RUNTIME_DIR) to a directory that you may write")
	}
	return finding{"sockets", findingOK, h.Run, ""}
}

func (a *app) examineGuest() finding {
	p, err := a.guest()
	if err != nil {
		return failedFinding("guest agent", err.Error(), "make build")
	}
	return finding{"guest agent", findingOK, p, ""}
}

func examineFUSE() finding {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return failedFinding("fuse", "/dev/fuse does not exist", "modprobe fuse")
	case errors.Is(err, os.ErrPermission):
		return failedFinding("fuse", "/dev/fuse may not be opened by this user", "sudo chmod 0666 /dev/fuse (udev does that at boot)")
	case err != nil:
		return failedFinding("fuse", err.Error(), "modprobe fuse")
	}
	f.Close()
	p, err := exec.LookPath("fusermount3")
	switch {
	case err == nil:
		return finding{"fuse", findingOK, "/dev/fuse opens, " + p, ""}
	case os.Geteuid() == 0:
		return finding{"fuse", findingWarning, "fusermount3 is missing: only root can mount", "apt-get install fuse3"}
	}
	return failedFinding("fuse", "fusermount3 is missing", "apt-get install fuse3")
}

// buildTools are what building and importing images need, with the packages that have them.
var buildTools = []struct{ program, pkg string }{
	{"mkfs.ext4", "e2fsprogs"}, {"qemu-img", "qemu-utils"}, {"mmdebstrap", "mmdebstrap"}, {"busybox", "busybox-static"},
	{"apt-get", "apt"}, {"dpkg-deb", "dpkg"},
}

func examineTools() finding {
	var missing, pkgs []string
	for _, t := range buildTools {
		if !hasProgram(t.program) {
			missing, pkgs = append(missing, t.program), append(pkgs, t.pkg)
		}
	}
	if len(missing) > 0 {
		return finding{"image tools", findingWarning, "missing: " + strings.Join(missing, ", ") + " (to build images)",
			"apt-get install " + strings.Join(pkgs, " ")}
	}
	return finding{"image tools", findingOK, "mmdebstrap, busybox, mkfs.ext4 and others", ""}
}

// examineGit looks for what brings projects in and their changes home.
func examineGit() finding {
	p, err := exec.LookPath("git")
	if err != nil {
		return finding{"git", findingWarning, "missing: projects cannot be brought in (--workspace), nor their changes home (msb diff, patch, undo)",
			"apt-get install git"}
	}
	return finding{"git", findingOK, p, ""}
}

// hasProgram looks also where an ordinary user's PATH does not.
func hasProgram(name string) bool {
	if _, err := exec.LookPath(name); err == nil {
		return true
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if _, err := exec.LookPath(dir + "/" + name); err == nil {
			return true
		}
	}
	return false
}

func (a *app) examineKernel() finding {
	lib, err := a.library()
	if err != nil {
		return failedFinding("kernel", err.Error(), "")
	}
	k, err := lib.Kernel()
	switch {
	case errors.Is(err, image.ErrNoKernel):
		return finding{"kernel", findingWarning, "none fetched yet", "msb image build"}
	case err != nil:
		return failedFinding("kernel", err.Error(), "")
	}
	return finding{"kernel", findingOK, k.Version, ""}
}

func (a *app) examineImages(ctx context.Context) []finding {
	lib, err := a.library()
	if err != nil {
		return []finding{failedFinding("images", err.Error(), "")}
	}
	images, err := lib.List()
	if err != nil {
		return []finding{failedFinding("images", err.Error(), "")}
	}
	if len(images) == 0 {
		return []finding{{"images", findingWarning, "none yet", "msb image build"}}
	}
	var found []finding
	var good []string
	for _, img := range images {
		if err := lib.Verify(ctx, img, nil); err != nil {
			found = append(found, failedFinding("images", fmt.Sprintf("%s: %v", img.Name, err), rebuildHint(img.Name)))
			continue
		}
		good = append(good, img.Name)
	}
	if len(good) > 0 {
		found = append(found, finding{"images", findingOK, strings.Join(good, ", "), ""})
	}
	return found
}
