package image

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

func TestVerify(t *testing.T) {
	needMkfs(t)
	change := func(t *testing.T, img Image, at int64) {
		t.Helper()
		if err := os.Chmod(img.Path, 0o644); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(img.Path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt([]byte("changed"), at); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		do   func(t *testing.T, img Image)
		want string // "" = fine
	}{
		{"copied to another inode", func(t *testing.T, img Image) {
			if err := copyFile(img.Path, img.Path+".copy"); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(img.Path+".copy", img.Path); err != nil {
				t.Fatal(err)
			}
		}, ""},
		{"touched", func(t *testing.T, img Image) {
			if err := os.Chtimes(img.Path, time.Now(), time.Now()); err != nil {
				t.Fatal(err)
			}
		}, ""},
		{"missing", func(t *testing.T, img Image) {
			if err := os.Remove(img.Path); err != nil {
				t.Fatal(err)
			}
		}, "is missing"},
		{"changed", func(t *testing.T, img Image) { change(t, img, 70<<20) }, "checksum is wrong"},
		{"cut", func(t *testing.T, img Image) {
			change(t, img, 0)
			if err := os.Truncate(img.Path, 1<<20); err != nil {
				t.Fatal(err)
			}
		}, "1048576 bytes instead of"},
		{"grown", func(t *testing.T, img Image) { change(t, img, img.Size) }, "bytes instead of"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := testLibrary(t)
			img := importSmall(t, l, "mine", "mark")
			c.do(t, img)
			err := l.Verify(context.Background(), img, nil)
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if err := l.Verify(context.Background(), img, func(string, float64) { t.Error("read again after it was found right") }); err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), img.Path) ||
				!strings.Contains(err.Error(), "msb image import") {
				t.Errorf("error is %v", err)
			}
			// What the message says is what helps.
			img = importSmall(t, l, "mine", "mark")
			if err := l.Verify(context.Background(), img, nil); err != nil {
				t.Error(err)
			}
		})
	}
}
