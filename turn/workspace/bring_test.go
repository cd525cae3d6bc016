package workspace

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// oddRepo is a repository with one of everything.
func oddRepo(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "project")
	must(t, os.Mkdir(dir, 0o755))
	git(t, dir, "init", "-q", "-b", "main")
	put(t, dir+"/.gitignore", "*.o\n/out/\n")
	put(t, dir+"/plain.txt", "one\ntwo\nthree\n")
	put(t, dir+"/run.sh", "#!/bin/sh\n")
	must(t, os.Chmod(dir+"/run.sh", 0o755))
	put(t, dir+"/with space/and\nnewline", "odd\n")
	put(t, dir+"/not\xff\xfeutf8", "odd\n")
	put(t, dir+"/-dash", "odd\n")
	put(t, dir+"/binary", "\x00\x01\x02\xff")
	put(t, dir+"/empty", "")
	put(t, dir+"/no newline", "x")
	put(t, dir+"/kept.o", "tracked although ignored")
	put(t, dir+"/deleted", "gone\n")
	put(t, dir+"/removed by git", "gone\n")
	must(t, os.Symlink("plain.txt", dir+"/link"))
	must(t, os.Symlink("/nowhere/at all", dir+"/dangling"))
	git(t, dir, "add", "-A")
	git(t, dir, "add", "-f", "kept.o")
	git(t, dir, "commit", "-q", "-m", "first")
	git(t, dir, "tag", "v1")
	put(t, dir+"/plain.txt", "one\ntwo\nthree\nfour\n")
	git(t, dir, "commit", "-q", "-a", "-m", "second")
	git(t, dir, "config", "credential.helper", "store --file=/secret")
	git(t, dir, "remote", "add", "origin", "https://user:password@example.org/x")
	put(t, dir+"/.git/hooks/post-checkout", "#!/bin/sh\nexit 1\n")
	must(t, os.Chmod(dir+"/.git/hooks/post-checkout", 0o755))
	// Dirty.
	put(t, dir+"/plain.txt", "one\n2\nthree\nfour\n")
	put(t, dir+"/untracked", "new\n")
	put(t, dir+"/ignored.o", "object")
	put(t, dir+"/out/ignored", "object")
	put(t, dir+"/.git/info/exclude", "*.private\n")
	put(t, dir+"/mine.private", "private")
	must(t, os.Remove(dir+"/deleted"))
	git(t, dir, "rm", "-q", "removed by git")
	return dir
}

// fingerprint is everything of a folder, git's own files and times included.
func fingerprint(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		b.WriteString(p + st.Mode().String() + st.ModTime().String())
		if st.Mode().IsRegular() {
			c, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			b.Write(c)
		}
		b.WriteByte('\n')
		return nil
	}))
	return b.String()
}

func TestGitWorkTree(t *testing.T) {
	dir := oddRepo(t)
	before := fingerprint(t, dir)
	r := newRig(t)
	b := r.bring(dir, Options{})
	if fingerprint(t, dir) != before {
		t.Error("the project on the host was changed")
	}
	same(t, "in the sandbox", picture(t, r.tree), `
-rw-r--r-- "-dash" "odd\n" 4
-rw-r--r-- ".gitignore" "*.o\n/out/\n" 10
-rw-r--r-- "binary" "\x00\x01\x02\xff" 4
Lrwxrwxrwx "dangling" -> /nowhere/at all
-rw-r--r-- "empty" "" 0
-rw-r--r-- "kept.o" "tracked although ignored" 24
Lrwxrwxrwx "link" -> plain.txt
-rw-r--r-- "no newline" "x" 1
-rw-r--r-- "not\xff\xfeutf8" "odd\n" 4
-rw-r--r-- "plain.txt" "one\n2\nthree\nfour\n" 17
-rwxr-xr-x "run.sh" "#!/bin/sh\n" 10
-rw-r--r-- "untracked" "new\n" 4
drwxr-xr-x "with space"
-rw-r--r-- "with space/and\nnewline" "odd\n" 4`)
	if b.Kind != KindGit || b.Branch != "refs/heads/main" || b.Files != 13 || len(b.Skipped) != 0 {
		t.Errorf("baseline %+v", b)
	}
	// The sandbox's own repository knows the history and nothing of the host.
	same(t, "log", git(t, r.tree, "log", "--format=%s %D"), "second HEAD -> main\nfirst tag: v1")
	same(t, "status", git(t, r.tree, "status", "--porcelain"), " D deleted\n M plain.txt\n D \"removed by git\"\n?? untracked")
	config := get(t, r.tree+"/.git/config")
	if strings.Contains(config, "credential") || strings.Contains(config, "remote") {
		t.Errorf("config:\n%s", config)
	}
	if _, err := os.Stat(r.tree + "/.git/hooks"); err == nil {
		t.Error("there are hooks")
	}
	git(t, r.tree, "fsck", "--strict")
	same(t, "changes", r.changes(), "")
	// Once is enough.
	if _, err := r.Bring(within(t), r.c, dir, Options{}); !errors.Is(err, ErrExists) {
		t.Errorf("a second time: %v", err)
	}
}

func TestHistory(t *testing.T) {
	dir := oddRepo(t)
	t.Run("alone", func(t *testing.T) {
		r := newRig(t)
		r.bring(dir, Options{NoHistory: true})
		same(t, "log", git(t, r.tree, "log", "--format=%s"), "second")
		git(t, r.tree, "fsck")
	})
	t.Run("of a shallow clone", func(t *testing.T) {
		clone := t.TempDir() + "/clone"
		git(t, "/", "clone", "-q", "--depth=1", "file://"+dir, clone)
		r := newRig(t)
		r.bring(clone, Options{})
		same(t, "log", git(t, r.tree, "log", "--format=%s"), "second")
		git(t, r.tree, "fsck")
	})
	t.Run("detached", func(t *testing.T) {
		clone := t.TempDir() + "/clone"
		git(t, "/", "clone", "-q", dir, clone)
		git(t, clone, "checkout", "-q", "v1")
		r := newRig(t)
		b := r.bring(clone, Options{})
		same(t, "HEAD", git(t, r.tree, "rev-parse", "HEAD"), git(t, clone, "rev-parse", "v1"))
		if b.Branch != "" {
			t.Errorf("branch %q", b.Branch)
		}
	})
	t.Run("no commit", func(t *testing.T) {
		fresh := t.TempDir()
		git(t, fresh, "init", "-q", "-b", "trunk")
		put(t, fresh+"/staged", "1")
		put(t, fresh+"/loose", "2")
		git(t, fresh, "add", "staged")
		r := newRig(t)
		r.bring(fresh, Options{})
		same(t, "status", git(t, r.tree, "status", "--porcelain", "-b"), "## No commits yet on trunk\n?? loose\n?? staged")
	})
	t.Run("a linked work tree", func(t *testing.T) {
		linked := t.TempDir() + "/linked"
		git(t, dir, "-c", "core.hooksPath=/dev/null", "worktree", "add", "-q", "-b", "side", linked, "v1")
		defer git(t, dir, "worktree", "remove", "--force", linked)
		r := newRig(t)
		r.bring(linked, Options{})
		same(t, "branch", git(t, r.tree, "symbolic-ref", "HEAD"), "refs/heads/side")
		same(t, "log", git(t, r.tree, "log", "--format=%s"), "first")
	})
	t.Run("sha256", func(t *testing.T) {
		fresh := t.TempDir()
		git(t, fresh, "init", "-q", "--object-format=sha256")
		put(t, fresh+"/a", "1")
		git(t, fresh, "add", "a")
		git(t, fresh, "commit", "-q", "-m", "one")
		r := newRig(t)
		r.bring(fresh, Options{})
		same(t, "log", git(t, r.tree, "log", "--format=%s"), "one")
		put(t, r.tree+"/a", "\x00")
		patch := t.TempDir() + "/patch"
		put(t, patch, r.export())
		git(t, fresh, "apply", patch)
	})
	t.Run("sparse", func(t *testing.T) {
		clone := t.TempDir() + "/clone"
		git(t, "/", "clone", "-q", dir, clone)
		git(t, clone, "sparse-checkout", "set", "--no-cone", "/plain.txt")
		r := newRig(t)
		r.bring(clone, Options{})
		same(t, "status", git(t, r.tree, "status", "--porcelain"), "")
		same(t, "files", picture(t, r.tree), `-rw-r--r-- "plain.txt" "one\ntwo\nthree\nfour\n" 19`)
	})
}

func TestSubmodulesComeAsFiles(t *testing.T) {
	inner := oddRepo(t)
	git(t, inner, "stash", "-q", "-u")
	dir := t.TempDir()
	git(t, dir, "init", "-q", "-b", "main")
	put(t, dir+"/top", "1")
	git(t, dir, "submodule", "--quiet", "add", inner, "sub")
	git(t, dir, "submodule", "--quiet", "add", inner, "absent")
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "-q", "-m", "one")
	git(t, dir, "submodule", "--quiet", "deinit", "-f", "absent")
	put(t, dir+"/sub/untracked", "dirty\n")
	put(t, dir+"/sub/x.o", "ignored there")
	git(t, dir, "init", "-q", "nested")
	put(t, dir+"/nested/file", "of another repository\n")
	r := newRig(t)
	r.bring(dir, Options{})
	for _, p := range []string{"top", "sub/plain.txt", "sub/untracked", "nested/file", ".gitmodules"} {
		if _, err := os.Stat(r.tree + "/" + p); err != nil {
			t.Error(err)
		}
	}
	for _, p := range []string{"sub/x.o", "sub/.git", "nested/.git"} {
		if _, err := os.Lstat(r.tree + "/" + p); err == nil {
			t.Errorf("%s is there", p)
		}
	}
	same(t, "status", git(t, r.tree, "status", "--porcelain"), "?? nested/")
	put(t, r.tree+"/sub/plain.txt", "changed\n")
	same(t, "changes", r.changes(), "M sub/plain.txt")
}

func TestPlainFolder(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/.gitignore", "*.o\n")
	put(t, dir+"/a.o", "kept: it is no repository")
	must(t, os.MkdirAll(dir+"/empty/deep", 0o755))
	put(t, dir+"/secret", "s")
	must(t, os.Chmod(dir+"/secret", 0o600))
	must(t, os.Symlink("..", dir+"/up"))
	must(t, unix.Mkfifo(dir+"/fifo", 0o600))
	r := newRig(t)
	b := r.bring(dir, Options{})
	same(t, "in the sandbox", picture(t, r.tree), `
-rw-r--r-- ".gitignore" "*.o\n" 4
-rw-r--r-- "a.o" "kept: it is no repository" 25
drwxr-xr-x "empty"
drwxr-xr-x "empty/deep"
-rw------- "secret" "s" 1
Lrwxrwxrwx "up" -> ..`)
	if len(b.Skipped) != 1 || b.Skipped[0].Path != "fifo" || b.Kind != KindFolder {
		t.Errorf("baseline %+v", b)
	}
	put(t, r.tree+"/b.o", "new")
	same(t, "changes", r.changes(), "A b.o")
}

func TestOccupiedPlace(t *testing.T) {
	r := newRig(t)
	put(t, r.tree+"/theirs", "1")
	dir := t.TempDir()
	put(t, dir+"/ours", "1")
	if _, err := r.Bring(within(t), r.c, dir, Options{}); !errors.Is(err, ErrOccupied) {
		t.Errorf("error %v", err)
	}
	r.bring(dir, Options{Replace: true})
	same(t, "files", picture(t, r.tree), `-rw-r--r-- "ours" "1" 1`)
	// A disk made anew has no workspace: it comes again.
	must(t, os.RemoveAll(r.tree))
	put(t, dir+"/ours", "2")
	r.bring(dir, Options{})
	same(t, "files", picture(t, r.tree), `-rw-r--r-- "ours" "2" 1`)
}

func TestHugeFile(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(dir + "/huge")
	must(t, err)
	must(t, f.Truncate(200<<20))
	f.WriteAt([]byte("end"), 200<<20-3)
	f.Close()
	r := newRig(t)
	var seen int64
	r.bring(dir, Options{Progress: func(_ int, n int64) { seen = n }})
	if seen != 200<<20 {
		t.Errorf("progress ended at %d", seen)
	}
	st, err := os.Stat(r.tree + "/huge")
	if err != nil || st.Size() != 200<<20 {
		t.Fatal(st, err)
	}
	same(t, "changes", r.changes(), "")
}

func TestNoGitOnTheHost(t *testing.T) {
	r := newRig(t)
	t.Setenv("PATH", "/nowhere")
	_, err := r.Bring(within(t), r.c, t.TempDir(), Options{})
	if err == nil || !strings.Contains(err.Error(), "install it") {
		t.Errorf("error %v", err)
	}
}
