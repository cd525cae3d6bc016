package files

import (
	"os"
	"runtime"
	"sync"
	"testing"

	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// counter is an Out that counts what each stream sends.
type counter struct {
	mu    sync.Mutex
	bytes map[uint32]int
	ends  chan agent.FSResponsePayload
}

func (k *counter) Send(id uint32, t agent.Type, payload any) error {
	if p, ok := payload.(agent.FSResponsePayload); ok {
		k.ends <- p
	}
	return nil
}

func (k *counter) SendBulk(id uint32, kind, flow byte, offset uint64, payload []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.bytes[id] += len(payload)
	return nil
}

// Every client there can be reads and writes with as many operations as a relay lets it have, all at once.
func TestAllClientsAtOnce(t *testing.T) {
	const operations, size = 64, 300 << 10
	k := &counter{bytes: map[uint32]int{}, ends: make(chan agent.FSResponsePayload, frame.MaxClients*operations)}
	s := New(k)
	defer s.Close()
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/in", make([]byte, size), 0o644); err != nil {
		t.Fatal(err)
	}
	request := func(slot, n uint32, op agent.FSOp, offer *agent.BulkOffer) uint32 {
		p, err := agent.EncodePayload(agent.FSRequestPayload{Op: op, Bulk: offer})
		if err != nil {
			t.Fatal(err)
		}
		id := slot*frame.RangeStep + n
		s.Request(slot, id, 9, p, noRelease)
		return id
	}
	handles := make([]uint64, frame.MaxClients)
	for slot := range handles {
		request(uint32(slot), 1, agent.OpOpenFile{Path: dir + "/in", Options: agent.OpenOptions{Read: true, Write: true}}, nil)
		r := <-k.ends
		h, ok := r.Data.(agent.FSHandle)
		if !ok {
			t.Fatal(r)
		}
		handles[slot] = uint64(h)
	}
	record := make([]byte, 16<<10)
	for n := range uint32(operations) {
		for slot, h := range handles {
			if n%2 == 0 {
				request(uint32(slot), 10+n, agent.OpRead{Handle: h}, readOffer())
				continue
			}
			id := request(uint32(slot), 10+n, agent.OpWrite{Handle: h, Offset: size}, nil)
			s.Data(port.Input{ID: id, Data: record, Release: noRelease})
			s.Data(port.Input{ID: id, Release: noRelease})
		}
	}
	for range frame.MaxClients * operations {
		if r := <-k.ends; !r.OK {
			t.Fatal(*r.Error)
		}
	}
	for id, n := range k.bytes {
		if n < size {
			t.Errorf("id %d: %d bytes", id, n)
		}
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	t.Logf("%d operations, %d MiB of memory from the system", frame.MaxClients*operations, m.Sys>>20)
	for slot := range handles {
		<-s.CloseOwner(uint32(slot))
	}
}
