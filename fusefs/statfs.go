package fusefs

import "github.com/hanwen/go-fuse/v2/fuse"

// The protocol does not tell how full the guest's disk is. Programs that ask
// before they write must not be stopped, so the answer is always the same round
// size, all of it free: 1 TiB and 2^30 files. ENOSPC comes from the guest.
const (
	statfsBlock  = 4096
	statfsBlocks = 1 << 28
	statfsFiles  = 1 << 30
)

// StatFs needs no connection, so a mount whose sandbox is gone still answers it.
func (s *pathFS) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	*out = fuse.StatfsOut{
		Blocks: statfsBlocks, Bfree: statfsBlocks, Bavail: statfsBlocks,
		Files: statfsFiles, Ffree: statfsFiles,
		Bsize: statfsBlock, Frsize: statfsBlock, NameLen: maxName,
	}
	return fuse.OK
}
