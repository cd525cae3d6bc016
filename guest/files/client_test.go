package files

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"msb/guest/bulk/bulktest"
	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// client drives a Service the way the agent's main loop does.
type client struct {
	t    testing.TB
	s    *Service
	out  *bulktest.Recorder
	slot uint32
	last uint32
	dir  string
}

func newClient(t testing.TB, opts ...Option) *client {
	out := bulktest.New()
	c := &client{t: t, s: New(out, opts...), out: out, dir: t.TempDir()}
	t.Cleanup(c.s.Close)
	return c
}

// other returns a client of another slot of the same service.
func (c *client) other(slot uint32) *client {
	return &client{t: c.t, s: c.s, out: c.out, slot: slot, dir: c.dir}
}

func (c *client) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}

func (c *client) id() uint32 {
	c.last++
	return c.slot*frame.RangeStep + c.last
}

func noRelease() {}

// start sends a request and returns its id.
func (c *client) start(op agent.FSOp, offer *agent.BulkOffer) uint32 {
	c.t.Helper()
	id := c.id()
	c.send(id, 9, op, offer)
	return id
}

func (c *client) send(id uint32, v uint8, op agent.FSOp, offer *agent.BulkOffer) {
	c.t.Helper()
	p, err := agent.EncodePayload(agent.FSRequestPayload{Op: op, Bulk: offer})
	if err != nil {
		c.t.Fatal(err)
	}
	c.s.Request(c.slot, id, v, p, noRelease)
}

// response returns the terminal answer of id, which must be the next frame.
func (c *client) response(id uint32) agent.FSResponsePayload {
	c.t.Helper()
	return bulktest.Decode[agent.FSResponsePayload](c.t, c.out.Next(c.t, id), agent.FSResponse)
}

// do runs an operation that does not stream.
func (c *client) do(op agent.FSOp) (agent.FSValue, error) {
	c.t.Helper()
	return result(c.response(c.start(op, nil)))
}

func result(r agent.FSResponsePayload) (agent.FSValue, error) {
	if r.OK {
		return r.Data, nil
	}
	return nil, errors.New(*r.Error)
}

func (c *client) must(op agent.FSOp) agent.FSValue {
	c.t.Helper()
	v, err := c.do(op)
	if err != nil {
		c.t.Fatalf("%#v: %v", op, err)
	}
	return v
}

func (c *client) fails(op agent.FSOp, want string) {
	c.t.Helper()
	v, err := c.do(op)
	if err == nil {
		c.t.Errorf("%#v: got %v, want the error %q", op, v, want)
	} else if err.Error() != want {
		c.t.Errorf("%#v: got %q, want %q", op, err, want)
	}
}

func (c *client) open(path string, opt agent.OpenOptions) uint64 {
	c.t.Helper()
	return uint64(c.must(agent.OpOpenFile{Path: path, Options: opt}).(agent.FSHandle))
}

// openRW opens a file for reading and writing and makes it if need be.
func (c *client) openRW(path string) uint64 {
	c.t.Helper()
	return c.open(path, agent.OpenOptions{Read: true, Write: true, Create: true})
}

func (c *client) data(id uint32, data string) {
	c.s.Data(port.Input{ID: id, Data: []byte(data), Release: noRelease})
}

func (c *client) record(id uint32, offset uint64, payload []byte) {
	c.s.Bulk(frame.Bulk{ID: id, Kind: frame.BulkFilesystem, Flow: frame.FlowHostToGuest, Offset: offset, Payload: payload}, noRelease)
}

func (c *client) finish(id uint32, final uint64) {
	c.s.Finish(id, agent.BulkFinishPayload{Kind: frame.BulkFilesystem, Flow: frame.FlowHostToGuest, FinalOffset: final})
}

func (c *client) credit(id uint32, consumed, limit uint64) {
	c.s.Credit(id, agent.BulkCreditPayload{Kind: frame.BulkFilesystem, Flow: frame.FlowGuestToHost, ConsumedOffset: consumed, CreditLimit: limit})
}

func (c *client) accepted(id uint32) agent.BulkAcceptedPayload {
	c.t.Helper()
	return bulktest.Decode[agent.BulkAcceptedPayload](c.t, c.out.Next(c.t, id), agent.BulkAccepted)
}

// violated expects a cancel with reason 5 and a terminal failure, both with this text.
func (c *client) violated(id uint32, text string) {
	c.t.Helper()
	m := bulktest.Decode[agent.BulkCancelPayload](c.t, c.out.Next(c.t, id), agent.BulkCancel)
	if m.Reason != agent.CancelProtocol || m.Message != text || m.Kind != frame.BulkFilesystem {
		c.t.Errorf("cancel %+v, want the text %q", m, text)
	}
	c.failed(id, text)
}

// failed expects a terminal failure with this text.
func (c *client) failed(id uint32, text string) {
	c.t.Helper()
	if _, err := result(c.response(id)); err == nil || err.Error() != text {
		c.t.Errorf("terminal answer %v, want %q", err, text)
	}
}

// quiet checks that nothing was sent that nobody expected.
func (c *client) quiet() {
	c.t.Helper()
	for _, f := range c.out.Pending() {
		c.t.Errorf("unexpected %v", f)
	}
}

func ptr[T any](v T) *T { return &v }

func writeFile(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func content(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func readOffer() *agent.BulkOffer {
	return &agent.BulkOffer{Format: 1, MaxRecordPayload: frame.MaxBulkRecord, GuestToHostCreditLimit: frame.DefaultBulkWindow}
}

func writeOffer() *agent.BulkOffer {
	return &agent.BulkOffer{Format: 1, MaxRecordPayload: frame.MaxBulkRecord}
}

func pattern(n int) []byte { return []byte(strings.Repeat("0123456789abcdef", n/16+1)[:n]) }
