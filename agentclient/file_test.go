package agentclient

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"
	"sync"
	"syscall"
	"testing"

	"msb/protocol/agent"
	"msb/protocol/client"
	"msb/protocol/frame"
)

func TestFSErrors(t *testing.T) {
	c, _ := newPeer(t, 9, nil)
	_, err := c.FS().Stat(within(t), "/no\x1b[31m", true)
	var e *FSError
	if !errors.As(err, &e) || e.Errno != syscall.ENOENT || !errors.Is(err, fs.ErrNotExist) || e.Op != "stat" {
		t.Errorf("error %#v", err)
	}
	if strings.ContainsRune(err.Error(), '\x1b') {
		t.Errorf("a control character is shown: %q", err)
	}
}

func TestErrnoOf(t *testing.T) {
	cases := map[string]syscall.Errno{
		"stat: No such file or directory (os error 2)": syscall.ENOENT,
		"x (os error 13) y (os error 17)":              syscall.EEXIST,
		"fstat: invalid handle: 1":                     0,
		"(os error 2":                                  0,
		"(os error -2)":                                0,
		"(os error 99999999999)":                       0,
		"(os error )":                                  0,
		"":                                             0,
	}
	for text, want := range cases {
		if got := errnoOf(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// A relay that declines raw bulk, or a peer without it: nobody notices.
func TestBulkDeclined(t *testing.T) {
	c, p := newPeer(t, 9, func(p *peer) { p.declineBulk = "too many concurrent bulk operations" })
	f, err := c.FS().OpenFile(within(t), "/f", agent.OpenOptions{Read: true, Write: true, Create: true})
	if err != nil {
		t.Fatal(err)
	}
	fileRoundTrip(t, f, 100, 70<<10, 3<<20)
	conn, err := c.DialTCP(within(t), "echo", 7)
	if err != nil {
		t.Fatal(err)
	}
	echo(t, conn, pattern(1<<20))
	if p.bulk != 0 || c.bulk.Load() != 0 {
		t.Errorf("%d accepted, %d held", p.bulk, c.bulk.Load())
	}
}

// More operations at once than a relay allows in raw bulk.
func TestManyTransfers(t *testing.T) {
	c, p := newPeer(t, 9, nil)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			name := string(rune('A' + i))
			f, err := c.FS().OpenFile(within(t), name, agent.OpenOptions{Read: true, Write: true, Create: true})
			if err != nil {
				t.Error(err)
				return
			}
			data := bytes.Repeat([]byte{byte(i)}, 400<<10)
			if _, err := f.WriteAt(within(t), data, 0); err != nil {
				t.Error(err)
			}
			got := make([]byte, len(data))
			if _, err := f.ReadAt(within(t), got, 0); err != nil || !bytes.Equal(got, data) {
				t.Error("read", err)
			}
			f.Close(within(t))
		})
	}
	wg.Wait()
	if p.bulk == 0 || c.bulk.Load() != 0 || c.busy() {
		t.Errorf("%d accepted, %d held, busy %v", p.bulk, c.bulk.Load(), c.busy())
	}
}

// slowWriter takes a byte stream only when it is told to.
type slowWriter struct {
	take chan struct{}
	bytes.Buffer
}

func (w *slowWriter) Write(p []byte) (int, error) {
	<-w.take
	return w.Buffer.Write(p)
}

// A writer that stalls holds up its own download only, within the window.
func TestDownloadStalled(t *testing.T) {
	c, p := newPeer(t, 9, nil)
	data := pattern(24 << 20)
	p.files["/f"] = &memFile{b: data}
	f, err := c.FS().OpenFile(within(t), "/f", agent.OpenOptions{Read: true})
	if err != nil {
		t.Fatal(err)
	}
	w := &slowWriter{take: make(chan struct{})}
	done := make(chan error, 1)
	go func() {
		_, err := f.Download(within(t), w, 0, nil)
		done <- err
	}()
	w.take <- struct{}{}
	buf := make([]byte, 1<<20)
	for range 20 {
		if _, err := f.ReadAt(within(t), buf, 5); err != nil || !bytes.Equal(buf, data[5:5+len(buf)]) {
			t.Fatal(err)
		}
	}
	close(w.take)
	if err := <-done; err != nil || !bytes.Equal(w.Bytes(), data) {
		t.Errorf("%d bytes, %v", w.Len(), err)
	}
}

var errWriter = errors.New("disk full")

type failingWriter struct{ n int }

func (w *failingWriter) Write(p []byte) (int, error) {
	if w.n -= len(p); w.n < 0 {
		return 0, errWriter
	}
	return len(p), nil
}

// The writer, the source or the caller's context give up in the middle: their
// error comes back, the guest is told, and the connection goes on.
func TestTransferGivenUp(t *testing.T) {
	for _, gen := range []uint8{7, 9} {
		c, p := newPeer(t, gen, nil)
		p.files["/f"] = &memFile{b: pattern(30 << 20)}
		f, err := c.FS().OpenFile(within(t), "/f", agent.OpenOptions{Read: true, Write: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Download(within(t), &failingWriter{5 << 20}, 0, nil); err != errWriter {
			t.Errorf("gen %d: download: %v", gen, err)
		}
		src := io.MultiReader(bytes.NewReader(pattern(12<<20)), failingReader{})
		if _, err := f.Upload(within(t), src, 0); err != errWriter {
			t.Errorf("gen %d: upload: %v", gen, err)
		}
		ctx, cancel := context.WithCancel(within(t))
		src = io.MultiReader(bytes.NewReader(pattern(12<<20)), hook{cancel}, bytes.NewReader(pattern(12<<20)))
		if _, err := f.Upload(ctx, src, 0); !errors.Is(err, context.Canceled) {
			t.Errorf("gen %d: cancelled upload: %v", gen, err)
		}
		ctx, cancel = context.WithCancel(within(t))
		_, err = f.Download(ctx, writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil }), 0, nil)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("gen %d: cancelled download: %v", gen, err)
		}
		waitIdle(t, c)
		g, err := c.FS().OpenFile(within(t), "/g", agent.OpenOptions{Read: true, Write: true, Create: true})
		if err != nil {
			t.Fatal(err)
		}
		fileRoundTrip(t, g, 300<<10)
	}
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errWriter }

type hook struct{ f func() }

func (h hook) Read([]byte) (int, error) { h.f(); return 0, io.EOF }

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// waitIdle waits until no operation is under way, by asking the guest again
// and again.
func waitIdle(t *testing.T, c *Client) {
	t.Helper()
	for range 10000 {
		if c.engine.Active() == 0 && c.bulk.Load() == 0 {
			return
		}
		if _, err := c.FS().Stat(within(t), "/x", true); !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	t.Fatalf("%d streams and %d bulk operations are left", c.engine.Active(), c.bulk.Load())
}

// A handle that is opened after its caller has gone is closed again.
func TestOpenCancelled(t *testing.T) {
	c, s := newScript(t, 9)
	ctx, cancel := context.WithCancel(within(t))
	failed := make(chan error)
	go func() {
		_, err := c.FS().OpenFile(ctx, "/f", agent.OpenOptions{Read: true})
		failed <- err
	}()
	id := s.expect(agent.FSRequest).ID
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	s.send(id, agent.FSResponse, agent.FSResponsePayload{OK: true, Data: agent.FSHandle(77)})
	var q agent.FSRequestPayload
	s.decode(s.expect(agent.FSRequest), &q)
	if q.Op != (agent.OpCloseHandle{Handle: 77}) {
		t.Errorf("request %+v", q.Op)
	}
	s.sync(c)
	if c.busy() {
		t.Error("busy")
	}
}

// The buffer of a read is the caller's again when ReadAt has returned.
func TestReadCancelled(t *testing.T) {
	c, s := newScript(t, 9)
	f := &File{handle: handle{c: c, id: 1}}
	ctx, cancel := context.WithCancel(within(t))
	p := make([]byte, 100<<10)
	failed := make(chan error)
	go func() {
		_, err := f.ReadAt(ctx, p, 0)
		failed <- err
	}()
	id := s.expect(agent.FSRequest).ID
	s.accept(id, agent.MaskGuestToHost)
	s.bulk(id, 1, 2, 0, bytes.Repeat([]byte{1}, 1000))
	s.sync(c)
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	var q agent.BulkCancelPayload
	s.decode(s.expect(agent.BulkCancel), &q)
	if q.Reason != agent.CancelCaller {
		t.Errorf("reason %d", q.Reason)
	}
	s.bulk(id, 1, 2, 1000, bytes.Repeat([]byte{1}, 1000))
	s.sync(c)
	if !bytes.Equal(p[1000:], make([]byte, len(p)-1000)) {
		t.Error("the buffer was written to after the return")
	}
	if c.bulk.Load() != 1 {
		t.Error("the operation does not count any more though the guest has not ended it")
	}
	msg := "cancelled"
	s.send(id, agent.FSResponse, agent.FSResponsePayload{Error: &msg})
	s.sync(c)
	if c.bulk.Load() != 0 || c.busy() {
		t.Error("the operation was not given back")
	}
}

func (s *scripted) accept(id uint32, mask uint8) {
	a := agent.BulkAcceptedPayload{Kind: 1, Flows: mask, Format: 1, MaxRecordPayload: 64 << 10}
	if mask&agent.MaskGuestToHost != 0 {
		a.GuestToHostCreditLimit = frame.DefaultBulkWindow
	}
	if mask&agent.MaskHostToGuest != 0 {
		a.HostToGuestCreditLimit = 1 << 20
	}
	s.send(id, agent.BulkAccepted, a)
}

// What a guest may not do in a read. Nothing is delivered, the guest is told,
// and the connection goes on.
func TestReadBadAnswers(t *testing.T) {
	accepted := func(a agent.BulkAcceptedPayload) func(*scripted, uint32) {
		return func(s *scripted, id uint32) { s.send(id, agent.BulkAccepted, a) }
	}
	good := agent.BulkAcceptedPayload{Kind: 1, Flows: 2, Format: 1, MaxRecordPayload: 64 << 10, GuestToHostCreditLimit: frame.DefaultBulkWindow}
	with := func(f func(*agent.BulkAcceptedPayload)) func(*scripted, uint32) {
		a := good
		f(&a)
		return accepted(a)
	}
	then := func(f func(s *scripted, id uint32)) func(*scripted, uint32) {
		return func(s *scripted, id uint32) { s.accept(id, agent.MaskGuestToHost); f(s, id) }
	}
	data := func(n int) []byte { return make([]byte, n) }
	cases := map[string]func(s *scripted, id uint32){
		"kind":                  with(func(a *agent.BulkAcceptedPayload) { a.Kind = 2 }),
		"flows":                 with(func(a *agent.BulkAcceptedPayload) { a.Flows = 3 }),
		"format":                with(func(a *agent.BulkAcceptedPayload) { a.Format = 2 }),
		"tiny records":          with(func(a *agent.BulkAcceptedPayload) { a.MaxRecordPayload = 1 }),
		"large records":         with(func(a *agent.BulkAcceptedPayload) { a.MaxRecordPayload = 3 << 20 }),
		"other credit":          with(func(a *agent.BulkAcceptedPayload) { a.GuestToHostCreditLimit-- }),
		"credit for us":         with(func(a *agent.BulkAcceptedPayload) { a.HostToGuestCreditLimit = 1 }),
		"accepted twice":        then(func(s *scripted, id uint32) { s.accept(id, agent.MaskGuestToHost) }),
		"record first":          func(s *scripted, id uint32) { s.bulk(id, 1, 2, 0, data(10)) },
		"record of TCP":         then(func(s *scripted, id uint32) { s.bulk(id, 2, 2, 0, data(10)) }),
		"record of our flow":    then(func(s *scripted, id uint32) { s.bulk(id, 1, 1, 0, data(10)) }),
		"empty record":          then(func(s *scripted, id uint32) { s.bulk(id, 1, 2, 0, nil) }),
		"short record":          then(func(s *scripted, id uint32) { s.frame(id, 8, []byte{1, 2, 0}) }),
		"reserved bytes":        then(func(s *scripted, id uint32) { s.frame(id, 8, []byte{1, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1}) }),
		"offset gap":            then(func(s *scripted, id uint32) { s.bulk(id, 1, 2, 1, data(10)) }),
		"offset at the top":     then(func(s *scripted, id uint32) { s.bulk(id, 1, 2, 1<<64-1, data(10)) }),
		"record too large":      then(func(s *scripted, id uint32) { s.bulk(id, 1, 2, 0, data(64<<10+1)) }),
		"more than asked for":   then(func(s *scripted, id uint32) { s.bulk(id, 1, 2, 0, data(60000)); s.bulk(id, 1, 2, 60000, data(60000)) }),
		"CBOR after acceptance": then(func(s *scripted, id uint32) { s.send(id, agent.FSData, agent.Data{Data: data(5)}) }),
		"finish too early": then(func(s *scripted, id uint32) {
			s.send(id, agent.BulkFinish, agent.BulkFinishPayload{Kind: 1, Flow: 2, FinalOffset: 1})
		}),
		"finish of our flow":      then(func(s *scripted, id uint32) { s.send(id, agent.BulkFinish, agent.BulkFinishPayload{Kind: 1, Flow: 1}) }),
		"finish unasked":          func(s *scripted, id uint32) { s.send(id, agent.BulkFinish, agent.BulkFinishPayload{Kind: 1, Flow: 2}) },
		"two finishes":            then(func(s *scripted, id uint32) { s.finish(id, 2, 0); s.finish(id, 2, 0) }),
		"record after finish":     then(func(s *scripted, id uint32) { s.finish(id, 2, 0); s.bulk(id, 1, 2, 0, data(1)) }),
		"success, not finished":   then(func(s *scripted, id uint32) { s.fsOK(id) }),
		"inline, too much":        func(s *scripted, id uint32) { s.send(id, agent.FSData, agent.Data{Data: data(100<<10 + 1)}) },
		"credit":                  func(s *scripted, id uint32) { s.send(id, agent.BulkCredit, agent.BulkCreditPayload{Kind: 1, Flow: 2}) },
		"flags 0x09":              then(func(s *scripted, id uint32) { s.frame(id, 9, append([]byte{1, 2, 0, 0}, data(9)...)) }),
		"flags 0xff":              func(s *scripted, id uint32) { s.frame(id, 0xff, []byte{0xa0}) },
		"terminal of another":     func(s *scripted, id uint32) { s.send(id, agent.TCPClosed, agent.Empty{}) },
		"terminal not understood": func(s *scripted, id uint32) { s.raw(id, 1, "core.fs.response", []byte{0xa0}) },
	}
	for name, play := range cases {
		t.Run(name, func(t *testing.T) {
			c, s := newScript(t, 9)
			f := &File{handle: handle{c: c, id: 1}}
			result := make(chan error, 1)
			p := make([]byte, 100<<10)
			go func() {
				_, err := f.ReadAt(within(t), p, 0)
				result <- err
			}()
			id := s.expect(agent.FSRequest).ID
			play(s, id)
			err := <-result
			var bad *ProtocolError
			if !errors.As(err, &bad) || bad.ID != id {
				t.Errorf("error %v", err)
			}
			s.fsOK(id) // the end of a cancelled one, or late
			s.drain()
			if _, err := c.Ping(within(t)); err != nil {
				t.Errorf("the connection: %v", err)
			}
			if c.bulk.Load() != 0 || c.busy() {
				t.Error("the operation was not given back")
			}
		})
	}
}

func (s *scripted) finish(id uint32, flow uint8, at uint64) {
	s.send(id, agent.BulkFinish, agent.BulkFinishPayload{Kind: 1, Flow: flow, FinalOffset: at})
}

// What a guest may not do in a write.
func TestWriteBadAnswers(t *testing.T) {
	credit := func(consumed, limit uint64) func(*scripted, uint32) {
		return func(s *scripted, id uint32) {
			s.send(id, agent.BulkCredit, agent.BulkCreditPayload{Kind: 1, Flow: 1, ConsumedOffset: consumed, CreditLimit: limit})
		}
	}
	cases := map[string]func(s *scripted, id uint32){
		"consumed more than sent": credit(1<<20+1, 4<<20),
		"limit below consumed":    credit(1<<20, 1<<20-1),
		"window too large":        credit(1<<20, 33<<20+1),
		"limit back":              credit(1, 1<<20-1),
		"at the top":              credit(1<<64-1, 1<<64-1),
		"of the other flow": func(s *scripted, id uint32) {
			s.send(id, agent.BulkCredit, agent.BulkCreditPayload{Kind: 1, Flow: 2, ConsumedOffset: 1, CreditLimit: 2 << 20})
		},
		"success too early": func(s *scripted, id uint32) { s.fsOK(id) },
		"record":            func(s *scripted, id uint32) { s.bulk(id, 1, 2, 0, []byte("x")) },
		"data":              func(s *scripted, id uint32) { s.send(id, agent.FSData, agent.Data{}) },
		"accepted twice":    func(s *scripted, id uint32) { s.accept(id, agent.MaskHostToGuest) },
	}
	for name, play := range cases {
		t.Run(name, func(t *testing.T) {
			c, s := newScript(t, 9)
			f := &File{handle: handle{c: c, id: 1}}
			result := make(chan error, 1)
			go func() {
				_, err := f.WriteAt(within(t), make([]byte, 3<<20), 0)
				result <- err
			}()
			id := s.expect(agent.FSRequest).ID
			s.accept(id, agent.MaskHostToGuest)
			for n := 0; n < 1<<20; {
				n += len(s.next().Body) - frame.BulkHeaderSize
			}
			play(s, id)
			err := <-result
			var bad *ProtocolError
			if !errors.As(err, &bad) || bad.ID != id {
				t.Errorf("error %v", err)
			}
			s.fsOK(id)
			s.drain()
			if _, err := c.Ping(within(t)); err != nil {
				t.Errorf("the connection: %v", err)
			}
			if c.bulk.Load() != 0 || c.busy() {
				t.Error("the operation was not given back")
			}
		})
	}
}

// Credits that say nothing new are ignored; the write goes on with the next.
func TestWriteStaleCredit(t *testing.T) {
	c, s := newScript(t, 9)
	f := &File{handle: handle{c: c, id: 1}}
	result := make(chan error, 1)
	go func() {
		_, err := f.WriteAt(within(t), make([]byte, 1<<20+10), 0)
		result <- err
	}()
	id := s.expect(agent.FSRequest).ID
	s.accept(id, agent.MaskHostToGuest)
	take := func(want int) {
		for n := 0; n < want; {
			n += len(s.next().Body) - frame.BulkHeaderSize
		}
	}
	take(1 << 20)
	for _, m := range [][2]uint64{{0, 1 << 20}, {0, 0}, {1 << 20, 2 << 20}, {100, 200}} {
		s.send(id, agent.BulkCredit, agent.BulkCreditPayload{Kind: 1, Flow: 1, ConsumedOffset: m[0], CreditLimit: m[1]})
	}
	take(10)
	s.expect(agent.BulkFinish)
	s.fsOK(id)
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// A write error of the guest in the middle.
func TestWriteRefused(t *testing.T) {
	c, s := newScript(t, 9)
	f := &File{handle: handle{c: c, id: 1, path: "/f"}}
	result := make(chan error, 1)
	go func() {
		_, err := f.WriteAt(within(t), make([]byte, 3<<20), 0)
		result <- err
	}()
	id := s.expect(agent.FSRequest).ID
	s.accept(id, agent.MaskHostToGuest)
	msg := "write: No space left on device (os error 28)"
	s.send(id, agent.FSResponse, agent.FSResponsePayload{Error: &msg})
	if err := <-result; !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("error %v", err)
	}
}

func TestClosedHandle(t *testing.T) {
	c, _ := newPeer(t, 9, nil)
	f, err := c.FS().OpenFile(within(t), "/f", agent.OpenOptions{Create: true, Write: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	_, e1 := f.ReadAt(within(t), make([]byte, 1), 0)
	_, e2 := f.WriteAt(within(t), make([]byte, 1), 0)
	_, e3 := f.Stat(within(t))
	for _, err := range []error{e1, e2, e3, f.Close(within(t)), f.SetStat(within(t), agent.Attrs{})} {
		if err != fs.ErrClosed {
			t.Errorf("error %v", err)
		}
	}
	f, _ = c.FS().OpenFile(within(t), "/f", agent.OpenOptions{})
	if _, err := f.ReadAt(within(t), make([]byte, 1), -1); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("negative offset: %v", err)
	}
}

func TestTransferLost(t *testing.T) {
	c, s := newScript(t, 9)
	f := &File{handle: handle{c: c, id: 1}}
	errs := make(chan error, 4)
	go func() { _, err := f.ReadAt(within(t), make([]byte, 1<<20), 0); errs <- err }()
	go func() { _, err := f.WriteAt(within(t), make([]byte, 1<<20), 0); errs <- err }()
	go func() { _, err := f.Download(within(t), io.Discard, 0, nil); errs <- err }()
	go func() { _, err := c.FS().Stat(within(t), "/", true); errs <- err }()
	for range 4 {
		s.expect(agent.FSRequest)
	}
	s.conn.Close()
	for range 4 {
		if err := <-errs; !client.IsLost(err) {
			t.Errorf("error %v", err)
		}
	}
	if c.bulk.Load() != 0 {
		t.Error("bulk operations held")
	}
}
