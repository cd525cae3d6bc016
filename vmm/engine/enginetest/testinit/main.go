// Command testinit is a guest for the tests of engines: it answers one-line requests on the ports and nothing more.
//
// As PID 1 of a virtual machine it loads the modules listed in /modules/order and finds its ports by name. Started as
// `testinit ns --control-fd N [--bulk-fd M] [--device PATH]` (process engine) it takes them from the descriptors.
//
//	ping WORD   → pong WORD            pid       → the process id it has
//	echo N      → N bytes follow, and come back          cat FILE  → the size of FILE, then that many bytes
//	sink N      → N bytes follow; "ok"                   source N  → N bytes
//	disk        → size of the root disk in bytes, or 0   write OFF N → N bytes of 'x' to the disk, synced; ok or errno
//	sum OFF N   → SHA-256 of N bytes of the disk         online → the CPUs that are online, after trying to get all
//	memory      → MemTotal in KiB
//	poweroff, panic, reset, hang
package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "ns" {
		namespaces(os.Args[2:])
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "testinit: only of use as PID 1")
		os.Exit(2)
	}
	m := machine{}
	if err := m.boot(); err != nil {
		fmt.Println("testinit:", err)
		m.end(unix.LINUX_REBOOT_CMD_RESTART)
	}
	fmt.Println("testinit: up")
	if m.dual {
		if bulk := m.port("agent-bulk"); bulk != nil {
			go m.serve(bulk)
		}
	}
	control := m.port("agent")
	if control == nil {
		fmt.Println("testinit: no port named agent")
		m.end(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
	m.serve(control)
	select {}
}

// machine is where the guest finds itself.
type machine struct {
	disk  string
	dual  bool
	files map[string]*os.File // ports given as descriptors
}

func (m *machine) boot() error {
	if fd := os.Getenv("TESTINIT_CONTROL"); fd != "" {
		m.disk = os.Getenv("TESTINIT_DISK")
		m.files = map[string]*os.File{"agent": fdFile(fd), "agent-bulk": fdFile(os.Getenv("TESTINIT_BULK"))}
		m.dual = m.files["agent-bulk"] != nil
		return nil
	}
	for _, d := range []string{"/proc", "/sys", "/dev"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	for _, v := range [][2]string{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}} {
		if err := unix.Mount(v[0], v[1], v[0], 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", v[1], err)
		}
	}
	_ = os.WriteFile("/sys/devices/system/memory/auto_online_blocks", []byte("online_movable"), 0)
	order, _ := os.ReadFile("/modules/order")
	late, _ := os.ReadFile("/modules/late") // virtio_mem is in this one
	for _, name := range strings.Fields(string(order) + "\n" + string(late)) {
		f, err := os.Open(filepath.Join("/modules", name))
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && err != unix.EEXIST && bytes.Contains(order, []byte(name)) {
			return fmt.Errorf("load %s: %w", name, err)
		}
	}
	cmdline, _ := os.ReadFile("/proc/cmdline")
	m.dual = bytes.Contains(cmdline, []byte("dual-port"))
	m.disk = "/dev/vda"
	return nil
}

func fdFile(s string) *os.File {
	n, err := strconv.Atoi(s)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(n), "port")
}

func (m *machine) port(name string) *os.File {
	if m.files != nil {
		return m.files[name]
	}
	// The host names its ports by messages that arrive after the driver is loaded.
	for range 2000 {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, n := range names {
			b, _ := os.ReadFile(n)
			if strings.TrimSpace(string(b)) != name {
				continue
			}
			if f, err := os.OpenFile("/dev/"+filepath.Base(filepath.Dir(n)), os.O_RDWR, 0); err == nil {
				return f
			}
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

func (m *machine) serve(port *os.File) {
	in := bufio.NewReaderSize(port, 256<<10)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			if m.files != nil {
				os.Exit(1)
			}
			time.Sleep(10 * time.Millisecond) // the host side is closed
			continue
		}
		m.answer(strings.Fields(line), in, port)
	}
}

func (m *machine) answer(f []string, in io.Reader, out io.Writer) {
	num := func(i int) int64 {
		if i >= len(f) {
			return 0
		}
		n, _ := strconv.ParseInt(f[i], 10, 64)
		return n
	}
	if len(f) == 0 {
		return
	}
	switch f[0] {
	case "ping":
		fmt.Fprintln(out, "pong", strings.Join(f[1:], " "))
	case "pid":
		fmt.Fprintln(out, os.Getpid())
	case "echo":
		io.CopyN(out, in, num(1))
	case "sink":
		io.CopyN(io.Discard, in, num(1))
		fmt.Fprintln(out, "ok")
	case "source":
		block := make([]byte, 64<<10)
		for left := num(1); left > 0; {
			n, err := out.Write(block[:min(left, int64(len(block)))])
			if err != nil {
				return
			}
			left -= int64(n)
		}
	case "cat":
		b, err := os.ReadFile(f[1])
		if err != nil {
			b = []byte(err.Error())
		}
		fmt.Fprintln(out, len(b))
		out.Write(b)
	case "disk":
		fmt.Fprintln(out, m.diskSize())
	case "write":
		fmt.Fprintln(out, m.write(num(1), num(2)))
	case "sum":
		fmt.Fprintln(out, m.sum(num(1), num(2)))
	case "online":
		cpus, _ := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/online")
		for _, c := range cpus {
			os.WriteFile(c, []byte("1"), 0)
		}
		b, _ := os.ReadFile("/sys/devices/system/cpu/online")
		fmt.Fprint(out, string(b))
	case "memory":
		b, _ := os.ReadFile("/proc/meminfo")
		line, _, _ := bytes.Cut(b, []byte("\n"))
		fmt.Fprintln(out, strings.Fields(string(line))[1])
	case "hang":
		select {}
	case "poweroff":
		unix.Sync()
		m.end(unix.LINUX_REBOOT_CMD_POWER_OFF)
	case "reset":
		m.end(unix.LINUX_REBOOT_CMD_RESTART)
	case "panic":
		os.Exit(7)
	default:
		fmt.Fprintln(out, "what?")
	}
}

func (m *machine) diskSize() int64 {
	d, err := os.Open(m.disk)
	if err != nil {
		return 0
	}
	defer d.Close()
	n, _ := d.Seek(0, io.SeekEnd)
	return n
}

func (m *machine) write(off, n int64) string {
	d, err := os.OpenFile(m.disk, os.O_RDWR, 0)
	if err != nil {
		return err.Error()
	}
	defer d.Close()
	block := bytes.Repeat([]byte("x"), int(n))
	if _, err := d.WriteAt(block, off); err != nil {
		return err.Error()
	}
	if err := d.Sync(); err != nil {
		return err.Error()
	}
	return "ok"
}

func (m *machine) sum(off, n int64) string {
	d, err := os.Open(m.disk)
	if err != nil {
		return err.Error()
	}
	defer d.Close()
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(d, off, n)); err != nil {
		return err.Error()
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (m *machine) end(how int) {
	if m.files != nil { // process engine: status 0 is an orderly end
		if how == unix.LINUX_REBOOT_CMD_POWER_OFF {
			os.Exit(0)
		}
		os.Exit(1)
	}
	unix.Reboot(how)
	select {}
}

// namespaces is the process engine's entry: the namespaces are there already, and this is PID 1 of them.
func namespaces(args []string) {
	for i := 0; i+1 < len(args); i += 2 {
		switch args[i] {
		case "--control-fd":
			os.Setenv("TESTINIT_CONTROL", args[i+1])
		case "--bulk-fd":
			os.Setenv("TESTINIT_BULK", args[i+1])
		case "--device":
			os.Setenv("TESTINIT_DISK", args[i+1])
		}
	}
}
