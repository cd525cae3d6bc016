package relay

import (
	"slices"
	"strings"
	"syscall"
	"testing"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

func nodeRequest(t testing.TB, id uint32) []byte {
	size := uint64(1 << 20)
	return encode(t, id, agent.NodeRequest, 9, agent.NodeRequestPayload{
		Ops:  []agent.NodeOp{&agent.NodeReadStream{Handle: 1 << 41, Len: &size}},
		Bulk: &agent.BulkOffer{Format: 1, MaxRecordPayload: 1 << 20, GuestToHostCreditLimit: 8 << 20},
	})
}

// Extensions have the limits of core operations.
func TestExtensionBulkLimits(t *testing.T) {
	r := newRig(t, kind{generation: 9})
	p := r.dial()
	for id := uint32(1); id <= maxBulk; id++ {
		p.send(nodeRequest(t, id))
		r.guest.want(nodeRequest(t, id))
	}
	p.send(nodeRequest(t, 100))
	f := p.next()
	e, err := agent.ParseEnvelope(f.Body)
	if err != nil || f.ID != 100 || e.T != agent.NodeResponse.String() {
		t.Fatalf("%v: %d %s", err, f.ID, e.T)
	}
	answer, err := agent.DecodeNodeResponse(e.P, []agent.NodeOp{&agent.NodeReadStream{}})
	if err != nil || answer.Errno != uint32(syscall.EAGAIN) || answer.Message == "" {
		t.Errorf("%v: answer %+v", err, answer)
	}
	// A record of the kind passes, in both directions; the terminal answer makes room.
	record := encodeBulk(t, 1, frame.BulkFilesystem, frame.FlowHostToGuest, 0, []byte("x"))
	p.send(record)
	r.guest.want(record)
	done := encode(t, 1, agent.NodeResponse, 9, agent.NodeResponsePayload{Errno: 5})
	r.guest.send(done)
	p.want(done)
	p.send(nodeRequest(t, 101))
	r.guest.want(nodeRequest(t, 101))
	// A record of another kind is misuse.
	p.send(encodeBulk(t, 2, frame.BulkTCP, frame.FlowHostToGuest, 0, []byte("x")))
	p.dropped()
}

// A command that msb.exec started is killed with its client.
func TestExtensionCommandsAreKilled(t *testing.T) {
	r := newRig(t, kind{generation: 9, leases: true})
	p := r.dial()
	r.guest.lease()
	for id, open := range map[uint32][]byte{
		7: encode(t, 7, agent.ExecOpen, 9, agent.ExecOpenPayload{Request: agent.ExecRequestPayload{Cmd: "sleep"}}),
		8: encode(t, 8, agent.ExecRequest, 9, agent.ExecRequestPayload{Cmd: "sleep"}),
		9: nodeRequest(t, 9),
	} {
		p.send(open)
		r.guest.want(open)
		_ = id
	}
	p.conn.Close()
	killed, _ := r.guest.gone()
	slices.Sort(killed)
	if !slices.Equal(killed, []uint32{7, 8}) {
		t.Errorf("killed %v", killed)
	}
}

// A guest that would die of them never sees them.
func TestExtensionsAreKeptFromAGuestThatDoesNotListThem(t *testing.T) {
	r := newRig(t, kind{generation: 9, opts: Options{Shield: true}})
	p := r.dial()
	for _, typ := range agent.ExtensionTypes() {
		p.send(encode(t, 5, typ, 9, agent.Empty{}))
		why := "extension msb."
		if reserved(typ) {
			why = "for the runtime"
		}
		var refused agent.ErrorPayload
		if f := p.message(agent.Error, &refused); f.ID != 5 || refused.Kind != agent.KindUnsupportedType || !strings.Contains(refused.Message, why) {
			t.Errorf("%s: %+v", typ, refused)
		}
	}
	r.alive(p, 6)
}
