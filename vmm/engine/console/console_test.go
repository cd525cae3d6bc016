package console

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kernel.log")
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-l.First():
		t.Error("a byte was seen before there was one")
	default:
	}
	l.Copy(strings.NewReader(strings.Repeat("0123456789abcde\n", 5*MaxSize/32)))
	<-l.First()
	for _, p := range []string{path, path + ".1"} {
		st, err := os.Stat(p)
		if err != nil || st.Size() > MaxSize || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", p, st, err)
		}
	}
	if tail := l.Tail(); !strings.HasSuffix(tail, "0123456789abcde") {
		t.Errorf("tail %q", tail)
	}

	// A second boot goes on in the same file.
	again, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	again.Copy(strings.NewReader("second\n"))
	if b, _ := os.ReadFile(path); !strings.HasSuffix(string(b), "abcde\nsecond\n") {
		t.Errorf("log ends in %q", b[max(0, len(b)-20):])
	}
}

func TestPanicLine(t *testing.T) {
	for name, c := range map[string]struct {
		chunks []string
		want   string
	}{
		"none":     {[]string{"booting\n", "panicking is for others\n"}, ""},
		"in parts": {[]string{"[1.2] Kernel pa", "nic - not syncing: VFS\r", "\n[1.3] Rebooting\n"}, "Kernel panic - not syncing: VFS"},
		"first":    {[]string{"Kernel panic - one\nKernel panic - two\n"}, "Kernel panic - one"},
		"escapes":  {[]string{"Kernel panic - \x1b[2J\x07evil\n"}, "Kernel panic - [2Jevil"},
		"long":     {[]string{strings.Repeat("x", 100000), "Kernel panic - far out\n"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := Open("")
			if err != nil {
				t.Fatal(err)
			}
			for _, chunk := range c.chunks {
				l.Write([]byte(chunk))
			}
			if got := l.Panic(); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if len(l.line) > maxLine {
				t.Errorf("keeps a line of %d bytes", len(l.line))
			}
		})
	}
}
