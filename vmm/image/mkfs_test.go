package image

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFileSystem has the file system's own checker look at what we make, empty and for big contents.
func TestFileSystem(t *testing.T) {
	needMkfs(t)
	fsck, err := lookTool("e2fsck")
	if err != nil {
		t.Skip("e2fsck is not installed")
	}
	for _, s := range []rootStats{
		{},
		{entries: 400, blocks: 600},
		{entries: 300_000, blocks: 300_000},
		{entries: 1_000_000, blocks: 10},
		{entries: 1000, blocks: 20 << 30 / fsBlock},
	} {
		t.Run(fmt.Sprint(s.entries, " ", s.blocks), func(t *testing.T) {
			g := geometryFor(s)
			path := filepath.Join(t.TempDir(), "raw")
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := makeFS(context.Background(), path, g); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(fsck, "-fn", path).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := checkFS(f); err != nil {
				t.Fatal(err)
			}
			var sb [1024]byte
			if _, err := f.ReadAt(sb[:], 1024); err != nil {
				t.Fatal(err)
			}
			inodes, free := le32(sb[0:]), le32(sb[0x0c:])
			if int64(inodes) < s.entries || int64(free) < s.blocks {
				t.Errorf("%d inodes and %d free blocks for %+v", inodes, free, s)
			}
			var st unix.Stat_t
			if err := unix.Stat(path, &st); err != nil || st.Blocks*512 > 64<<20 {
				t.Errorf("an empty file system takes %d MiB of the disk (%v)", st.Blocks*512>>20, err)
			}
		})
	}
}

func le32(b []byte) uint32 {
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}
