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
	const size, records = 256 << 10, 100
	for _, dual := range []bool{false, true} {
		t.Run(fmt.Sprintf("dual=%v", dual), func(t *testing.T) {
			r := newRig(t, kind{generation: 9, leases: true, dual: dual})
			p := r.dial()
			inc := r.guest.lease().Incarnation
			for id, request := range map[uint32][]byte{1: writeRequest(t, 1), 2: readRequest(t, 2)} {
				p.send(request)
				r.guest.next()
				if dual && id == 2 {
					r.guest.send(accepted(t, 2))
					p.want(accepted(t, 2))
				}
			}
			p.conn.SetDeadline(never)
			r.guest.control.SetDeadline(never)
			port := r.guest.control
			up := encodeBulk(t, 1, frame.BulkFilesystem, frame.FlowHostToGuest, 0, make([]byte, size))
			down := encodeBulk(t, 2, frame.BulkFilesystem, frame.FlowGuestToHost, 0, make([]byte, size))
			arrives, sent := up, down
			if dual {
				port = r.guest.bulk
				arrives = append(inc[:], up...)
				sent = append(inc[:], down...)
			}
			// Nothing here may take memory either: it would hide what the relay takes.
			type job struct {
				to  io.Writer
				rec []byte
			}
			jobs, written := make(chan job), make(chan error)
			go func() {
				for j := range jobs {
					_, err := j.to.Write(j.rec)
					written <- err
				}
			}()
			defer close(jobs)
			buf := make([]byte, len(arrives))
			once := func(to io.Writer, rec []byte, at io.Reader, got []byte) {
				jobs <- job{to, rec}
				if _, err := io.ReadFull(at, got); err != nil {
					t.Fatal(err)
				}
				if err := <-written; err != nil {
					t.Fatal(err)
				}
			}
			step := func() {
				for range records / 2 {
					once(p.conn, up, port, buf)
					once(port, sent, p.conn, buf[:len(down)])
				}
			}
			step()
			// Less than one for ten records: the runtime's own.
			if n := testing.AllocsPerRun(5, step); n > records/10 {
				t.Errorf("%.0f allocations for %d records", n, records)
			}
		})
	}
}
