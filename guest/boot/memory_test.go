package boot

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	wire "msb/protocol/agent"
)

// A file system on memory follows the machine's size, as long as nobody has chosen another and its files fit.
func TestMemoryMountsFollow(t *testing.T) {
	dir := t.TempDir()
	if os.Geteuid() != 0 {
		t.Skip("mounts a file system: root only")
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NODEV, "size=64m,mode=700"); err != nil {
		t.Skipf("cannot mount a file system on memory: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	some := uint32(16)
	if all := memoryMounts(&wire.BootstrapPayload{TmpfsMounts: []wire.TmpfsMount{{Path: dir, SizeMiB: &some}}}); len(all) > 2 {
		t.Errorf("one that was asked for with a size follows: %+v", all[len(all)-1])
	}
	all := memoryMounts(&wire.BootstrapPayload{TmpfsMounts: []wire.TmpfsMount{{Path: dir}, {Path: filepath.Join(dir, "none")}, {Path: "/proc"}}})
	if len(all) == 0 || all[len(all)-1].path != dir {
		t.Fatalf("it is not among them: %+v", all)
	}
	m := all[len(all)-1]
	follow := func(memory, want uint64) {
		t.Helper()
		m.follow(memory << 20)
		if size, _, err := memoryUse(dir); err != nil || size != want<<20 {
			t.Errorf("a machine of %d MiB: %d MiB, %v", memory, size>>20, err)
		}
	}
	follow(512, 256)
	follow(512, 256)
	if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, 20<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	follow(32, 256) // 16 MiB are too little for it
	follow(64, 32)
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Flags&unix.ST_NODEV == 0 {
		t.Errorf("flags %#x, %v", st.Flags, err)
	}
	if err := resizeMemory(dir, 40<<20); err != nil { // somebody's choice
		t.Fatal(err)
	}
	follow(1024, 40)
}
