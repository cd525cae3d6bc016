package fusefs

import (
	"strings"
	"syscall"
	"testing"
)

func TestSymlinkTargets(t *testing.T) {
	home := symlinks{dir: "/mnt/m", root: "/home/dev"}
	whole := symlinks{dir: "/mnt/m", root: "/"}
	for _, c := range []struct {
		s             symlinks
		target        string
		depth         int
		want          string
		undone        string // what creating want through the mount stores; "" = target
		errno         syscall.Errno
		justContained bool // cannot be undone
	}{
		{s: home, target: "f", want: "f"},
		{s: home, target: "d/f", depth: 3, want: "d/f"},
		{s: home, target: "../f", depth: 1, want: "../f"},
		{s: home, target: "../f", depth: 0, want: "f", justContained: true},
		{s: home, target: "..", depth: 0, want: ".", justContained: true},
		{s: home, target: "../../../x", depth: 2, want: "../../x", justContained: true},
		{s: home, target: "a/../../x", depth: 0, want: "x", justContained: true},
		{s: home, target: "a/../x", depth: 5, want: "x", justContained: true},
		{s: home, target: "a..b/..c", depth: 0, want: "a..b/..c"},
		{s: home, target: "/home/dev/f", want: "/mnt/m/f"},
		{s: home, target: "/home/dev", want: "/mnt/m"},
		{s: home, target: "/home/developer/f", want: "/mnt/m/.msb-outside/home/developer/f"},
		{s: home, target: "/usr/bin/python3", want: "/mnt/m/.msb-outside/usr/bin/python3"},
		{s: home, target: "/home/dev/../../etc/passwd", want: "/mnt/m/.msb-outside/etc/passwd", undone: "/etc/passwd"},
		{s: home, target: "/../../home/dev/x", want: "/mnt/m/x", undone: "/home/dev/x"},
		{s: home, target: "//home//dev//x", want: "/mnt/m/x", undone: "/home/dev/x"},
		{s: whole, target: "/etc/passwd", want: "/mnt/m/etc/passwd"},
		{s: whole, target: "/", want: "/mnt/m"},
		{s: whole, target: "/../..", want: "/mnt/m", undone: "/"},
		{s: home, target: "", errno: syscall.EIO},
		{s: home, target: "a\x00b", errno: syscall.EIO},
		{s: home, target: strings.Repeat("x", 5000), errno: syscall.ENAMETOOLONG},
	} {
		got, errno := c.s.toHost(c.target, c.depth)
		if errno != c.errno || errno == 0 && got != c.want {
			t.Errorf("%q at depth %d: %q %v, want %q %v", c.target, c.depth, got, errno, c.want, c.errno)
			continue
		}
		if errno != 0 || c.justContained {
			continue
		}
		if c.undone == "" {
			c.undone = c.target
		}
		if back := c.s.toGuest(got); back != c.undone {
			t.Errorf("%q is shown as %q and stored as %q, want %q", c.target, got, back, c.undone)
		}
	}
	for _, target := range []string{"x", "/mnt/mx/f", "/etc/passwd", "../m"} {
		if got := home.toGuest(target); got != target {
			t.Errorf("%q is stored as %q", target, got)
		}
	}
}

// FuzzContain checks that a contained target never has more ".." in a row than
// there are directories above, and none after a name.
func FuzzContain(f *testing.F) {
	f.Add("../a/../../b", 2)
	f.Add("./..//../x/.", 0)
	f.Fuzz(func(t *testing.T, target string, depth int) {
		if depth < 0 || depth > 100 || target == "" || target[0] == '/' {
			t.Skip()
		}
		up, named := 0, false
		for part := range strings.SplitSeq(contain(target, depth), "/") {
			switch {
			case part == ".." && (named || up == depth):
				t.Fatalf("%q at depth %d climbs out: %q", target, depth, contain(target, depth))
			case part == "..":
				up++
			case part != "" && part != ".":
				named = true
			}
		}
	})
}
