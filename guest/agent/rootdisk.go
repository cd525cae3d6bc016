package agent

import (
	"fmt"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// rootDisk answers core.root_disk.prepare, which only looks, and core.root_disk.grow, which makes the file system as
// large as asked, at most as large as its device.
func (a *server) rootDisk(id uint32, v uint8, t agent.Type, size uint64) {
	switch {
	case id != frame.IDLifecycle:
		a.reject(id, v, agent.KindInvalidSession, fmt.Sprintf("%s has a channel of its own", t), "")
		return
	case a.machine.RootDisk == nil:
		a.reject(id, v, agent.KindCapabilityUnavailable, "the guest has no root disk", "")
		return
	}
	if t == agent.RootDiskPrepare {
		size = 0
	}
	a.helpers.Go(func() {
		fs, device, err := a.machine.RootDisk(size)
		if err != nil {
			a.reject(id, v, agent.KindInvalidSession, fmt.Sprintf("%s: %v", t, err), "")
			return
		}
		_ = a.out.send(id, agent.RootDiskState, agent.RootDiskStatePayload{FilesystemBytes: fs, DeviceBytes: device})
	})
}
