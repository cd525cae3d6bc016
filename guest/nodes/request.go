package nodes

import (
	"errors"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"msb/guest/files"
	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

const (
	// answerLimit is what the results of one answer may take, so that they fit into a frame.
	answerLimit = frame.MaxBody - 64<<10
	// largeAnswer is from where on an answer needs one of the few permits for large ones.
	largeAnswer = 64 << 10
	// resultSize is what a result takes beside its byte strings.
	resultSize = 256
)

// request is one msb.fs.request.
type request struct {
	svc     *Service
	own     *owner
	id      uint32
	version uint8
	payload agent.NodeRequestPayload
	size    int // bytes of the payload
	who     *identity
	direct  *direct // the connection that it came on; nil: the agent's port

	cancel  chan struct{} // closed to end the request early; nil on a direct connection
	stopped atomic.Bool

	table   *table
	results []agent.NodeResult
	used    int // bytes of the results
	permit  bool
	err     error
}

// check refuses what no guest can do, before anything is done.
func (r *request) check() error {
	streams, waits := 0, false
	for _, op := range r.payload.Ops {
		switch op := op.(type) {
		case *agent.NodeReadStream, *agent.NodeWriteStream:
			streams++
		case *agent.NodeLock:
			waits = waits || op.Wait
		}
	}
	switch {
	case r.direct != nil && (streams > 0 || waits):
		return fail(unix.EOPNOTSUPP, "a direct connection has no streams and does not wait for locks")
	case streams > 1:
		return fail(unix.EINVAL, "a request holds one stream at most")
	case streams == 1 && r.payload.Bulk == nil:
		return fail(unix.EINVAL, "a stream needs a bulk offer")
	case streams == 0 && r.payload.Bulk != nil:
		return fail(unix.EINVAL, "raw bulk is only valid for streams")
	}
	if as := r.payload.As; as != nil {
		if len(as.Groups) > maxGroups {
			return fail(unix.EINVAL, "more than %d groups", maxGroups)
		}
		r.who = identityOf(as)
	}
	return nil
}

// stop ends the request early.
func (r *request) stop() {
	if !r.stopped.Swap(true) {
		close(r.cancel)
	}
}

// run does the operations.
func (r *request) run() {
	if r.table, r.err = r.svc.tableOf(r.own, r.payload.Ops); r.err != nil {
		return
	}
	if changes(r.payload.Ops) {
		r.svc.actors.Enter(r.table)
		defer r.svc.actors.Leave(r.table)
	}
	r.results = make([]agent.NodeResult, 0, len(r.payload.Ops))
	for _, op := range r.payload.Ops {
		if r.stopped.Load() {
			r.err = unix.EINTR
			return
		}
		result, err := r.do(op)
		if err != nil {
			r.err = err
			return
		}
		r.used += resultSize
		r.results = append(r.results, result)
	}
}

// answer sends the response.
func (r *request) answer() {
	s := r.svc
	s.mu.Lock()
	delete(r.own.requests, r.id)
	gone := r.own.ctx.Err() != nil
	s.mu.Unlock()
	if !gone && !errors.Is(r.err, files.ErrSilent) {
		_ = s.out.Send(r.id, agent.NodeResponse, response(r.results, r.err))
	}
	r.results = nil
	r.free()
}

// reserve makes sure that n more bytes of results fit.
func (r *request) reserve(n int) error {
	if r.used+n > answerLimit {
		return fail(unix.E2BIG, "the results do not fit into one response")
	}
	if !r.permit && r.used+n > largeAnswer {
		select {
		case r.svc.large <- struct{}{}:
			r.permit = true
		case <-r.cancel:
			return unix.EINTR
		}
	}
	r.used += n
	return nil
}

// describe turns an error into what travels. An error without an errno is the transfer's: the host broke the
// protocol, or a bound was hit.
func describe(err error) (errno uint32, text string) {
	var number unix.Errno
	var f *failure
	var flow *files.FlowError
	switch {
	case errors.As(err, &f):
		return uint32(f.errno), f.text
	case errors.As(err, &number) && number != 0:
		return uint32(number), ""
	case errors.As(err, &flow):
		return uint32(unix.EPROTO), flow.Text
	case errors.Is(err, port.ErrClosed):
		return uint32(unix.EPIPE), ""
	}
	return uint32(unix.EIO), err.Error()
}

// do runs one operation.
func (r *request) do(op agent.NodeOp) (agent.NodeResult, error) {
	switch op := op.(type) {
	case *agent.NodeAttach:
		return r.attach(op)
	case *agent.NodeSession:
		return &agent.NodeBytesResult{Data: r.table.session[:]}, nil
	case *agent.NodeJoin:
		return none, nil // done by tableOf
	case *agent.NodeKey:
		return r.key(op)
	case *agent.NodeRecall:
		return r.recall(op)
	case *agent.NodeLookup:
		return r.lookup(op)
	case *agent.NodeForget:
		for _, c := range op.Nodes {
			r.table.forget(c.Node, c.N)
		}
		return none, nil
	case *agent.NodeGetAttr:
		return r.getAttr(op)
	case *agent.NodeSetAttr:
		return r.setAttr(op)
	case *agent.NodeReadLink:
		return r.readLink(op)
	case *agent.NodeMkdir:
		return r.mkdir(op)
	case *agent.NodeMknod:
		return r.mknod(op)
	case *agent.NodeSymlink:
		return r.symlink(op)
	case *agent.NodeLink:
		return r.link(op)
	case *agent.NodeUnlink:
		return r.remove(op.Dir, op.Name, 0)
	case *agent.NodeRmdir:
		return r.remove(op.Dir, op.Name, unix.AT_REMOVEDIR)
	case *agent.NodeRename:
		return r.rename(op)
	case *agent.NodeOpen:
		return r.open(op)
	case *agent.NodeCreate:
		return r.create(op)
	case *agent.NodeClose:
		return r.close(op)
	case *agent.NodeFlush:
		return r.flush(op)
	case *agent.NodeSync:
		return r.sync(op)
	case *agent.NodeSyncFS:
		return r.syncFS(op)
	case *agent.NodeRead:
		return r.read(op)
	case *agent.NodeWrite:
		return r.write(op)
	case *agent.NodeReadStream:
		return r.readStream(op)
	case *agent.NodeWriteStream:
		return r.writeStream(op)
	case *agent.NodeReadDir:
		return r.readDir(op)
	case *agent.NodeStatFS:
		return r.statFS(op)
	case *agent.NodeGetXattr:
		return r.getXattr(op)
	case *agent.NodeSetXattr:
		return r.setXattr(op)
	case *agent.NodeListXattr:
		return r.listXattr(op)
	case *agent.NodeRemoveXattr:
		return r.removeXattr(op)
	case *agent.NodeAllocate:
		return r.allocate(op)
	case *agent.NodeSeek:
		return r.seek(op)
	case *agent.NodeCopyRange:
		return r.copyRange(op)
	case *agent.NodeLock:
		return r.lock(op)
	case *agent.NodeTestLock:
		return r.testLock(op)
	}
	return nil, fail(unix.EOPNOTSUPP, "operation %s is not served", agent.NodeOpName(op))
}

var none = &agent.NodeNoResult{}

// produced returns the id that a reference stands for: itself, or what an operation of this request has brought.
func (r *request) produced(ref agent.NodeRef, handle bool) agent.NodeRef {
	if ref >= uint64(len(r.results)) {
		return ref
	}
	switch x := r.results[ref].(type) {
	case *agent.NodeEntryResult:
		return x.Node
	case *agent.NodeHandleResult:
		return x.Handle
	case *agent.NodeCreatedResult:
		if handle {
			return x.Handle
		}
		return x.Node
	}
	return ref
}

// node returns a node and its descriptor, an O_PATH one. done gives it back.
func (r *request) node(ref agent.NodeRef) (n *node, fd int, err error) {
	n = r.table.node(r.produced(ref, false))
	if n == nil {
		return nil, -1, unix.ESTALE
	}
	fd, err = r.svc.cache.use(n)
	return n, fd, err
}

func (r *request) done(n *node) { r.svc.cache.done(n) }

// handle returns an open handle with a reference for the caller.
func (r *request) handle(ref agent.NodeRef) (*handle, error) {
	if h := r.table.handle(r.produced(ref, true)); h != nil {
		return h, nil
	}
	return nil, unix.EBADF
}

// as runs a system call with the permissions of who the request names.
func (r *request) as(call func() error) error {
	if r.direct != nil && r.direct.thread.mine() {
		return r.direct.thread.run(r.who, false, func() error { return retry(call) })
	}
	return r.exactly(call)
}

// owned is as for a call that makes a file, which then belongs to who the request names.
func (r *request) owned(call func() error) error {
	if r.direct != nil && r.direct.thread.mine() {
		return r.direct.thread.run(r.who, true, func() error { return retry(call) })
	}
	return r.exactly(call)
}

// exactly runs a system call on a thread that others use before and after.
func (r *request) exactly(call func() error) error {
	if r.who == nil {
		return retry(call)
	}
	return r.who.run(&r.svc.root, func() error { return retry(call) })
}

// retry repeats a system call that a signal interrupted.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
