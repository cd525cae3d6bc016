package main

import (
	"bufio"
	"bytes"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// forwarding is a running msb forward.
type forwarding struct {
	cmd   *exec.Cmd
	ports []string // what it listens on, in the order of its arguments
	errs  bytes.Buffer
}

// startForward forwards ports of a sandbox, by its name or its socket, and waits until they are listened on.
func startForward(t *testing.T, home string, args ...string) *forwarding {
	t.Helper()
	how := []string{"forward"}
	if strings.Contains(args[0], "/") {
		how = append(how, "--socket")
	}
	f := &forwarding{cmd: exec.Command(filepath.Join(suite.bin, "msb"), append(how, args...)...)}
	f.cmd.Env, f.cmd.Dir, f.cmd.Stderr = testEnv(home), home, &f.errs
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = f.cmd.Process.Kill()
		_ = f.cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for range args[1:] {
		if !lines.Scan() {
			_ = f.cmd.Wait()
			t.Fatalf("it ended: %s", f.errs.String())
		}
		at, to, ok := strings.Cut(lines.Text(), " -> ")
		if !ok || !strings.HasPrefix(to, args[0]+":") {
			t.Fatalf("it printed %q", lines.Text())
		}
		f.ports = append(f.ports, at)
	}
	return f
}

// interrupt types Ctrl-C, which is how a forward ends.
func (f *forwarding) interrupt() error {
	return errors.Join(f.cmd.Process.Signal(syscall.SIGINT), f.cmd.Wait())
}

// connect connects to a forwarded port and asks with a question until something inside answers.
func connect(t *testing.T, at, question, answer string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		got, err := ask(at, strings.NewReader(question))
		if err == nil && strings.HasPrefix(string(got), answer) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %q, %v", at, got, err)
		}
	}
}

// ask sends a question to its end and reads the answer to its end.
func ask(at string, question io.Reader) ([]byte, error) {
	c, err := net.Dial("tcp", at)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() {
		io.Copy(c, question)
		c.(*net.TCPConn).CloseWrite()
	})
	return io.ReadAll(c)
}

func TestForward(t *testing.T) {
	for _, engine := range []string{"process", "qemu"} {
		t.Run(engine, func(t *testing.T) {
			switch {
			case engine == "qemu":
				needVM(t)
			case os.Geteuid() != 0:
				t.Skip("the process engine is for root")
			default:
				needImages(t)
			}
			home := preparedHome(t)
			mustMSB(t, home, "create", "tiny", "-n", "x", "-m", "256M", "--engine", engine)
			forwardTest(t, home)
		})
	}
}

func forwardTest(t *testing.T, home string) {
	serve := func() {
		for port, program := range map[string]string{"7000": "cat", "7001": "md5sum"} {
			mustMSB(t, home, "exec", "x", "--", "sh", "-c", "nc -ll -p "+port+" -e "+program+" >/dev/null 2>&1 </dev/null &")
		}
	}
	serve()
	f := startForward(t, home, "x", "0:7000", "[::1]:0:7001", "0:7009")
	echo, sum, nobody := f.ports[0], f.ports[1], f.ports[2]
	connect(t, echo, "hello", "hello")
	connect(t, sum, "", "d41d8cd98f00b204e9800998ecf8427e")

	// Data of some size, its end told apart from the answer's; many at once.
	data := bytes.Repeat([]byte("all kinds of bytes \x00\xff\r\n"), 1<<16)
	var work sync.WaitGroup
	for i := range 8 {
		work.Go(func() {
			if i%2 == 0 {
				if got, err := ask(echo, bytes.NewReader(data)); err != nil || !bytes.Equal(got, data) {
					t.Errorf("%d bytes of %d came back: %v", len(got), len(data), err)
				}
				return
			}
			want := fmt.Sprintf("%x", md5.Sum(data))
			if got, err := ask(sum, bytes.NewReader(data)); err != nil || !strings.HasPrefix(string(got), want) {
				t.Errorf("checksum %q, want %s: %v", got, want, err)
			}
		})
	}
	work.Wait()

	if _, err := ask(nobody, strings.NewReader("")); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a port where nothing listens: %v", err)
	}

	// The sandbox may come and go.
	mustMSB(t, home, "restart", "-q", "x")
	serve()
	connect(t, echo, "again", "again")

	if err := f.interrupt(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	if errs := f.errs.String(); !strings.Contains(errs, "msb: x:7009: ") || !strings.Contains(errs, "refused") {
		t.Errorf("it said %q", errs)
	}
}
