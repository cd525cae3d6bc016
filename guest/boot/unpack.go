package boot

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// unpackDevice is the disk that the unpack mode of a virtual machine fills.
const unpackDevice = "/dev/vda"

// unpackFromPort fills the disk from the tar stream on a port and reports there. The port has no end of its own: the
// stream ends where tar says.
func unpackFromPort(p io.ReadWriter) error {
	err := onThread(func() error {
		if err := waitDevice(unpackDevice); err != nil {
			return err
		}
		return unpackInto(unpackDevice, "/newroot", p)
	})
	// What comes after the archive is padding; the host must not block on it.
	go io.Copy(io.Discard, p)
	if _, werr := io.WriteString(p, reply(err)); werr != nil {
		return errors.Join(err, fmt.Errorf("report the result: %w", werr))
	}
	if err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	return nil
}

// reply is the one line that says how it went.
func reply(err error) string {
	if err == nil {
		return "ok\n"
	}
	return "error: " + strings.Join(strings.Fields(err.Error()), " ") + "\n"
}

// Unpack is the mode for hosts without a virtual machine: `unpack --device D`, tar on standard input, the result on
// standard output. D is a block device or an image file. It returns the exit code.
func Unpack(args []string) int {
	flags := flag.NewFlagSet("unpack", flag.ContinueOnError)
	device := flags.String("device", "", "ext4 block device or image file to fill")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if *device == "" {
		logf("unpack needs --device")
		return 2
	}
	err := onThread(func() error { return unpackOnHost(*device) })
	if _, werr := io.WriteString(os.Stdout, reply(err)); werr != nil || err != nil {
		return 1
	}
	// The archive's padding is read so that the writer does not see a broken pipe.
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

func unpackOnHost(device string) error {
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return fmt.Errorf("%s: %w", device, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		loop, err := attachLoop(device)
		if err != nil {
			return err
		}
		defer loop.Close()
		device = loop.Name()
	}
	dir, err := os.MkdirTemp("", "msb-unpack-")
	if err != nil {
		return err
	}
	defer os.Remove(dir)
	return unpackInto(device, dir, os.Stdin)
}

// onThread runs f on a thread with mounts, root and umask of its own. The thread is not used for anything else.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
			done <- fmt.Errorf("private mounts: %w", err)
			return
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil && err != unix.EINVAL {
			done <- fmt.Errorf("private mounts: %w", err)
			return
		}
		unix.Umask(0)
		done <- f()
	}()
	return <-done
}

// unpackInto fills the ext4 file system on device from an archive. The archive is not trusted: it is unpacked with the
// file system as root directory, mounted so that no device node in it can be opened and nothing in it run.
func unpackInto(device, dir string, archive io.Reader) (err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	const flags = unix.MS_NODEV | unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NOATIME
	if err := unix.Mount(device, dir, "ext4", flags, "noinit_itable"); err != nil {
		return fmt.Errorf("mount %s: %w", device, err)
	}
	outside, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(outside)
	if err := unix.Chroot(dir); err != nil {
		return fmt.Errorf("enter %s: %w", dir, err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	err = unpackTar(archive)
	if err == nil {
		err = finishImage()
	}
	if err == nil {
		err = syncRoot()
	}
	if lerr := leaveChroot(outside); lerr != nil {
		return errors.Join(err, lerr)
	}
	if uerr := unix.Unmount(dir, 0); err == nil && uerr != nil {
		err = fmt.Errorf("unmount %s: %w", device, uerr)
	}
	return err
}

func syncRoot() error {
	fd, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Syncfs(fd); err != nil {
		return fmt.Errorf("write the image out: %w", err)
	}
	return nil
}

func leaveChroot(outside int) error {
	if err := unix.Fchdir(outside); err != nil {
		return err
	}
	return unix.Chroot(".")
}
