package files

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"msb/guest/bulk"
	"msb/guest/bulk/bulktest"
	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

const mib = 1 << 20

// collect reads a stream to its terminal answer, giving credit as clients do. A credit may be late, which gets an
// answer of its own that clients ignore.
func (c *client) collect(id uint32, raw bool) ([]byte, error) {
	c.t.Helper()
	var got []byte
	flow := bulk.NewReceiver(frame.MaxBulkRecord, frame.DefaultBulkWindow)
	defer func() {
		if raw {
			c.out.Drop(id)
		}
	}()
	finished := false
	for {
		f := c.out.Next(c.t, id)
		switch {
		case f.Type == agent.FSResponse:
			if _, err := result(bulktest.Decode[agent.FSResponsePayload](c.t, f, agent.FSResponse)); err != nil || !raw || finished {
				return got, err
			}
			c.t.Fatal("success without a finish")
		case raw && f.Type == 0 && !finished:
			if f.Bulk.Offset != uint64(len(got)) || f.Bulk.Kind != frame.BulkFilesystem || f.Bulk.Flow != frame.FlowGuestToHost {
				c.t.Fatalf("got %v at %d", f, len(got))
			}
			got = append(got, f.Bulk.Payload...)
			if g, owed := flow.Consume(len(f.Bulk.Payload)); owed {
				c.credit(id, g.Consumed, g.Limit)
			}
		case raw && f.Type == agent.BulkFinish:
			m := bulktest.Decode[agent.BulkFinishPayload](c.t, f, agent.BulkFinish)
			if m.FinalOffset != uint64(len(got)) {
				c.t.Fatalf("finish %+v after %d bytes", m, len(got))
			}
			finished = true
		case !raw && f.Type == agent.FSData:
			d := bulktest.Decode[agent.Data](c.t, f, agent.FSData).Data
			if len(d) == 0 || len(d) > 3<<20 {
				c.t.Fatalf("a chunk of %d bytes", len(d))
			}
			got = append(got, d...)
		default:
			c.t.Fatalf("got %v", f)
		}
	}
}

func (c *client) read(h, offset uint64, n *uint64, raw bool) ([]byte, error) {
	c.t.Helper()
	if !raw {
		return c.collect(c.start(agent.OpRead{Handle: h, Offset: offset, Len: n}, nil), false)
	}
	id := c.start(agent.OpRead{Handle: h, Offset: offset, Len: n}, readOffer())
	if f := c.out.Next(c.t, id); f.Type == agent.FSResponse {
		_, err := result(bulktest.Decode[agent.FSResponsePayload](c.t, f, agent.FSResponse))
		return nil, err
	}
	return c.collect(id, true)
}

// upload writes p in pieces of at most step bytes.
func (c *client) upload(h, offset uint64, p []byte, step int, n *uint64, raw bool) error {
	c.t.Helper()
	if !raw {
		id := c.start(agent.OpWrite{Handle: h, Offset: offset, Len: n}, nil)
		for q := p; len(q) > 0; q = q[min(step, len(q)):] {
			c.data(id, string(q[:min(step, len(q))]))
		}
		c.data(id, "")
		_, err := result(c.response(id))
		return err
	}
	id := c.start(agent.OpWrite{Handle: h, Offset: offset, Len: n}, writeOffer())
	limit := c.accepted(id).HostToGuestCreditLimit
	for off := uint64(0); off < uint64(len(p)); {
		end := min(off+uint64(step), uint64(len(p)))
		for end > limit {
			m := bulktest.Decode[agent.BulkCreditPayload](c.t, c.out.Next(c.t, id), agent.BulkCredit)
			limit = m.CreditLimit
		}
		c.record(id, off, p[off:end])
		off = end
	}
	c.finish(id, uint64(len(p)))
	for {
		f := c.out.Next(c.t, id)
		if f.Type == agent.BulkCredit {
			continue
		}
		_, err := result(bulktest.Decode[agent.FSResponsePayload](c.t, f, agent.FSResponse))
		return err
	}
}

func bothForms(t *testing.T, test func(t *testing.T, raw bool)) {
	t.Run("cbor", func(t *testing.T) { test(t, false) })
	t.Run("bulk", func(t *testing.T) { test(t, true) })
}

func TestReadAndWrite(t *testing.T) {
	bothForms(t, func(t *testing.T, raw bool) {
		c := newClient(t)
		for _, size := range []int{0, 1, 5000, mib - 1, mib, mib + 1, 20*mib + 77} {
			h := c.openRW(c.path(fmt.Sprint(size)))
			p := pattern(size)
			if err := c.upload(h, 0, p, 700_000, nil, raw); err != nil {
				t.Fatal(err)
			}
			if content(t, c.path(fmt.Sprint(size))) != string(p) {
				t.Fatalf("%d bytes: the file differs", size)
			}
			got, err := c.read(h, 0, nil, raw)
			if err != nil || !bytes.Equal(got, p) {
				t.Fatalf("%d bytes: read %d, %v", size, len(got), err)
			}
		}
		c.quiet()
	})
}

func TestRanges(t *testing.T) {
	bothForms(t, func(t *testing.T, raw bool) {
		c := newClient(t)
		p := pattern(3 * mib)
		h := c.openRW(c.path("f"))
		if err := c.upload(h, 0, p, mib, ptr(uint64(len(p))), raw); err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			offset uint64
			n      *uint64
			want   []byte
		}{
			{0, ptr(uint64(0)), nil},
			{5, ptr(uint64(7)), p[5:12]},
			{mib - 3, ptr(uint64(2 * mib)), p[mib-3 : 3*mib-3]},
			{2 * mib, ptr(uint64(100 * mib)), p[2*mib:]},
			{3 * mib, nil, nil},
			{100 * mib, nil, nil},
			{1<<63 - 1, ptr(uint64(5)), nil},
			{2*mib + 1, ptr(uint64(1<<64 - 1)), p[2*mib+1:]},
		} {
			got, err := c.read(h, tc.offset, tc.n, raw)
			if err != nil && tc.offset < 1<<62 || !bytes.Equal(got, tc.want) {
				t.Errorf("at %d: %d bytes, want %d, %v", tc.offset, len(got), len(tc.want), err)
			}
		}
		if _, err := c.read(h, 1<<63, nil, raw); err == nil || err.Error() != "seek: Invalid argument (os error 22)" {
			t.Errorf("got %v", err)
		}
		if err := c.upload(h, 1<<63, []byte("x"), 1, nil, raw); err == nil || err.Error() != "seek: Invalid argument (os error 22)" {
			t.Errorf("got %v", err)
		}
		if err := c.upload(h, 1<<63-1, []byte("xy"), 2, nil, raw); err == nil || !strings.HasPrefix(err.Error(), "write: ") {
			t.Errorf("got %v", err)
		}
		if err := c.upload(h, 4*mib, []byte("far"), 1, ptr(uint64(3)), raw); err != nil {
			t.Error(err)
		}
		if s := content(t, c.path("f")); len(s) != 4*mib+3 || s[4*mib:] != "far" {
			t.Errorf("%d bytes", len(s))
		}
	})
}

func TestAppend(t *testing.T) {
	bothForms(t, func(t *testing.T, raw bool) {
		c := newClient(t)
		writeFile(t, c.path("f"), "one ")
		h := c.open(c.path("f"), agent.OpenOptions{Append: true, Read: true})
		if err := c.upload(h, 0, []byte("two three"), 4, nil, raw); err != nil {
			t.Fatal(err)
		}
		if s := content(t, c.path("f")); s != "one two three" {
			t.Errorf("got %q", s)
		}
	})
}

func TestLengthMismatch(t *testing.T) {
	bothForms(t, func(t *testing.T, raw bool) {
		c := newClient(t)
		h := c.openRW(c.path("f"))
		if err := c.upload(h, 0, []byte("ab"), 9, ptr(uint64(4)), raw); err == nil || err.Error() != "write length mismatch: expected 4, wrote 2" {
			t.Errorf("got %v", err)
		}
		if err := c.upload(h, 0, []byte("abcd"), 9, ptr(uint64(3)), raw); err == nil || err.Error() != "write length mismatch: expected 3, received at least 4" {
			t.Errorf("got %v", err)
		}
		c.quiet() // what followed the failure was dropped
	})
}

func TestSpecialFiles(t *testing.T) {
	bothForms(t, func(t *testing.T, raw bool) {
		c := newClient(t)
		unix.Mkfifo(c.path("fifo"), 0o600)
		ro := agent.OpenOptions{Read: true}
		for _, tc := range []struct {
			path, want string
		}{
			{c.path("fifo"), "seek: Illegal seek (os error 29)"},
			{c.dir, "read: Is a directory (os error 21)"},
			{"/proc/self/mem", "read: Input/output error (os error 5)"},
		} {
			if _, err := c.read(c.open(tc.path, ro), 0, nil, raw); err == nil || err.Error() != tc.want {
				t.Errorf("%s: got %v, want %q", tc.path, err, tc.want)
			}
		}
		got, err := c.read(c.open("/proc/self/status", ro), 0, nil, raw)
		if err != nil || !bytes.HasPrefix(got, []byte("Name:")) {
			t.Errorf("got %q, %v", got, err)
		}
		got, err = c.read(c.open("/dev/zero", ro), 0, ptr(uint64(10*mib)), raw)
		if err != nil || len(got) != 10*mib {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if err := c.upload(c.open("/dev/full", agent.OpenOptions{Write: true}), 0, []byte("x"), 1, nil, raw); err == nil || err.Error() != "write: No space left on device (os error 28)" {
			t.Errorf("got %v", err)
		}
		if err := c.upload(c.open(c.path("fifo"), agent.OpenOptions{Read: true, Write: true}), 0, []byte("x"), 1, nil, raw); err == nil || err.Error() != "seek: Illegal seek (os error 29)" {
			t.Errorf("got %v", err)
		}
		c.quiet()
	})
}

// A closed handle does not take the file from a stream that is using it.
func TestCloseHandleDuringStreams(t *testing.T) {
	c := newClient(t)
	h := c.openRW(c.path("f"))
	w := c.start(agent.OpWrite{Handle: h}, nil)
	c.data(w, "hello ")
	c.must(agent.OpCloseHandle{Handle: h})
	c.data(w, "world")
	c.data(w, "")
	if _, err := result(c.response(w)); err != nil || content(t, c.path("f")) != "hello world" {
		t.Errorf("%v, %q", err, content(t, c.path("f")))
	}
}

func TestReadCredit(t *testing.T) {
	c := newClient(t)
	p := pattern(200 << 10)
	writeFile(t, c.path("f"), string(p))
	h := c.open(c.path("f"), agent.OpenOptions{Read: true})
	id := c.start(agent.OpRead{Handle: h}, &agent.BulkOffer{Format: 1, MaxRecordPayload: 16 << 10, GuestToHostCreditLimit: 24 << 10})
	c.accepted(id)
	for _, want := range []int{16 << 10, 8 << 10} {
		if f := c.out.Next(t, id); len(f.Bulk.Payload) != want {
			t.Fatalf("got %v", f)
		}
	}
	c.credit(id, 0, 24<<10) // advances nothing
	c.credit(id, 24<<10, 25<<10)
	if f := c.out.Next(t, id); len(f.Bulk.Payload) != 1<<10 || f.Bulk.Offset != 24<<10 {
		t.Fatalf("got %v", f)
	}
	c.quiet()
	c.credit(id, 25<<10, 200<<10)
	got := 25 << 10
	for got < len(p) {
		f := c.out.Next(t, id)
		if !bytes.Equal(f.Bulk.Payload, p[got:got+len(f.Bulk.Payload)]) {
			t.Fatalf("got %v at %d", f, got)
		}
		got += len(f.Bulk.Payload)
	}
	// All is sent, but the guest has not seen the end of the file yet.
	c.quiet()
	c.credit(id, 200<<10, 201<<10)
	if f := c.out.Next(t, id); f.Type != agent.BulkFinish {
		t.Fatalf("got %v", f)
	}
	if _, err := result(c.response(id)); err != nil {
		t.Error(err)
	}
}

func TestReadViolations(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(c *client, id uint32)
		want string
		soft bool
	}{
		{"consumed more than sent", func(c *client, id uint32) { c.credit(id, 99*mib, 100*mib) }, "invalid filesystem bulk credit: bulk credit consumed offset 103809024 exceeds sent offset ", false},
		{"limit goes back", func(c *client, id uint32) { c.credit(id, 1, 3) }, "invalid filesystem bulk credit: bulk credit limit went back from 8388608 to 3", false},
		{"window too large", func(c *client, id uint32) { c.credit(id, 0, 33*mib) }, "invalid filesystem bulk credit: bulk credit window 34603008 exceeds maximum 33554432", false},
		{"limit below consumed", func(c *client, id uint32) { c.credit(id, 5, 4) }, "invalid filesystem bulk credit: bulk credit limit 4 is below consumed offset 5", false},
		{"other flow", func(c *client, id uint32) {
			c.s.Credit(id, agent.BulkCreditPayload{Kind: frame.BulkFilesystem, Flow: frame.FlowHostToGuest, CreditLimit: 1})
		}, "filesystem read received credit for another kind or flow", false},
		{"record", func(c *client, id uint32) { c.record(id, 0, []byte("x")) }, "unknown filesystem write session: ", false},
		{"finish", func(c *client, id uint32) { c.finish(id, 0) }, "unknown filesystem write session: ", false},
		{"data", func(c *client, id uint32) { c.data(id, "x") }, "unknown write session: ", true},
		{"cancel", func(c *client, id uint32) {
			c.s.Cancel(id, agent.BulkCancelPayload{Kind: 1, Reason: 1, Message: "caller dropped"})
		}, "caller dropped", true},
		{"cancel without a text", func(c *client, id uint32) { c.s.Cancel(id, agent.BulkCancelPayload{}) }, "the host cancelled the operation", true},
		{"id again", func(c *client, id uint32) { c.send(id, 9, agent.OpRead{Handle: 1}, nil) }, "correlation id was used again while its filesystem stream was open", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newClient(t)
			h := c.open("/dev/zero", agent.OpenOptions{Read: true})
			id := c.start(agent.OpRead{Handle: h}, readOffer())
			c.accepted(id)
			for range 8 {
				c.out.Next(t, id) // the credit is used up
			}
			tc.do(c, id)
			f := c.out.Next(t, id)
			if !tc.soft {
				if m := bulktest.Decode[agent.BulkCancelPayload](t, f, agent.BulkCancel); !strings.HasPrefix(m.Message, tc.want) || m.Reason != 5 {
					t.Errorf("got %+v", m)
				}
				f = c.out.Next(t, id)
			}
			if _, err := result(bulktest.Decode[agent.FSResponsePayload](t, f, agent.FSResponse)); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("got %v", err)
			}
			for c.s.Has(id) {
			}
			if tc.name != "id again" {
				tc.do(c, id) // late, and dropped
			}
			c.quiet()
		})
	}
}

func TestWriteViolations(t *testing.T) {
	for _, tc := range []struct {
		name string
		raw  bool
		do   func(c *client, id uint32)
		want string
		soft bool
	}{
		{"gap", true, func(c *client, id uint32) { c.record(id, 5, []byte("abc")) }, "invalid filesystem bulk record: bulk record offset 5 does not match expected 0", false},
		{"too large", true, func(c *client, id uint32) { c.record(id, 0, make([]byte, 3*mib+1)) }, "invalid filesystem bulk record: invalid bulk record payload length 3145729 (max 3145728)", false},
		{"finish below", true, func(c *client, id uint32) { c.record(id, 0, []byte("abc")); c.finish(id, 2) }, "invalid filesystem bulk finish: bulk finish offset 2 does not match expected 3", false},
		{"finish above", true, func(c *client, id uint32) { c.record(id, 0, []byte("abc")); c.finish(id, 4) }, "invalid filesystem bulk finish: bulk finish offset 4 does not match expected 3", false},
		{"data", true, func(c *client, id uint32) { c.data(id, "q") }, "CBOR filesystem data is invalid after raw bulk acceptance", true},
		{"credit", true, func(c *client, id uint32) { c.credit(id, 0, 1) }, "unknown filesystem read session: 2", false},
		{"flow of the guest", true, func(c *client, id uint32) {
			c.s.Bulk(frame.Bulk{ID: id, Kind: 1, Flow: 2, Payload: []byte("x")}, noRelease)
		}, "invalid filesystem bulk record: another kind or flow", false},
		{"cancel", true, func(c *client, id uint32) {
			c.s.Cancel(id, agent.BulkCancelPayload{Kind: 1, Reason: 1, Message: "caller dropped"})
		}, "caller dropped", true},
		{"record without bulk", false, func(c *client, id uint32) { c.record(id, 0, []byte("x")) }, "raw bulk record sent to a filesystem write without raw bulk", false},
		{"finish without bulk", false, func(c *client, id uint32) { c.finish(id, 0) }, "bulk finish sent to a filesystem write without raw bulk", false},
		{"id again", false, func(c *client, id uint32) { c.send(id, 9, agent.OpWrite{Handle: 1}, nil) }, "correlation id was used again while its filesystem stream was open", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newClient(t)
			h := c.openRW(c.path("f"))
			var id uint32
			if tc.raw {
				id = c.start(agent.OpWrite{Handle: h}, writeOffer())
				c.accepted(id)
			} else {
				id = c.start(agent.OpWrite{Handle: h}, nil)
			}
			tc.do(c, id)
			if tc.soft {
				c.failed(id, tc.want)
			} else {
				c.violated(id, tc.want)
			}
			for c.s.Has(id) {
			}
			if tc.name != "id again" {
				tc.do(c, id) // late, and dropped
			}
			c.quiet()
		})
	}
}

// A host that goes past its credit is stopped, whatever the file's speed.
func TestOverCredit(t *testing.T) {
	c := newClient(t)
	h := c.openRW(c.path("f"))
	// The service is not given the chance to write: all permits are taken.
	for range maxIO {
		c.s.writes <- struct{}{}
	}
	id := c.start(agent.OpWrite{Handle: h}, writeOffer())
	c.accepted(id)
	released := make(chan struct{}, 9)
	for i := range 9 {
		c.s.Bulk(frame.Bulk{ID: id, Kind: 1, Flow: 1, Offset: uint64(i) * mib, Payload: make([]byte, mib)}, func() { released <- struct{}{} })
	}
	<-released // the one too many
	for range maxIO {
		<-c.s.writes
	}
	for {
		f := c.out.Next(t, id)
		if f.Type == agent.BulkCredit {
			continue
		}
		m := bulktest.Decode[agent.BulkCancelPayload](t, f, agent.BulkCancel)
		if m.Message != "invalid filesystem bulk record: bulk record end 9437184 exceeds credit limit 8388608" {
			t.Errorf("got %+v", m)
		}
		break
	}
	c.failed(id, "invalid filesystem bulk record: bulk record end 9437184 exceeds credit limit 8388608")
	for range 8 {
		<-released
	}
	if s := content(t, c.path("f")); len(s) != 8*mib {
		t.Errorf("%d bytes are in the file", len(s))
	}
}

// Cancelling a write gives back the credit of everything that waits.
func TestCancelReleases(t *testing.T) {
	c := newClient(t)
	h := c.openRW(c.path("f"))
	for range maxIO {
		c.s.writes <- struct{}{}
	}
	id := c.start(agent.OpWrite{Handle: h}, nil)
	released := make(chan struct{}, 100)
	for range 100 {
		c.s.Data(port.Input{ID: id, Data: []byte("x"), Release: func() { released <- struct{}{} }})
	}
	c.s.Cancel(id, agent.BulkCancelPayload{Message: "enough"})
	c.failed(id, "enough")
	for range 100 {
		<-released
	}
	for range maxIO {
		<-c.s.writes
	}
}

// Reads whose client gives no credit hold neither memory nor a permit.
func TestStarvedReadsHoldNothing(t *testing.T) {
	c := newClient(t)
	h := c.open("/dev/zero", agent.OpenOptions{Read: true})
	var ids []uint32
	for range maxStreamsPerOwner {
		id := c.start(agent.OpRead{Handle: h}, &agent.BulkOffer{Format: 1, MaxRecordPayload: 16 << 10, GuestToHostCreditLimit: 1})
		c.accepted(id)
		c.out.Next(t, id)
		ids = append(ids, id)
	}
	c.fails(agent.OpRead{Handle: h}, "read: too many filesystem streams are open")
	c.fails(agent.OpWrite{Handle: c.openRW(c.path("f"))}, "write: too many filesystem streams are open")
	other := c.other(1)
	if p, err := other.read(other.open("/dev/zero", agent.OpenOptions{Read: true}), 0, ptr(uint64(mib)), true); err != nil || len(p) != mib {
		t.Errorf("%d bytes, %v", len(p), err)
	}
	for _, id := range ids {
		c.s.Cancel(id, agent.BulkCancelPayload{Message: "enough"})
		c.failed(id, "enough")
	}
	if len(c.s.reads) != 0 {
		t.Errorf("%d permits are still taken", len(c.s.reads))
	}
}

// With ports of their own for data, a finish may come before the records it counts.
func TestFinishOvertakesRecords(t *testing.T) {
	c := newClient(t, SplitPorts())
	id := c.start(agent.OpWrite{Handle: c.openRW(c.path("f")), Len: ptr(uint64(6))}, writeOffer())
	c.accepted(id)
	c.record(id, 0, []byte("ab"))
	c.finish(id, 6)
	c.record(id, 2, []byte("cd"))
	c.record(id, 4, []byte("ef"))
	if _, err := result(c.response(id)); err != nil || content(t, c.path("f")) != "abcdef" {
		t.Errorf("%v, %q", err, content(t, c.path("f")))
	}
}

// When the link goes, everything ends.
func TestLinkIsGone(t *testing.T) {
	c := newClient(t)
	h := c.open("/dev/zero", agent.OpenOptions{Read: true})
	open := c.out.Hold()
	id := c.start(agent.OpRead{Handle: h}, nil)
	c.out.Close()
	open()
	for c.s.Has(id) {
	}
	c.s.Close()
	c.s.Request(0, 99, 9, nil, noRelease)
	if _, err := os.Stat(c.dir); err != nil {
		t.Error(err)
	}
}
