package enginetest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// BuildTestInit compiles the guest of these tests, static, and gives its path.
func BuildTestInit(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "testinit")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "msb/vmm/engine/enginetest/testinit")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the test guest: %v\n%s", err, out)
	}
	return path
}

// Talk is a conversation with the test guest over one port.
type Talk struct {
	t    testing.TB
	port io.ReadWriteCloser
	in   *bufio.Reader
}

// NewTalk talks over port, and closes it at the end of the test.
func NewTalk(t testing.TB, port io.ReadWriteCloser) *Talk {
	t.Helper()
	if port == nil {
		t.Fatal("there is no such port")
	}
	t.Cleanup(func() { port.Close() })
	return &Talk{t, port, bufio.NewReaderSize(port, 256<<10)}
}

// Within bounds what follows.
func (k *Talk) Within(d time.Duration) *Talk {
	type deadliner interface {
		SetReadDeadline(time.Time) error
		SetWriteDeadline(time.Time) error
	}
	p, ok := k.port.(deadliner)
	if !ok {
		k.t.Fatalf("port %T has no deadlines", k.port)
	}
	p.SetReadDeadline(time.Now().Add(d))
	p.SetWriteDeadline(time.Now().Add(d))
	return k
}

// Say sends a line.
func (k *Talk) Say(format string, args ...any) {
	k.t.Helper()
	if _, err := fmt.Fprintf(k.port, format+"\n", args...); err != nil {
		k.t.Fatalf("say %q: %v", format, err)
	}
}

// Ask sends a line and gives the line that comes back.
func (k *Talk) Ask(format string, args ...any) string {
	k.t.Helper()
	k.Say(format, args...)
	line, err := k.in.ReadString('\n')
	if err != nil {
		k.t.Fatalf("no answer to %q: %v", fmt.Sprintf(format, args...), err)
	}
	return strings.TrimSpace(line)
}

// Cat reads a file of the guest.
func (k *Talk) Cat(path string) string {
	k.t.Helper()
	n, err := strconv.Atoi(k.Ask("cat %s", path))
	if err != nil {
		k.t.Fatalf("cat %s: %v", path, err)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(k.in, b); err != nil {
		k.t.Fatalf("cat %s: %v", path, err)
	}
	return string(b)
}

// Read fills p.
func (k *Talk) Read(p []byte) {
	k.t.Helper()
	if _, err := io.ReadFull(k.in, p); err != nil {
		k.t.Fatalf("read %d bytes: %v", len(p), err)
	}
}

// Ended says whether the stream ends, as it must when the machine is gone.
func (k *Talk) Ended() error {
	n, err := io.Copy(io.Discard, k.in)
	if err != nil && !isReset(err) {
		return fmt.Errorf("after %d bytes: %w", n, err)
	}
	return nil
}

func isReset(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && !op.Timeout()
}
