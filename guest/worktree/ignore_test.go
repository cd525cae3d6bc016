package worktree

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Patterns mean what they mean to git.
func TestPatternsMeanWhatGitSays(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git is missing: apt-get install git")
	}
	dir := t.TempDir()
	run := func(in string, args ...string) string {
		cmd := exec.Command(git, args...)
		cmd.Stdin = strings.NewReader(in)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "HOME="+dir)
		out, _ := cmd.Output() // check-ignore fails when nothing is ignored
		return string(out)
	}
	run("", "init", "-q")
	paths := []string{
		"a", "b", "ab", "abc", "a.o", "a.c", "x/a", "x/a.o", "x/y/a", "x/y/z/a.o", "build/out", "x/build/out", "doc/frotz/a",
		"a/doc/frotz", "foo/bar/baz", "foo/x/y/baz", "foo/baz", "!bang", "#hash", "sp ", "sp", "[x]", "a-b", "Z", "9", "x/9",
		"node_modules/p/i.js", "x/node_modules/p", "keep/me", "keep/not", `back\slash`, "x/*", "deep/a/b/c/d",
	}
	for _, p := range paths {
		full := filepath.Join(dir, p)
		os.MkdirAll(filepath.Dir(full), 0o755)
		if err := os.WriteFile(full, nil, 0o644); err != nil && !strings.Contains(err.Error(), "directory") {
			t.Fatal(err)
		}
	}
	for _, patterns := range []string{
		"a", "/a", "*.o", "x/", "/x/a", "x/*", "x/**", "**/a", "x/**/a.o", "**/build", "build/", "doc/frotz", "/doc/frotz",
		"foo/**/baz", "foo/*/baz", `\!bang`, `\#hash`, "#hash", "sp ", `sp\ `, `\[x\]`, "[a-c]", "[!a-c]", "[^a]", "[[:digit:]]",
		"[]x]", "[a", "a\\", "?", "a?c", "a*c", "***", "**", "node_modules", "*\n!a", "keep/*\n!keep/me", "keep\n!keep/me", "/*\n!/x\n",
		"deep/**/d", "deep/**", "deep/a/**/d", "/deep/**/c/", `back\\slash`, "*.o\n!x/y/", "x/[*]", "!a", "a\r", "\xef\xbb\xbfa", "x//a", "/",
		"a**c", "x/y**", "**/y/a", "**/**/a", "x/**/**/a.o", "[a-", "[\\]x]", "*/a", "*/*/a",
	} {
		os.WriteFile(filepath.Join(dir, ".gitignore"), []byte(patterns), 0o644)
		out := run(strings.Join(paths, "\x00")+"\x00", "check-ignore", "--no-index", "-z", "--stdin")
		want := make(map[string]bool)
		for p := range strings.SplitSeq(out, "\x00") {
			want[p] = true
		}
		r := parseRules([]byte(patterns), "", nil)
		for _, p := range paths {
			st, err := os.Lstat(filepath.Join(dir, p))
			if err != nil {
				continue
			}
			got := false
			for i, c := range p + "/" {
				if c == '/' && i > 0 {
					got = got || r.hides(p[:i], i < len(p) || st.IsDir())
				}
			}
			if got != want[p] {
				t.Errorf("%q, pattern %q: hidden %v, git says %v", p, patterns, got, want[p])
			}
		}
	}
}

func TestEvilPatternEnds(t *testing.T) {
	steps := 0
	match(strings.Repeat("*a", 40)+"b", strings.Repeat("a", 200), &steps)
	steps = 0
	match(strings.Repeat("**/", 40)+"b", strings.Repeat("a/", 200), &steps)
}
