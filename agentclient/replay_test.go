package agentclient

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// Recorded exchanges with a published guest agent: the client makes the same
// requests, the recorded guest answers, and the outcome is what the recording
// says. The same is done with what a published client sent, where also the
// bytes of the requests have to be the same.

// line is one frame of a recording.
type line struct {
	section   string
	fromGuest bool
	id        uint32
	flags     uint8
	e         agent.Envelope
	t         agent.Type
	bulk      *frame.Bulk // with the payload replaced when that was not recorded
}

func loadLines(t *testing.T, name string) []line {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../protocol/agent/testdata/exchanges", name))
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		Section string
		Dir     string
		Kind    string
		ID      uint32
		Flags   uint8
		Hex     string
		Kind2   uint8  `json:"bulk_kind"`
		Flow    uint8  `json:"flow"`
		Offset  uint64 `json:"offset"`
		Len     int    `json:"payload_len"`
	}
	var rows []row
	if err := json.Unmarshal(b, &rows); err != nil {
		var wrapped struct{ Frames []row }
		if err := json.Unmarshal(b, &wrapped); err != nil {
			t.Fatal(err)
		}
		rows = wrapped.Frames
	}
	var lines []line
	section := ""
	for _, r := range rows {
		if r.Section != "" {
			section = r.Section
		}
		fromGuest := r.Dir == "g2h" || r.Dir == "agent->client"
		if !fromGuest && r.Dir != "h2g" && r.Dir != "client->agent" {
			continue
		}
		l := line{section: section, fromGuest: fromGuest, id: r.ID, flags: r.Flags}
		if r.Kind2 != 0 {
			l.flags = frame.FlagBulk
			l.bulk = &frame.Bulk{Kind: r.Kind2, Flow: r.Flow, Offset: r.Offset, Payload: pattern(r.Len)}
			if r.Hex != "" {
				raw, _ := hex.DecodeString(r.Hex)
				l.bulk.Payload = raw[frame.BulkOverhead:]
			}
		} else {
			raw, err := hex.DecodeString(r.Hex)
			if err != nil || len(raw) < frame.Overhead {
				continue
			}
			l.e, err = agent.ParseEnvelope(raw[frame.Overhead:])
			if err != nil {
				continue // a lease or an upgrade
			}
			l.t, _ = l.e.Type()
		}
		lines = append(lines, l)
	}
	return lines
}

// exchanges groups the lines by correlation id, in order of the requests.
func exchanges(lines []line) [][]line {
	var order []uint32
	byID := map[uint32][]line{}
	last := map[uint32]bool{}
	epoch := uint32(0)
	for _, l := range lines {
		if l.id == 0 || l.id == frame.IDLifecycle {
			continue
		}
		key := l.id + epoch
		if !l.fromGuest && l.flags == l.t.Flags() && isRequest(l.t) && last[key] {
			// another connection of the recorded client uses the id again
			epoch += 1 << 24
			key = l.id + epoch
		}
		if _, seen := byID[key]; !seen {
			order = append(order, key)
		}
		byID[key] = append(byID[key], l)
		last[key] = true
	}
	var out [][]line
	for _, id := range order {
		out = append(out, byID[id])
	}
	return out
}

func isRequest(t agent.Type) bool {
	switch t {
	case agent.Ping, agent.Touch, agent.ExecRequest, agent.FSRequest, agent.TCPConnect:
		return true
	}
	return false
}

func TestReplay(t *testing.T) {
	files := map[string]struct {
		replayed int // so that a change cannot skip them in silence
		bytes    bool
		skip     []string // exchanges that this client cannot have
	}{
		"agent-basic.json": {replayed: 45, skip: []string{
			"exec wrong flags", "exec invalid payload", "unknown stdin id (ignored)", "fs unknown op", "fs data unknown session",
			"fs omitted options (minimal OpenFile)", "tcp data unknown id"}},
		"agent-bulk.json": {replayed: 30, skip: []string{"bulk record on unknown id"}},
		"client.json":     {replayed: 15, bytes: true},
	}
	for name, want := range files {
		t.Run(name, func(t *testing.T) {
			n := 0
		next:
			for _, x := range exchanges(loadLines(t, name)) {
				for _, s := range want.skip {
					if s == x[0].section {
						continue next
					}
				}
				n++
				t.Run(fmt.Sprintf("%d %s", n, x[0].section), func(t *testing.T) { replay(t, x, want.bytes) })
			}
			if n != want.replayed {
				t.Errorf("%d exchanges, want %d", n, want.replayed)
			}
		})
	}
}

// player is the recorded guest.
type player struct {
	*scripted
	id       uint32
	sent     uint64 // data of the client so far
	finished bool
	limit    uint64 // credit of the client
	types    []agent.Type
}

// wait takes the client's frames until ok.
func (p *player) wait(ok func() bool) {
	p.t.Helper()
	for !ok() {
		f := p.next()
		if f.Flags == frame.FlagBulk {
			b, err := frame.ParseBulk(f)
			if err != nil {
				p.t.Fatal(err)
			}
			p.sent += uint64(len(b.Payload))
			continue
		}
		e, err := agent.ParseEnvelope(f.Body)
		if err != nil {
			p.t.Fatal(err)
		}
		typ, _ := e.Type()
		p.types = append(p.types, typ)
		switch typ {
		case agent.FSData, agent.TCPData:
			var d agent.Data
			p.decode(f, &d)
			p.sent += uint64(len(d.Data))
			p.finished = p.finished || len(d.Data) == 0
		case agent.BulkFinish, agent.TCPEOF:
			p.finished = true
		case agent.BulkCredit:
			var c agent.BulkCreditPayload
			p.decode(f, &c)
			p.limit = c.CreditLimit
		}
	}
}

func (p *player) waitFor(t agent.Type) {
	p.t.Helper()
	n := len(p.types)
	p.wait(func() bool { return len(p.types) > n && p.types[len(p.types)-1] == t })
}

func replay(t *testing.T, x []line, sameBytes bool) {
	if x[0].fromGuest || !isRequest(x[0].t) || x[0].flags != x[0].t.Flags() {
		t.Fatalf("starts with %v", x[0].t)
	}
	offer := offerOf(t, x[0])
	c, s := newScript(t, 9, func(c *config) {
		if offer != nil {
			c.window = max(offer.GuestToHostCreditLimit, 1)
			c.readRecord = offer.MaxRecordPayload
			c.record = 1 << 20
		}
	})
	ctx, cancel := context.WithCancel(within(t))
	op := begin(t, ctx, c, x, offer != nil)
	p := &player{scripted: s, limit: c.cfg.window}

	request := s.expect(x[0].t)
	p.id = request.ID
	sameRequest(t, x[0], request, sameBytes)

	ended := false
	sent := uint64(0) // data in the recording so far
	for _, l := range x[1:] {
		switch {
		case !l.fromGuest && l.bulk != nil:
			sent += uint64(len(l.bulk.Payload))
			op.act(l)
			p.wait(func() bool { return p.sent >= sent })
		case !l.fromGuest:
			switch l.t {
			case agent.BulkCredit:
			case agent.BulkCancel:
				cancel()
				p.waitFor(agent.BulkCancel)
			case agent.BulkFinish, agent.TCPEOF:
				op.act(l)
				p.wait(func() bool { return p.finished })
			case agent.FSData:
				var d agent.Data
				agent.DecodePayload(l.e.P, &d)
				sent += uint64(len(d.Data))
				if offer == nil {
					p.wait(func() bool { return p.sent >= sent })
				}
			default:
				if op.act(l) {
					p.waitFor(l.t)
				}
			}
		case l.bulk != nil:
			end := l.bulk.Offset + uint64(len(l.bulk.Payload))
			p.wait(func() bool { return p.limit >= end })
			s.bulk(p.id, l.bulk.Kind, l.bulk.Flow, l.bulk.Offset, l.bulk.Payload)
		default:
			if l.t == agent.BulkCredit {
				var m agent.BulkCreditPayload
				agent.DecodePayload(l.e.P, &m)
				p.wait(func() bool { return p.sent >= m.ConsumedOffset })
			}
			if op.writes && l.t == agent.FSResponse && bytes.Equal(l.e.P, plainOK) {
				p.wait(func() bool { return p.finished })
			}
			s.raw(p.id, l.flags, l.e.T, l.e.P)
			ended = ended || l.flags&frame.FlagTerminal != 0
		}
	}
	if !ended {
		cancel()
		err := op.result()
		if op.exec != nil { // it runs: the recording ends before it does
			op.exec.Close()
			return
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("no answer was recorded, got %v", err)
		}
		return
	}
	op.check(t, x, ctx.Err() != nil)
	s.drain()
	if _, err := c.Ping(within(t)); err != nil {
		t.Error(err)
	}
	if n := c.engine.Active(); n != 0 {
		t.Errorf("%d streams left", n)
	}
	cancel()
}

func offerOf(t *testing.T, l line) *agent.BulkOffer {
	switch l.t {
	case agent.FSRequest:
		var q agent.FSRequestPayload
		if err := agent.DecodePayload(l.e.P, &q); err != nil {
			t.Fatal(err)
		}
		return q.Bulk
	case agent.TCPConnect:
		var q agent.TCPConnectPayload
		if err := agent.DecodePayload(l.e.P, &q); err != nil {
			t.Fatal(err)
		}
		return q.Bulk
	}
	return nil
}

// sameRequest compares what this client sent with the recording, by meaning
// or by bytes, except for the sizes in a bulk offer.
func sameRequest(t *testing.T, want line, f frame.Frame, sameBytes bool) {
	t.Helper()
	got, err := agent.ParseEnvelope(f.Body)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := canonical(t, want.t, got.P), canonical(t, want.t, want.e.P); !bytes.Equal(a, b) {
		t.Errorf("%s was\n%x, recorded\n%x", want.t, a, b)
	}
	if sameBytes && offerOf(t, want) == nil && !bytes.Equal(got.P, want.e.P) {
		t.Errorf("%s was\n%x, recorded\n%x", want.t, got.P, want.e.P)
	}
}

func canonical(t *testing.T, typ agent.Type, p []byte) []byte {
	t.Helper()
	var v any
	var err error
	switch typ {
	case agent.ExecRequest:
		q := &agent.ExecRequestPayload{}
		err, v = agent.DecodePayload(p, q), q
	case agent.FSRequest:
		q := &agent.FSRequestPayload{}
		err = agent.DecodePayload(p, q)
		q.Bulk = nil
		v = *q
	case agent.TCPConnect:
		q := &agent.TCPConnectPayload{}
		err = agent.DecodePayload(p, q)
		q.Bulk = nil
		v = q
	default:
		return p
	}
	if err != nil {
		t.Fatal(err)
	}
	b, err := agent.EncodePayload(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// operation is the client's side of a replayed exchange.
type operation struct {
	writes bool
	done   chan struct{}
	err    error
	value  agent.FSValue
	data   []byte // read
	seq    uint64
	act    func(l line) bool // does what the recorded client did; false: nothing is sent
	exec   *Exec
	conn   *TCPConn
}

func (o *operation) result() error {
	<-o.done
	return o.err
}

func begin(t *testing.T, ctx context.Context, c *Client, x []line, bulk bool) *operation {
	o := &operation{done: make(chan struct{}), act: func(line) bool { return false }}
	var work func()
	switch first := x[0]; first.t {
	case agent.Ping:
		work = func() { _, o.err = c.Ping(ctx) }
	case agent.Touch:
		work = func() { o.seq, o.err = c.Touch(ctx) }
	case agent.ExecRequest:
		var q agent.ExecRequestPayload
		agent.DecodePayload(first.e.P, &q)
		started := make(chan struct{})
		o.act = func(l line) bool { return actExec(t, o, started, l) }
		work = func() {
			spec := ExecSpec{Cmd: q.Cmd, Args: q.Args, Env: q.Env, TTY: q.TTY, Rows: q.Rows, Cols: q.Cols, Rlimits: q.Rlimits}
			if q.Cwd != nil {
				spec.Cwd = *q.Cwd
			}
			if q.User != nil {
				spec.User = *q.User
			}
			o.exec, o.err = c.Exec(ctx, spec)
			close(started)
		}
	case agent.TCPConnect:
		var q agent.TCPConnectPayload
		agent.DecodePayload(first.e.P, &q)
		started := make(chan struct{})
		o.act = func(l line) bool { return actTCP(t, o, started, l) }
		work = func() {
			o.conn, o.err = c.dialTCP(ctx, q.Host, q.Port, bulk && c.takeBulk())
			close(started)
		}
	case agent.FSRequest:
		var q agent.FSRequestPayload
		agent.DecodePayload(first.e.P, &q)
		if bulk {
			c.takeBulk()
		}
		_, o.writes = q.Op.(agent.OpWrite)
		work = func() { o.value, o.data, o.err = doFS(ctx, c, q.Op, bulk, x) }
	}
	go func() {
		defer close(o.done)
		work()
	}()
	return o
}

func actExec(t *testing.T, o *operation, started chan struct{}, l line) bool {
	switch l.t {
	case agent.ExecStdin:
		go func() { // the recorded client did not wait for the start
			<-started
			if o.exec == nil {
				return
			}
			var d agent.Data
			agent.DecodePayload(l.e.P, &d)
			if len(d.Data) == 0 {
				o.exec.Stdin().Close()
			} else {
				o.exec.Stdin().Write(d.Data)
			}
		}()
		return false
	case agent.ExecResize:
		<-started
		var q agent.ExecResizePayload
		agent.DecodePayload(l.e.P, &q)
		if err := o.exec.Resize(context.Background(), q.Rows, q.Cols); err != nil {
			t.Error(err)
		}
		return true
	case agent.ExecSignal:
		<-started
		var q agent.ExecSignalPayload
		agent.DecodePayload(l.e.P, &q)
		if err := o.exec.Signal(context.Background(), int(q.Signal)); err != nil {
			t.Error(err)
		}
		return true
	}
	return false
}

func actTCP(t *testing.T, o *operation, started chan struct{}, l line) bool {
	<-started
	var err error
	switch {
	case o.conn == nil:
		return false
	case l.bulk != nil:
		_, err = o.conn.Write(l.bulk.Payload)
	case l.t == agent.TCPData:
		var d agent.Data
		agent.DecodePayload(l.e.P, &d)
		_, err = o.conn.Write(d.Data)
	case l.t == agent.TCPEOF || l.t == agent.BulkFinish:
		err = o.conn.CloseWrite()
	}
	if err != nil {
		t.Error(err)
	}
	return true
}

// doFS makes the recorded request through the API.
func doFS(ctx context.Context, c *Client, op agent.FSOp, bulk bool, x []line) (v agent.FSValue, data []byte, err error) {
	f := c.FS()
	file := func(h uint64) *File { return &File{handle: handle{c: c, id: h, path: "f"}} }
	dir := func(h uint64) *Dir { return &Dir{handle: handle{c: c, id: h, path: "d"}} }
	path := func(s string, err error) (agent.FSValue, []byte, error) { return agent.FSPath(s), nil, err }
	entry := func(e agent.Entry, err error) (agent.FSValue, []byte, error) { return agent.FSStat(e), nil, err }
	list := func(l []agent.Entry, err error) (agent.FSValue, []byte, error) { return agent.FSList(l), nil, err }
	switch op := op.(type) {
	case agent.OpRealPath:
		return path(f.RealPath(ctx, op.Path))
	case agent.OpReadLink:
		return path(f.ReadLink(ctx, op.Path))
	case agent.OpStat:
		return entry(f.Stat(ctx, op.Path, op.FollowSymlink))
	case agent.OpFStat:
		return entry(file(op.Handle).Stat(ctx))
	case agent.OpList:
		return list(f.List(ctx, op.Path))
	case agent.OpReadDir:
		limit := uint32(0)
		if op.Limit != nil {
			limit = *op.Limit
		}
		return list(dir(op.Handle).Read(ctx, limit))
	case agent.OpOpenFile:
		h, err := f.OpenFile(ctx, op.Path, op.Options)
		if err != nil {
			return nil, nil, err
		}
		return agent.FSHandle(h.id), nil, nil
	case agent.OpOpenDir:
		h, err := f.OpenDir(ctx, op.Path)
		if err != nil {
			return nil, nil, err
		}
		return agent.FSHandle(h.id), nil, nil
	case agent.OpSetStat:
		err = f.SetStat(ctx, op.Path, op.FollowSymlink, op.Attrs)
	case agent.OpFSetStat:
		err = file(op.Handle).SetStat(ctx, op.Attrs)
	case agent.OpSymlink:
		err = f.Symlink(ctx, op.Target, op.LinkPath)
	case agent.OpMkdir:
		err = f.Mkdir(ctx, op.Path, op.Mode)
	case agent.OpRemove:
		err = f.Remove(ctx, op.Path)
	case agent.OpRemoveDir:
		err = f.RemoveDir(ctx, op.Path, op.Recursive)
	case agent.OpCopy:
		err = f.Copy(ctx, op.Src, op.Dst)
	case agent.OpRename:
		err = f.Rename(ctx, op.Src, op.Dst)
	case agent.OpCloseHandle:
		err = file(op.Handle).Close(ctx)
	case agent.OpRead:
		if op.Len == nil && bulk {
			var b bytes.Buffer
			_, _, err = file(op.Handle).c.download(ctx, file(op.Handle), &b, int64(op.Offset), nil)
			return nil, b.Bytes(), err
		}
		n := uint64(100)
		if op.Len != nil {
			n = *op.Len
		}
		// Without a length the API asks for a piece; the recorded request had none.
		r := file(op.Handle).c.newReading(file(op.Handle), bulk, n)
		r.p = make([]byte, n)
		err = r.run(ctx, int64(op.Offset), op.Len, func() error { return nil })
		return nil, r.p[:r.n], err
	case agent.OpWrite:
		var content []byte
		for _, l := range x {
			switch {
			case l.fromGuest:
			case l.bulk != nil:
				content = append(content, l.bulk.Payload...)
			case l.t == agent.FSData:
				var d agent.Data
				agent.DecodePayload(l.e.P, &d)
				content = append(content, d.Data...)
			}
		}
		if cancelled(x) {
			_, _, err = file(op.Handle).c.write(ctx, file(op.Handle), blockedReader{ctx}, int64(op.Offset), op.Len, bulk)
			return nil, nil, err
		}
		_, _, err = file(op.Handle).c.write(ctx, file(op.Handle), bytes.NewReader(content), int64(op.Offset), op.Len, bulk)
	}
	return nil, nil, err
}

func cancelled(x []line) bool {
	return !x[len(x)-1].fromGuest || len(x) > 2 && x[len(x)-2].t == agent.BulkCancel && !x[len(x)-2].fromGuest || x[len(x)-1].t == agent.BulkAccepted
}

type blockedReader struct{ ctx context.Context }

func (b blockedReader) Read([]byte) (int, error) { <-b.ctx.Done(); return 0, b.ctx.Err() }

// check compares the outcome with the recording.
func (o *operation) check(t *testing.T, x []line, cancelled bool) {
	t.Helper()
	err := o.result()
	last := x[len(x)-1]
	var out, errs []byte
	code := int32(0)
	first := true
	var stdinErr bool
	for _, l := range x {
		if !l.fromGuest {
			continue
		}
		var d agent.Data
		switch {
		case l.bulk != nil:
			out = append(out, l.bulk.Payload...)
		case l.t == agent.ExecStdout || l.t == agent.FSData || l.t == agent.TCPData:
			agent.DecodePayload(l.e.P, &d)
			out = append(out, d.Data...)
		case l.t == agent.ExecStderr:
			agent.DecodePayload(l.e.P, &d)
			errs = append(errs, d.Data...)
		case l.t == agent.ExecStdinError:
			stdinErr = true
		case l.flags&frame.FlagTerminal != 0 && first:
			// A second one is a stock agent's answer to a late credit.
			last, first = l, false
		}
	}
	if cancelled {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v after the cancel", err)
		}
		return
	}
	switch last.t {
	case agent.Pong:
	case agent.Touched:
		var p agent.TouchedPayload
		agent.DecodePayload(last.e.P, &p)
		if o.seq != p.ActivitySeq {
			t.Errorf("sequence %d, want %d", o.seq, p.ActivitySeq)
		}
	case agent.ExecExited:
		var p agent.ExecExitedPayload
		agent.DecodePayload(last.e.P, &p)
		code = p.Code
		if o.exec == nil {
			t.Fatal(err)
		}
		got, werr := o.exec.Wait()
		gotOut, _ := io.ReadAll(o.exec.Stdout())
		gotErr, _ := io.ReadAll(o.exec.Stderr())
		if werr != nil || got != int(code) || !bytes.Equal(gotOut, out) || !bytes.Equal(gotErr, errs) {
			t.Errorf("ended with %d %v, %q, %q; recorded %d, %q, %q", got, werr, gotOut, gotErr, code, out, errs)
		}
		if stdinErr && o.exec.stdin.err == nil {
			t.Error("the guest's complaint about stdin was lost")
		}
		return
	case agent.ExecFailed:
		var p agent.ExecFailedPayload
		agent.DecodePayload(last.e.P, &p)
		var failed *ExecError
		if !errors.As(err, &failed) || failed.Kind != p.Kind || failed.Message != p.Message {
			t.Errorf("error %v, recorded %+v", err, p)
		}
		return
	case agent.TCPClosed:
		got, rerr := io.ReadAll(o.conn)
		if rerr != nil || !bytes.Equal(got, out) {
			t.Errorf("read %q, %v; recorded %q", got, rerr, out)
		}
	case agent.TCPFailed:
		var failed *TCPError
		if o.conn != nil {
			_, err = o.conn.Read(make([]byte, 1))
		}
		if !errors.As(err, &failed) {
			t.Errorf("error %v", err)
		}
		return
	case agent.Error:
		var said *AgentError
		if !errors.As(err, &said) {
			t.Errorf("error %v", err)
		}
		return
	case agent.FSResponse:
		var p agent.FSResponsePayload
		if err := agent.DecodePayload(last.e.P, &p); err != nil {
			t.Fatal(err)
		}
		if !p.OK {
			var failed *FSError
			if !errors.As(err, &failed) || failed.Message != *p.Error || strings.Contains(*p.Error, "os error") != (failed.Errno != 0) {
				t.Errorf("error %v, recorded %q", err, *p.Error)
			}
			return
		}
		if p.Data != nil && fmt.Sprint(p.Data) != fmt.Sprint(o.value) && !sameValue(t, p.Data, o.value) {
			t.Errorf("value %v, recorded %v", o.value, p.Data)
		}
		if !bytes.Equal(o.data, out) {
			t.Errorf("read %d bytes, recorded %d", len(o.data), len(out))
		}
	default:
		t.Errorf("recorded end %s", last.t)
	}
	if err != nil {
		t.Error(err)
	}
}

func sameValue(t *testing.T, a, b agent.FSValue) bool {
	enc := func(v agent.FSValue) []byte {
		p, err := agent.EncodePayload(agent.FSResponsePayload{OK: true, Data: v})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	return bytes.Equal(enc(a), enc(b))
}
