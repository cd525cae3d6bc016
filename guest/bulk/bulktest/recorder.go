// Package bulktest has a port.Out that records, for the tests of services.
package bulktest

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// patience is how long a test waits for a frame before it fails.
const patience = 20 * time.Second

// Frame is one thing a service sent.
type Frame struct {
	ID      uint32
	Type    agent.Type // 0 for a raw record
	Payload []byte     // encoded payload of a message
	Bulk    frame.Bulk // raw record
}

// String describes a frame for a failed test.
func (f Frame) String() string {
	if f.Type == 0 {
		return fmt.Sprintf("bulk id %d kind %d flow %d offset %d len %d", f.ID, f.Bulk.Kind, f.Bulk.Flow, f.Bulk.Offset, len(f.Bulk.Payload))
	}
	return fmt.Sprintf("%s id %d %x", f.Type, f.ID, f.Payload[:min(len(f.Payload), 200)])
}

// Recorder keeps everything a service sends, in order. The zero value is not ready; use New.
type Recorder struct {
	mu     sync.Mutex
	change chan struct{} // closed and replaced when something arrives
	frames []Frame
	closed bool
	gate   chan struct{} // not nil: sends of data wait for it
}

// New returns a Recorder.
func New() *Recorder { return &Recorder{change: make(chan struct{})} }

// Send implements port.Out.
func (r *Recorder) Send(id uint32, t agent.Type, payload any) error {
	p, err := agent.EncodePayload(payload)
	if err != nil {
		return err
	}
	if t == agent.FSData || t == agent.TCPData {
		r.pass()
	}
	return r.add(Frame{ID: id, Type: t, Payload: bytes.Clone(p)})
}

// SendBulk implements port.Out.
func (r *Recorder) SendBulk(id uint32, kind, flow byte, offset uint64, payload []byte) error {
	r.pass()
	return r.add(Frame{ID: id, Bulk: frame.Bulk{ID: id, Kind: kind, Flow: flow, Offset: offset, Payload: bytes.Clone(payload)}})
}

func (r *Recorder) pass() {
	r.mu.Lock()
	gate := r.gate
	r.mu.Unlock()
	if gate != nil {
		<-gate
	}
}

func (r *Recorder) add(f Frame) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return port.ErrClosed
	}
	r.frames = append(r.frames, f)
	close(r.change)
	r.change = make(chan struct{})
	return nil
}

// Hold makes sends of data wait until the returned function is called.
func (r *Recorder) Hold() (open func()) {
	gate := make(chan struct{})
	r.mu.Lock()
	r.gate = gate
	r.mu.Unlock()
	return sync.OnceFunc(func() { close(gate) })
}

// Close makes every later send fail.
func (r *Recorder) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
}

// Next removes and returns the oldest frame with this id.
func (r *Recorder) Next(t testing.TB, id uint32) Frame {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		r.mu.Lock()
		for i, f := range r.frames {
			if f.ID == id {
				r.frames = append(r.frames[:i:i], r.frames[i+1:]...)
				r.mu.Unlock()
				return f
			}
		}
		change := r.change
		r.mu.Unlock()
		select {
		case <-change:
		case <-limit.C:
			t.Fatalf("no frame for id %d", id)
		}
	}
}

// Drop forgets the frames with this id that nobody has taken.
func (r *Recorder) Drop(id uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frames = slices.DeleteFunc(r.frames, func(f Frame) bool { return f.ID == id })
}

// Pending returns the frames that nobody has taken.
func (r *Recorder) Pending() []Frame {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Frame(nil), r.frames...)
}

// Decode decodes the payload of a message of type want.
func Decode[P any](t testing.TB, f Frame, want agent.Type) P {
	t.Helper()
	var p P
	if f.Type != want {
		t.Fatalf("got %v, want %v", f, want)
	}
	if err := agent.DecodePayload(f.Payload, &p); err != nil {
		t.Fatalf("%v: %v", f, err)
	}
	return p
}
