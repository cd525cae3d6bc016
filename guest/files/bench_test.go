package files

import (
	"os"
	"testing"

	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// sink is an Out that takes everything at once. Terminal answers and credits go to their channels.
type sink struct {
	s        *Service
	terminal chan agent.FSResponsePayload
	credit   chan agent.BulkCreditPayload
	got      uint64
}

func (k *sink) Send(id uint32, t agent.Type, payload any) error {
	switch p := payload.(type) {
	case agent.FSResponsePayload:
		k.terminal <- p
	case agent.BulkCreditPayload:
		k.credit <- p
	}
	return nil
}

func (k *sink) SendBulk(id uint32, kind, flow byte, offset uint64, payload []byte) error {
	k.got += uint64(len(payload))
	k.s.Credit(id, agent.BulkCreditPayload{Kind: kind, Flow: flow, ConsumedOffset: k.got, CreditLimit: k.got + frame.DefaultBulkWindow})
	return nil
}

var _ port.Out = (*sink)(nil)

const benchSize = 64 << 20

func newSink(b *testing.B) (*Service, *sink, string) {
	k := &sink{terminal: make(chan agent.FSResponsePayload, 1), credit: make(chan agent.BulkCreditPayload, 16)}
	s := New(k)
	k.s = s
	b.Cleanup(s.Close)
	path := b.TempDir() + "/f"
	if err := os.WriteFile(path, make([]byte, benchSize), 0o644); err != nil {
		b.Fatal(err)
	}
	return s, k, path
}

func benchRequest(b *testing.B, s *Service, id uint32, op agent.FSOp, offer *agent.BulkOffer) {
	p, err := agent.EncodePayload(agent.FSRequestPayload{Op: op, Bulk: offer})
	if err != nil {
		b.Fatal(err)
	}
	s.Request(0, id, 9, p, noRelease)
}

// BenchmarkRead reads a cached file of 64 MiB through raw bulk, beside pread alone.
func BenchmarkRead(b *testing.B) {
	s, k, path := newSink(b)
	benchRequest(b, s, 1, agent.OpOpenFile{Path: path, Options: agent.OpenOptions{Read: true}}, nil)
	<-k.terminal
	b.Run("service", func(b *testing.B) {
		b.SetBytes(benchSize)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			k.got = 0
			benchRequest(b, s, uint32(10+i), agent.OpRead{Handle: 1}, readOffer())
			if r := <-k.terminal; !r.OK || k.got != benchSize {
				b.Fatal(r, k.got)
			}
		}
	})
	b.Run("pread", func(b *testing.B) {
		b.SetBytes(benchSize)
		f, _ := os.Open(path)
		defer f.Close()
		buf := make([]byte, bufferSize)
		for b.Loop() {
			for off := int64(0); off < benchSize; off += bufferSize {
				f.ReadAt(buf, off)
			}
		}
	})
}

// BenchmarkWrite writes 64 MiB in records of 1 MiB through raw bulk, beside pwrite alone.
func BenchmarkWrite(b *testing.B) {
	s, k, path := newSink(b)
	benchRequest(b, s, 1, agent.OpOpenFile{Path: path, Options: agent.OpenOptions{Write: true}}, nil)
	<-k.terminal
	record := make([]byte, 1<<20)
	b.Run("service", func(b *testing.B) {
		b.SetBytes(benchSize)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			id := uint32(10 + i)
			benchRequest(b, s, id, agent.OpWrite{Handle: 1}, writeOffer())
			limit := uint64(frame.DefaultBulkWindow)
			for off := uint64(0); off < benchSize; off += 1 << 20 {
				for off+1<<20 > limit {
					limit = (<-k.credit).CreditLimit
				}
				s.Bulk(frame.Bulk{ID: id, Kind: 1, Flow: 1, Offset: off, Payload: record}, noRelease)
			}
			s.Finish(id, agent.BulkFinishPayload{Kind: 1, Flow: 1, FinalOffset: benchSize})
			if r := <-k.terminal; !r.OK {
				b.Fatal(*r.Error)
			}
			for len(k.credit) > 0 {
				<-k.credit
			}
		}
	})
	b.Run("pwrite", func(b *testing.B) {
		b.SetBytes(benchSize)
		f, _ := os.OpenFile(path, os.O_WRONLY, 0)
		defer f.Close()
		for b.Loop() {
			for off := int64(0); off < benchSize; off += 1 << 20 {
				f.WriteAt(record, off)
			}
		}
	})
}

// BenchmarkStat is the smallest operation there and back.
func BenchmarkStat(b *testing.B) {
	s, k, path := newSink(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		benchRequest(b, s, uint32(i), agent.OpStat{Path: path}, nil)
		<-k.terminal
	}
}
