package agent

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// gate is a port that the host reads only when the test says so.
type gate struct {
	mu   sync.Mutex
	cond sync.Cond
	open bool
	err  error
	buf  bytes.Buffer
}

func newGate() *gate {
	g := &gate{}
	g.cond.L = &g.mu
	return g
}

func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for !g.open && g.err == nil {
		g.cond.Wait()
	}
	if g.err != nil {
		return 0, g.err
	}
	return g.buf.Write(p)
}

func (g *gate) set(open bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open, g.err = open, err
	g.cond.Broadcast()
}

// frames parses what has left.
func (g *gate) frames(t *testing.T) (ids []uint32, types []agent.Type) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	r := frame.NewReader(bytes.NewReader(g.buf.Bytes()))
	for {
		f, err := r.Next()
		if err == io.EOF {
			return ids, types
		}
		if err != nil {
			t.Fatal(err)
		}
		var ty agent.Type
		if f.Flags != frame.FlagBulk {
			env, err := agent.ParseEnvelope(f.Body)
			if err != nil {
				t.Fatal(err)
			}
			ty, _ = env.Type()
		}
		ids, types = append(ids, f.ID), append(types, ty)
	}
}

func stopped(t *testing.T, o *output) {
	t.Helper()
	select {
	case <-o.done:
	case <-time.After(time.Minute):
		t.Fatal("the writer did not end")
	}
}

// While the port is stuck, several commands print and somebody pings: the answer to the ping leaves first, then the
// commands take turns, each in its own order, and each waits at its own bound.
func TestOutputOrder(t *testing.T) {
	g := newGate()
	o := newOutput(g, nil)
	if err := o.send(99, agent.Pong, agent.Empty{}); err != nil { // the writer is stuck with this one
		t.Fatal(err)
	}
	for taken := false; !taken; {
		o.mu.Lock()
		taken = o.taken > 0
		o.mu.Unlock()
	}
	var senders sync.WaitGroup
	big := make([]byte, 20<<10)
	for id := uint32(1); id <= 3; id++ {
		senders.Go(func() {
			for range 5 {
				if err := o.send(id, agent.ExecStdout, agent.Data{Data: big}); err != nil {
					t.Error(err)
				}
			}
			if err := o.send(id, agent.ExecExited, agent.ExecExitedPayload{}); err != nil {
				t.Error(err)
			}
		})
	}
	for queued := 0; queued < 3; {
		o.mu.Lock()
		queued = len(o.heavy.queues)
		o.mu.Unlock()
	}
	if err := o.send(7, agent.Pong, agent.Empty{}); err != nil {
		t.Fatal(err)
	}
	g.set(true, nil)
	senders.Wait()
	o.close()
	stopped(t, o)
	ids, types := g.frames(t)
	if len(ids) != 2+3*6 || ids[1] != 7 {
		t.Fatalf("left: %v", ids)
	}
	if a, b, c := ids[2], ids[3], ids[4]; a == b || b == c || a == c {
		t.Errorf("no turns: %v", ids)
	}
	last := map[uint32]agent.Type{}
	for i, id := range ids {
		if last[id] == agent.ExecExited {
			t.Errorf("%s after the terminal message of %d", types[i], id)
		}
		last[id] = types[i]
	}
}

func TestOutputBounds(t *testing.T) {
	g := newGate()
	o := newOutput(g, nil)
	sent := make(chan error)
	go func() {
		for {
			if err := o.send(1, agent.ExecStdout, agent.Data{Data: make([]byte, 1000)}); err != nil {
				sent <- err
				return
			}
		}
	}()
	for full := false; !full; {
		o.mu.Lock()
		q := o.queues[1]
		full = q != nil && q.waiting > 0
		if q != nil && q.bytes > queueBytes {
			t.Errorf("%d bytes queued", q.bytes)
		}
		o.mu.Unlock()
	}
	// The client goes: its sender is told, and another client of the range is served again.
	o.closeOwner(0)
	if err := <-sent; !errors.Is(err, port.ErrClosed) {
		t.Errorf("a sender of a client that is gone gets %v", err)
	}
	if err := o.send(2, agent.Pong, agent.Empty{}); !errors.Is(err, port.ErrClosed) {
		t.Errorf("a message for it: %v", err)
	}
	o.openOwner(0)
	if err := o.send(3, agent.Pong, agent.Empty{}); err != nil {
		t.Error(err)
	}
	g.set(true, nil)
	o.close()
	stopped(t, o)
	ids, _ := g.frames(t)
	if ids[len(ids)-1] != 3 || len(ids) > 3+batchBytes/1000 {
		t.Errorf("left: %v", ids)
	}
}

func TestOutputEndsWithItsPort(t *testing.T) {
	g := newGate()
	o := newOutput(g, nil)
	errs := make(chan error, 3)
	go func() { errs <- o.send(1, agent.ExecStdout, agent.Data{Data: make([]byte, 1<<20)}) }()
	go func() { errs <- o.lend(2, entry{head: []byte("h"), body: []byte("b"), data: true}) }()
	g.set(false, io.ErrClosedPipe)
	for range 2 {
		if err := <-errs; !errors.Is(err, port.ErrClosed) {
			t.Errorf("got %v", err)
		}
	}
	stopped(t, o)
	if err := o.send(1, agent.Pong, agent.Empty{}); !errors.Is(err, port.ErrClosed) {
		t.Errorf("later: %v", err)
	}
}

func TestHeldOutput(t *testing.T) {
	g := newGate()
	g.set(true, nil)
	o := newOutput(g, nil)
	o.hold()
	if err := o.send(1, agent.ExecStdout, agent.Data{Data: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if err := o.send(2, agent.Pong, agent.Empty{}); err != nil {
		t.Fatal(err)
	}
	for {
		if ids, _ := g.frames(t); len(ids) == 1 && ids[0] == 2 {
			break
		}
	}
	o.release()
	o.close()
	stopped(t, o)
	if ids, _ := g.frames(t); len(ids) != 2 || ids[1] != 1 {
		t.Errorf("left: %v", ids)
	}
}

func TestCredit(t *testing.T) {
	told := make(chan struct{}, 100)
	c := newCredit(func() { told <- struct{}{} })
	defer c.stop()
	if !c.admit(controlClass, 100) || !c.admit(dataClass, 32<<20) || c.admit(dataClass, 1) {
		t.Fatal("the initial grants are not kept")
	}
	if got := c.position(); got.ControlFrames != 1 || got.BulkFrames != 2 || got.BulkBytes != 32<<20+1 {
		t.Errorf("position %+v", got)
	}
	if _, ok := c.grant(); ok {
		t.Error("a grant of nothing")
	}
	c.release(controlClass, 1, 100)
	<-told // soon, since nothing else happens
	p, ok := c.grant()
	if !ok || p.ControlBytes != agent.InitialGrants.ControlBytes+100 || p.ControlFrames != agent.InitialGrants.ControlFrames+1 || p.BulkBytes != agent.InitialGrants.BulkBytes {
		t.Errorf("grant %+v %v", p, ok)
	}
	c.release(dataClass, 1, creditBytes)
	<-told // at once
	if p, _ = c.grant(); p.BulkBytes != agent.InitialGrants.BulkBytes+creditBytes {
		t.Errorf("grant %+v", p)
	}
	if !c.admit(dataClass, 1) {
		t.Error("what was granted is not admitted")
	}
}

// A host that asks hears whose data was consumed, before it may send the same again.
func TestConsumedInput(t *testing.T) {
	c := newCredit(func() {})
	defer c.stop()
	read := func() (by map[uint32]agent.ConsumedInput, limits agent.Position) {
		by = map[uint32]agent.ConsumedInput{}
		r := frame.NewReader(bytes.NewReader(c.news(nil)))
		for {
			f, err := r.Next()
			if err == io.EOF {
				return by, limits
			}
			e, _ := agent.ParseEnvelope(f.Body)
			switch typ, _ := e.Type(); typ {
			case agent.InputConsumed:
				if limits != (agent.Position{}) {
					t.Error("the report comes after its credit")
				}
				for _, x := range payload[agent.InputConsumedPayload](t, e.P).Operations {
					by[x.ID] = x
				}
			case agent.TransportCredit:
				limits = payload[agent.Position](t, e.P)
			default:
				t.Errorf("%s on channel %d", e.T, f.ID)
			}
		}
	}
	c.release(dataClass, 5, 100)
	if by, _ := read(); len(by) > 0 {
		t.Errorf("reported without being asked: %v", by)
	}
	c.watch()
	c.release(dataClass, 5, 100)
	c.release(dataClass, 6, 30)
	c.release(dataClass, 5, 1)
	c.release(controlClass, 7, 1)
	by, limits := read()
	if len(by) != 2 || by[5].Bytes != 101 || by[5].Frames != 2 || by[6].Bytes != 30 || by[6].Frames != 1 {
		t.Errorf("reported %v", by)
	}
	if want := agent.InitialGrants.BulkBytes + 231; limits.BulkBytes != want {
		t.Errorf("granted %d, want %d", limits.BulkBytes, want)
	}
	if news := c.news(nil); len(news) > 0 {
		t.Errorf("told twice: %x", news)
	}
	for id := range uint32(5000) { // a host that does not count
		c.release(dataClass, id, 1)
	}
	if by, _ := read(); len(by) != maxReported {
		t.Errorf("reported %d operations", len(by))
	}
}
