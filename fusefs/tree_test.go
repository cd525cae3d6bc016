package fusefs

import (
	"syscall"
	"testing"
)

func wantPath(t *testing.T, tr *tree, n *node, want string) {
	t.Helper()
	if got, errno := tr.path(n); errno != 0 || got != want {
		t.Errorf("path %q %v, want %q", got, errno, want)
	}
}

func TestTreePaths(t *testing.T) {
	for _, root := range []string{"/", "/home/dev"} {
		tr := newTree(root)
		top, _ := tr.get(1)
		wantPath(t, tr, top, root)
		a := tr.place(top, "a", syscall.S_IFDIR)
		b := tr.place(a, "b", syscall.S_IFREG)
		wantPath(t, tr, b, join(root, "a/b"))
		if d := tr.depth(b); d != 2 {
			t.Errorf("depth %d", d)
		}
		tr.rename(top, "a", top, "c")
		wantPath(t, tr, b, join(root, "c/b"))
		tr.remove(a, "b")
		if _, errno := tr.path(b); errno != syscall.ESTALE {
			t.Errorf("path of a removed file: %v", errno)
		}
	}
}

func TestTreeRenameOver(t *testing.T) {
	tr := newTree("/")
	top, _ := tr.get(1)
	a, b := tr.place(top, "a", syscall.S_IFREG), tr.place(top, "b", syscall.S_IFREG)
	tr.rename(top, "a", top, "b")
	wantPath(t, tr, a, "/b")
	if !tr.isGone(b) {
		t.Error("the replaced file still has a name")
	}
	tr.rename(top, "nobody knows", top, "b") // replaced by a file not seen before
	if !tr.isGone(a) || tr.child(top, "b") != nil {
		t.Error("the name still leads to the replaced file")
	}
	tr.rename(top, "x", top, "y")
}

func TestTreeKindChange(t *testing.T) {
	tr := newTree("/")
	top, _ := tr.get(1)
	file := tr.place(top, "x", syscall.S_IFREG)
	dir := tr.place(top, "x", syscall.S_IFDIR)
	if file == dir || file.id == dir.id || file.ino == dir.ino || !tr.isGone(file) {
		t.Error("a directory took the place of a file without becoming a node of its own")
	}
	if again := tr.place(top, "x", syscall.S_IFDIR); again != dir || dir.lookups != 2 {
		t.Error("the same file became another node")
	}
}

func TestTreeForget(t *testing.T) {
	tr := newTree("/")
	top, _ := tr.get(1)
	d := tr.place(top, "d", syscall.S_IFDIR)
	f := tr.place(d, "f", syscall.S_IFREG)
	ino := f.ino
	tr.forget(d.id, 1) // the child keeps it
	wantPath(t, tr, f, "/d/f")
	tr.forget(f.id, 5)
	tr.forget(f.id, 1)
	tr.forget(1, 100)
	if len(tr.nodes) != 1 || len(tr.inodes) != 1 || len(top.children) != 0 {
		t.Errorf("left: %d nodes, %d inodes, %d names", len(tr.nodes), len(tr.inodes), len(top.children))
	}
	if f := tr.place(tr.place(top, "d", syscall.S_IFDIR), "f", syscall.S_IFREG); f.ino != ino {
		t.Error("the same path got another inode number")
	}
}
