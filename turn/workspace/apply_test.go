package workspace

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Patches as a sandbox could make them. None may change anything outside the
// folder, in git's own files, or through a link.
func TestHostilePatches(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the guest agent in these tests changes users, which needs root")
	}
	add := func(name, mode, content string) string {
		return "diff --git a/" + name + " b/" + name + "\nnew file mode " + mode + "\n--- /dev/null\n+++ b/" + name +
			"\n@@ -0,0 +1 @@\n+" + content + "\n"
	}
	link := func(name, target string) string {
		return "diff --git a/" + name + " b/" + name + "\nnew file mode 120000\n--- /dev/null\n+++ b/" + name +
			"\n@@ -0,0 +1 @@\n+" + target + "\n\\ No newline at end of file\n"
	}
	edit := func(name string) string {
		return "diff --git a/" + name + " b/" + name + "\n--- a/" + name + "\n+++ b/" + name + "\n@@ -1 +1 @@\n-old\n+new\n"
	}
	rename := func(from, to string) string {
		return "diff --git a/" + from + " b/" + to + "\nsimilarity index 100%\nrename from " + from + "\nrename to " + to + "\n"
	}
	for name, tc := range map[string]struct {
		patch   string
		refused bool // else it may also simply not fit
	}{
		"dots":                        {add("../escaped", "100644", "x"), true},
		"dots inside":                 {add("a/../../escaped", "100644", "x"), true},
		"absolute":                    {"--- /dev/null\n+++ /tmp/msb-escaped\n@@ -0,0 +1 @@\n+x\n", false},
		"absolute after a prefix":     {add("/tmp/msb-escaped", "100644", "x"), true},
		"git's hooks":                 {add(".git/hooks/pre-commit", "100755", "x"), true},
		"git's config":                {edit(".git/config"), true},
		"git in capitals":             {add(".GIT/config", "100644", "x"), true},
		"git's short name":            {add("GIT~1/config", "100644", "x"), true},
		"git with a dot":              {add(".git./config", "100644", "x"), true},
		"git with a stream":           {add(".git::$INDEX_ALLOCATION/config", "100644", "x"), true},
		"git with nothing in it":      {add(".g\u200cit/config", "100644", "x"), true},
		"git below":                   {add("sub/.git/config", "100644", "x"), true},
		"git as a file":               {add(".git", "100644", "gitdir: /tmp/evil"), true},
		"git as a link":               {link(".git", "/tmp"), true},
		"link to the root":            {link("l", "/"), true},
		"link out":                    {link("a/l", "../../x"), true},
		"link out and in":             {link("l", "../project/file"), true},
		"link into git":               {link("l", ".git/hooks"), true},
		"link and through it":         {link("l", "/tmp") + add("l/msb-escaped", "100644", "x"), false},
		"link inside and through it":  {link("l", "sub") + add("l/x", "100644", "x"), false},
		"through a link of the user":  {add("out/x", "100644", "x"), true},
		"edit through a link":         {edit("out/file"), true},
		"edit of a link's target":     {edit("tofile"), false},
		"rename out":                  {rename("file", "../file"), true},
		"rename from outside":         {rename("../outside/file", "mine"), true},
		"copy from outside":           {strings.ReplaceAll(rename("out/file", "mine"), "rename", "copy"), true},
		"rename from git":             {rename(".git/config", "mine"), true},
		"submodule":                   {"diff --git a/sm b/sm\nnew file mode 160000\n--- /dev/null\n+++ b/sm\n@@ -0,0 +1 @@\n+Subproject commit " + strings.Repeat("1", 40) + "\n", true},
		"file becomes a link":         {"diff --git a/file b/file\ndeleted file mode 100644\n--- a/file\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n" + link("file", "/etc/passwd"), true},
		"quoted dots":                 {"diff --git \"a/\\056\\056/x\" \"b/\\056\\056/x\"\nnew file mode 100644\n--- /dev/null\n+++ \"b/\\056\\056/x\"\n@@ -0,0 +1 @@\n+x\n", true},
		"a NUL":                       {add("a\x00b", "100644", "x"), false},
		"mode of a device":            {add("dev", "060644", "x"), false},
		"garbage":                     {"\x00\xff\x1b[2J", false},
		"hunk without end":            {"--- a/file\n+++ b/file\n@@ -1,99 +1,99 @@\n-old\n", false},
		"does not fit":                {strings.ReplaceAll(edit("file"), "-old", "-other"), false},
		"not there":                   {edit("missing"), false},
		"there already":               {add("file", "100644", "x"), false},
		"there, ignored":              {add("ignored.o", "100644", "x"), false},
		"a folder is there":           {add("sub", "100644", "x"), false},
		"one good and one bad":        {edit("file") + add(".git/x", "100644", "x"), true},
		"one good and one that fails": {edit("file") + edit("missing"), false},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			dir := base + "/project"
			must(t, os.Mkdir(dir, 0o755))
			git(t, dir, "init", "-q")
			put(t, base+"/outside/file", "old\n")
			put(t, dir+"/file", "old\n")
			put(t, dir+"/sub/file", "old\n")
			put(t, dir+"/ignored.o", "old\n")
			must(t, os.Symlink("../outside", dir+"/out"))
			must(t, os.Symlink("file", dir+"/tofile"))
			before := fingerprint(t, base)
			w := At(t.TempDir() + "/state")
			p, err := w.Plan(within(t), dir, strings.NewReader(tc.patch))
			if harmless, ok := map[string]string{"absolute": "A tmp/msb-escaped", "a NUL": "A a", "mode of a device": "A dev"}[name]; ok {
				if err != nil || lines(p.Summary) != harmless {
					t.Errorf("%v, %+v", err, p)
				}
				return
			}
			if err == nil {
				t.Fatalf("it is planned: %s", lines(p.Summary))
			}
			if tc.refused && !errors.Is(err, ErrRefused) {
				t.Errorf("error %v", err)
			}
			if strings.ContainsAny(err.Error(), "\x1b\x00") {
				t.Errorf("error %q", err)
			}
			if fingerprint(t, base) != before {
				t.Error("something was changed")
			}
			if _, err := os.Lstat("/tmp/msb-escaped"); err == nil {
				t.Error("it escaped")
			}
		})
	}
}

func TestPatchesThatAreFine(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/a/file", "old\n")
	put(t, dir+"/mode", "x\n")
	must(t, os.Chmod(dir+"/mode", 0o660))
	must(t, os.Chmod(dir+"/a/file", 0o640))
	must(t, os.Mkdir(dir+"/there", 0o755))
	must(t, os.Symlink("a", dir+"/was"))
	patch := `diff --git a/a/file b/a/file
--- a/a/file
+++ b/a/file
@@ -1 +1 @@
-old
+--- a/../looks like a header
diff --git a/a/l b/a/l
new file mode 120000
--- /dev/null
+++ b/a/l
@@ -0,0 +1 @@
+../mode
\ No newline at end of file
diff --git a/mode b/mode
old mode 100644
new mode 100755
diff --git a/was b/was
deleted file mode 120000
--- a/was
+++ /dev/null
@@ -1 +0,0 @@
-a
\ No newline at end of file
diff --git a/was/inside b/was/inside
new file mode 100755
--- /dev/null
+++ b/was/inside
@@ -0,0 +1 @@
+x
diff --git a/there/new b/there/new
new file mode 100644
--- /dev/null
+++ b/there/new
@@ -0,0 +1 @@
+x
`
	w := At(t.TempDir() + "/state")
	p, err := w.Plan(within(t), dir, strings.NewReader(patch))
	must(t, err)
	same(t, "plan", lines(p.Summary), "M a/file\nA a/l\nM mode 100644>100755\nA there/new\nD was\nA was/inside")
	same(t, "notable", strings.Join(p.Notable, " "), "a/l mode was/inside")
	must(t, p.Apply(within(t)))
	same(t, "files", picture(t, dir), `
drwxr-xr-x "a"
-rw-r----- "a/file" "--- a/../looks like a header\n" 29
Lrwxrwxrwx "a/l" -> ../mode
-rwxrwx--- "mode" "x\n" 2
drwxr-xr-x "there"
-rw-r--r-- "there/new" "x\n" 2
drwxr-xr-x "was"
-rwxr-xr-x "was/inside" "x\n" 2`)
}

func TestFolderBecomesFileAndBack(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/d/x", "old\n")
	patch := "diff --git a/d/x b/d/x\ndeleted file mode 100644\n--- a/d/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n" +
		"diff --git a/d b/d\nnew file mode 100644\n--- /dev/null\n+++ b/d\n@@ -0,0 +1 @@\n+file\n"
	w := At(t.TempDir() + "/state")
	p, err := w.Plan(within(t), dir, strings.NewReader(patch))
	must(t, err)
	must(t, p.Apply(within(t)))
	same(t, "files", picture(t, dir), `-rw-r--r-- "d" "file\n" 5`)
	empty, err := w.Plan(within(t), dir, strings.NewReader(""))
	if err != nil || len(empty.Summary.Changes) > 0 {
		t.Errorf("empty patch: %v", err)
	}
	// With something else in the folder it cannot be done, and nothing is.
	must(t, os.Remove(dir+"/d"))
	put(t, dir+"/d/x", "old\n")
	put(t, dir+"/d/other", "stays\n")
	before := picture(t, dir)
	if p, err = w.Plan(within(t), dir, strings.NewReader(patch)); err == nil {
		err = p.Apply(within(t))
	}
	if err == nil {
		t.Error("no error")
	}
	same(t, "files", picture(t, dir), before)
}

// What changed on the host meanwhile is merged where it can be, and else
// nothing is done.
func TestBothSidesChanged(t *testing.T) {
	dir := t.TempDir()
	git(t, dir, "init", "-q")
	put(t, dir+"/file", "1\n2\n3\n4\n5\n6\n7\n8\n9\n")
	put(t, dir+"/gone", "1\n")
	r := newRig(t)
	r.bring(dir, Options{})
	put(t, r.tree+"/file", "1\n2\n3\n4\n5\n6\n7\n8\nnine\n")
	put(t, dir+"/file", "one\n2\n3\n4\n5\n6\n7\n8\n9\n")
	p, err := r.Plan(within(t), dir, strings.NewReader(r.export()))
	must(t, err)
	must(t, p.Apply(within(t)))
	same(t, "merged", get(t, dir+"/file"), "one\n2\n3\n4\n5\n6\n7\n8\nnine\n")

	put(t, dir+"/file", "1\n2\n3\n4\n5\n6\n7\n8\n99\n")
	before := fingerprint(t, dir)
	_, err = r.Plan(within(t), dir, strings.NewReader(r.export()))
	var conflict *ConflictError
	if !errors.As(err, &conflict) || len(conflict.Paths) != 1 || conflict.Paths[0] != "file" {
		t.Errorf("error %v", err)
	}
	if fingerprint(t, dir) != before {
		t.Error("something was changed")
	}

	// What changes between the plan and its application is not overwritten.
	put(t, dir+"/file", "1\n2\n3\n4\n5\n6\n7\n8\n9\n")
	put(t, r.tree+"/new", "x\n")
	must(t, os.Remove(r.tree+"/gone"))
	for name, spoil := range map[string]func(){
		"edited":            func() { put(t, dir+"/file", "mine\n") },
		"removed":           func() { os.Remove(dir + "/file") },
		"became a link":     func() { os.Remove(dir + "/file"); os.Symlink("gone", dir+"/file") },
		"new one is there":  func() { put(t, dir+"/new", "mine\n") },
		"deleted is edited": func() { put(t, dir+"/gone", "mine\n") },
	} {
		t.Run(name, func(t *testing.T) {
			os.Remove(dir + "/file")
			os.Remove(dir + "/new")
			put(t, dir+"/file", "1\n2\n3\n4\n5\n6\n7\n8\n9\n")
			put(t, dir+"/gone", "1\n")
			p, err := r.Plan(within(t), dir, strings.NewReader(r.export()))
			must(t, err)
			spoil()
			before := picture(t, dir)
			if err := p.Apply(within(t)); err == nil {
				t.Error("no error")
			}
			same(t, "files", picture(t, dir), before)
		})
	}
}

// A disk that refuses half way leaves everything as it was.
func TestApplyIsAllOrNothing(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []string{"a", "b", "c"} {
		put(t, dir+"/"+n+"/file", "old\n")
	}
	patch := ""
	for _, n := range []string{"a", "b"} {
		patch += "diff --git a/" + n + "/file b/" + n + "/file\n--- a/" + n + "/file\n+++ b/" + n + "/file\n@@ -1 +1 @@\n-old\n+new\n"
	}
	patch += "diff --git a/c/file b/c/file\ndeleted file mode 100644\n--- a/c/file\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n" +
		"diff --git a/z/file b/z/file\nnew file mode 100644\n--- /dev/null\n+++ b/z/file\n@@ -0,0 +1 @@\n+x\n"
	w := At(t.TempDir() + "/state")
	p, err := w.Plan(within(t), dir, strings.NewReader(patch))
	must(t, err)
	before := ""
	hostRename = func() error {
		if before == "" {
			return nil
		}
		put(t, filepath.Join(dir, "z"), "in the way\n")
		return nil
	}
	defer func() { hostRename = nil }()
	before = picture(t, dir) + "\n-rw-r--r-- \"z\" \"in the way\\n\" 11"
	if err := p.Apply(within(t)); err == nil || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("error %v", err)
	}
	same(t, "files", picture(t, dir), before)
}

func FuzzCopyPatch(f *testing.F) {
	f.Add([]byte("diff --git \"a/\\303\\244\" \"b/\\303\\244\"\n--- a/x\t1\n+++ \"b/\\\"\"\nrename from \"\\\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var out strings.Builder
		if _, err := copyPatch(&out, strings.NewReader(string(in))); err != nil || out.String() != string(in) {
			t.Error(err)
		}
	})
}
