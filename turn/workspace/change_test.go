package workspace

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// change does something of every kind to a workspace of oddRepo.
func change(t *testing.T, tree string) {
	t.Helper()
	put(t, tree+"/plain.txt", "one\n2\nthree\nfour\nfive\n")
	put(t, tree+"/new/deep/file", "new\n")
	put(t, tree+"/new/binary\xff", "\x00\xff\x00")
	put(t, tree+"/hidden.o", "ignored")
	put(t, tree+"/kept.o", "tracked, so it counts")
	must(t, os.Chmod(tree+"/run.sh", 0o644))
	must(t, os.Chmod(tree+"/-dash", 0o755))
	put(t, tree+"/binary", "\x00\x01\x02\xfe")
	must(t, os.Remove(tree+"/empty"))
	must(t, os.Rename(tree+"/with space/and\nnewline", tree+"/renamed \"it\""))
	must(t, os.Remove(tree+"/link"))
	must(t, os.Symlink("untracked", tree+"/link"))
	must(t, os.Remove(tree+"/dangling"))
	put(t, tree+"/dangling", "a file now\n")
	put(t, tree+"/no newline", "y")
}

const changed = `M -dash 100644>100755
M binary binary
D dangling
A dangling
D empty
M kept.o
M link
A new/binary` + "\xff" + ` binary
A new/deep/file
M no newline
M plain.txt
R with space/and
newline > renamed "it"
M run.sh 100755>100644`

func TestDiffFindsEverything(t *testing.T) {
	dir := oddRepo(t)
	r := newRig(t)
	r.bring(dir, Options{})
	change(t, r.tree)
	// The sandbox's own commits and index say nothing.
	git(t, r.tree, "add", "-A")
	git(t, r.tree, "commit", "-q", "-m", "theirs")
	got := r.changes()
	if strings.Contains(got, "T dangling") {
		got = strings.Replace(got, "T dangling 120000>100644", "D dangling\nA dangling", 1)
	}
	same(t, "changes", got, changed)

	// The patch brings a fresh copy to the same state, with git alone.
	patch := t.TempDir() + "/patch"
	put(t, patch, r.export())
	git(t, dir, "apply", "--check", patch)
	before := fingerprint(t, dir+"/.git")
	p, err := r.Plan(within(t), dir, strings.NewReader(get(t, patch)))
	must(t, err)
	same(t, "plan", strings.Replace(lines(p.Summary), "T dangling 120000>100644", "D dangling\nA dangling", 1), changed)
	must(t, p.Apply(within(t)))
	if fingerprint(t, dir+"/.git") != before {
		t.Error("the repository on the host was changed")
	}
	must(t, os.Remove(r.tree+"/hidden.o"))
	must(t, os.Remove(r.tree+"/with space")) // empty: git knows no such folder
	want := picture(t, r.tree)
	must(t, os.RemoveAll(dir+"/out"))
	must(t, os.Remove(dir+"/ignored.o"))
	must(t, os.Remove(dir+"/mine.private"))
	same(t, "on the host", picture(t, dir), want)
	// There is nothing left to apply.
	if _, err := r.Plan(within(t), dir, strings.NewReader(get(t, patch))); err == nil {
		t.Error("the same patch fits twice")
	}
}

func TestDiffSeesWhatKeepsItsTimes(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/a", "one")
	r := newRig(t)
	r.bring(dir, Options{})
	for _, content := range []string{"two", "six"} {
		time.Sleep(2100 * time.Millisecond) // old enough to be remembered; change times cannot be set
		same(t, "changes", r.changes(), map[string]string{"two": "", "six": "M a"}[content])
		put(t, r.tree+"/a", content)
		os.Chtimes(r.tree+"/a", time.Unix(1, 0), time.Unix(1, 0))
	}
	same(t, "changes", r.changes(), "M a")
	if !strings.Contains(r.export(), "+six") {
		t.Error("the content is an old one")
	}
}

func TestSpecialFilesInTheSandbox(t *testing.T) {
	dir := t.TempDir()
	git(t, dir, "init", "-q")
	put(t, dir+"/a", "1")
	r := newRig(t)
	r.bring(dir, Options{})
	must(t, unix.Mkfifo(r.tree+"/fifo", 0o600))
	must(t, os.Symlink("/etc", r.tree+"/etc"))
	put(t, r.tree+"/x/.git/config", "[core]\n\tfsmonitor = evil")
	put(t, r.tree+"/GIT~1/config", "evil")
	put(t, r.tree+"/x/kept", "1")
	s, err := r.Diff(within(t), r.c, nil)
	must(t, err)
	same(t, "changes", lines(s), "A etc\nA x/kept")
	if len(s.Skipped) != 2 || s.Skipped[0].Path != "GIT~1" || s.Skipped[1].Path != "fifo" {
		t.Errorf("skipped %+v", s.Skipped)
	}
}

func TestUndoAndRedo(t *testing.T) {
	dir := oddRepo(t)
	r := newRig(t)
	r.bring(dir, Options{})
	must(t, os.Mkdir(r.tree+"/hollow", 0o700))
	must(t, os.Chmod(r.tree+"/plain.txt", 0o600))
	before := picture(t, r.tree)
	must(t, r.Snapshot(within(t), r.c, Snapshot{Turn: "1", Title: "first"}))
	change(t, r.tree)
	must(t, os.Remove(r.tree+"/hollow"))
	must(t, os.RemoveAll(r.tree+"/with space"))
	put(t, r.tree+"/with space", "a folder became a file")
	middle := picture(t, r.tree)
	must(t, r.Snapshot(within(t), r.c, Snapshot{Turn: "2", Title: "second"}))
	must(t, os.RemoveAll(r.tree+"/new"))
	put(t, r.tree+"/plain.txt", "worse")
	after := picture(t, r.tree)

	undo := func(title string) {
		t.Helper()
		u, err := r.Undo(within(t), r.c)
		must(t, err)
		if u.Snapshot.Title != title || len(u.Changes.Changes) == 0 {
			t.Errorf("undone: %+v", u)
		}
	}
	undo("second")
	same(t, "after one undo", picture(t, r.tree), middle)
	undo("first")
	ignored := "-rw-r--r-- \"hidden.o\" \"ignored\" 7\n"
	same(t, "after two", strings.Replace(picture(t, r.tree), ignored, "", 1), before)
	if _, err := r.Undo(within(t), r.c); !errors.Is(err, ErrNothing) {
		t.Errorf("a third undo: %v", err)
	}
	for range 2 {
		_, err := r.Redo(within(t), r.c)
		must(t, err)
	}
	same(t, "after two redos", picture(t, r.tree), after)
	if _, err := r.Redo(within(t), r.c); !errors.Is(err, ErrNothing) {
		t.Errorf("a third redo: %v", err)
	}
	undo("second")
	put(t, r.tree+"/since", "by hand")
	if _, err := r.Redo(within(t), r.c); err == nil || !strings.Contains(err.Error(), "1 file changed") {
		t.Errorf("redo over other changes: %v", err)
	}
	must(t, r.Snapshot(within(t), r.c, Snapshot{Turn: "3"}))
	if _, err := r.Redo(within(t), r.c); !errors.Is(err, ErrNothing) {
		t.Errorf("redo after a new turn: %v", err)
	}
	list, err := r.Snapshots()
	if err != nil || len(list) != 2 || list[1].Turn != "3" {
		t.Errorf("snapshots %+v, %v", list, err)
	}
}

func TestSandboxWithoutAProject(t *testing.T) {
	r := newRig(t)
	must(t, r.Snapshot(within(t), r.c, Snapshot{Turn: "1"}))
	if _, err := r.Diff(within(t), r.c, nil); !errors.Is(err, ErrNone) {
		t.Errorf("no folder: %v", err)
	}
	put(t, r.tree+"/theirs", "1\n")
	must(t, r.Snapshot(within(t), r.c, Snapshot{Turn: "2"}))
	put(t, r.tree+"/theirs", "2\n")
	same(t, "changes", r.changes(), "M theirs")
	_, err := r.Undo(within(t), r.c)
	must(t, err)
	same(t, "changes", r.changes(), "")
	// A project can take its place only when that is asked for.
	dir := t.TempDir()
	put(t, dir+"/ours", "1")
	if _, err := r.Bring(within(t), r.c, dir, Options{}); !errors.Is(err, ErrOccupied) {
		t.Errorf("error %v", err)
	}
}

func TestManySnapshots(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/a", "0")
	r := newRig(t)
	r.bring(dir, Options{})
	r.turns = 3
	for i := range r.turns + 2 {
		must(t, r.Snapshot(within(t), r.c, Snapshot{}))
		put(t, r.tree+"/a", strings.Repeat("x", i+1))
	}
	list, err := r.Snapshots()
	if err != nil || len(list) != r.turns || list[0].N != 2 {
		t.Errorf("%d snapshots, %v", len(list), err)
	}
	for range r.turns {
		_, err := r.Undo(within(t), r.c)
		must(t, err)
	}
	same(t, "oldest", get(t, r.tree+"/a"), "xx")
}

func TestStateThatCouldNotBeKept(t *testing.T) {
	r := newRig(t)
	must(t, r.Make(within(t), r.c))
	must(t, r.Snapshot(within(t), r.c, Snapshot{Title: "one"}))
	put(t, r.tree+"/a", "1")
	r.budget = 1
	put(t, r.tree+"/big", "too much")
	if err := r.Snapshot(within(t), r.c, Snapshot{Title: "two"}); err == nil {
		t.Error("no error")
	}
	r.budget = 0
	if _, err := r.Undo(within(t), r.c); err == nil || !strings.Contains(err.Error(), "larger than the free disk") {
		t.Errorf("error %v", err)
	}
	same(t, "untouched", get(t, r.tree+"/a"), "1")
	u, err := r.Undo(within(t), r.c)
	if err != nil || u.Snapshot.Title != "one" {
		t.Errorf("%+v, %v", u, err)
	}
}
