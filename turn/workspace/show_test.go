package workspace

import (
	"strings"
	"testing"
)

func TestShow(t *testing.T) {
	patch := "diff --git a/x b/x\nindex 1..2 100644\n--- a/x\n+++ b/x\n@@ -1,2 +1,3 @@ func\x1b[2J\n-old\n+--- a/not a header\n+\ttab\r\n \x1b[31mred\n" +
		"\\ No newline at end of file\ndiff --git a/b b/b\nindex 1..2\nGIT binary patch\nliteral 3\nKcmZ\n\nliteral 0\n\ndiff --git a/" + strings.Repeat("y", 5000) + " b\n"
	var b strings.Builder
	if err := Show(&b, strings.NewReader(patch), false); err != nil {
		t.Fatal(err)
	}
	want := "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,3 @@ func\\x1b[2J\n-old\n+--- a/not a header\n+       tab\\r\n \\x1b[31mred\n" +
		"\\ No newline at end of file\ndiff --git a/b b/b\n(binary content)\ndiff --git a/" + strings.Repeat("y", 4096-13) + " … (a long line)\n"
	if b.String() != want {
		t.Errorf("shown:\n%s\nwant:\n%s", b.String(), want)
	}
	b.Reset()
	if err := Show(&b, strings.NewReader("diff --git a/x b/x\n@@ -1 +1 @@\n-a\n+b\n"), true); err != nil {
		t.Fatal(err)
	}
	same(t, "in colour", b.String(), "\x1b[1mdiff --git a/x b/x\x1b[0m\n\x1b[36m@@ -1 +1 @@\x1b[0m\n\x1b[31m-a\x1b[0m\n\x1b[32m+b\x1b[0m")
}

func FuzzShow(f *testing.F) {
	f.Add("@@ -1,99999999999999999999 +1 @@\n+\x1b\n")
	f.Fuzz(func(t *testing.T, patch string) {
		var b strings.Builder
		if err := Show(&b, strings.NewReader(patch), false); err != nil || strings.ContainsAny(b.String(), "\x1b\r\t\x00") {
			t.Errorf("%q, %v", b.String(), err)
		}
	})
}
