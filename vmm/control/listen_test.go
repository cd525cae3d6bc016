package control

import (
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestOnlyTheOwnerAndRoot: the socket's mode keeps other users out, and so does
// the server where the mode does not.
func TestOnlyTheOwnerAndRoot(t *testing.T) {
	var log lockedBuffer
	path := serve(t, &backend{}, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket %v, %v", st.Mode(), err)
	}
	if os.Geteuid() != 0 {
		t.Skip("the rest is skipped, since only root can be another user")
	}
	for path, mode := range map[string]os.FileMode{path: 0o666, filepath.Dir(path): 0o755} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	answer := func(uid int) (string, error) {
		type result struct {
			text string
			err  error
		}
		done := make(chan result, 1)
		go func() {
			runtime.LockOSThread() // for ever: the thread is another user's, and ends with the goroutine
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
				done <- result{err: errno}
				return
			}
			c, err := net.Dial("unix", path)
			if err != nil {
				done <- result{err: err}
				return
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(time.Minute))
			io.WriteString(c, `{"op":"pause_state"}`+"\n") // may be closed already
			b, _ := io.ReadAll(c)
			done <- result{text: string(b)}
		}()
		r := <-done
		return r.text, r.err
	}
	if got, err := answer(0); err != nil || got != "{\"ok\":true}\n" {
		t.Errorf("root: %q, %v", got, err)
	}
	if got, err := answer(65534); err != nil || got != "" {
		t.Errorf("another user: %q, %v", got, err)
	}
	if !strings.Contains(log.String(), "user 65534 may not control") {
		t.Errorf("log: %s", log.String())
	}
}
