package main

import (
	"testing"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// The runtime can ask how large the root disk is and have its file system grow; a client cannot.
func TestRootDisk(t *testing.T) {
	s := up(t, agent.BootstrapPayload{})
	state := func(n int) agent.RootDiskStatePayload {
		t.Helper()
		seen := 0
		m, _ := s.await(0, "state of the disk", func(m message) bool {
			if m.id == frame.IDLifecycle && m.t == agent.RootDiskState {
				seen++
			}
			return seen == n && m.t == agent.RootDiskState
		})
		return decode[agent.RootDiskStatePayload](t, m)
	}
	const size = 48 << 20
	s.send(frame.IDLifecycle, agent.RootDiskPrepare, agent.RootDiskPayload{SizeBytes: 1 << 30})
	if p := state(1); p.DeviceBytes != size || p.FilesystemBytes == 0 || p.FilesystemBytes > size {
		t.Errorf("prepare: %+v", p)
	}
	// More than there is, is what there is.
	s.send(frame.IDLifecycle, agent.RootDiskGrow, agent.RootDiskPayload{SizeBytes: 1 << 30})
	if p := state(2); p.DeviceBytes != size || p.FilesystemBytes != size {
		t.Errorf("grow: %+v", p)
	}
	s.send(5, agent.RootDiskPrepare, agent.RootDiskPayload{})
	if f := failure(t, s.awaitType(5, agent.Error)); f != "invalid_session " {
		t.Errorf("a client was told %s", f)
	}
	s.shutdown()
}
