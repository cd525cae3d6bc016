package files

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"msb/protocol/agent"
)

func names(l []agent.Entry) []string {
	var n []string
	for _, e := range l {
		n = append(n, e.Path[strings.LastIndexByte(e.Path, '/')+1:])
	}
	slices.Sort(n)
	return n
}

func TestList(t *testing.T) {
	c := newClient(t)
	writeFile(t, c.path("f"), "abc")
	os.Mkdir(c.path("d"), 0o700)
	os.Symlink("f", c.path("ln"))
	for _, path := range []string{c.dir, c.dir + "/"} {
		l := c.must(agent.OpList{Path: path}).(agent.FSList)
		if got := names(l); !slices.Equal(got, []string{"d", "f", "ln"}) {
			t.Fatalf("got %v", got)
		}
		for _, e := range l {
			want := map[string]string{c.path("f"): "file", c.path("d"): "dir", c.path("ln"): "symlink"}[e.Path]
			if e.Kind != want {
				t.Errorf("%s is %s", e.Path, e.Kind)
			}
		}
	}
	if l := c.must(agent.OpList{Path: c.path("d")}).(agent.FSList); len(l) != 0 {
		t.Errorf("got %v", l)
	}
	root := c.must(agent.OpList{Path: "/"}).(agent.FSList)
	if len(root) == 0 || strings.HasPrefix(root[0].Path, "//") {
		t.Errorf("got %v", root)
	}
}

func TestReadDir(t *testing.T) {
	c := newClient(t)
	var want []string
	for i := range 1000 {
		name := fmt.Sprintf("f%04d", i)
		want = append(want, name)
		writeFile(t, c.path(name), "")
	}
	for _, limit := range []*uint32{nil, ptr(uint32(0)), ptr(uint32(1)), ptr(uint32(3)), ptr(uint32(999)), ptr(uint32(1<<32 - 1))} {
		step := defaultReadDir
		if limit != nil {
			step = max(int(*limit), 1)
		}
		h := uint64(c.must(agent.OpOpenDir{Path: c.dir}).(agent.FSHandle))
		var got []string
		for {
			l := c.must(agent.OpReadDir{Handle: h, Limit: limit}).(agent.FSList)
			if len(l) == 0 {
				break
			}
			if len(l) != min(step, len(want)-len(got)) {
				t.Fatalf("limit %d: %d entries after %d", step, len(l), len(got))
			}
			got = append(got, names(l)...)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Fatalf("limit %d: %d names", step, len(got))
		}
		if l := c.must(agent.OpReadDir{Handle: h, Limit: limit}).(agent.FSList); len(l) != 0 {
			t.Errorf("entries after the end: %v", l)
		}
		c.must(agent.OpCloseHandle{Handle: h})
	}
}

// A directory too large for one answer can only be read in parts, and none of them is too large.
func TestLargeDirectory(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 15000 files")
	}
	c := newClient(t)
	dir := c.path(strings.Repeat("long", 50))
	os.Mkdir(dir, 0o755)
	const n = 15_000
	for i := range n {
		if err := os.Symlink("x", fmt.Sprintf("%s/%d", dir, i)); err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.do(agent.OpList{Path: dir})
	if err == nil || !strings.HasPrefix(err.Error(), "readdir: the directory has more entries than one answer can hold") {
		t.Fatalf("got %v", err)
	}
	h := uint64(c.must(agent.OpOpenDir{Path: dir}).(agent.FSHandle))
	seen := map[string]bool{}
	for {
		l := c.must(agent.OpReadDir{Handle: h, Limit: ptr(uint32(1 << 31))}).(agent.FSList)
		if len(l) == 0 {
			break
		}
		for _, e := range l {
			seen[e.Path] = true
		}
		p, err := agent.AppendFrame(nil, 1, agent.FSResponse, 9, agent.FSResponsePayload{OK: true, Data: l})
		if err != nil {
			t.Fatalf("%d entries: %v", len(l), err)
		}
		if len(l) < n/2 && len(p) < 3<<20 && len(seen) < n {
			t.Errorf("an answer of only %d bytes", len(p))
		}
	}
	if len(seen) != n {
		t.Errorf("%d entries of %d", len(seen), n)
	}
}

// Names that are not UTF-8 are shown with replacement characters, and go with their directory.
func TestNamesThatAreNoText(t *testing.T) {
	c := newClient(t)
	os.Mkdir(c.path("d"), 0o755)
	for _, name := range []string{"a\xff\xfeb", "\xe2\x82", "new\nline", "ok"} {
		writeFile(t, c.path("d")+"/"+name, "x")
	}
	os.Symlink("to\xff", c.path("ln"))
	want := []string{"a\ufffd\ufffdb", "new\nline", "ok", "\ufffd\ufffd"}
	slices.Sort(want)
	l := c.must(agent.OpList{Path: c.path("d")}).(agent.FSList)
	if got := names(l); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	for _, e := range l {
		if e.Kind != "file" || e.Size != 1 {
			t.Errorf("got %+v", e)
		}
	}
	if got := c.must(agent.OpReadLink{Path: c.path("ln")}); got != agent.FSPath("to\ufffd") {
		t.Errorf("got %q", got)
	}
	c.fails(agent.OpStat{Path: c.path("d/a\ufffd\ufffdb")}, "stat: No such file or directory (os error 2)")
	c.must(agent.OpRemoveDir{Path: c.path("d"), Recursive: true})
}
