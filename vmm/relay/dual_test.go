package relay

import (
	"bytes"
	"io"
	"testing"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// openRead opens a bulk read of the first client over two ports.
func openRead(r *rig, id uint32) (*peer, frame.Incarnation) {
	p := r.dial()
	inc := r.guest.lease().Incarnation
	p.send(readRequest(r.t, id))
	r.guest.want(readRequest(r.t, id))
	return p, inc
}

func accepted(t testing.TB, id uint32) []byte {
	return encode(t, id, agent.BulkAccepted, 9, agent.BulkAcceptedPayload{Kind: frame.BulkFilesystem, Flows: agent.MaskGuestToHost,
		Format: 1, MaxRecordPayload: 1 << 20, GuestToHostCreditLimit: 8 << 20})
}

func finish(t testing.TB, id uint32, final uint64) []byte {
	return encode(t, id, agent.BulkFinish, 9, agent.BulkFinishPayload{Kind: frame.BulkFilesystem, Flow: frame.FlowGuestToHost, FinalOffset: final})
}

func ended(t testing.TB, id uint32) []byte {
	return encode(t, id, agent.FSResponse, 9, agent.FSResponsePayload{OK: true})
}

// sendBulk writes records to the bulk port as the guest does.
func (g *guest) sendBulk(inc frame.Incarnation, records ...[]byte) {
	g.t.Helper()
	for _, rec := range records {
		if _, err := g.bulk.Write(append(inc[:], rec...)); err != nil {
			g.t.Fatal(err)
		}
	}
}

func records(t testing.TB, id uint32, texts ...string) (all [][]byte, total uint64) {
	for _, s := range texts {
		all = append(all, encodeBulk(t, id, frame.BulkFilesystem, frame.FlowGuestToHost, total, []byte(s)))
		total += uint64(len(s))
	}
	return all, total
}

// The two ports deliver in any order; the client sees acceptance, records, finish, terminal.
func TestDualPortKeepsTheOrderOfAnOperation(t *testing.T) {
	recs, total := records(t, 1, "first", "second", "third")
	tests := map[string]func(r *rig, p *peer, inc frame.Incarnation){
		"in order": func(r *rig, p *peer, inc frame.Incarnation) {
			r.guest.send(accepted(t, 1))
			p.want(accepted(t, 1))
			r.guest.sendBulk(inc, recs...)
			r.guest.send(finish(t, 1, total), ended(t, 1))
		},
		"finish first": func(r *rig, p *peer, inc frame.Incarnation) {
			r.guest.send(accepted(t, 1), finish(t, 1, total), ended(t, 1))
			p.want(accepted(t, 1))
			r.guest.sendBulk(inc, recs...)
		},
		"finish in the middle": func(r *rig, p *peer, inc frame.Incarnation) {
			r.guest.send(accepted(t, 1))
			p.want(accepted(t, 1))
			r.guest.sendBulk(inc, recs[0])
			r.guest.send(finish(t, 1, total), ended(t, 1))
			r.guest.sendBulk(inc, recs[1:]...)
		},
	}
	for name, script := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, kind{generation: 9, dual: true})
			p, inc := openRead(r, 1)
			script(r, p, inc)
			for _, want := range recs {
				p.want(want)
			}
			p.want(finish(t, 1, total))
			p.want(ended(t, 1))
			// Late records of an operation that is over, and of a client that is not there, go nowhere.
			r.guest.sendBulk(inc, recs[0])
			r.guest.sendBulk(frame.Incarnation{9}, recs[0])
			r.alive(p, 2)
		})
	}
}

func TestDualPortRecordsBeforeTheirAcceptance(t *testing.T) {
	r := newRig(t, kind{generation: 9, dual: true})
	p, inc := openRead(r, 1)
	recs, total := records(t, 1, "a", "bc")
	r.guest.sendBulk(inc, recs...)
	// Another client's record behind them proves that they have been read.
	q, inc2 := func() (*peer, frame.Incarnation) {
		q := r.dial()
		inc := r.guest.lease().Incarnation
		id := q.start
		q.send(readRequest(t, id))
		r.guest.want(readRequest(t, id))
		return q, inc
	}()
	r.guest.send(accepted(t, q.start))
	q.want(accepted(t, q.start))
	other := encodeBulk(t, q.start, frame.BulkFilesystem, frame.FlowGuestToHost, 0, []byte("x"))
	r.guest.sendBulk(inc2, other)
	q.want(other)

	r.guest.send(accepted(t, 1), finish(t, 1, total), ended(t, 1))
	p.want(accepted(t, 1))
	for _, want := range recs {
		p.want(want)
	}
	p.want(finish(t, 1, total))
	p.want(ended(t, 1))
}

func TestDualPortErrorTerminalDoesNotWait(t *testing.T) {
	r := newRig(t, kind{generation: 9, dual: true})
	p, inc := openRead(r, 1)
	why := "read: Input/output error (os error 5)"
	failed := encode(t, 1, agent.FSResponse, 9, agent.FSResponsePayload{Error: &why})
	r.guest.send(accepted(t, 1), failed)
	p.want(accepted(t, 1))
	p.want(failed)
	recs, _ := records(t, 1, "late")
	r.guest.sendBulk(inc, recs...)
	r.alive(p, 2)
}

func TestDualPortFloodBeforeAcceptance(t *testing.T) {
	r := newRig(t, kind{generation: 9, dual: true})
	p, inc := openRead(r, 1)
	other := r.dial()
	r.guest.lease()
	recs, _ := records(t, 1, "x")
	for range maxPendingRecords + 1 {
		r.guest.sendBulk(inc, recs[0])
	}
	p.dropped()
	r.guest.gone()
	r.alive(other, other.start)
}

func TestDualPortWrites(t *testing.T) {
	r := newRig(t, kind{generation: 9, dual: true})
	p := r.dial()
	inc := r.guest.lease().Incarnation
	p.send(writeRequest(t, 1))
	r.guest.want(writeRequest(t, 1))
	record := encodeBulk(t, 1, frame.BulkFilesystem, frame.FlowHostToGuest, 0, bytes.Repeat([]byte("y"), 100000))
	end := encode(t, 1, agent.BulkFinish, 9, agent.BulkFinishPayload{Kind: 1, Flow: 1, FinalOffset: 100000})
	p.send(record, end)
	got := make([]byte, len(inc)+len(record))
	if _, err := io.ReadFull(r.guest.bulk, got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got[:16], inc[:]) || !bytes.Equal(got[16:], record) {
		t.Error("the record on the bulk port is not the client's with its incarnation")
	}
	r.guest.want(end)
}
