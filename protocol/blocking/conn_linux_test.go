package blocking

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// pair returns both ends of a connection.
func pair(t *testing.T) (a, b *Conn) {
	t.Helper()
	l, err := net.Listen("unix", "") // at an address of the kernel's choice
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		to   **Conn
		from net.Conn
	}{{&a, near}, {&b, far}} {
		if *x.to, err = New(x.from); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*x.to).Close() })
	}
	return a, b
}

func TestParts(t *testing.T) {
	a, b := pair(t)
	big := bytes.Repeat([]byte("big"), 1<<20)
	done := make(chan error, 1)
	go func() {
		n, err := a.WriteParts([][]byte{nil, []byte("head "), big, []byte(" tail")})
		if err == nil && n != int64(len(big)+10) {
			err = io.ErrShortWrite
		}
		a.Shutdown()
		done <- err
	}()
	got, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(got, append(append([]byte("head "), big...), " tail"...)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestSendFile(t *testing.T) {
	a, b := pair(t)
	data := bytes.Repeat([]byte("0123456789"), 200<<10)
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	done := make(chan error, 1)
	go func() {
		n, err := a.SendFile(int(f.Fd()), 5, len(data)-10)
		if err != nil || n != len(data)-10 {
			t.Errorf("%d bytes, %v", n, err)
		}
		n, err = a.SendFile(int(f.Fd()), int64(len(data)-3), 10)
		a.Shutdown()
		if n == 3 && err == io.EOF {
			err = nil
		}
		done <- err
	}()
	want := append(bytes.Clone(data[5:len(data)-5]), data[len(data)-3:]...)
	if got, err := io.ReadAll(b); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestLeft(t *testing.T) {
	a, b := pair(t)
	if _, err := b.Write([]byte("last words")); err != nil || a.Left() {
		t.Errorf("left before it has: %v", err)
	}
	b.Close()
	if !a.Left() {
		t.Error("has not left")
	}
	if n, err := a.Read(make([]byte, 20)); n != 10 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// A call that waited too long goes on where it was.
func TestTimeout(t *testing.T) {
	a, b := pair(t)
	if err := a.SetTimeout(time.Millisecond, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, ErrTimeout) {
		t.Errorf("read: %v", err)
	}
	big := bytes.Repeat([]byte("0123456789"), 1<<20)
	parts := [][]byte{big}
	waits := 0
	received := make(chan []byte, 1)
	for {
		_, err := a.WriteParts(parts)
		if err == nil {
			break
		}
		if !errors.Is(err, ErrTimeout) {
			t.Fatal(err)
		}
		if waits++; waits == 1 {
			go func() {
				got, _ := io.ReadAll(b)
				received <- got
			}()
		}
	}
	a.Shutdown()
	if got := <-received; !bytes.Equal(got, big) || waits == 0 {
		t.Errorf("%d bytes after %d waits", len(got), waits)
	}
}

func TestShutdownEndsARead(t *testing.T) {
	a, _ := pair(t)
	done := make(chan error, 1)
	go func() {
		_, err := a.Read(make([]byte, 1))
		done <- err
	}()
	a.Shutdown()
	if err := <-done; err != io.EOF {
		t.Error(err)
	}
}
