package guestbin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPathOfEnvironment(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"guest": 0o755, "text": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct{ name, file, want string }{
		{"a program", "guest", ""},
		{"no program", "text", "text is not an executable file; run `make build`"},
		{"a folder", ".", "is not an executable file"},
		{"nothing", "none", "no such file or directory; run `make build`"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(dir, tc.file)
			t.Setenv("MSB_GUEST", path)
			got, err := Path(t.TempDir())
			switch {
			case tc.want == "" && (err != nil || got != path):
				t.Errorf("%s, %v", got, err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error %v; want %q in it", err, tc.want)
			}
		})
	}
}

// The embedded agent is written once; a copy that is not what it should be is replaced, another version's left alone.
func TestExtract(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	path, err := extract(dir, []byte("agent one"))
	if err != nil {
		t.Fatal(err)
	}
	first, err := os.Stat(path)
	if err != nil || first.Mode() != 0o755 {
		t.Fatalf("it is %v, %v", first, err)
	}
	if again, err := extract(dir, []byte("agent one")); err != nil || again != path {
		t.Errorf("a second time: %s, %v", again, err)
	}
	if second, err := os.Stat(path); err != nil || !os.SameFile(first, second) {
		t.Errorf("it was written again: %v", err)
	}
	if other, err := extract(dir, []byte("agent two")); err != nil || other == path {
		t.Errorf("another version: %s, %v", other, err)
	}
	if err := os.WriteFile(path, []byte("agent"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := extract(dir, []byte("agent one")); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "agent one" {
		t.Errorf("the damaged copy is now %q, %v", b, err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 2 {
		t.Errorf("in the cache: %v, %v", files, err)
	}
}
