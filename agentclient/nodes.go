package agentclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"syscall"

	"msb/protocol/agent"
	"msb/protocol/client"
)

// Nodes is the file system of the guest by node handle, the extension msb.fs.
// A node is a file, whatever its names become. Nodes and open handles belong to
// the guest's table of this connection, or of those that have joined it with
// agent.NodeJoin, and end with the last of them. Pools do not know of them.
//
// Requests of one connection may overtake each other; the operations of one do
// not. See UseDirect for the fast way. Safe for concurrent use.
type Nodes struct {
	c  *Client
	as *agent.NodeIdentity
}

// Nodes returns the client of msb.fs, a *NotOfferedError when the guest does
// not serve it.
func (c *Client) Nodes() (*Nodes, error) {
	if err := c.ready.EnsureVersionCompat(agent.NodeRequest); err != nil {
		return nil, err
	}
	return &Nodes{c: c}, nil
}

// Client returns the connection.
func (n *Nodes) Client() *Client { return n.c }

// As returns the same client for operations done as someone else; nil is the
// guest's root.
func (n *Nodes) As(who *agent.NodeIdentity) *Nodes { return &Nodes{c: n.c, as: who} }

// NodeError is an operation that the guest refused. errors.Is matches Errno and
// so fs.ErrNotExist, fs.ErrExist and fs.ErrPermission.
type NodeError struct {
	Op      string        // "lookup", "rename", …
	Index   int           // of the operation in its request
	Errno   syscall.Errno // never 0
	Message string        // the guest's own words, may be empty; not safe for a terminal as they are
}

func (e *NodeError) Error() string {
	if e.Message != "" {
		return e.Op + ": " + printable(e.Message)
	}
	return e.Op + ": " + e.Errno.Error()
}

// Unwrap returns Errno.
func (e *NodeError) Unwrap() error { return e.Errno }

// Do sends the operations as one request: one round trip. They are done in
// order up to the first that fails, which a *NodeError says; the results of
// those before it are returned with it, as they have been done. A later
// operation may refer to the node or handle of an earlier one by its index.
//
// When ctx ends, the request is cancelled; nodes, handles and locks that it has
// brought all the same are given back.
func (n *Nodes) Do(ctx context.Context, ops ...agent.NodeOp) ([]agent.NodeResult, error) {
	if fit(ops) {
		if d := n.c.directs.Load().take(ctx); d != nil {
			return d.do(ctx, n.as, ops)
		}
	}
	return n.relayed(ctx, ops)
}

// relayed is Do by way of the relay.
func (n *Nodes) relayed(ctx context.Context, ops []agent.NodeOp) ([]agent.NodeResult, error) {
	k := &nodeCall{nodes: n, ops: ops, done: make(chan struct{})}
	s, err := n.c.engine.Subscribe(k)
	if err != nil {
		return nil, err
	}
	ln := laneOf(ops)
	if err := n.c.send(ctx, s, ln, agent.NodeRequest, agent.NodeRequestPayload{Ops: ops, As: n.as}); err != nil {
		s.Close()
		return nil, err
	}
	select {
	case <-k.done:
		return k.take()
	case <-ctx.Done():
	}
	if k.leave() {
		n.c.post(s.ID(), ln, agent.NodeCancel, agent.NodeCancelPayload{})
		return nil, context.Cause(ctx)
	}
	return k.take()
}

// laneOf keeps requests with much data from delaying those without.
func laneOf(ops []agent.NodeOp) client.Lane {
	for _, op := range ops {
		if w, ok := op.(*agent.NodeWrite); ok && len(w.Data) > 4<<10 {
			return client.Data
		}
	}
	return client.Control
}

// nodeCall is a request under way.
type nodeCall struct {
	nodes *Nodes
	ops   []agent.NodeOp
	done  chan struct{}

	mu     sync.Mutex
	left   bool // the caller has gone
	over   bool
	id     uint32
	answer []byte
	err    error
}

func (k *nodeCall) Frame(h client.Header, body *client.Body) {
	if !h.Terminal() {
		return
	}
	m, err := k.nodes.c.open(h, body)
	switch {
	case err != nil:
	case m.t == agent.Error:
		err = agentError(h.ID, m.p)
	case m.t != agent.NodeResponse:
		err = unexpected(h.ID, m)
	}
	k.finish(h.ID, bytes.Clone(m.p), err)
}

func (k *nodeCall) Lost(err *client.LostError) { k.finish(0, nil, err) }

func (k *nodeCall) finish(id uint32, answer []byte, err error) {
	k.mu.Lock()
	k.over, k.id, k.answer, k.err = true, id, answer, err
	left := k.left
	k.mu.Unlock()
	close(k.done)
	if left && err == nil {
		if results, _ := k.take(); len(results) > 0 {
			k.nodes.undo(k.ops, results)
		}
	}
}

// leave notes that the caller has gone; false means that the answer is here.
func (k *nodeCall) leave() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.left = !k.over
	return k.left
}

// take decodes the answer. The results own their bytes.
func (k *nodeCall) take() ([]agent.NodeResult, error) {
	if k.err != nil {
		return nil, k.err
	}
	return nodeResults(k.id, k.answer, k.ops)
}

func nodeResults(id uint32, p []byte, ops []agent.NodeOp) ([]agent.NodeResult, error) {
	r, err := agent.DecodeNodeResponse(p, ops)
	switch {
	case err != nil:
		return nil, &ProtocolError{ID: id, Problem: err.Error()}
	case r.Errno != 0:
		i := len(r.Results)
		return r.Results, &NodeError{Op: agent.NodeOpName(ops[i]), Index: i, Errno: syscall.Errno(r.Errno), Message: r.Message}
	}
	return r.Results, nil
}

// undo gives back what a request has brought that nobody waits for. It runs on
// the connection's reader and does not wait.
func (n *Nodes) undo(ops []agent.NodeOp, results []agent.NodeResult) {
	var back []agent.NodeOp
	var counts []agent.NodeCount
	for i, r := range results {
		switch r := r.(type) {
		case *agent.NodeEntryResult:
			counts = append(counts, agent.NodeCount{Node: r.Node, N: 1})
		case *agent.NodeCreatedResult:
			counts = append(counts, agent.NodeCount{Node: r.Node, N: 1})
			back = append(back, &agent.NodeClose{Handle: r.Handle})
		case *agent.NodeHandleResult:
			back = append(back, &agent.NodeClose{Handle: r.Handle})
		case *agent.NodeListResult:
			for _, e := range r.Entries {
				if e.Node != 0 {
					counts = append(counts, agent.NodeCount{Node: e.Node, N: 1})
				}
			}
		}
		if lock, ok := ops[i].(*agent.NodeLock); ok && lock.Type != agent.NodeUnlock && lock.Handle >= agent.MaxNodeOps {
			drop := *lock
			drop.Type, drop.Wait = agent.NodeUnlock, false
			back = append(back, &drop)
		}
	}
	if len(counts) > 0 {
		back = append(back, &agent.NodeForget{Nodes: counts})
	}
	for _, op := range back { // one request each: an error of one does not keep the others
		if s, err := n.c.engine.Subscribe(ignore{}); err == nil {
			n.c.post(s.ID(), client.Control, agent.NodeRequest, agent.NodeRequestPayload{Ops: []agent.NodeOp{op}})
			s.Close()
		}
	}
}

// one runs a single operation.
func one[R agent.NodeResult](ctx context.Context, n *Nodes, op agent.NodeOp) (R, error) {
	results, err := n.Do(ctx, op)
	if err != nil {
		var zero R
		return zero, err
	}
	return results[0].(R), nil
}

// Attach opens a path of the guest as a node; symlinks in it are followed.
func (n *Nodes) Attach(ctx context.Context, path []byte) (*agent.NodeEntryResult, error) {
	return one[*agent.NodeEntryResult](ctx, n, &agent.NodeAttach{Path: path})
}

// Lookup finds one name in a directory.
func (n *Nodes) Lookup(ctx context.Context, dir agent.NodeRef, name []byte) (*agent.NodeEntryResult, error) {
	return one[*agent.NodeEntryResult](ctx, n, &agent.NodeLookup{Dir: dir, Name: name})
}

// GetAttr returns the attributes of a node or handle.
func (n *Nodes) GetAttr(ctx context.Context, target agent.NodeRef) (agent.NodeAttr, error) {
	r, err := one[*agent.NodeAttrResult](ctx, n, &agent.NodeGetAttr{Target: target})
	if err != nil {
		return agent.NodeAttr{}, err
	}
	return r.Attr, nil
}

// Open opens a node with flags agent.NodeReadOnly, …
func (n *Nodes) Open(ctx context.Context, node agent.NodeRef, flags uint32) (agent.NodeRef, error) {
	r, err := one[*agent.NodeHandleResult](ctx, n, &agent.NodeOpen{Node: node, Flags: flags})
	if err != nil {
		return 0, err
	}
	return r.Handle, nil
}

// Close closes a handle, also when it returns an error of the guest.
func (n *Nodes) Close(ctx context.Context, handle agent.NodeRef) error {
	_, err := n.Do(ctx, &agent.NodeClose{Handle: handle})
	return err
}

// ReadDir returns entries after offset; none are the end.
func (n *Nodes) ReadDir(ctx context.Context, handle agent.NodeRef, offset uint64, size, flags uint32) ([]agent.NodeDirEntry, error) {
	r, err := one[*agent.NodeListResult](ctx, n, &agent.NodeReadDir{Handle: handle, Offset: offset, Size: size, Flags: flags})
	if err != nil {
		return nil, err
	}
	return r.Entries, nil
}

// Forget takes lookups back.
func (n *Nodes) Forget(ctx context.Context, counts ...agent.NodeCount) error {
	_, err := n.Do(ctx, &agent.NodeForget{Nodes: counts})
	return err
}

// nodePiece is how much is read or written at a time without raw bulk.
const nodePiece = 256 << 10

// nodeStream is a request with a stream in it.
type nodeStream struct {
	nodes  *Nodes
	before []agent.NodeOp
	handle agent.NodeRef
	flags  uint32
	after  []agent.NodeOp

	ops     []agent.NodeOp
	results []agent.NodeResult // set by result
}

func (s *nodeStream) request(op string, off uint64, length *uint64, offer *agent.BulkOffer) (agent.Type, any) {
	var stream agent.NodeOp = &agent.NodeReadStream{Handle: s.handle, Offset: off, Len: length}
	if op == "write" {
		stream = &agent.NodeWriteStream{Handle: s.handle, Offset: off, Len: length, Flags: s.flags}
	}
	s.ops = append(append(append([]agent.NodeOp(nil), s.before...), stream), s.after...)
	return agent.NodeRequest, agent.NodeRequestPayload{Ops: s.ops, As: s.nodes.as, Bulk: offer}
}

func (s *nodeStream) answer() agent.Type { return agent.NodeResponse }

func (s *nodeStream) result(id uint32, _ string, p []byte) (err error) {
	s.results, err = nodeResults(id, bytes.Clone(p), s.ops)
	return err
}

// busy tells whether a stream was refused because too many are open, before
// anything happened.
func busy(err error, accepted bool) bool {
	return !accepted && errors.Is(err, syscall.EAGAIN)
}

// ReadAt reads len(p) bytes at off in one request, with raw bulk when they are
// many. Like io.ReaderAt it returns io.EOF when it reads fewer. p is not
// touched after it has returned.
func (n *Nodes) ReadAt(ctx context.Context, handle agent.NodeRef, p []byte, off int64) (int, error) {
	if err := nodeSpan("read", off, int64(len(p))); err != nil || len(p) == 0 {
		return 0, err
	}
	if len(p) <= agent.MaxNodeInline {
		if d := n.c.directs.Load().take(ctx); d != nil {
			m, err := d.readAt(ctx, handle, p, off)
			var lost *lostDirect
			if !errors.As(err, &lost) {
				return m, err
			}
			// It may be asked again, and the other way tells why it fails.
		}
	}
	if len(p) >= n.c.cfg.readBulk && n.c.takeBulk() {
		m, accepted, err := n.c.read(ctx, &nodeStream{nodes: n, handle: handle}, p, off, true)
		if !busy(err, accepted) {
			return m, err
		}
	}
	total := 0
	for total < len(p) {
		want := min(nodePiece, len(p)-total)
		results, err := n.relayed(ctx, []agent.NodeOp{&agent.NodeRead{Handle: handle, Offset: uint64(off) + uint64(total), Len: uint32(want)}})
		if err != nil {
			return total, err
		}
		r := results[0].(*agent.NodeBytesResult)
		if len(r.Data) > want {
			return total, &ProtocolError{Problem: "read: more than was asked for"}
		}
		total += copy(p[total:], r.Data)
		if len(r.Data) < want {
			return total, io.EOF
		}
	}
	return total, nil
}

// Download writes length bytes from off, or everything up to the end when
// length is nil, to w. The end of the file before length is no error.
func (n *Nodes) Download(ctx context.Context, handle agent.NodeRef, w io.Writer, off int64, length *uint64) (int64, error) {
	if err := nodeSpan("read", off, 0); err != nil {
		return 0, err
	}
	if (length == nil || *length >= uint64(n.c.cfg.readBulk)) && n.c.takeBulk() {
		m, accepted, err := n.c.download(ctx, &nodeStream{nodes: n, handle: handle}, w, off, length)
		if !busy(err, accepted) {
			return m, err
		}
	}
	buf := make([]byte, nodePiece)
	total := int64(0)
	for {
		piece := buf
		if length != nil {
			piece = buf[:min(uint64(len(buf)), *length-uint64(total))]
		}
		m, err := n.ReadAt(ctx, handle, piece, off+total)
		if err != nil && !errors.Is(err, io.EOF) {
			return total, err
		}
		wrote, werr := w.Write(piece[:m])
		total += int64(wrote)
		if werr != nil || err != nil || m == 0 {
			return total, werr
		}
	}
}

// WriteAt writes p at off, in one request with raw bulk when it is large. flags
// are 0 or agent.NodeKillPriv. A handle that appends ignores off.
func (n *Nodes) WriteAt(ctx context.Context, handle agent.NodeRef, p []byte, off int64, flags uint32) (int, error) {
	if err := nodeSpan("write", off, int64(len(p))); err != nil || len(p) == 0 {
		return 0, err
	}
	if len(p) <= agent.MaxNodeInline {
		if d := n.c.directs.Load().take(ctx); d != nil {
			if _, err := d.do(ctx, n.as, []agent.NodeOp{&agent.NodeWrite{Handle: handle, Offset: uint64(off), Data: p, Flags: flags}}); err != nil {
				return 0, err
			}
			return len(p), nil
		}
	}
	size := uint64(len(p))
	if len(p) >= n.c.cfg.writeBulk && n.c.takeBulk() {
		m, accepted, err := n.c.write(ctx, &nodeStream{nodes: n, handle: handle, flags: flags}, &memory{p: p}, off, &size, true)
		if !busy(err, accepted) {
			return int(m), err
		}
	}
	total := 0
	for total < len(p) {
		piece := p[total:min(len(p), total+nodePiece)]
		if _, err := n.Do(ctx, &agent.NodeWrite{Handle: handle, Offset: uint64(off) + uint64(total), Data: piece, Flags: flags}); err != nil {
			return total, err
		}
		total += len(piece)
	}
	return total, nil
}

// Direct tells whether requests may go on direct connections now.
func (n *Nodes) Direct() bool { return n.c.directs.Load().usable() }

// Upload writes all of r at off and returns how many bytes the guest confirmed.
func (n *Nodes) Upload(ctx context.Context, handle agent.NodeRef, r io.Reader, off int64, flags uint32) (int64, error) {
	if err := nodeSpan("write", off, 0); err != nil {
		return 0, err
	}
	if n.c.takeBulk() {
		m, accepted, err := n.c.write(ctx, &nodeStream{nodes: n, handle: handle, flags: flags}, r, off, nil, true)
		if !busy(err, accepted) {
			return m, err
		}
	}
	buf := make([]byte, nodePiece)
	total := int64(0)
	for {
		m, rerr := io.ReadFull(r, buf)
		wrote, err := n.WriteAt(ctx, handle, buf[:m], off+total, flags)
		total += int64(wrote)
		switch {
		case err != nil:
			return total, err
		case errors.Is(rerr, io.EOF), errors.Is(rerr, io.ErrUnexpectedEOF):
			return total, nil
		case rerr != nil:
			return total, rerr
		}
	}
}

// WriteAll is a compound around data: it does before, writes all of r from
// offset 0 to the handle that handle names (an index refers to before), and
// does after, in one request. An EAGAIN says that too many streams are open.
func (n *Nodes) WriteAll(ctx context.Context, before []agent.NodeOp, handle agent.NodeRef, r io.Reader, size uint64, after ...agent.NodeOp) ([]agent.NodeResult, error) {
	if !n.c.takeBulk() {
		return nil, &NodeError{Op: "writestream", Errno: syscall.EAGAIN, Message: fmt.Sprintf("more than %d bulk operations are open", maxBulk)}
	}
	s := &nodeStream{nodes: n, before: before, handle: handle, after: after}
	_, _, err := n.c.write(ctx, s, r, 0, &size, true)
	return s.results, err
}

func nodeSpan(op string, off, n int64) error {
	if off < 0 || n < 0 || off > math.MaxInt64-n {
		return &NodeError{Op: op, Errno: syscall.EINVAL}
	}
	return nil
}
