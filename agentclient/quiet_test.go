package agentclient

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// quietGuest serves raw bulk reads and writes of size bytes and allocates
// nothing while it does.
func quietGuest(conn net.Conn, size int) {
	must := func(b []byte, err error) []byte {
		if err != nil {
			panic(err)
		}
		return b
	}
	const record = 256 << 10
	msg := func(t agent.Type, payload any) []byte { return must(agent.AppendFrame(nil, 0, t, 9, payload)) }
	down := msg(agent.BulkAccepted, agent.BulkAcceptedPayload{Kind: 1, Flows: 2, Format: 1, MaxRecordPayload: record, GuestToHostCreditLimit: frame.DefaultBulkWindow})
	up := msg(agent.BulkAccepted, agent.BulkAcceptedPayload{Kind: 1, Flows: 1, Format: 1, MaxRecordPayload: record, HostToGuestCreditLimit: frame.MaxBulkWindow})
	finish := msg(agent.BulkFinish, agent.BulkFinishPayload{Kind: 1, Flow: 2, FinalOffset: uint64(size)})
	ok := msg(agent.FSResponse, agent.FSResponsePayload{OK: true})
	ready := msg(agent.Ready, agent.ReadyPayload{})
	conn.Write(append(words(1, frame.RangeStep), ready...))

	in := make([]byte, 1<<20)
	out := make([]byte, frame.BulkOverhead+record)
	put := func(id uint32, b []byte) {
		binary.BigEndian.PutUint32(b[4:], id)
		conn.Write(b)
	}
	var head [frame.Overhead]byte
	next := func() (id uint32, flags uint8, body []byte, good bool) {
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return 0, 0, nil, false
		}
		body = in[:binary.BigEndian.Uint32(head[:])-frame.HeaderSize]
		_, err := io.ReadFull(conn, body)
		return binary.BigEndian.Uint32(head[4:]), head[8], body, err == nil
	}
	for {
		id, flags, body, good := next()
		if !good {
			return
		}
		if flags == frame.FlagSessionStart && bytesContain(body, "Read") {
			put(id, down)
			limit := frame.DefaultBulkWindow
			for off := 0; off < size; off += record {
				for off+record > limit {
					if _, _, _, good := next(); !good { // a credit
						return
					}
					limit += frame.DefaultBulkWindow / 2
				}
				frame.PutBulkHeader(out, id, 1, 2, uint64(off), record)
				conn.Write(out)
			}
			put(id, finish)
			put(id, ok)
		}
		if flags == frame.FlagSessionStart && bytesContain(body, "Write") {
			put(id, up)
		}
		if flags == 0 && bytesContain(body, "core.bulk.finish") {
			put(id, ok)
		}
	}
}

func bytesContain(b []byte, s string) bool {
	for i := 0; i+len(s) <= len(b); i++ {
		if string(b[i:i+len(s)]) == s {
			return true
		}
	}
	return false
}

// Raw bulk costs no allocation per record: eight times the data, the same
// allocations.
func TestBulkAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("pools forget on purpose under the race detector")
	}
	per := func(size int) (down, up float64) {
		a, b := socketPair(t)
		defer b.Close()
		go quietGuest(b, size)
		c, err := New(within(t), a)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		f := &File{handle: handle{c: c, id: 1}}
		ctx := context.Background()
		down = testing.AllocsPerRun(5, func() {
			if n, err := f.Download(ctx, discard{}, 0, nil); n != int64(size) || err != nil {
				t.Error(n, err)
			}
		})
		src := make([]byte, size)
		up = testing.AllocsPerRun(5, func() {
			if n, err := f.WriteAt(ctx, src, 0); n != size || err != nil {
				t.Error(n, err)
			}
		})
		return down, up
	}
	down1, up1 := per(4 << 20)
	down8, up8 := per(32 << 20)
	const records = 28 << 20 / (256 << 10)
	// Pools may be emptied by the collector and credits are messages.
	if d := down8 - down1; d > records/2 {
		t.Errorf("download: %v allocations more for %d records", d, records)
	}
	if d := up8 - up1; d > records/2 {
		t.Errorf("upload: %v allocations more for %d records", d, records)
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
