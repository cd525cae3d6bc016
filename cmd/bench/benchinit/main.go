// Command benchinit is the other side of the benchmarks' baselines: an init
// that loads the kernel modules of the initramfs and then either powers off or
// pumps plain bytes over the port "agent". It is built by cmd/bench and is no
// part of the product.
package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "benchinit runs as the init of a machine that cmd/bench boots")
		os.Exit(2)
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "benchinit:", err)
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func run() error {
	for _, m := range [][3]string{{"proc", "/proc", "proc"}, {"sys", "/sys", "sysfs"}, {"dev", "/dev", "devtmpfs"}} {
		if err := syscall.Mount(m[0], m[1], m[2], 0, ""); err != nil && err != syscall.EBUSY {
			return fmt.Errorf("mount %s: %w", m[1], err)
		}
	}
	cmdline, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	if strings.Contains(string(cmdline), "bench=poweroff") {
		return nil
	}
	if err := loadModules(); err != nil {
		return err
	}
	port, err := openPort("agent")
	if err != nil {
		return err
	}
	defer port.Close()
	return pump(port)
}

func loadModules() error {
	order, err := os.ReadFile("/modules/order")
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(order)) {
		f, err := os.Open(filepath.Join("/modules", name))
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && err != unix.EEXIST {
			return fmt.Errorf("load %s: %w", name, err)
		}
	}
	return nil
}

// openPort waits for the port of that name; names arrive after the driver.
func openPort(want string) (*os.File, error) {
	for range 1000 {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, n := range names {
			if b, err := os.ReadFile(n); err == nil && strings.TrimSpace(string(b)) == want {
				return os.OpenFile("/dev/"+filepath.Base(filepath.Dir(n)), os.O_RDWR, 0)
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil, fmt.Errorf("no port %q", want)
}

// pump serves requests of nine bytes: what to do and how many bytes (or round
// trips) of it.
func pump(port io.ReadWriter) error {
	buf := make([]byte, 1<<20)
	for {
		var req [9]byte
		if _, err := io.ReadFull(port, req[:]); err != nil {
			return err
		}
		n := binary.BigEndian.Uint64(req[1:])
		var err error
		switch req[0] {
		case 'R': // to the host
			for left := n; left > 0 && err == nil; {
				var m int
				m, err = port.Write(buf[:min(left, uint64(len(buf)))])
				left -= uint64(m)
			}
		case 'W': // from the host, then one byte back
			for left := n; left > 0 && err == nil; {
				var m int
				m, err = port.Read(buf[:min(left, uint64(len(buf)))])
				left -= uint64(m)
			}
			if err == nil {
				_, err = port.Write(buf[:1])
			}
		case 'P': // round trips of one byte
			for range n {
				if _, err = io.ReadFull(port, buf[:1]); err != nil {
					break
				}
				if _, err = port.Write(buf[:1]); err != nil {
					break
				}
			}
		default:
			return nil
		}
		if err != nil {
			return err
		}
	}
}
