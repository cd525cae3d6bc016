package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"msb/vmm/engine"
)

// scriptedMachine is a machine whose guest is a function over the port.
type scriptedMachine struct {
	engine.VM // what is not needed here
	port      net.Conn
	done      chan struct{}
	exit      engine.Exit
	kill      sync.Once
	killed    chan struct{}
}

func (m *scriptedMachine) Control() io.ReadWriteCloser { return m.port }
func (m *scriptedMachine) Done() <-chan struct{}       { return m.done }
func (m *scriptedMachine) Exit() engine.Exit           { return m.exit }
func (m *scriptedMachine) Kill() error {
	m.kill.Do(func() {
		close(m.killed)
		_ = m.port.Close()
	})
	return nil
}

// scriptedEngine starts scripted machines.
type scriptedEngine struct {
	engine.Engine
	guest func(port net.Conn, killed <-chan struct{}) engine.Exit
	spec  engine.Spec
}

func (e *scriptedEngine) Check(context.Context) error { return nil }

func (e *scriptedEngine) Start(_ context.Context, s engine.Spec) (engine.VM, error) {
	e.spec = s
	if err := os.WriteFile(s.KernelLog, []byte("booting\nlast words \x1b[31mof the kernel\n"), 0o600); err != nil {
		return nil, err
	}
	host, guest := net.Pipe()
	m := &scriptedMachine{port: host, done: make(chan struct{}), killed: make(chan struct{})}
	go func() {
		defer close(m.done)
		m.exit = e.guest(guest, m.killed)
		_ = guest.Close()
	}()
	return m, nil
}

// readTar takes the whole tar as a guest does that knows where it ends.
func readTar(port io.Reader, size int) []byte {
	data := make([]byte, size)
	n, _ := io.ReadFull(port, data)
	return data[:n]
}

func TestUnpackInVM(t *testing.T) {
	content := bytes.Repeat([]byte("tar"), 400_000)
	clean := engine.Exit{PoweredOff: true}
	crash := engine.Exit{Err: errors.New("kernel panic")}
	var got []byte
	for _, c := range []struct {
		name  string
		guest func(port net.Conn, killed <-chan struct{}) engine.Exit
		want  string // "" = fine
	}{
		{"fine", func(port net.Conn, _ <-chan struct{}) engine.Exit {
			got = readTar(port, len(content))
			_, _ = io.WriteString(port, "ok\n")
			return clean
		}, ""},
		{"refused early", func(port net.Conn, killed <-chan struct{}) engine.Exit {
			_ = readTar(port, 1000)
			_, _ = io.WriteString(port, "error: entry \x1b]0;x\x07 leaves the root\n")
			<-killed
			return crash
		}, "entry  ]0;x  leaves the root"},
		{"dies", func(port net.Conn, _ <-chan struct{}) engine.Exit {
			_ = readTar(port, 1000)
			return crash
		}, "last words  [31mof the kernel"},
		{"powers off without a word", func(port net.Conn, _ <-chan struct{}) engine.Exit {
			_ = readTar(port, 1000)
			return clean
		}, "machine that unpacks"},
		{"says ok too early", func(port net.Conn, killed <-chan struct{}) engine.Exit {
			_, _ = io.WriteString(port, "ok\n")
			return clean
		}, "did not get whole"},
		{"says ok and crashes", func(port net.Conn, _ <-chan struct{}) engine.Exit {
			_ = readTar(port, len(content))
			_, _ = io.WriteString(port, "ok\n")
			return crash
		}, "did not power off"},
		{"babbles", func(port net.Conn, killed <-chan struct{}) engine.Exit {
			go func() { _, _ = io.Copy(io.Discard, port) }()
			for {
				if _, err := port.Write(make([]byte, 4096)); err != nil {
					break
				}
				select {
				case <-killed:
					return crash
				default:
				}
			}
			<-killed
			return crash
		}, "answered"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := testLibrary(t)
			guest := filepath.Join(t.TempDir(), "guest")
			if err := os.WriteFile(guest, elfFile("", nil), 0o755); err != nil {
				t.Fatal(err)
			}
			e := &scriptedEngine{guest: c.guest}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			err := l.UnpackInVM(e, Kernel{Boot: "vmlinux"}, guest, "tcg")(ctx, "disk.raw", bytes.NewReader(content), int64(len(content)))
			switch {
			case c.want == "" && (err != nil || !bytes.Equal(got, content)):
				t.Errorf("error is %v, the guest got %d bytes of %d", err, len(got), len(content))
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("error is %v, want %q in it", err, c.want)
			}
			if s := e.spec; s.Disk != "disk.raw" || s.DiskFormat != engine.Raw || s.Kernel != "vmlinux" || !slices.Contains(s.Cmdline, engine.WordUnpack) {
				t.Errorf("machine is %+v", s)
			}
			noTraces(t, l)
		})
	}
}

func TestUnpackInVMCancelled(t *testing.T) {
	for _, c := range []string{"while it is fed", "while it powers off"} {
		t.Run(c, func(t *testing.T) {
			l := testLibrary(t)
			guest := filepath.Join(t.TempDir(), "guest")
			if err := os.WriteFile(guest, elfFile("", nil), 0o755); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			e := &scriptedEngine{guest: func(port net.Conn, killed <-chan struct{}) engine.Exit {
				if c == "while it powers off" {
					_ = readTar(port, 300_000)
					_, _ = io.WriteString(port, "ok\n")
				} else {
					_ = readTar(port, 1000)
				}
				cancel()
				<-killed
				return engine.Exit{Err: fmt.Errorf("killed")}
			}}
			err := l.UnpackInVM(e, Kernel{}, guest, "")(ctx, "disk.raw", bytes.NewReader(make([]byte, 300_000)), 300_000)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("error is %v", err)
			}
			noTraces(t, l)
		})
	}
}
