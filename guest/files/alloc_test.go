package files

import (
	"os"
	"testing"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// Moving records allocates nothing for each: a stream of many costs what one of few does.
func TestNoAllocationPerRecord(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector's pools allocate")
	}
	const records, size = 2048, 16 << 10
	k := &sink{terminal: make(chan agent.FSResponsePayload, 1), credit: make(chan agent.BulkCreditPayload, 16)}
	s := New(k)
	k.s = s
	defer s.Close()
	path := t.TempDir() + "/f"
	if err := os.WriteFile(path, make([]byte, records*size), 0o644); err != nil {
		t.Fatal(err)
	}
	request := func(id uint32, op agent.FSOp, offer *agent.BulkOffer) {
		p, err := agent.EncodePayload(agent.FSRequestPayload{Op: op, Bulk: offer})
		if err != nil {
			t.Fatal(err)
		}
		s.Request(0, id, 9, p, noRelease)
	}
	ok := func() {
		if r := <-k.terminal; !r.OK {
			t.Error(*r.Error)
		}
	}
	request(1, agent.OpOpenFile{Path: path, Options: agent.OpenOptions{Read: true, Write: true}}, nil)
	ok()

	id := uint32(10)
	read := testing.AllocsPerRun(5, func() {
		id++
		k.got = 0
		request(id, agent.OpRead{Handle: 1}, &agent.BulkOffer{Format: 1, MaxRecordPayload: size, GuestToHostCreditLimit: frame.DefaultBulkWindow})
		ok()
	})
	record := make([]byte, size)
	write := testing.AllocsPerRun(5, func() {
		id++
		request(id, agent.OpWrite{Handle: 1}, writeOffer())
		limit := uint64(frame.DefaultBulkWindow)
		for off := uint64(0); off < records*size; off += size {
			for off+size > limit {
				limit = (<-k.credit).CreditLimit
			}
			s.Bulk(frame.Bulk{ID: id, Kind: 1, Flow: 1, Offset: off, Payload: record}, noRelease)
		}
		s.Finish(id, agent.BulkFinishPayload{Kind: 1, Flow: 1, FinalOffset: records * size})
		ok()
		for len(k.credit) > 0 {
			<-k.credit
		}
	})
	if read > records/8 || write > records/8 {
		t.Errorf("%.0f allocations for a read and %.0f for a write of %d records", read, write, records)
	}
}
