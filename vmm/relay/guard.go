package relay

import (
	"fmt"
	"strings"

	"github.com/fxamacker/cbor/v2"

	"msb/protocol/agent"
)

// message is what the relay reads of a client's envelope: never the payload, but for an opening request's
// key "bulk".
type message struct {
	name  string
	v     uint8
	t     agent.Type // zero when unknown
	known bool
	p     []byte
}

// readMessage opens an envelope by the rules for clients: a well-formed map with exactly one text t and
// nothing behind it. What a stock guest would die of is an error here, so that only its sender suffers.
func readMessage(body []byte) (m message, err error) {
	name, err := agent.ScanType(body)
	if err != nil {
		return m, err
	}
	if strings.HasPrefix(name, "control.") {
		return m, fmt.Errorf("%q belongs to the control protocol", name)
	}
	e, err := agent.ParseEnvelope(body)
	if err != nil {
		return m, err
	}
	// Three pairs of which v, t and p are there: no key comes twice. Any other map is looked at closely.
	if body[0] != 0xa3 && !(len(body) > 2 && body[0] == 0xb9 && body[1] == 0 && body[2] == 3) {
		if err := strictMap.Wellformed(body); err != nil {
			return m, err
		}
		var keys map[any]cbor.RawMessage
		if err := strictMap.Unmarshal(body, &keys); err != nil {
			return m, err
		}
	}
	m = message{name: name, v: e.V, p: e.P}
	m.t, m.known = agent.ParseType(name)
	return m, nil
}

var strictMap = func() cbor.DecMode {
	m, err := cbor.DecOptions{DupMapKey: cbor.DupMapKeyEnforcedAPF, MaxNestedLevels: 64}.DecMode()
	if err != nil {
		panic(err) // constant options
	}
	return m
}()

// readMessage is the function readMessage for this relay's guest: in front of one that exits on an envelope it cannot read, only
// encodings that every decoder takes pass.
func (r *Relay) readMessage(body []byte) (message, error) {
	m, err := readMessage(body)
	if err == nil && r.shield {
		err = agent.CheckPlain(body)
	}
	return m, err
}

// reserved are the messages that only the runtime may send: a client that could would speak for all others.
func reserved(t agent.Type) bool {
	switch t {
	case agent.Bootstrap, agent.InitAck, agent.ClientDisconnected, agent.ClockSync,
		agent.WorkloadFreeze, agent.WorkloadThaw, agent.RootDiskPrepare, agent.RootDiskGrow, agent.InputWatch:
		return true
	}
	return false
}

// refusal says why a message must not reach the guest, "" when it may. A stock guest exits on a type that
// it does not know; one of ours answers by itself and is not shielded.
func (r *Relay) refusal(m message) string {
	switch {
	case m.known && reserved(m.t):
		return fmt.Sprintf("%s is for the runtime of the sandbox, not for its clients", m.name)
	case !r.shield:
		return ""
	case !m.known:
		return fmt.Sprintf("the guest does not know %q", m.name)
	case !m.t.AvailableTo(r.guest.Generation, r.guest.Ready.Extensions):
		return fmt.Sprintf("%s needs %s, which this guest of generation %d does not have: restart the sandbox to bring its agent up to date", m.name, m.t.Needs(), r.guest.Generation)
	}
	return ""
}

// offers says whether an opening request offers raw records, and of which kind.
func offers(m message) bool {
	switch m.t {
	case agent.FSRequest, agent.TCPConnect, agent.NodeRequest:
	default:
		return false
	}
	var p struct {
		Bulk cbor.RawMessage `cbor:"bulk"`
	}
	if _, err := lenient.UnmarshalFirst(m.p, &p); err != nil {
		return false // the guest refuses the payload
	}
	return len(p.Bulk) > 0 && p.Bulk[0] != 0xf6 && p.Bulk[0] != 0xf7
}

var lenient = func() cbor.DecMode {
	m, err := cbor.DecOptions{MaxNestedLevels: 64}.DecMode()
	if err != nil {
		panic(err) // constant options
	}
	return m
}()
