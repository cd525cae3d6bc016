package image

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestGetMissing(t *testing.T) {
	l := testLibrary(t)
	for ref, want := range map[string]string{
		"tiny":         "run `msb image build tiny`",
		"debian":       "run `msb image build debian`",
		"alpine":       "msb image import",
		"abcdef123456": "msb image ls",
		"../../etc/x":  "none called",
		"a\x1b[31mb":   `\x1b[31m`,
		"":             "none called",
	} {
		if _, err := l.Get(ref); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), want) {
			t.Errorf("Get(%q): error is %v, want %q in it", ref, err, want)
		}
	}
}

func TestDamagedRecord(t *testing.T) {
	l := testLibrary(t)
	if err := os.WriteFile(l.recordPath("mine"), []byte(`{"name":"mine","sha256":"../../etc/passwd"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Get("mine"); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("error is %v", err)
	}
}

func TestRemove(t *testing.T) {
	needMkfs(t)
	l := testLibrary(t)
	ctx := context.Background()
	img := importSmall(t, l, "mine", "one")
	used := func(sha string) ([]string, error) {
		if sha != img.SHA256 {
			t.Errorf("asked for %s", sha)
		}
		return []string{"demo"}, nil
	}
	free := func(string) ([]string, error) { return nil, nil }
	if err := l.Remove(ctx, "mine", used); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "demo") {
		t.Errorf("removing one in use: %v", err)
	}
	release, err := l.Hold(img)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(ctx, "mine", free); !errors.Is(err, ErrInUse) {
		t.Errorf("removing one that is held: %v", err)
	}
	release()
	if _, err := l.Get("mine"); err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(ctx, "mine", free); err != nil {
		t.Fatal(err)
	}
	nothingKept(t, l)
	if err := l.Remove(ctx, "mine", free); !errors.Is(err, ErrNotFound) {
		t.Errorf("removing it again: %v", err)
	}
}

func TestNewBuildKeepsWhatSandboxesUse(t *testing.T) {
	needMkfs(t)
	l := testLibrary(t)
	first := importSmall(t, l, "mine", "one")
	second := importSmall(t, l, "mine", "two")
	if first.SHA256 == second.SHA256 {
		t.Fatal("both are the same")
	}
	if got, err := l.Get(first.SHA256); err != nil || got.Name != "" || got.Path != first.Path {
		t.Errorf("the former one is %+v, %v", got, err)
	}
	removed, err := l.Prune(func(sha string) ([]string, error) { return []string{"demo"}, nil })
	if err != nil || len(removed) > 0 {
		t.Errorf("pruned %v, %v", removed, err)
	}
	removed, err = l.Prune(func(sha string) ([]string, error) { return nil, nil })
	if err != nil || !slices.Equal(removed, []string{first.SHA256}) {
		t.Errorf("pruned %v, %v", removed, err)
	}
	if err := l.Verify(context.Background(), second, nil); err != nil {
		t.Error(err)
	}
}
