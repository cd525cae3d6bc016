package relay

import (
	"fmt"
	"io"
	"testing"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// drain reads everything that comes, as fast as it can.
func drain(r io.Reader, total int64) error {
	buf := make([]byte, 256<<10)
	for total > 0 {
		n, err := r.Read(buf)
		total -= int64(n)
		if err != nil {
			return err
		}
	}
	return nil
}

// bulkLink is a client with an open operation of each direction.
func bulkLink(t testing.TB) (*rig, *peer) {
	r := newRig(t, kind{generation: 9, leases: true})
	p := r.dial()
	r.guest.lease()
	for id, request := range map[uint32][]byte{1: writeRequest(t, 1), 2: readRequest(t, 2)} {
		p.send(request)
		if f := r.guest.next(); f.ID != id {
			t.Fatalf("request %d", f.ID)
		}
	}
	p.conn.SetDeadline(never)
	r.guest.control.SetDeadline(never)
	return r, p
}

func BenchmarkUpload(b *testing.B) {
	for _, size := range []int{64 << 10, 256 << 10, 1 << 20, 3 << 20} {
		b.Run(fmt.Sprintf("%dK", size>>10), func(b *testing.B) {
			r, p := bulkLink(b)
			rec := encodeBulk(b, 1, frame.BulkFilesystem, frame.FlowHostToGuest, 0, make([]byte, size))
			b.SetBytes(int64(size))
			b.ReportAllocs()
			done := make(chan error, 1)
			go func() { done <- drain(r.guest.control, int64(b.N)*int64(len(rec))) }()
			for range b.N {
				if _, err := p.conn.Write(rec); err != nil {
					b.Fatal(err)
				}
			}
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		})
	}
}

func BenchmarkDownload(b *testing.B) {
	for _, size := range []int{64 << 10, 256 << 10, 1 << 20, 3 << 20} {
		b.Run(fmt.Sprintf("%dK", size>>10), func(b *testing.B) {
			r, p := bulkLink(b)
			rec := encodeBulk(b, 2, frame.BulkFilesystem, frame.FlowGuestToHost, 0, make([]byte, size))
			b.SetBytes(int64(size))
			b.ReportAllocs()
			done := make(chan error, 1)
			go func() { done <- drain(p.conn, int64(b.N)*int64(len(rec))) }()
			for range b.N {
				if _, err := r.guest.control.Write(rec); err != nil {
					b.Fatal(err)
				}
			}
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkCopy is what the two above are to be compared with: io.Copy between the same kinds of socket.
func BenchmarkCopy(b *testing.B) {
	for _, size := range []int{64 << 10, 256 << 10, 1 << 20, 3 << 20} {
		b.Run(fmt.Sprintf("%dK", size>>10), func(b *testing.B) {
			from, in := pair(b)
			out, to := pair(b)
			go io.Copy(out, in)
			rec := make([]byte, size+frame.BulkOverhead)
			b.SetBytes(int64(size))
			done := make(chan error, 1)
			go func() { done <- drain(to, int64(b.N)*int64(len(rec))) }()
			for range b.N {
				if _, err := from.Write(rec); err != nil {
					b.Fatal(err)
				}
			}
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		})
	}
}

func BenchmarkPing(b *testing.B) {
	r := newRig(b, kind{generation: 9})
	p := r.dial()
	p.conn.SetDeadline(never)
	r.guest.control.SetDeadline(never)
	ping := encode(b, 1, agent.Ping, 9, agent.Empty{})
	pong := encode(b, 1, agent.Pong, 9, agent.Empty{})
	go func() {
		for {
			if _, err := r.guest.frames.Next(); err != nil {
				return
			}
			if _, err := r.guest.control.Write(pong); err != nil {
				return
			}
		}
	}()
	b.ReportAllocs()
	for range b.N {
		p.send(ping)
		p.next()
	}
}

// Steady bulk takes no memory: what a record needs is there from the ones before.
func TestBulkRecordsDoNotAllocate(t *testing.T) {
	r, p := bulkLink(t)
	const size = 256 << 10
	up := encodeBulk(t, 1, frame.BulkFilesystem, frame.FlowHostToGuest, 0, make([]byte, size))
	down := encodeBulk(t, 2, frame.BulkFilesystem, frame.FlowGuestToHost, 0, make([]byte, size))
	buf := make([]byte, len(up))
	once := func(from io.Writer, to io.Reader, rec []byte) {
		written := make(chan error, 1)
		go func() { _, err := from.Write(rec); written <- err }()
		if _, err := io.ReadFull(to, buf); err != nil {
			t.Fatal(err)
		}
		if err := <-written; err != nil {
			t.Fatal(err)
		}
	}
	step := func() {
		for range 50 {
			once(p.conn, r.guest.control, up)
			once(r.guest.control, p.conn, down)
		}
	}
	step()
	// The test itself makes a channel and a goroutine each time.
	const own = 3 * 2 * 50
	if n := testing.AllocsPerRun(5, step); n > own+25 {
		t.Errorf("%.0f allocations for 100 records, %d of them the test's", n, own)
	}
}
