package agentclient

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// peer is a relay and a guest of some generation on the other end of a
// connection. It serves what that generation had, over files in memory, and
// complains about whatever no client may send to it.
type peer struct {
	t      testing.TB
	conn   net.Conn
	gen    uint8
	legacy bool
	start  uint32
	end    uint32

	extensions  agent.Extensions
	declineBulk string // answer bulk offers with this error
	maxRecord   uint32
	credit      uint64 // host-to-guest window

	wmu sync.Mutex
	mu  sync.Mutex
	// files of the guest, and handles
	files   map[string]*memFile
	handles map[uint64]*memFile
	nextH   uint64
	ops     map[uint32]*peerOp
	wg      sync.WaitGroup
	seen    []agent.Type
	bulk    int // offers accepted
}

type memFile struct {
	mu sync.Mutex
	b  []byte
}

// peerOp is an open exec, write or TCP session.
type peerOp struct {
	kind   agent.Type
	script string
	file   *memFile
	off    uint64
	want   *uint64
	got    uint64
	bulk   bool
	in     chan []byte // exec stdin, tcp data
	sig    chan int32
	credit chan agent.BulkCreditPayload
	cancel chan string
	limit  uint64
	grant  uint64
	sent   uint64
}

func socketPair(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var c [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c[i], err = net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	return c[0], c[1]
}

// newPeer starts a guest and connects a client to it.
func newPeer(t testing.TB, gen uint8, change func(*peer), opts ...Option) (*Client, *peer) {
	t.Helper()
	a, b := socketPair(t)
	p := &peer{
		t: t, conn: b, gen: gen, start: 1, end: frame.RangeStep, maxRecord: 256 << 10, credit: 8 << 20,
		files: map[string]*memFile{}, handles: map[uint64]*memFile{}, ops: map[uint32]*peerOp{},
	}
	if change != nil {
		change(p)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		p.serve()
	}()
	c, err := New(context.Background(), a, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		b.Close()
		<-served
		p.wg.Wait()
	})
	return c, p
}

func (p *peer) prologue() []byte {
	var head []byte
	if p.legacy {
		head = binary.BigEndian.AppendUint32(nil, p.start-1)
	} else {
		head = binary.BigEndian.AppendUint32(nil, p.start)
		head = binary.BigEndian.AppendUint32(head, p.end)
	}
	head, err := agent.AppendFrame(head, 0, agent.Ready, p.gen, agent.ReadyPayload{BootTimeNS: 1, InitTimeNS: 2, ReadyTimeNS: 3, AgentVersion: "test", Extensions: p.extensions})
	if err != nil {
		panic(err)
	}
	return head
}

func (p *peer) write(b []byte) {
	p.wmu.Lock()
	defer p.wmu.Unlock()
	p.conn.Write(b)
}

func (p *peer) send(id uint32, t agent.Type, payload any) {
	b, err := agent.AppendFrame(nil, id, t, p.gen, payload)
	if err != nil {
		p.t.Errorf("guest: %v", err)
		return
	}
	p.write(b)
}

func (p *peer) sendBulk(id uint32, kind uint8, off uint64, data []byte) {
	b, err := frame.AppendBulk(nil, frame.Bulk{ID: id, Kind: kind, Flow: frame.FlowGuestToHost, Offset: off, Payload: data})
	if err != nil {
		p.t.Errorf("guest: %v", err)
		return
	}
	p.write(b)
}

func (p *peer) fsOK(id uint32, v agent.FSValue) {
	p.send(id, agent.FSResponse, agent.FSResponsePayload{OK: true, Data: v})
}

func (p *peer) fsErr(id uint32, format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	p.send(id, agent.FSResponse, agent.FSResponsePayload{Error: &s})
}

func (p *peer) serve() {
	p.write(p.prologue())
	r := frame.NewReader(p.conn)
	for {
		f, err := r.Next()
		if err != nil {
			p.mu.Lock()
			for id, op := range p.ops {
				close(op.cancel)
				delete(p.ops, id)
			}
			p.mu.Unlock()
			return
		}
		p.frame(f)
	}
}

func (p *peer) frame(f frame.Frame) {
	if f.Flags == frame.FlagBulk {
		if p.gen < 8 {
			p.t.Errorf("raw record for a guest of generation %d", p.gen)
		}
		b, err := frame.ParseBulk(f)
		if err != nil {
			p.t.Errorf("guest: %v", err)
			return
		}
		p.record(b)
		return
	}
	e, err := agent.ParseEnvelope(f.Body)
	if err != nil {
		p.t.Errorf("guest got garbage: %v", err)
		return
	}
	t, known := e.Type()
	want := agent.Generation
	if p.legacy {
		want = agent.LegacyGeneration
	}
	switch {
	case !known || !t.AvailableAt(p.gen):
		p.t.Errorf("a guest of generation %d got %s", p.gen, e.T)
	case f.Flags != t.Flags():
		p.t.Errorf("%s with flags %#x", t, f.Flags)
	case e.V != want:
		p.t.Errorf("%s with v %d, want %d", t, e.V, want)
	case t != agent.Shutdown && (f.ID < p.start || f.ID >= p.end):
		p.t.Errorf("%s with id %d outside of the range", t, f.ID)
	}
	p.mu.Lock()
	p.seen = append(p.seen, t)
	p.mu.Unlock()
	switch t {
	case agent.Ping:
		p.send(f.ID, agent.Pong, agent.Empty{})
	case agent.Touch:
		p.send(f.ID, agent.Touched, agent.TouchedPayload{ActivitySeq: 7})
	case agent.ExecRequest:
		var q agent.ExecRequestPayload
		p.decode(e, &q)
		p.exec(f.ID, q)
	case agent.FSRequest:
		var q agent.FSRequestPayload
		p.decode(e, &q)
		if q.Bulk != nil && p.gen < 8 {
			p.t.Errorf("bulk offer to a guest of generation %d", p.gen)
		}
		p.fs(f.ID, q)
	case agent.TCPConnect:
		var q agent.TCPConnectPayload
		p.decode(e, &q)
		p.tcp(f.ID, q)
	case agent.ExecStdin, agent.FSData, agent.TCPData:
		var d agent.Data
		p.decode(e, &d)
		p.inline(f.ID, t, append([]byte(nil), d.Data...))
	case agent.TCPEOF:
		p.inline(f.ID, t, nil)
	case agent.ExecSignal:
		var q agent.ExecSignalPayload
		p.decode(e, &q)
		if op := p.op(f.ID); op != nil {
			op.sig <- q.Signal
		}
	case agent.BulkCredit:
		var q agent.BulkCreditPayload
		p.decode(e, &q)
		if op := p.op(f.ID); op != nil {
			op.credit <- q
		}
	case agent.BulkFinish:
		var q agent.BulkFinishPayload
		p.decode(e, &q)
		p.finish(f.ID, q)
	case agent.BulkCancel:
		var q agent.BulkCancelPayload
		p.decode(e, &q)
		if op := p.drop(f.ID); op != nil {
			close(op.cancel)
			p.fsErr(f.ID, "%s", q.Message)
		}
	case agent.TCPClose:
		if op := p.drop(f.ID); op != nil {
			close(op.cancel)
		}
	}
}

func (p *peer) decode(e agent.Envelope, v any) {
	if err := agent.DecodePayload(e.P, v); err != nil {
		p.t.Errorf("guest: %s: %v", e.T, err)
	}
}

func (p *peer) op(id uint32) *peerOp {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ops[id]
}

func (p *peer) drop(id uint32) *peerOp {
	p.mu.Lock()
	defer p.mu.Unlock()
	op := p.ops[id]
	delete(p.ops, id)
	return op
}

func (p *peer) add(id uint32, op *peerOp) *peerOp {
	op.in, op.sig = make(chan []byte, 1<<16), make(chan int32, 16)
	op.credit, op.cancel = make(chan agent.BulkCreditPayload, 1<<12), make(chan string)
	p.mu.Lock()
	p.ops[id] = op
	p.mu.Unlock()
	return op
}

func (p *peer) spawn(f func()) {
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		f()
	}()
}

func (p *peer) exec(id uint32, q agent.ExecRequestPayload) {
	if q.Cmd == "missing" {
		errno := int32(2)
		p.send(id, agent.ExecFailed, agent.ExecFailedPayload{Kind: agent.ExecNotFound, Errno: &errno, Message: "No such file or directory (os error 2)"})
		return
	}
	op := p.add(id, &peerOp{kind: agent.ExecRequest, script: q.Cmd})
	p.spawn(func() {
		code := int32(0)
		defer func() { p.drop(id); p.send(id, agent.ExecExited, agent.ExecExitedPayload{Code: code}) }()
		p.send(id, agent.ExecStarted, agent.ExecStartedPayload{PID: 42})
		switch q.Cmd {
		case "echo":
			for _, a := range q.Args {
				p.send(id, agent.ExecStdout, agent.Data{Data: []byte(a + "\n")})
			}
			p.send(id, agent.ExecStderr, agent.Data{Data: []byte("err\n")})
			code = 3
		case "flood":
			n, _ := strconv.Atoi(q.Args[0])
			data := pattern(n)
			for off := 0; off < n; off += 64 << 10 {
				p.send(id, agent.ExecStdout, agent.Data{Data: data[off:min(n, off+64<<10)]})
			}
		case "cat":
			for {
				select {
				case d := <-op.in:
					if len(d) == 0 {
						return
					}
					p.send(id, agent.ExecStdout, agent.Data{Data: d})
				case <-op.sig:
					code = -1
					return
				case <-op.cancel:
					return
				}
			}
		case "deaf":
			<-op.in
			errno := int32(32)
			p.send(id, agent.ExecStdinError, agent.ExecStdinErrorPayload{Errno: &errno, Message: "Broken pipe"})
			select {
			case <-op.sig:
			case <-op.cancel:
			}
		case "sleep":
			select {
			case <-op.sig:
				code = -1
			case <-op.cancel:
			}
		}
	})
}

func (p *peer) fs(id uint32, q agent.FSRequestPayload) {
	p.mu.Lock()
	defer p.mu.Unlock()
	missing := func(path string) { p.fsErr(id, "%s: No such file or directory (os error 2)", agent.OpName(q.Op)) }
	entry := func(path string, f *memFile) agent.Entry {
		f.mu.Lock()
		defer f.mu.Unlock()
		return agent.Entry{Path: path, Kind: agent.KindFile, Size: uint64(len(f.b)), Mode: 0o100644}
	}
	switch op := q.Op.(type) {
	case agent.OpStat:
		if f := p.files[op.Path]; f != nil {
			p.fsOK(id, agent.FSStat(entry(op.Path, f)))
		} else {
			missing(op.Path)
		}
	case agent.OpList:
		var l agent.FSList
		for path, f := range p.files {
			l = append(l, entry(path, f))
		}
		p.fsOK(id, l)
	case agent.OpReadLink:
		p.fsOK(id, agent.FSPath("target"))
	case agent.OpRemove:
		if p.files[op.Path] == nil {
			missing(op.Path)
			return
		}
		delete(p.files, op.Path)
		p.fsOK(id, nil)
	case agent.OpOpenFile:
		f := p.files[op.Path]
		if f == nil && !op.Options.Create {
			missing(op.Path)
			return
		}
		if f == nil {
			f = &memFile{}
			p.files[op.Path] = f
		}
		p.nextH++
		p.handles[p.nextH] = f
		p.fsOK(id, agent.FSHandle(p.nextH))
	case agent.OpCloseHandle:
		delete(p.handles, op.Handle)
		p.fsOK(id, nil)
	case agent.OpFStat:
		p.fsOK(id, agent.FSStat(entry("", p.handles[op.Handle])))
	case agent.OpRead:
		p.readOp(id, op, q.Bulk)
	case agent.OpWrite:
		p.writeOp(id, op, q.Bulk)
	default:
		p.fsOK(id, nil)
	}
}

func (p *peer) readOp(id uint32, op agent.OpRead, offer *agent.BulkOffer) {
	f := p.handles[op.Handle]
	if f == nil {
		p.fsErr(id, "read: invalid handle: %d", op.Handle)
		return
	}
	if offer != nil && p.declineBulk != "" {
		p.fsErr(id, "%s", p.declineBulk)
		return
	}
	f.mu.Lock()
	data := f.b[min(op.Offset, uint64(len(f.b))):]
	f.mu.Unlock()
	if op.Len != nil {
		data = data[:min(uint64(len(data)), *op.Len)]
	}
	if offer == nil {
		p.spawn(func() {
			for len(data) > 0 {
				n := min(len(data), 3<<20)
				p.send(id, agent.FSData, agent.Data{Data: data[:n]})
				data = data[n:]
			}
			p.fsOK(id, nil)
		})
		return
	}
	p.bulk++
	s := &peerOp{kind: agent.FSRequest, limit: offer.GuestToHostCreditLimit}
	s.in, s.sig = make(chan []byte), make(chan int32)
	s.credit, s.cancel = make(chan agent.BulkCreditPayload, 64), make(chan string)
	p.ops[id] = s
	record := min(p.maxRecord, offer.MaxRecordPayload)
	p.send(id, agent.BulkAccepted, agent.BulkAcceptedPayload{Kind: 1, Flows: 2, Format: 1, MaxRecordPayload: record, GuestToHostCreditLimit: offer.GuestToHostCreditLimit})
	p.spawn(func() {
		off := uint64(0)
		for off < uint64(len(data)) {
			n := min(uint64(record), uint64(len(data))-off)
			for off+n > s.limit {
				select {
				case c := <-s.credit:
					s.limit = c.CreditLimit
				case <-s.cancel:
					return
				}
			}
			p.sendBulk(id, 1, off, data[off:off+n])
			off += n
		}
		if p.drop(id) == nil {
			return
		}
		p.send(id, agent.BulkFinish, agent.BulkFinishPayload{Kind: 1, Flow: 2, FinalOffset: off})
		p.fsOK(id, nil)
	})
}

func (p *peer) writeOp(id uint32, op agent.OpWrite, offer *agent.BulkOffer) {
	f := p.handles[op.Handle]
	if f == nil {
		p.fsErr(id, "write: invalid handle: %d", op.Handle)
		return
	}
	if offer != nil && p.declineBulk != "" {
		p.fsErr(id, "%s", p.declineBulk)
		return
	}
	s := &peerOp{kind: agent.FSRequest, file: f, off: op.Offset, want: op.Len, bulk: offer != nil, grant: p.credit}
	s.in, s.sig = make(chan []byte), make(chan int32)
	s.credit, s.cancel = make(chan agent.BulkCreditPayload), make(chan string)
	p.ops[id] = s
	if offer != nil {
		p.bulk++
		p.send(id, agent.BulkAccepted, agent.BulkAcceptedPayload{Kind: 1, Flows: 1, Format: 1, MaxRecordPayload: min(p.maxRecord, offer.MaxRecordPayload), HostToGuestCreditLimit: p.credit})
	}
}

func (s *peerOp) store(d []byte) {
	s.file.mu.Lock()
	defer s.file.mu.Unlock()
	at := s.off + s.got
	if need := int(at) + len(d); need > len(s.file.b) {
		s.file.b = append(s.file.b, make([]byte, need-len(s.file.b))...)
	}
	copy(s.file.b[at:], d)
	s.got += uint64(len(d))
}

func (p *peer) record(b frame.Bulk) {
	op := p.op(b.ID)
	if op == nil {
		p.t.Errorf("raw record on id %d, which has no operation", b.ID)
		return
	}
	p.mu.Lock()
	grant := op.grant
	p.mu.Unlock()
	if b.Offset != op.got || b.Offset+uint64(len(b.Payload)) > grant || len(b.Payload) > int(p.maxRecord) {
		p.t.Errorf("raw record at %d of %d bytes: %d got, %d granted", b.Offset, len(b.Payload), op.got, grant)
	}
	if op.file == nil { // tcp
		op.got += uint64(len(b.Payload))
		op.in <- append([]byte(nil), b.Payload...)
		return
	}
	op.store(b.Payload)
	if grant-op.got <= p.credit/2 {
		p.mu.Lock()
		op.grant = op.got + p.credit
		p.mu.Unlock()
		p.send(b.ID, agent.BulkCredit, agent.BulkCreditPayload{Kind: 1, Flow: 1, ConsumedOffset: op.got, CreditLimit: op.grant})
	}
}

func (p *peer) finish(id uint32, q agent.BulkFinishPayload) {
	op := p.op(id)
	if op == nil {
		return
	}
	if q.FinalOffset != op.got {
		p.t.Errorf("finish at %d after %d bytes", q.FinalOffset, op.got)
	}
	if op.file == nil {
		op.in <- nil
		return
	}
	p.drop(id)
	p.written(id, op)
}

func (p *peer) written(id uint32, op *peerOp) {
	if op.want != nil && *op.want != op.got {
		p.fsErr(id, "write: expected %d, received %d", *op.want, op.got)
		return
	}
	p.fsOK(id, nil)
}

func (p *peer) inline(id uint32, t agent.Type, d []byte) {
	op := p.op(id)
	if op == nil {
		return
	}
	if op.file == nil {
		if op.bulk {
			p.t.Errorf("%s on a raw bulk stream", t)
		}
		op.in <- d
		return
	}
	if op.bulk {
		p.t.Errorf("%s after a bulk acceptance", t)
	}
	if len(d) == 0 {
		p.drop(id)
		p.written(id, op)
		return
	}
	op.store(d)
}

// tcp echoes until the end of the input, then ends its own side.
func (p *peer) tcp(id uint32, q agent.TCPConnectPayload) {
	switch {
	case q.Host == "refused":
		p.send(id, agent.TCPFailed, agent.TCPFailedPayload{Error: "Connection refused (os error 111)"})
		return
	case q.Bulk != nil && p.declineBulk != "":
		p.send(id, agent.TCPFailed, agent.TCPFailedPayload{Error: p.declineBulk})
		return
	}
	op := p.add(id, &peerOp{kind: agent.TCPConnect, bulk: q.Bulk != nil, grant: p.credit})
	p.send(id, agent.TCPConnected, agent.Empty{})
	if q.Bulk != nil {
		op.limit = q.Bulk.GuestToHostCreditLimit
		p.send(id, agent.BulkAccepted, agent.BulkAcceptedPayload{Kind: 2, Flows: 3, Format: 1, MaxRecordPayload: min(p.maxRecord, q.Bulk.MaxRecordPayload),
			HostToGuestCreditLimit: p.credit, GuestToHostCreditLimit: op.limit})
	}
	p.spawn(func() {
		if q.Host == "flood" {
			p.flood(id, op, int(q.Port)<<10)
		}
		used := uint64(0)
		for {
			var d []byte
			select {
			case d = <-op.in:
			case <-op.cancel:
				return
			}
			if len(d) == 0 {
				break
			}
			used += uint64(len(d))
			if !p.tcpSend(id, op, d) {
				return
			}
			if op.bulk {
				p.mu.Lock()
				op.grant = used + p.credit
				p.mu.Unlock()
				p.send(id, agent.BulkCredit, agent.BulkCreditPayload{Kind: 2, Flow: 1, ConsumedOffset: used, CreditLimit: used + p.credit})
			}
		}
		if op.bulk {
			p.send(id, agent.BulkFinish, agent.BulkFinishPayload{Kind: 2, Flow: 2, FinalOffset: op.sent})
		} else {
			p.send(id, agent.TCPEOF, agent.Empty{})
		}
		p.drop(id)
		p.send(id, agent.TCPClosed, agent.Empty{})
	})
}

func (p *peer) flood(id uint32, op *peerOp, n int) {
	data := pattern(n)
	for len(data) > 0 {
		m := min(len(data), 64<<10)
		if !p.tcpSend(id, op, data[:m]) {
			return
		}
		data = data[m:]
	}
}

func (p *peer) tcpSend(id uint32, op *peerOp, d []byte) bool {
	if !op.bulk {
		p.send(id, agent.TCPData, agent.Data{Data: d})
		return true
	}
	for op.sent+uint64(len(d)) > op.limit {
		select {
		case c := <-op.credit:
			op.limit = c.CreditLimit
		case <-op.cancel:
			return false
		}
	}
	p.sendBulk(id, 2, op.sent, d)
	op.sent += uint64(len(d))
	return true
}

// pattern returns n bytes in which every piece is told from every other.
func pattern(n int) []byte {
	b := make([]byte, n+8)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], uint64(i)*0x9E3779B97F4A7C15)
	}
	return b[:n]
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
