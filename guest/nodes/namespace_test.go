package nodes

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

// Every refusal has the number that the system itself gives, and nothing else happens.
func TestErrno(t *testing.T) {
	dir := disk(t)
	g := newGuest(t)
	root := g.attach(dir)
	for _, p := range []string{"dir", "full/child"} {
		if err := os.MkdirAll(filepath.Join(dir, p), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	f := g.create(root, "file")
	if err := os.Symlink("file", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	sub, link, fifo := g.lookup(root, "dir"), g.lookup(root, "link"), g.lookup(root, "fifo")
	readOnly := opened(g.must(&agent.NodeOpen{Node: f.Node, Flags: agent.NodeReadOnly})[0])
	dirHandle := opened(g.must(&agent.NodeOpen{Node: sub, Flags: agent.NodeReadOnly | agent.NodeDirectory})[0])
	name := func(s string) []byte { return []byte(s) }
	long := strings.Repeat("x", 256)
	for _, c := range []struct {
		name string
		op   agent.NodeOp
		want unix.Errno
	}{
		{"lookup of nothing", &agent.NodeLookup{Dir: root, Name: name("nope")}, unix.ENOENT},
		{"lookup in a file", &agent.NodeLookup{Dir: f.Node, Name: name("x")}, unix.ENOTDIR},
		{"lookup in a symlink", &agent.NodeLookup{Dir: link, Name: name("x")}, unix.ENOTDIR},
		{"empty name", &agent.NodeLookup{Dir: root, Name: name("")}, unix.EINVAL},
		{"dot", &agent.NodeLookup{Dir: root, Name: name(".")}, unix.EINVAL},
		{"dot dot", &agent.NodeLookup{Dir: root, Name: name("..")}, unix.EINVAL},
		{"slash", &agent.NodeLookup{Dir: root, Name: name("dir/x")}, unix.EINVAL},
		{"absolute", &agent.NodeLookup{Dir: root, Name: name("/etc")}, unix.EINVAL},
		{"NUL", &agent.NodeLookup{Dir: root, Name: name("a\x00b")}, unix.EINVAL},
		{"256 bytes", &agent.NodeMkdir{Dir: root, Name: name(long)}, unix.ENAMETOOLONG},
		{"unknown node", &agent.NodeLookup{Dir: 1 << 50, Name: name("x")}, unix.ESTALE},
		{"reference to nothing", &agent.NodeLookup{Dir: 7, Name: name("x")}, unix.ESTALE},
		{"handle as node", &agent.NodeLookup{Dir: readOnly, Name: name("x")}, unix.ESTALE},
		{"node as handle", &agent.NodeRead{Handle: f.Node, Len: 1}, unix.EBADF},
		{"mkdir again", &agent.NodeMkdir{Dir: root, Name: name("dir")}, unix.EEXIST},
		{"create exclusively again", &agent.NodeCreate{Dir: root, Name: name("file"), Flags: agent.NodeExclusive}, unix.EEXIST},
		{"create over a symlink", &agent.NodeCreate{Dir: root, Name: name("link"), Flags: agent.NodeWriteOnly}, unix.ELOOP},
		{"create over a directory", &agent.NodeCreate{Dir: root, Name: name("dir"), Flags: agent.NodeWriteOnly}, unix.EISDIR},
		{"create over a FIFO", &agent.NodeCreate{Dir: root, Name: name("fifo")}, unix.ENXIO},
		{"symlink again", &agent.NodeSymlink{Dir: root, Name: name("link"), Target: name("x")}, unix.EEXIST},
		{"symlink to nothing", &agent.NodeSymlink{Dir: root, Name: name("l2")}, unix.ENOENT},
		{"link of a directory", &agent.NodeLink{Node: sub, Dir: root, Name: name("x")}, unix.EPERM},
		{"link over a file", &agent.NodeLink{Node: f.Node, Dir: root, Name: name("link")}, unix.EEXIST},
		{"unlink of a directory", &agent.NodeUnlink{Dir: root, Name: name("dir")}, unix.EISDIR},
		{"rmdir of a file", &agent.NodeRmdir{Dir: root, Name: name("file")}, unix.ENOTDIR},
		{"rmdir of a full one", &agent.NodeRmdir{Dir: root, Name: name("full")}, unix.ENOTEMPTY},
		{"rename without replacing", &agent.NodeRename{Dir: root, Name: name("file"), NewDir: root, NewName: name("link"), Flags: unix.RENAME_NOREPLACE}, unix.EEXIST},
		{"exchange with nothing", &agent.NodeRename{Dir: root, Name: name("file"), NewDir: root, NewName: name("nope"), Flags: unix.RENAME_EXCHANGE}, unix.ENOENT},
		{"rename of a directory into itself", &agent.NodeRename{Dir: root, Name: name("dir"), NewDir: sub, NewName: name("x")}, unix.EINVAL},
		{"rename over a full directory", &agent.NodeRename{Dir: root, Name: name("dir"), NewDir: root, NewName: name("full")}, unix.ENOTEMPTY},
		{"rename with unknown flags", &agent.NodeRename{Dir: root, Name: name("file"), NewDir: root, NewName: name("f2"), Flags: 64}, unix.EINVAL},
		{"rename to dot dot", &agent.NodeRename{Dir: root, Name: name("file"), NewDir: root, NewName: name("..")}, unix.EINVAL},
		{"mknod of a directory", &agent.NodeMknod{Dir: root, Name: name("x"), Mode: unix.S_IFDIR}, unix.EINVAL},
		{"open of a symlink", &agent.NodeOpen{Node: link}, unix.ELOOP},
		{"open of a FIFO", &agent.NodeOpen{Node: fifo}, unix.ENXIO},
		{"open of a directory for writing", &agent.NodeOpen{Node: sub, Flags: agent.NodeReadWrite}, unix.EISDIR},
		{"open of a file as a directory", &agent.NodeOpen{Node: f.Node, Flags: agent.NodeDirectory}, unix.ENOTDIR},
		{"open with O_CREAT", &agent.NodeOpen{Node: f.Node, Flags: unix.O_CREAT}, unix.EINVAL},
		{"open with O_PATH", &agent.NodeOpen{Node: f.Node, Flags: unix.O_PATH}, unix.EINVAL},
		{"open with O_TMPFILE", &agent.NodeOpen{Node: sub, Flags: unix.O_TMPFILE | agent.NodeReadWrite}, unix.EINVAL},
		{"open with access mode 3", &agent.NodeOpen{Node: f.Node, Flags: 3}, unix.EINVAL},
		{"read of a directory", &agent.NodeRead{Handle: dirHandle, Len: 1}, unix.EISDIR},
		{"read of too much", &agent.NodeRead{Handle: f.Handle, Len: agent.MaxNodeInline + 1}, unix.EINVAL},
		{"read behind the largest offset", &agent.NodeRead{Handle: f.Handle, Offset: 1 << 63, Len: 1}, unix.EINVAL},
		{"write to a read-only handle", &agent.NodeWrite{Handle: readOnly, Data: name("x")}, unix.EBADF},
		{"write with unknown flags", &agent.NodeWrite{Handle: f.Handle, Data: name("x"), Flags: 2}, unix.EINVAL},
		{"write behind the largest file", &agent.NodeWrite{Handle: f.Handle, Offset: 1<<63 - 2, Data: name("x")}, unix.EFBIG},
		{"truncate of a directory", &agent.NodeSetAttr{Target: sub, Valid: agent.NodeSetSize}, unix.EISDIR},
		{"truncate of a FIFO", &agent.NodeSetAttr{Target: fifo, Valid: agent.NodeSetSize}, unix.EINVAL},
		{"truncate through a read-only handle", &agent.NodeSetAttr{Target: readOnly, Valid: agent.NodeSetSize}, unix.EINVAL},
		{"size above the largest", &agent.NodeSetAttr{Target: f.Node, Valid: agent.NodeSetSize, Size: 1 << 63}, unix.EINVAL},
		{"size above the file system's", &agent.NodeSetAttr{Target: f.Node, Valid: agent.NodeSetSize, Size: 1 << 62}, unix.EFBIG},
		{"chmod of a symlink", &agent.NodeSetAttr{Target: link, Valid: agent.NodeSetMode}, unix.EOPNOTSUPP},
		{"uid that means none", &agent.NodeSetAttr{Target: f.Node, Valid: agent.NodeSetUID, UID: 1<<32 - 1}, unix.EINVAL},
		{"nanoseconds of a second", &agent.NodeSetAttr{Target: f.Node, Valid: agent.NodeSetMtime, MtimeNsec: 1e9}, unix.EINVAL},
		{"unknown attribute", &agent.NodeSetAttr{Target: f.Node, Valid: 1 << 20}, unix.EINVAL},
		{"readlink of a file", &agent.NodeReadLink{Node: f.Node}, unix.EINVAL},
		{"readdir of a file", &agent.NodeReadDir{Handle: f.Handle, Size: 1000}, unix.ENOTDIR},
		{"readdir with unknown flags", &agent.NodeReadDir{Handle: dirHandle, Size: 1000, Flags: 8}, unix.EINVAL},
		{"readdir above the limit", &agent.NodeReadDir{Handle: dirHandle, Size: agent.MaxNodeInline + 1}, unix.EINVAL},
		{"xattr that is not there", &agent.NodeGetXattr{Node: f.Node, Name: name("user.x")}, unix.ENODATA},
		{"xattr of no class", &agent.NodeSetXattr{Node: f.Node, Name: name("x"), Value: name("y")}, unix.EOPNOTSUPP},
		{"xattr on a symlink", &agent.NodeSetXattr{Node: link, Name: name("user.x"), Value: name("y")}, unix.EPERM},
		{"xattr name with NUL", &agent.NodeSetXattr{Node: f.Node, Name: name("user.\x00"), Value: name("y")}, unix.EINVAL},
		{"xattr to replace", &agent.NodeSetXattr{Node: f.Node, Name: name("user.x"), Value: name("y"), Flags: unix.XATTR_REPLACE}, unix.ENODATA},
		{"fallocate of nothing", &agent.NodeAllocate{Handle: f.Handle}, unix.EINVAL},
		{"fallocate read-only", &agent.NodeAllocate{Handle: readOnly, Len: 1}, unix.EBADF},
		{"seek behind the end", &agent.NodeSeek{Handle: f.Handle, Offset: 1 << 40, Whence: agent.NodeSeekData}, unix.ENXIO},
		{"seek that is none", &agent.NodeSeek{Handle: f.Handle, Whence: 0}, unix.EINVAL},
		{"lock of the wrong type", &agent.NodeLock{Handle: f.Handle, Type: 9}, unix.EINVAL},
		{"lock beyond the largest offset", &agent.NodeLock{Handle: f.Handle, Start: 1 << 63}, unix.EINVAL},
		{"sync of a FIFO", &agent.NodeSync{Target: fifo}, unix.EINVAL},
		{"relative attach", &agent.NodeAttach{Path: name("etc")}, unix.EINVAL},
		{"attach of nothing", &agent.NodeAttach{Path: name("/nope")}, unix.ENOENT},
		{"recall of nonsense", &agent.NodeRecall{Base: root, Key: name("\x00\x00\x00\x01\xff\xff\xff\x7f\x00\x00\x00\x00")}, unix.ESTALE},
		{"recall of a short key", &agent.NodeRecall{Base: root, Key: name("\x00")}, unix.EINVAL},
		{"late join", &agent.NodeJoin{Session: make([]byte, 16)}, unix.EBUSY},
	} {
		t.Run(c.name, func(t *testing.T) {
			g.t = t
			g.fails(c.want, c.op)
		})
	}
	g.t = t
	for _, gone := range []string{"x", "l2", "f2"} {
		if _, err := os.Lstat(filepath.Join(dir, gone)); err == nil {
			t.Errorf("%s was made", gone)
		}
	}
}

// What names are made, and that a node stays its file whatever happens to them.
func TestNamesAndNodes(t *testing.T) {
	dir := disk(t)
	g := newGuest(t)
	root := g.attach(dir)
	latin1 := "caf\xe9"
	r := g.must(
		&agent.NodeMkdir{Dir: root, Name: []byte(latin1), Mode: 0o1775},
		&agent.NodeCreate{Dir: 0, Name: []byte("f"), Flags: agent.NodeReadWrite | agent.NodeExclusive, Mode: 0o4666},
		&agent.NodeWrite{Handle: 1, Data: []byte("hello")},
		&agent.NodeLink{Node: 1, Dir: root, Name: []byte("hard")},
		&agent.NodeSymlink{Dir: 0, Name: []byte("s"), Target: []byte("../\xff")},
		&agent.NodeReadLink{Node: 4},
		&agent.NodeMknod{Dir: 0, Name: []byte("p"), Mode: unix.S_IFIFO | 0o666},
		&agent.NodeMknod{Dir: 0, Name: []byte("null"), Mode: unix.S_IFCHR | 0o622, Rdev: unix.Mkdev(1, 3)},
		&agent.NodeClose{Handle: 1},
	)
	made := r[1].(*agent.NodeCreatedResult)
	hard := r[3].(*agent.NodeEntryResult)
	if hard.Node != made.Node || hard.Attr.Nlink != 2 || hard.Attr.Size != 5 {
		t.Errorf("hard link: node %x of %x, %+v", hard.Node, made.Node, hard.Attr)
	}
	if data(r[5]) != "../\xff" {
		t.Errorf("readlink %q", data(r[5]))
	}
	for path, mode := range map[string]uint32{
		latin1:           unix.S_IFDIR | 0o1775,
		latin1 + "/f":    unix.S_IFREG | 0o4666, // the guest's umask takes nothing
		latin1 + "/p":    unix.S_IFIFO | 0o666,
		latin1 + "/null": unix.S_IFCHR | 0o622,
	} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, path), &st); err != nil || st.Mode != mode {
			t.Errorf("%q: mode %o, %v, want %o", path, st.Mode, err, mode)
		}
	}
	// The tree is renamed under open nodes; both keep working.
	if err := os.Rename(filepath.Join(dir, latin1), filepath.Join(dir, "moved")); err != nil {
		t.Fatal(err)
	}
	sub := nodeOf(r[0])
	if g.lookup(sub, "f") != made.Node {
		t.Error("the file has another node after the rename of its directory")
	}
	g.must(&agent.NodeRename{Dir: sub, Name: []byte("f"), NewDir: root, NewName: []byte("g")})
	if a := attr(g.must(&agent.NodeGetAttr{Target: made.Node})[0]); a.Nlink != 2 {
		t.Errorf("%+v", a)
	}
	g.must(&agent.NodeRename{Dir: root, Name: []byte("g"), NewDir: root, NewName: []byte("moved"), Flags: unix.RENAME_EXCHANGE})
	if g.lookup(root, "moved") != made.Node || g.lookup(root, "g") != sub {
		t.Error("exchange")
	}
	// A file without names lives as long as it is open.
	h := opened(g.must(&agent.NodeOpen{Node: made.Node})[0])
	g.must(&agent.NodeUnlink{Dir: root, Name: []byte("moved")}, &agent.NodeUnlink{Dir: root, Name: []byte("hard")})
	if got := data(g.must(&agent.NodeRead{Handle: h, Len: 100})[0]); got != "hello" {
		t.Errorf("read %q", got)
	}
	if a := attr(g.must(&agent.NodeGetAttr{Target: h})[0]); a.Nlink != 0 {
		t.Errorf("%d links", a.Nlink)
	}
	// A number that is given to a new file is a new node.
	g.must(&agent.NodeClose{Handle: h}, &agent.NodeForget{Nodes: []agent.NodeCount{{Node: made.Node, N: 100}}})
	g.fails(unix.ESTALE, &agent.NodeGetAttr{Target: made.Node})
	if again := g.create(root, "again"); again.Node == made.Node {
		t.Error("an id was used twice")
	}
}

func TestReadDir(t *testing.T) {
	dir := disk(t)
	g := newGuest(t)
	root := g.attach(dir)
	sub := nodeOf(g.must(&agent.NodeMkdir{Dir: root, Name: []byte("d"), Mode: 0o755})[0])
	const count = 3000
	want := map[string]bool{}
	for i := range count {
		name := fmt.Sprintf("%s-%04d", strings.Repeat("n", i%200), i)
		want[name] = true
		if err := os.WriteFile(filepath.Join(dir, "d", name), nil, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	for _, flags := range []uint32{0, agent.NodeDirAttr, agent.NodeDirNode} {
		h := opened(g.must(&agent.NodeOpen{Node: sub, Flags: agent.NodeDirectory})[0])
		seen := map[string]bool{}
		var offsets []uint64
		var counts []agent.NodeCount
		for offset := uint64(0); ; {
			entries := g.must(&agent.NodeReadDir{Handle: h, Offset: offset, Size: 10000, Flags: flags})[0].(*agent.NodeListResult).Entries
			if len(entries) == 0 {
				break
			}
			for _, e := range entries {
				if seen[string(e.Name)] || !want[string(e.Name)] || e.Type != unix.S_IFREG {
					t.Fatalf("flags %d: entry %q, type %o", flags, e.Name, e.Type)
				}
				if (e.Attr.Ino == e.Ino) != (flags != 0) || (e.Node != 0) != (flags == agent.NodeDirNode) || flags != 0 && e.Attr.Mode != unix.S_IFREG|0o640 {
					t.Fatalf("flags %d: %+v", flags, e)
				}
				seen[string(e.Name)] = true
				if e.Node != 0 {
					counts = append(counts, agent.NodeCount{Node: e.Node, N: 1})
				}
				offset = e.Offset
				offsets = append(offsets, offset)
			}
		}
		if len(seen) != count {
			t.Errorf("flags %d: %d entries", flags, len(seen))
		}
		// Offsets hold on another handle, and while entries go.
		other := opened(g.must(&agent.NodeOpen{Node: sub, Flags: agent.NodeDirectory})[0])
		at := offsets[count/2]
		first := g.must(&agent.NodeReadDir{Handle: other, Offset: at, Size: 4000})[0].(*agent.NodeListResult).Entries
		again := g.must(&agent.NodeReadDir{Handle: h, Offset: at, Size: 4000})[0].(*agent.NodeListResult).Entries
		if !slices.EqualFunc(first, again, func(a, b agent.NodeDirEntry) bool { return string(a.Name) == string(b.Name) }) || len(first) == 0 {
			t.Error("an offset means something else on another handle")
		}
		g.must(&agent.NodeForget{Nodes: counts}, &agent.NodeClose{Handle: h}, &agent.NodeClose{Handle: other})
	}
	h := opened(g.must(&agent.NodeOpen{Node: sub, Flags: agent.NodeDirectory})[0])
	g.fails(unix.EINVAL, &agent.NodeReadDir{Handle: h, Size: 10})
	// From the start again it sees what is new.
	if err := os.WriteFile(filepath.Join(dir, "d", "new"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	found := false
	for offset := uint64(0); ; {
		entries := g.must(&agent.NodeReadDir{Handle: h, Offset: offset, Size: agent.MaxNodeInline})[0].(*agent.NodeListResult).Entries
		if len(entries) == 0 {
			break
		}
		for _, e := range entries {
			found = found || string(e.Name) == "new"
			offset = e.Offset
		}
	}
	if !found {
		t.Error("a rewound listing is the old one")
	}
	g.must(&agent.NodeClose{Handle: h})
}
