package patch

import (
	"strings"
	"testing"
)

func TestApply(t *testing.T) {
	const ten = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n"
	for name, c := range map[string]struct{ old, patch, want string }{
		"plain":               {"a\nb\nc\n", "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n", "a\nB\nc\n"},
		"no prefix":           {"a\n", "--- f\n+++ f\n@@ -1 +1 @@\n-a\n+b\n", "b\n"},
		"wrong line":          {ten, "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n 7\n-8\n+eight\n 9\n", strings.Replace(ten, "8", "eight", 1)},
		"wrong counts":        {ten, "--- a/f\n+++ b/f\n@@ -7,9 +7,2 @@\n 7\n-8\n+eight\n+more\n 9\n", strings.Replace(ten, "8", "eight\nmore", 1)},
		"no counts":           {ten, "--- a/f\n+++ b/f\n@@\n 7\n-8\n+eight\n 9\n", strings.Replace(ten, "8", "eight", 1)},
		"text in @@":          {ten, "--- a/f\n+++ b/f\n@@ func x() @@\n 7\n-8\n 9\n", strings.Replace(ten, "8\n", "", 1)},
		"two hunks":           {ten, "--- a/f\n+++ b/f\n@@ -1,2 +1,3 @@\n 1\n+one\n 2\n@@ -9,2 +10,1 @@\n 9\n-10\n", "1\none\n2\n3\n4\n5\n6\n7\n8\n9\n"},
		"blanks at line ends": {"a  \nb\n", "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n", "a  \nc\n"},
		"lost blank line":     {"a\n\nb\n", "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n", "a\n\nc\n"},
		"CRLF file":           {"a\r\nb\r\n", "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n", "a\r\nc\r\n"},
		"no end before":       {"a\nb", "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n", "a\nc\n"},
		"no end after":        {"a\nb\n", "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n\\ No newline at end of file\n", "a\nc"},
		"no end stays":        {"a\nb", "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n-a\n+c\n b\n\\ No newline at end of file\n", "c\nb"},
		"no end far away":     {"a\nb\nc\nd", "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n-a\n+x\n b\n", "x\nb\nc\nd"},
		"insert at the start": {"a\n", "--- a/f\n+++ b/f\n@@ -0,0 +1 @@\n+x\n", "x\na\n"},
		"insert after a line": {"a\nb\n", "--- a/f\n+++ b/f\n@@ -1,0 +2 @@\n+x\n", "a\nx\nb\n"},
		"create":              {"", "--- /dev/null\n+++ b/f\n@@ -0,0 +1,2 @@\n+x\n+y\n", "x\ny\n"},
		"delete":              {"x\n", "--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n", ""},
		"lines like headers":  {"-- a\nb\n", "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n--- a\n+++ z\n b\n", "++ z\nb\n"},
		"times in the names":  {"a\n", "--- a/f\t2024-01-01 00:00:00\n+++ b/f\t2024-01-01\n@@ -1 +1 @@\n-a\n+b\n", "b\n"},
		"quoted name":         {"a\n", "--- \"a/\\303\\251\"\n+++ \"b/\\303\\251\"\n@@ -1 +1 @@\n-a\n+b\n", "b\n"},
		"mailed":              {"a\n", "From: x\nSubject: y\n\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n-- \n2.30\n", "b\n"},
		"CRLF patch":          {"a\nb\n", "--- a/f\r\n+++ b/f\r\n@@ -1,2 +1,2 @@\r\n a\r\n-b\r\n b\r\n", ""},
		"blank lines between": {"a\n", "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n\n\n", "b\n"},
	} {
		t.Run(name, func(t *testing.T) {
			files, err := Parse(c.patch)
			if err != nil {
				t.Fatal(err)
			}
			if len(files) != 1 {
				t.Fatalf("%d files: %+v", len(files), files)
			}
			got, err := files[0].Apply(c.old)
			if name == "CRLF patch" {
				return // must only not panic: what a blank at the end of an added line means is anybody's guess
			}
			if err != nil || got != c.want {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
		})
	}
}

func TestParse(t *testing.T) {
	files, err := Parse(`diff --git a/old name b/new name
similarity index 90%
rename from old name
rename to new name
--- a/old name
+++ b/new name
@@ -1 +1 @@
-a
+b
diff --git a/s b/s
old mode 100644
new mode 100755
diff --git a/e b/e
new file mode 100644
index 0000000..e69de29
diff --git a/gone b/gone
deleted file mode 100644
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-x
diff --git a/l b/l
new file mode 120000
--- /dev/null
+++ b/l
@@ -0,0 +1 @@
+target
\ No newline at end of file
diff --git a/bin b/bin
index 1234..5678 100644
GIT binary patch
literal 3
Kcmxxx

literal 0
HcmV?d00001

`)
	if err != nil || len(files) != 6 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for i, want := range []File{
		{Old: "old name", New: "new name"}, {Old: "s", New: "s", Mode: 0o755}, {New: "e", Mode: 0o644}, {Old: "gone"},
		{New: "l", Mode: 0o644, Special: true}, {Old: "bin", New: "bin", Binary: true},
	} {
		got := files[i]
		got.Hunks = nil
		if got.Old != want.Old || got.New != want.New || got.Mode != want.Mode || got.Special != want.Special || got.Binary != want.Binary {
			t.Errorf("file %d: %+v, want %+v", i, got, want)
		}
	}
}

func TestRefused(t *testing.T) {
	change := "@@ -1 +1 @@\n-a\n+b\n"
	for name, text := range map[string]string{
		"nothing":         "",
		"prose":           "please change it",
		"dots":            "--- a/../x\n+++ b/../x\n" + change,
		"dots inside":     "--- a/x/../../y\n+++ b/x/../../y\n" + change,
		"absolute":        "--- /etc/passwd\n+++ /etc/passwd\n" + change,
		"git":             "--- a/.git/config\n+++ b/.git/config\n" + change,
		"git below":       "--- /dev/null\n+++ b/sub/.GIT/hooks/x\n@@ -0,0 +1 @@\n+x\n",
		"rename into git": "diff --git a/x b/.git/y\nrename from x\nrename to .git/y\n",
		"header only git": "diff --git a/.git/x b/.git/x\nnew file mode 100755\n",
		"both null":       "--- /dev/null\n+++ /dev/null\n" + change,
		"no file":         change,
		"no change":       "--- a/f\n+++ b/f\n@@ -1 +1 @@\n a\n",
		"bad line":        "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\nabc\n",
		"NUL":             "--- \"a/x\\000y\"\n+++ \"b/x\\000y\"\n" + change,
		"broken quotes":   "--- \"a/x\n+++ \"b/x\n" + change,
	} {
		if files, err := Parse(text); err == nil {
			t.Errorf("%s: %+v", name, files)
		}
	}
	f := File{New: "f", Old: "f", Hunks: []Hunk{{Start: 1, Lines: []Line{{Op: '-', Text: "nope"}, {Op: '+', Text: "x"}}}}}
	if _, err := f.Apply("a\nb\n"); err == nil || !strings.Contains(err.Error(), "| nope") || !strings.Contains(err.Error(), "| a") {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n", "a\nb\n")
	f.Add("diff --git a/x b/y\nrename from x\nrename to y\n", "")
	f.Add("--- a/f\n+++ b/f\n@@\n+\n\\\n", "x")
	f.Fuzz(func(t *testing.T, text, old string) {
		files, err := Parse(text)
		if err != nil {
			return
		}
		for i := range files {
			for _, name := range []string{files[i].Old, files[i].New} {
				if name != "" && CheckName(name) != nil {
					t.Fatalf("bad name %q got through", name)
				}
			}
			_, _ = files[i].Apply(old)
		}
	})
}
