package relay

import (
	"testing"
	"time"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// An answer to a ping passes megabytes that the client has not read yet; what belongs to one operation stays in order.
func TestSmallFramesPassOtherOperations(t *testing.T) {
	r := newRig(t, kind{generation: 9})
	p := r.dial()
	p.send(readRequest(t, 1))
	r.guest.next()
	const records, size = 12, 1 << 20
	var wire []byte
	for i := range uint64(records) {
		wire = append(wire, encodeBulk(t, 1, frame.BulkFilesystem, frame.FlowGuestToHost, i*size, make([]byte, size))...)
	}
	end := finish(t, 1, records*size)
	pong := encode(t, 2, agent.Pong, 9, agent.Empty{})
	wire = append(append(append(wire, end...), ended(t, 1)...), pong...)
	r.guest.send(wire)
	for end := time.Now().Add(patience); r.relay.Stats().Waiting < int64(len(wire)); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes wait, want %d", r.relay.Stats().Waiting, len(wire))
		}
	}
	offset, passed, order := uint64(0), -1, []string{}
	for len(order) < 3 {
		f := p.next()
		if f.Flags != frame.FlagBulk {
			order = append(order, name(f))
			if f.ID == 2 {
				passed = int(offset / size)
			}
			continue
		}
		rec, err := frame.ParseBulk(f)
		if err != nil || rec.Offset != offset {
			t.Fatalf("record at %d where %d is due, %v", rec.Offset, offset, err)
		}
		offset += uint64(len(rec.Payload))
	}
	if passed < 0 || passed > 1 || order[1] != agent.BulkFinish.String() || order[2] != agent.FSResponse.String() {
		t.Errorf("the pong came behind %d records, the others as %v", passed, order)
	}
}

// A flood of small frames does not hold the large ones up for ever.
func TestLargeFramesGetTheirTurn(t *testing.T) {
	r := newRig(t, kind{generation: 9})
	o := newOutbox(&r.relay.waiting)
	o.push(newPacket(encodeBulk(t, 1, frame.BulkFilesystem, frame.FlowGuestToHost, 0, make([]byte, 1<<20))))
	for range 1000 {
		o.push(newPacket(encode(t, 2, agent.Pong, 9, agent.Empty{})))
	}
	batch := o.take(make([]*packet, 0, 64))
	if last := batch[len(batch)-1]; !last.isBulk() || len(batch) != 64 {
		t.Errorf("a batch of %d frames ends with one for id %d", len(batch), last.id())
	}
	o.wrote()
	o.close()
}
