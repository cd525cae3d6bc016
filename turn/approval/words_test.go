package approval

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestWords(t *testing.T) {
	for _, c := range []struct {
		command string
		want    []string // nil: not plain
	}{
		{"go test ./...", []string{"go", "test", "./..."}},
		{"  go\t test   ./... ", []string{"go", "test", "./..."}},
		{"make CC=gcc -j2", []string{"make", "CC=gcc", "-j2"}},
		{"git log --format=%H HEAD@1", []string{"git", "log", "--format=%H", "HEAD@1"}},
		{"", nil},
		{"   ", nil},
		{"A=1 go test", nil},
		{"go test; rm -rf /", nil},
		{"go test ./...\nrm x", nil},
		{"go test\r", nil},
		{"go test && x", nil},
		{"go test | sh", nil},
		{"go test > f", nil},
		{"go test $(id)", nil},
		{"go test `id`", nil},
		{"go test $HOME", nil},
		{"go test ~", nil},
		{"ls *", nil},
		{"ls a?", nil},
		{"ls [a]", nil},
		{"ls {a,b}", nil},
		{"echo 'a'", nil},
		{`echo "a"`, nil},
		{`echo \a`, nil},
		{"echo a #b", nil},
		{"! ls", nil},
		{"a ^ b", nil},
		{"if x", nil},
		{"time ls", nil},
		{"go tеst", nil}, // Cyrillic letter
		{"go test\u00a0x", nil},
		{"go test\u200b", nil},
		{"go test \x00", nil},
		{"go test\x1b[2K", nil},
		{"go test\v./...", nil},
		{"go test\f./...", nil},
	} {
		got, ok := Words(c.command)
		if ok != (c.want != nil) || !slices.Equal(got, c.want) {
			t.Errorf("Words(%q) = %q, %v; want %q", c.command, got, ok, c.want)
		}
	}
}

// What counts as plain words must be those words for a real shell too.
func FuzzWords(f *testing.F) {
	for _, s := range []string{"go test ./...", "A=1 x", "x; y", "x y=z", "ls -la a,b %1", "in x", ": a", ". x", "x\ty", "-n a", "=x y", "@a +b"} {
		f.Add(s)
	}
	sh, err := exec.LookPath("sh")
	f.Fuzz(func(t *testing.T, s string) {
		words, ok := Words(s)
		if !ok {
			if words != nil {
				t.Fatalf("words %q of what has none", words)
			}
			return
		}
		again, ok := Words(strings.Join(words, " "))
		if !ok || !slices.Equal(words, again) {
			t.Fatalf("%q: %q, joined and parsed again %q", s, words, again)
		}
		if err != nil || len(s) > 4096 {
			return
		}
		// Behind printf the words are arguments, the first of them included.
		out, err := exec.Command(sh, "-c", `printf '%s\n' `+s).Output()
		if want := strings.Join(words, "\n") + "\n"; err != nil || string(out) != want {
			t.Fatalf("the shell takes %q for %q, not %q (%v)", s, out, want, err)
		}
	})
}
