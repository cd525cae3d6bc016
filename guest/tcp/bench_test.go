package tcp

import (
	"io"
	"net"
	"testing"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// sink is an Out that takes everything at once and credits what it gets.
type sink struct {
	s      *Service
	events chan agent.Type
	credit chan uint64
	got    uint64
}

func (k *sink) Send(id uint32, t agent.Type, payload any) error {
	if p, ok := payload.(agent.BulkCreditPayload); ok {
		k.credit <- p.CreditLimit
		return nil
	}
	k.events <- t
	return nil
}

func (k *sink) SendBulk(id uint32, kind, flow byte, offset uint64, payload []byte) error {
	k.got += uint64(len(payload))
	k.s.Credit(id, agent.BulkCreditPayload{Kind: kind, Flow: flow, ConsumedOffset: k.got, CreditLimit: k.got + frame.DefaultBulkWindow})
	return nil
}

const benchSize = 64 << 20

func newBench(b *testing.B) (*Service, *sink) {
	k := &sink{events: make(chan agent.Type, 8), credit: make(chan uint64, 1024)}
	k.s = New(k)
	b.Cleanup(k.s.Close)
	b.SetBytes(benchSize)
	b.ReportAllocs()
	return k.s, k
}

func benchConnect(b *testing.B, s *Service, id uint32, p uint16) {
	req, err := agent.EncodePayload(agent.TCPConnectPayload{Host: "127.0.0.1", Port: p, Bulk: offer()})
	if err != nil {
		b.Fatal(err)
	}
	s.Connect(0, id, 9, req, noRelease)
}

// BenchmarkReceive carries 64 MiB from a destination to the host.
func BenchmarkReceive(b *testing.B) {
	s, k := newBench(b)
	p := listen(b, func(nc *net.TCPConn) {
		chunk := make([]byte, 1<<20)
		for range benchSize / len(chunk) {
			nc.Write(chunk)
		}
		nc.CloseWrite()
		io.Copy(io.Discard, nc)
	})
	for i := 0; b.Loop(); i++ {
		k.got = 0
		benchConnect(b, s, uint32(10+i), p)
		for t := range k.events {
			if t == agent.BulkFinish {
				break
			}
		}
		s.Abort(uint32(10 + i))
		if k.got != benchSize {
			b.Fatal(k.got)
		}
	}
}

// BenchmarkTransmit carries 64 MiB from the host to a destination.
func BenchmarkTransmit(b *testing.B) {
	s, k := newBench(b)
	p := listen(b, func(nc *net.TCPConn) { io.Copy(io.Discard, nc) })
	record := make([]byte, frame.DefaultBulkRecord)
	for i := 0; b.Loop(); i++ {
		id := uint32(10 + i)
		benchConnect(b, s, id, p)
		limit := uint64(frame.DefaultBulkWindow)
		for off := uint64(0); off < benchSize; off += uint64(len(record)) {
			for off+uint64(len(record)) > limit {
				limit = <-k.credit
			}
			s.Bulk(frame.Bulk{ID: id, Kind: frame.BulkTCP, Flow: frame.FlowHostToGuest, Offset: off, Payload: record}, noRelease)
		}
		s.Finish(id, agent.BulkFinishPayload{Kind: frame.BulkTCP, Flow: frame.FlowHostToGuest, FinalOffset: benchSize})
		for t := range k.events {
			if t == agent.TCPClosed {
				break
			}
			if t == agent.TCPFailed {
				b.Fatal("failed")
			}
		}
		for len(k.credit) > 0 {
			<-k.credit
		}
	}
}
