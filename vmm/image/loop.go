package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// UnpackOnLoop returns an Unpacker for root on a host without a machine engine: the guest agent (a path) unpacks in a
// mount namespace of its own, changed into the file system on a loop device. The host's own kernel does the work, so
// this is for tars that one trusts: built-in images, development and tests.
func UnpackOnLoop(guest string) Unpacker {
	return func(ctx context.Context, raw string, tar io.Reader, size int64) error {
		if os.Geteuid() != 0 {
			return errors.New("unpacking without a virtual machine needs root")
		}
		loop, err := attachLoop(raw)
		if err != nil {
			return err
		}
		// The device frees itself when its last user is gone: us, or the mount of a guest that was killed.
		defer loop.Close()
		return runUnpack(ctx, guest, loop.Name(), tar)
	}
}

func runUnpack(ctx context.Context, guest, device string, tar io.Reader) error {
	// The parent-death signal follows the thread that started the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, guest, "unpack", "--device", device)
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdin = tar
	var out bytes.Buffer
	log := &tailWriter{max: stderrKept}
	cmd.Stdout, cmd.Stderr = &limitWriter{w: &out, left: unpackReplyMax}, log
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL, Setpgid: true}
	err := cmd.Run()
	reply := strings.TrimSpace(out.String())
	switch text, refused := strings.CutPrefix(reply, "error:"); {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case refused:
		return errors.New(cleanText(text))
	case err != nil:
		return fmt.Errorf("the guest agent could not unpack: %w: %s", err, cleanText(log.String()))
	case reply != "ok":
		return fmt.Errorf("the guest agent answered %q instead of ok: %s", cleanText(reply), cleanText(log.String()))
	}
	return nil
}

// attachLoop puts a file on a free loop device that is given back when it is closed everywhere.
func attachLoop(path string) (*os.File, error) {
	backing, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer backing.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("no loop devices here: %w", err)
	}
	defer control.Close()
	// Somebody else may take the free device between the two calls.
	for range 32 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("no free loop device: %w", err)
		}
		loop, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return nil, fmt.Errorf("loop device: %w", err)
		}
		config := unix.LoopConfig{Fd: uint32(backing.Fd())}
		config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
		copy(config.Info.File_name[:], path)
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &config)
		if err == nil {
			return loop, nil
		}
		_ = loop.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("cannot put %s on a loop device: %w", path, err)
		}
	}
	return nil, errors.New("no free loop device: others take them all")
}

// limitWriter drops what is past its limit.
type limitWriter struct {
	w    io.Writer
	left int
}

func (l *limitWriter) Write(p []byte) (int, error) {
	keep := p[:min(len(p), l.left)]
	l.left -= len(keep)
	if _, err := l.w.Write(keep); err != nil {
		return 0, err
	}
	return len(p), nil
}
