package fusefs

import (
	"strings"
	"syscall"
	"testing"
)

func TestNameOf(t *testing.T) {
	for _, c := range []struct {
		dir, path, want string
		ok              bool
	}{
		{"/home/dev", "/home/dev/f", "f", true},
		{"/", "/f", "f", true},
		{"/home/dev", "/home/dev/a b", "a b", true},
		{"/home/dev", "/private/home/dev/f", "f", true}, // spelled in another way
		{"/home/dev", "/home/dev/a/b", "", false},
		{"/home/dev", "/home/dev/", "", false},
		{"/home/dev", "/home/dev/..", "", false},
		{"/home/dev", "/home/dev/.", "", false},
		{"/home/dev", "", "", false},
		{"/home/dev", "..", "", false},
		{"/home/dev", "/home/dev/a\x00", "", false},
		{"/", "/" + strings.Repeat("n", 255), strings.Repeat("n", 255), true},
		{"/", "/" + strings.Repeat("n", 256), "", false},
	} {
		if got, ok := nameOf(c.dir, c.path); ok != c.ok || ok && got != c.want {
			t.Errorf("%q in %q: %q %v, want %q %v", c.path, c.dir, got, ok, c.want, c.ok)
		}
	}
}

func TestSendableName(t *testing.T) {
	for name, want := range map[string]syscall.Errno{
		"f": 0, "ümlaut": 0, "..": syscall.EINVAL, "": syscall.EINVAL, "a/b": syscall.EINVAL,
		"\xe9": syscall.EILSEQ, strings.Repeat("n", 256): syscall.ENAMETOOLONG,
	} {
		if got := sendableName(name); got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	}
}
