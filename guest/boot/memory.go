package boot

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

// memoryPoll is how often the machine looks whether it has been given memory or has lost some.
const memoryPoll = time.Second

// memoryMount is a file system on memory that may take half of the machine's. The kernel makes that a number when it
// is mounted; who plugs memory in later has to tell it again.
type memoryMount struct {
	path string
	size uint64 // bytes, as we left it; another size is somebody's choice and stays
}

// memoryMounts finds those of the machine: its own, and those that were asked for without a size.
func memoryMounts(b *agent.BootstrapPayload) []*memoryMount {
	paths := []string{"/run", "/dev/shm"}
	for _, t := range b.TmpfsMounts {
		if sizeOption(t.SizeMiB) == "" {
			paths = append(paths, t.Path)
		}
	}
	var all []*memoryMount
	for _, path := range paths {
		if size, _, err := memoryUse(path); err == nil {
			all = append(all, &memoryMount{path, size})
		}
	}
	return all
}

// followMemory keeps their sizes at half of the memory. It never returns.
func followMemory(all []*memoryMount) {
	for range time.Tick(memoryPoll) {
		var info unix.Sysinfo_t
		if unix.Sysinfo(&info) != nil {
			continue
		}
		for _, m := range all {
			m.follow(info.Totalram * uint64(info.Unit))
		}
	}
}

// follow sets the size for a machine of so many bytes, unless the files that are there need more.
func (m *memoryMount) follow(memory uint64) {
	page := uint64(unix.Getpagesize())
	want := memory / 2 / page * page
	if want == m.size {
		return
	}
	size, used, err := memoryUse(m.path)
	if err != nil || size != m.size || used > want {
		return
	}
	if resizeMemory(m.path, want) == nil {
		m.size = want
	}
}

// memoryUse is how large the tmpfs at path may become, and how large it is.
func memoryUse(path string) (size, used uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, 0, err
	}
	if st.Type != unix.TMPFS_MAGIC {
		return 0, 0, fmt.Errorf("%s: not a file system on memory", path)
	}
	return st.Blocks * uint64(st.Bsize), (st.Blocks - st.Bfree) * uint64(st.Bsize), nil
}

// resizeMemory changes nothing but the size: the flags of a mount are its user's.
func resizeMemory(path string, size uint64) error {
	fd, err := unix.Fspick(unix.AT_FDCWD, path, unix.FSPICK_CLOEXEC|unix.FSPICK_NO_AUTOMOUNT)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.FsconfigSetString(fd, "size", fmt.Sprint(size)); err != nil {
		return err
	}
	return unix.FsconfigReconfigure(fd)
}
