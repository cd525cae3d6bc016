package nodes

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

func lstat(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st
}

// Attributes are those that stat tells on the machine itself.
func TestAttributes(t *testing.T) {
	dir := disk(t)
	g := newGuest(t)
	root := g.attach(dir)
	f := g.create(root, "f")
	g.must(&agent.NodeSymlink{Dir: root, Name: []byte("l"), Target: []byte("f")})
	g.must(&agent.NodeMknod{Dir: root, Name: []byte("dev"), Mode: unix.S_IFBLK | 0o600, Rdev: unix.Mkdev(259, 1000)})
	far := int64(1) << 33 // ext4's times go on after 2038
	g.must(&agent.NodeSetAttr{Target: f.Node, Valid: agent.NodeSetAtime | agent.NodeSetMtime | agent.NodeSetUID | agent.NodeSetGID | agent.NodeSetMode | agent.NodeSetSize,
		AtimeSec: -5, AtimeNsec: 999999999, MtimeSec: far, MtimeNsec: 123456789, UID: 4000000000, GID: 77, Mode: 0o6711, Size: 1 << 40})
	for _, name := range []string{"f", "l", "dev", "lost+found"} {
		st := lstat(t, filepath.Join(dir, name))
		want := agent.NodeAttr{
			Ino: st.Ino, Dev: st.Dev, Mode: st.Mode, Nlink: uint32(st.Nlink), UID: st.Uid, GID: st.Gid, Rdev: st.Rdev,
			Size: uint64(st.Size), Blocks: uint64(st.Blocks), Blksize: uint32(st.Blksize),
			AtimeSec: st.Atim.Sec, AtimeNsec: uint32(st.Atim.Nsec), MtimeSec: st.Mtim.Sec, MtimeNsec: uint32(st.Mtim.Nsec),
			CtimeSec: st.Ctim.Sec, CtimeNsec: uint32(st.Ctim.Nsec),
		}
		e := g.must(&agent.NodeLookup{Dir: root, Name: []byte(name)})[0].(*agent.NodeEntryResult)
		got := attr(g.must(&agent.NodeGetAttr{Target: e.Node})[0])
		if got.BtimeSec == 0 {
			t.Errorf("%s has no birth", name)
		}
		got.BtimeSec, got.BtimeNsec = 0, 0
		if got != want {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
		}
	}
	st := lstat(t, filepath.Join(dir, "f"))
	if st.Atim.Sec != -5 || st.Mtim.Sec != far || st.Uid != 4000000000 || st.Mode != unix.S_IFREG|0o6711 || st.Size != 1<<40 {
		t.Errorf("%+v", st)
	}
	// Each attribute alone leaves the others; a chown takes set-id bits away.
	before := attr(g.must(&agent.NodeGetAttr{Target: f.Node})[0])
	a := attr(g.must(&agent.NodeSetAttr{Target: f.Node, Valid: agent.NodeSetMtimeNow})[0])
	if a.AtimeSec != before.AtimeSec || a.MtimeSec == before.MtimeSec || a.Mode != before.Mode {
		t.Errorf("mtime now: %+v", a)
	}
	if a = attr(g.must(&agent.NodeSetAttr{Target: f.Handle, Valid: agent.NodeSetGID, GID: 5})[0]); a.UID != before.UID || a.GID != 5 || a.Mode != unix.S_IFREG|0o711 {
		t.Errorf("chgrp through the handle: %+v", a)
	}
	if a = attr(g.must(&agent.NodeSetAttr{Target: f.Handle, Valid: agent.NodeSetSize, Size: 10})[0]); a.Size != 10 {
		t.Errorf("truncate through the handle: %+v", a)
	}
	if a = attr(g.must(&agent.NodeSetAttr{Target: f.Handle, Valid: agent.NodeSetAtime, AtimeSec: 9})[0]); a.AtimeSec != 9 {
		t.Errorf("utimens through the handle: %+v", a)
	}
	// A symlink's own attributes.
	l := g.lookup(root, "l")
	if a = attr(g.must(&agent.NodeSetAttr{Target: l, Valid: agent.NodeSetUID | agent.NodeSetMtime, UID: 3, MtimeSec: 4})[0]); a.UID != 3 || a.MtimeSec != 4 {
		t.Errorf("symlink: %+v", a)
	}
	if a = attr(g.must(&agent.NodeGetAttr{Target: f.Node})[0]); a.UID == 3 {
		t.Error("the symlink was followed")
	}
	fs := g.must(&agent.NodeStatFS{Node: root})[0].(*agent.NodeStatFSResult)
	var want unix.Statfs_t
	if err := unix.Statfs(dir, &want); err != nil || fs.Type != unix.EXT4_SUPER_MAGIC || fs.Blocks != want.Blocks || fs.Files != want.Files || fs.Namelen != 255 {
		t.Errorf("%v: %+v", err, fs)
	}
}

func TestXattr(t *testing.T) {
	dir := disk(t)
	g := newGuest(t)
	root := g.attach(dir)
	f := g.create(root, "f")
	l := nodeOf(g.must(&agent.NodeSymlink{Dir: root, Name: []byte("l"), Target: []byte("f")})[0])
	value := strings.Repeat("v", 800)
	g.must(&agent.NodeSetXattr{Node: f.Node, Name: []byte("user.one"), Value: []byte(value), Flags: unix.XATTR_CREATE})
	g.must(&agent.NodeSetXattr{Node: f.Node, Name: []byte("user.empty")})
	g.must(&agent.NodeSetXattr{Node: l, Name: []byte("trusted.link"), Value: []byte("x")})
	if got := data(g.must(&agent.NodeGetXattr{Node: f.Node, Name: []byte("user.one")})[0]); got != value {
		t.Errorf("%d bytes", len(got))
	}
	names := strings.Split(strings.TrimRight(data(g.must(&agent.NodeListXattr{Node: f.Node})[0]), "\x00"), "\x00")
	slices.Sort(names)
	if !slices.Equal(names, []string{"user.empty", "user.one"}) {
		t.Errorf("names %q", names)
	}
	if got := data(g.must(&agent.NodeListXattr{Node: l})[0]); got != "trusted.link\x00" {
		t.Errorf("the symlink's names %q", got)
	}
	g.must(&agent.NodeRemoveXattr{Node: f.Node, Name: []byte("user.one")})
	g.fails(unix.ENODATA, &agent.NodeGetXattr{Node: f.Node, Name: []byte("user.one")})
	g.fails(unix.EEXIST, &agent.NodeSetXattr{Node: f.Node, Name: []byte("user.empty"), Flags: unix.XATTR_CREATE})
}

// Operations as someone else: what they may, what they make, and that nothing of it stays with the thread.
func TestIdentity(t *testing.T) {
	dir := disk(t)
	g := newGuest(t)
	root := g.attach(dir)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	shared := nodeOf(g.must(&agent.NodeMkdir{Dir: root, Name: []byte("shared"), Mode: 0o777},
		&agent.NodeSetAttr{Target: 0, Valid: agent.NodeSetGID | agent.NodeSetMode, GID: 500, Mode: 0o2777})[0])
	secret := g.create(root, "secret")
	g.must(&agent.NodeSetAttr{Target: secret.Node, Valid: agent.NodeSetMode, Mode: 0o600})
	forGroup := g.create(root, "group")
	g.must(&agent.NodeSetAttr{Target: forGroup.Node, Valid: agent.NodeSetMode | agent.NodeSetGID, GID: 600, Mode: 0o660})
	closed := nodeOf(g.must(&agent.NodeMkdir{Dir: root, Name: []byte("closed"), Mode: 0o700})[0])

	user := &agent.NodeIdentity{UID: 1000, GID: 1000, Groups: []uint32{600}}
	g.as = user
	g.fails(unix.EACCES, &agent.NodeOpen{Node: secret.Node})
	g.fails(unix.EACCES, &agent.NodeLookup{Dir: closed, Name: []byte("x")})
	g.fails(unix.EACCES, &agent.NodeMkdir{Dir: closed, Name: []byte("x"), Mode: 0o700})
	g.fails(unix.EPERM, &agent.NodeSetAttr{Target: secret.Node, Valid: agent.NodeSetMode, Mode: 0o777})
	g.fails(unix.EPERM, &agent.NodeMknod{Dir: root, Name: []byte("dev"), Mode: unix.S_IFCHR | 0o666, Rdev: unix.Mkdev(1, 3)})
	g.must(&agent.NodeOpen{Node: forGroup.Node, Flags: agent.NodeReadWrite}, &agent.NodeClose{Handle: 0})
	r := g.must(&agent.NodeCreate{Dir: shared, Name: []byte("f"), Flags: agent.NodeWriteOnly | agent.NodeExclusive, Mode: 0o666})
	if a := r[0].(*agent.NodeCreatedResult).Attr; a.UID != 1000 || a.GID != 500 || a.Mode != unix.S_IFREG|0o666 {
		t.Errorf("in a set-gid directory: %+v", a)
	}
	// Truncating takes set-id bits when it is not root who does it.
	own := r[0].(*agent.NodeCreatedResult)
	g.must(&agent.NodeSetAttr{Target: own.Node, Valid: agent.NodeSetMode, Mode: 0o4755}, &agent.NodeWrite{Handle: own.Handle, Data: []byte("x")})
	if a := attr(g.must(&agent.NodeSetAttr{Target: own.Node, Valid: agent.NodeSetSize})[0]); a.Mode != unix.S_IFREG|0o755 {
		t.Errorf("after a truncate: mode %o", a.Mode)
	}
	g.must(&agent.NodeSetAttr{Target: own.Node, Valid: agent.NodeSetMode, Mode: 0o6755})
	g.must(&agent.NodeWrite{Handle: own.Handle, Data: []byte("x"), Flags: agent.NodeKillPriv})
	if a := attr(g.must(&agent.NodeGetAttr{Target: own.Node})[0]); a.Mode != unix.S_IFREG|0o755 {
		t.Errorf("after a write that kills: mode %o", a.Mode)
	}

	// Privileged: the ids of the user, the permissions of root.
	g.as = &agent.NodeIdentity{UID: 1000, GID: 1000, Privileged: true}
	r = g.must(&agent.NodeMkdir{Dir: closed, Name: []byte("x"), Mode: 0o777},
		&agent.NodeSymlink{Dir: closed, Name: []byte("s"), Target: []byte("t")},
		&agent.NodeMknod{Dir: closed, Name: []byte("dev"), Mode: unix.S_IFCHR | 0o666, Rdev: unix.Mkdev(1, 3)})
	for _, x := range r {
		if a := x.(*agent.NodeEntryResult).Attr; a.UID != 1000 || a.GID != 1000 || a.Mode&0o777 == 0o755 {
			t.Errorf("%+v", a)
		}
	}

	// Root again, on whatever thread.
	g.as = nil
	for range 50 {
		if a := g.must(&agent.NodeMkdir{Dir: closed, Name: []byte("r"), Mode: 0o777}, &agent.NodeRmdir{Dir: closed, Name: []byte("r")})[0].(*agent.NodeEntryResult).Attr; a.UID != 0 || a.GID != 0 || a.Mode != unix.S_IFDIR|0o777 {
			t.Fatalf("%+v", a)
		}
	}
	g.must(&agent.NodeClose{Handle: own.Handle})

	// A default ACL decides about the mode of what is made in its directory, as if there were no umask.
	acl := []byte("\x02\x00\x00\x00" + "\x01\x00\x07\x00\xff\xff\xff\xff" + "\x04\x00\x07\x00\xff\xff\xff\xff" + "\x20\x00\x05\x00\xff\xff\xff\xff")
	g.must(&agent.NodeSetXattr{Node: closed, Name: []byte("system.posix_acl_default"), Value: acl})
	if a := g.must(&agent.NodeMkdir{Dir: closed, Name: []byte("acl"), Mode: 0o777})[0].(*agent.NodeEntryResult).Attr; a.Mode != unix.S_IFDIR|0o775 {
		t.Errorf("with a default ACL: mode %o", a.Mode)
	}
}
