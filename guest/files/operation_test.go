package files

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"msb/guest/bulk/bulktest"
	"msb/protocol/agent"
)

func TestErrorTexts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root hears other errors than its users do")
	}
	c := newClient(t)
	writeFile(t, c.path("f"), "x")
	if err := os.Symlink("loop", c.path("loop")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(c.path("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	missing, f, dir := c.path("missing"), c.path("f"), c.dir
	long := strings.Repeat("a", 5000)
	const (
		enoent  = "No such file or directory (os error 2)"
		enotdir = "Not a directory (os error 20)"
		eisdir  = "Is a directory (os error 21)"
		einval  = "Invalid argument (os error 22)"
		eloop   = "Too many levels of symbolic links (os error 40)"
		tooLong = "File name too long (os error 36)"
		nul     = "file name contained an unexpected NUL byte"
	)
	rw := agent.OpenOptions{Read: true}
	for _, tc := range []struct {
		op   agent.FSOp
		want string
	}{
		{agent.OpStat{Path: missing, FollowSymlink: true}, "stat: " + enoent},
		{agent.OpStat{Path: ""}, "stat: " + enoent},
		{agent.OpStat{Path: "a\x00b"}, "stat: " + nul},
		{agent.OpStat{Path: long}, "stat: " + tooLong},
		{agent.OpStat{Path: c.path("loop"), FollowSymlink: true}, "stat: " + eloop},
		{agent.OpStat{Path: f + "/x"}, "stat: " + enotdir},
		{agent.OpList{Path: missing}, "readdir: opendir: " + enoent},
		{agent.OpList{Path: f}, "readdir: opendir: " + enotdir},
		{agent.OpList{Path: c.path("fifo")}, "readdir: opendir: " + enotdir},
		{agent.OpOpenDir{Path: f}, "opendir: " + enotdir},
		{agent.OpReadLink{Path: f}, "readlink: " + einval},
		{agent.OpReadLink{Path: missing}, "readlink: " + enoent},
		{agent.OpRealPath{Path: c.path("missing", "x")}, "realpath: " + enoent},
		{agent.OpRealPath{Path: c.path("loop")}, "realpath: " + eloop},
		{agent.OpRealPath{Path: f + "/x"}, "realpath: " + enotdir},
		{agent.OpRealPath{Path: ""}, "realpath: " + enoent},
		{agent.OpSymlink{Target: "x", LinkPath: f}, "symlink: File exists (os error 17)"},
		{agent.OpSymlink{Target: "", LinkPath: missing}, "symlink: " + enoent},
		{agent.OpSymlink{Target: long, LinkPath: missing}, "symlink: " + tooLong},
		{agent.OpMkdir{Path: f}, "mkdir: File exists (os error 17)"},
		{agent.OpMkdir{Path: f + "/a/b"}, "mkdir: " + enotdir},
		{agent.OpMkdir{Path: c.path("loop", "a")}, "mkdir: " + eloop},
		{agent.OpRemove{Path: missing}, "remove: " + enoent},
		{agent.OpRemove{Path: dir}, "remove: " + eisdir},
		{agent.OpRemoveDir{Path: missing}, "remove_dir: " + enoent},
		{agent.OpRemoveDir{Path: missing, Recursive: true}, "remove_dir: " + enoent},
		{agent.OpRemoveDir{Path: f}, "remove_dir: " + enotdir},
		{agent.OpRemoveDir{Path: f, Recursive: true}, "remove_dir: " + enotdir},
		{agent.OpRemoveDir{Path: dir}, "remove_dir: Directory not empty (os error 39)"},
		{agent.OpCopy{Src: missing, Dst: f}, "copy: " + enoent},
		{agent.OpCopy{Src: dir, Dst: missing}, "copy: the source path is neither a regular file nor a symlink to a regular file"},
		{agent.OpCopy{Src: c.path("fifo"), Dst: missing}, "copy: the source path is neither a regular file nor a symlink to a regular file"},
		{agent.OpCopy{Src: f, Dst: dir}, "copy: " + eisdir},
		{agent.OpCopy{Src: f, Dst: f}, "copy: source and destination are the same file"},
		{agent.OpRename{Src: missing, Dst: f}, "rename: " + enoent},
		{agent.OpRename{Src: "/dev", Dst: f}, "rename: " + enotdir},
		{agent.OpOpenFile{Path: missing, Options: rw}, "open: " + enoent},
		{agent.OpOpenFile{Path: f}, "open: " + einval},
		{agent.OpOpenFile{Path: f, Options: agent.OpenOptions{Read: true, Create: true}}, "open: " + einval},
		{agent.OpOpenFile{Path: f, Options: agent.OpenOptions{Append: true, Truncate: true}}, "open: " + einval},
		{agent.OpOpenFile{Path: f, Options: agent.OpenOptions{Write: true, CreateNew: true}}, "open: File exists (os error 17)"},
		{agent.OpOpenFile{Path: dir, Options: agent.OpenOptions{Write: true}}, "open: " + eisdir},
		{agent.OpOpenFile{Path: c.path("fifo"), Options: agent.OpenOptions{Write: true}}, "open: No such device or address (os error 6)"},
		{agent.OpSetStat{Path: missing, FollowSymlink: true, Attrs: agent.Attrs{Size: ptr(uint64(1))}}, "setstat: open for truncate: " + enoent},
		{agent.OpSetStat{Path: missing, FollowSymlink: true, Attrs: agent.Attrs{Mode: ptr(uint32(1))}}, "setstat: chmod: " + enoent},
		{agent.OpSetStat{Path: missing, Attrs: agent.Attrs{Mode: ptr(uint32(1))}}, "setstat: lstat before chmod: " + enoent},
		{agent.OpSetStat{Path: c.path("loop"), Attrs: agent.Attrs{Mode: ptr(uint32(0o600))}}, "setstat: chmod on symlink without following is not supported"},
		{agent.OpSetStat{Path: f, FollowSymlink: true, Attrs: agent.Attrs{Size: ptr(uint64(1 << 63))}}, "setstat: set_len: " + einval},
		{agent.OpSetStat{Path: c.path("fifo"), FollowSymlink: true, Attrs: agent.Attrs{Size: ptr(uint64(1))}}, "setstat: open for truncate: No such device or address (os error 6)"},
		{agent.OpCloseHandle{Handle: 0}, "close: invalid handle: 0"},
		{agent.OpCloseHandle{Handle: 1<<64 - 1}, "close: invalid handle: 18446744073709551615"},
		{agent.OpReadDir{Handle: 77}, "readdir: invalid handle: 77"},
		{agent.OpFStat{Handle: 77}, "fstat: invalid handle: 77"},
		{agent.OpFSetStat{Handle: 77}, "fsetstat: invalid handle: 77"},
		{agent.OpRead{Handle: 77}, "read: invalid handle: 77"},
		{agent.OpWrite{Handle: 77}, "write: invalid handle: 77"},
	} {
		c.fails(tc.op, tc.want)
	}
	c.quiet()
	if content(t, f) != "x" {
		t.Error("the file was changed")
	}
}

func TestStat(t *testing.T) {
	c := newClient(t)
	writeFile(t, c.path("f"), "hello")
	os.Symlink("f", c.path("ln"))
	unix.Mkfifo(c.path("fifo"), 0o640)
	for _, tc := range []struct {
		name   string
		follow bool
		kind   string
		mode   uint32
		size   uint64
	}{
		{"f", true, "file", 0o100644, 5},
		{"ln", true, "file", 0o100644, 5},
		{"ln", false, "symlink", 0o120777, 1},
		{"fifo", true, "other", 0o010640, 0},
	} {
		e := agent.Entry(c.must(agent.OpStat{Path: c.path(tc.name), FollowSymlink: tc.follow}).(agent.FSStat))
		if e.Kind != tc.kind || e.Mode != tc.mode || e.Size != tc.size || e.Path != c.path(tc.name) || *e.Mtime != *e.Modified {
			t.Errorf("%+v: got %+v", tc, e)
		}
	}
	if e := c.must(agent.OpStat{Path: "/dev/null"}).(agent.FSStat); e.Kind != "other" {
		t.Errorf("/dev/null: %+v", e)
	}
}

func TestSetStat(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	c := newClient(t)
	f := c.path("f")
	writeFile(t, f, "hello")
	os.Symlink("f", c.path("ln"))
	stat := func() (st unix.Stat_t) {
		if err := unix.Stat(f, &st); err != nil {
			t.Fatal(err)
		}
		return st
	}
	before := stat()
	c.must(agent.OpSetStat{Path: f, FollowSymlink: true})
	if after := stat(); after != before {
		t.Errorf("an empty change changed %+v to %+v", before, after)
	}
	// Ownership clears set-id bits; the mode that is asked for still comes out.
	c.must(agent.OpSetStat{Path: c.path("ln"), FollowSymlink: true, Attrs: agent.Attrs{
		Mode: ptr(uint32(0o104755)), UID: ptr(uint32(1)), GID: ptr(uint32(2)), Size: ptr(uint64(3)), Atime: ptr(int64(-5)), Mtime: ptr(int64(2_000_000_000)),
	}})
	st := stat()
	if st.Mode != 0o104755 || st.Uid != 1 || st.Gid != 2 || st.Size != 3 || st.Atim.Sec != -5 || st.Mtim.Sec != 2_000_000_000 {
		t.Errorf("got %+v", st)
	}
	c.must(agent.OpSetStat{Path: f, FollowSymlink: true, Attrs: agent.Attrs{Atime: ptr(int64(7))}})
	if st := stat(); st.Atim.Sec != 7 || st.Mtim.Sec != 2_000_000_000 {
		t.Errorf("got %+v", st)
	}
	c.must(agent.OpSetStat{Path: c.path("ln"), Attrs: agent.Attrs{UID: ptr(uint32(9)), Mtime: ptr(int64(9))}})
	if st := stat(); st.Uid != 1 || st.Mtim.Sec != 2_000_000_000 {
		t.Errorf("a change of the symlink changed its target: %+v", st)
	}
	c.fails(agent.OpSetStat{Path: c.path("ln"), Attrs: agent.Attrs{Size: ptr(uint64(0))}},
		"setstat: open for truncate: Too many levels of symbolic links (os error 40)")

	h := c.openRW(f)
	c.must(agent.OpFSetStat{Handle: h, Attrs: agent.Attrs{Mode: ptr(uint32(0o600)), UID: ptr(uint32(0)), GID: ptr(uint32(0)), Size: ptr(uint64(10)), Mtime: ptr(int64(11))}})
	if st := stat(); st.Mode != 0o100600 || st.Uid != 0 || st.Size != 10 || st.Mtim.Sec != 11 || st.Atim.Sec != 7 {
		t.Errorf("got %+v", st)
	}
	if e := c.must(agent.OpFStat{Handle: h}).(agent.FSStat); e.Size != 10 || e.Mode != 0o100600 || e.Path != f {
		t.Errorf("got %+v", e)
	}
}

// Modes that a request names come out exactly, whatever the umask; without a mode it is as with a umask of 022.
func TestModes(t *testing.T) {
	for _, mask := range []int{0, 0o022, 0o077} {
		t.Run(fmt.Sprintf("umask %03o", mask), func(t *testing.T) {
			defer unix.Umask(unix.Umask(mask))
			c := newClient(t)
			create := agent.OpenOptions{Write: true, Create: true}
			c.open(c.path("plain"), create)
			create.Mode = ptr(uint32(0o666))
			c.open(c.path("exact"), create)
			create.Mode = ptr(uint32(0o4755))
			c.open(c.path("setuid"), create)
			create.Mode = ptr(uint32(0o600))
			c.open(c.path("exact"), create) // there already: unchanged
			create.Mode = ptr(uint32(0o100640))
			create.CreateNew = true
			c.open(c.path("new"), create)
			c.must(agent.OpMkdir{Path: c.path("a/b/c"), Mode: ptr(uint32(0o1777))})
			c.must(agent.OpMkdir{Path: c.path("d")})
			want := map[string]uint32{"exact": 0o666, "setuid": 0o4755, "new": 0o640, "a/b/c": 0o1777}
			if mask != 0o077 {
				want["plain"], want["a"], want["a/b"], want["d"] = 0o644, 0o755, 0o755, 0o755
			}
			for name, mode := range want {
				var st unix.Stat_t
				if err := unix.Stat(c.path(name), &st); err != nil || st.Mode&0o7777 != mode {
					t.Errorf("%s has mode %04o (%v), want %04o", name, st.Mode&0o7777, err, mode)
				}
			}
		})
	}
}

func TestCreateThroughDanglingSymlink(t *testing.T) {
	c := newClient(t)
	os.Symlink("target", c.path("ln"))
	c.open(c.path("ln"), agent.OpenOptions{Write: true, Create: true, Mode: ptr(uint32(0o600))})
	if _, err := os.Lstat(c.path("target")); err != nil {
		t.Error(err)
	}
}

func TestMkdirWithParents(t *testing.T) {
	c := newClient(t)
	for _, p := range []string{"a/b/c", "a/b/c", "x//y/./z/", "a/../q/r"} {
		c.must(agent.OpMkdir{Path: c.dir + "/" + p})
		if st, err := os.Stat(c.path(p)); err != nil || !st.IsDir() {
			t.Errorf("%s: %v", p, err)
		}
	}
	deep := c.dir + strings.Repeat("/d", 500)
	c.must(agent.OpMkdir{Path: deep})
}

func TestRealPath(t *testing.T) {
	c := newClient(t)
	os.MkdirAll(c.path("d/e"), 0o755)
	os.Symlink("d", c.path("ln"))
	os.Symlink("nowhere", c.path("dangling"))
	root, _ := filepath.EvalSymlinks(c.dir)
	for in, want := range map[string]string{
		c.path("ln/e"):                  root + "/d/e",
		c.dir + "/ln/../ln/./e/":        root + "/d/e",
		c.path("ln/new"):                root + "/d/new",
		c.path("dangling"):              root + "/dangling",
		c.dir + "/ln/e/missing/":        root + "/d/e/missing",
		"/":                             "/",
		"/missing-on-every-machine-123": "/missing-on-every-machine-123",
	} {
		if got := c.must(agent.OpRealPath{Path: in}); got != agent.FSPath(want) {
			t.Errorf("%s: got %v, want %v", in, got, want)
		}
	}
}

func TestRemoveTree(t *testing.T) {
	c := newClient(t)
	outside := t.TempDir()
	writeFile(t, outside+"/keep", "x")
	deep := c.path("tree") + strings.Repeat("/d", 200)
	os.MkdirAll(deep, 0o755)
	os.Symlink(outside, deep+"/ln")
	for i := range 1500 {
		writeFile(t, c.path("tree", fmt.Sprint(i)), "")
	}
	c.must(agent.OpRemoveDir{Path: c.path("tree"), Recursive: true})
	if _, err := os.Lstat(c.path("tree")); !os.IsNotExist(err) {
		t.Error("the tree is still there")
	}
	if content(t, outside+"/keep") != "x" {
		t.Error("a symlink was followed")
	}
	os.Symlink(outside, c.path("ln"))
	c.must(agent.OpRemoveDir{Path: c.path("ln"), Recursive: true})
	if content(t, outside+"/keep") != "x" {
		t.Error("a symlink was followed")
	}
}

func TestCopy(t *testing.T) {
	c := newClient(t)
	big := string(pattern(3<<20 + 5))
	writeFile(t, c.path("src"), big)
	os.Chmod(c.path("src"), 0o751)
	writeFile(t, c.path("dst"), strings.Repeat("longer", 1<<20))
	c.must(agent.OpCopy{Src: c.path("src"), Dst: c.path("dst")})
	if content(t, c.path("dst")) != big {
		t.Error("the copy differs")
	}
	if st, _ := os.Stat(c.path("dst")); st.Mode().Perm() != 0o751 {
		t.Errorf("mode %v", st.Mode())
	}
	// Files in /proc say that they are empty.
	c.must(agent.OpCopy{Src: "/proc/self/cmdline", Dst: c.path("proc")})
	if content(t, c.path("proc")) == "" {
		t.Error("a file of /proc was copied as empty")
	}
	// Another file system.
	c.must(agent.OpCopy{Src: c.path("src"), Dst: "/dev/shm/" + filepath.Base(c.dir) + "-copy"})
	defer os.Remove("/dev/shm/" + filepath.Base(c.dir) + "-copy")
	if content(t, "/dev/shm/"+filepath.Base(c.dir)+"-copy") != big {
		t.Error("the copy differs")
	}
}

func TestHandles(t *testing.T) {
	c := newClient(t)
	writeFile(t, c.path("f"), "hello")
	first := c.open(c.path("f"), agent.OpenOptions{Read: true})
	second := uint64(c.must(agent.OpOpenDir{Path: c.dir}).(agent.FSHandle))
	third := c.open(c.path("f"), agent.OpenOptions{Append: true})
	if first != 1 || second != 2 || third != 3 {
		t.Errorf("handles %d, %d, %d", first, second, third)
	}
	c.fails(agent.OpReadDir{Handle: first}, "readdir: handle 1 is a file")
	c.fails(agent.OpRead{Handle: second}, "read: handle 2 is a directory")
	c.fails(agent.OpWrite{Handle: second}, "write: handle 2 is a directory")
	c.fails(agent.OpFSetStat{Handle: second}, "fsetstat: handle 2 is a directory")
	c.fails(agent.OpWrite{Handle: first}, "write: handle 1 is not open for writing")
	c.fails(agent.OpRead{Handle: third}, "read: handle 3 is not open for reading")
	if e := c.must(agent.OpFStat{Handle: second}).(agent.FSStat); e.Kind != "dir" || e.Path != c.dir {
		t.Errorf("got %+v", e)
	}
	other := c.other(3)
	for _, op := range []agent.FSOp{agent.OpFStat{Handle: 1}, agent.OpFSetStat{Handle: 1}, agent.OpCloseHandle{Handle: 1}, agent.OpRead{Handle: 1}} {
		other.fails(op, opWord(op)+": handle 1 is owned by a different relay client")
	}
	other.fails(agent.OpReadDir{Handle: 2}, "readdir: handle 2 is owned by a different relay client")
	c.must(agent.OpCloseHandle{Handle: 1})
	c.must(agent.OpCloseHandle{Handle: 2})
	c.fails(agent.OpCloseHandle{Handle: 1}, "close: invalid handle: 1")
	if h := c.open(c.path("f"), agent.OpenOptions{Read: true}); h != 4 {
		t.Errorf("handle %d after closing", h)
	}
}

func TestHandleLimit(t *testing.T) {
	c := newClient(t)
	writeFile(t, c.path("f"), "")
	open := agent.OpOpenFile{Path: c.path("f"), Options: agent.OpenOptions{Read: true}}
	c.s.handles.max = maxHandlesPerOwner + 1
	before := descriptors(t)
	for range maxHandlesPerOwner {
		c.must(open)
	}
	c.fails(open, "open: too many open filesystem handles for relay client: 1024")
	c.fails(agent.OpOpenDir{Path: c.dir}, "opendir: too many open filesystem handles for relay client: 1024")
	other := c.other(1)
	other.must(open)
	other.fails(open, "open: too many open filesystem handles: 1025")
	c.must(agent.OpCloseHandle{Handle: 500})
	c.must(open)
	<-c.s.CloseOwner(0)
	<-c.s.CloseOwner(1)
	if now := descriptors(t); now > before {
		t.Errorf("%d descriptors, %d before", now, before)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func TestOwnerIsGone(t *testing.T) {
	c := newClient(t)
	other := c.other(1)
	h := c.openRW(c.path("f"))
	kept := other.openRW(c.path("g"))
	w := c.start(agent.OpWrite{Handle: h}, nil)
	r := c.start(agent.OpRead{Handle: c.open("/dev/zero", agent.OpenOptions{Read: true})}, readOffer())
	c.accepted(r)
	<-c.s.CloseOwner(0)
	if c.s.Has(w) || c.s.Has(r) {
		t.Error("streams are still open")
	}
	for _, f := range c.out.Pending() {
		if f.Type == agent.FSResponse || f.Type == agent.BulkCancel {
			t.Errorf("answer to a client that is gone: %v", f)
		}
	}
	other.must(agent.OpFStat{Handle: kept})
	c.fails(agent.OpFStat{Handle: h}, "fstat: invalid handle: 1")
}

func TestBadRequests(t *testing.T) {
	c := newClient(t)
	bad := func(id uint32, p []byte) {
		t.Helper()
		c.s.Request(0, id, 9, p, noRelease)
		m := bulktest.Decode[agent.ErrorPayload](t, c.out.Next(t, id), agent.Error)
		if m.Kind != agent.KindInvalidPayload || m.OffendingType == nil || *m.OffendingType != "core.fs.request" {
			t.Errorf("got %+v", m)
		}
	}
	bad(1, nil)
	bad(2, []byte{0xf6})
	bad(3, []byte{0xa0})
	bad(4, unhex(t, "a1626f70a16470696e67f5"))               // unknown operation
	bad(5, unhex(t, "a1626f70bf6453746174a0ff"))             // indefinite variant
	bad(6, unhex(t, "a1626f70a16453746174a0"))               // missing fields
	bad(7, unhex(t, "a1626f70a1684c697374a1"))               // cut off
	bad(8, append(unhex(t, "a1626f70"), make([]byte, 9)...)) // not a map
	// A hostile name does not come back whole.
	huge := append(unhex(t, "a1626f70a17a003fffff"), bytes.Repeat([]byte("x"), 0x3fffff)...)
	c.s.Request(0, 14, 9, append(huge, 0xf6), noRelease)
	if f := c.out.Next(t, 14); f.Type != agent.Error || len(f.Payload) > 2048 {
		t.Errorf("an answer of %d bytes", len(f.Payload))
	}
	c.s.Request(0, 9, 4, nil, noRelease)
	if _, err := result(c.response(9)); err == nil || !strings.HasPrefix(err.Error(), "decode payload for core.fs.request: ") {
		t.Errorf("generation 4: %v", err)
	}
	c.send(10, 9, agent.OpStat{Path: "/"}, writeOffer())
	c.failed(10, "raw bulk is only valid for streaming reads and writes")
	c.send(11, 7, agent.OpStat{Path: "/"}, writeOffer())
	c.failed(11, "raw bulk offer requires protocol generation 8")
	c.send(12, 7, agent.OpRead{Handle: 1}, readOffer())
	c.failed(12, "raw bulk offer requires protocol generation 8")
	c.send(13, 7, agent.OpWrite{Handle: 1}, writeOffer())
	c.failed(13, "raw bulk offer requires protocol generation 8")
	c.quiet()
}

// A client that sends many requests at once gets every answer and keeps no credit that it does not need.
func TestManyRequests(t *testing.T) {
	c := newClient(t)
	other := c.other(1)
	const n = 3000
	released := make(chan struct{}, 2*n)
	ids := make([]uint32, 0, n)
	p, err := agent.EncodePayload(agent.FSRequestPayload{Op: agent.OpStat{Path: c.dir, FollowSymlink: true}})
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		id := c.id()
		ids = append(ids, id)
		c.s.Request(0, id, 9, p, func() { released <- struct{}{} })
	}
	other.must(agent.OpStat{Path: c.dir}) // does not wait for them all
	for _, id := range ids {
		c.response(id)
	}
	for range n {
		<-released
	}
	select {
	case <-released:
		t.Error("a request was released twice")
	default:
	}
}
