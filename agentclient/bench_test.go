package agentclient

import (
	"context"
	"fmt"
	"io"
	"testing"

	"msb/protocol/agent"
)

func benchFile(b *testing.B, gen uint8, size int) *File {
	c, p := newPeer(b, gen, func(p *peer) { p.maxRecord = 3 << 20 })
	p.files["/f"] = &memFile{b: pattern(size)}
	f, err := c.FS().OpenFile(context.Background(), "/f", agent.OpenOptions{Read: true, Write: true})
	if err != nil {
		b.Fatal(err)
	}
	return f
}

func BenchmarkDownload(b *testing.B) {
	const size = 64 << 20
	for _, gen := range []uint8{9, 7} {
		b.Run(fmt.Sprintf("gen%d", gen), func(b *testing.B) {
			f := benchFile(b, gen, size)
			b.SetBytes(size)
			b.ReportAllocs()
			for b.Loop() {
				if n, err := f.Download(context.Background(), io.Discard, 0, nil); n != size || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}

type zeros struct{ n int }

func (z *zeros) Read(p []byte) (int, error) {
	if z.n == 0 {
		return 0, io.EOF
	}
	n := min(len(p), z.n)
	z.n -= n
	return n, nil
}

func BenchmarkUpload(b *testing.B) {
	const size = 64 << 20
	for _, gen := range []uint8{9, 7} {
		b.Run(fmt.Sprintf("gen%d", gen), func(b *testing.B) {
			f := benchFile(b, gen, size)
			b.SetBytes(size)
			b.ReportAllocs()
			for b.Loop() {
				if n, err := f.Upload(context.Background(), &zeros{size}, 0); n != size || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}

func BenchmarkReadAt(b *testing.B) {
	for _, n := range []int{4 << 10, 32 << 10, 128 << 10, 1 << 20, 8 << 20, 64 << 20} {
		for _, bulk := range []bool{true, false} {
			b.Run(fmt.Sprintf("%dKiB/bulk=%v", n>>10, bulk), func(b *testing.B) {
				f := benchFile(b, 9, n)
				f.c.cfg.readBulk = 0
				if !bulk {
					f.c.cfg.readBulk = 1 << 30
				}
				p := make([]byte, n)
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					if m, err := f.ReadAt(context.Background(), p, 0); m != n || err != nil {
						b.Fatal(m, err)
					}
				}
			})
		}
	}
}

func BenchmarkWriteAt(b *testing.B) {
	for _, n := range []int{4 << 10, 32 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 8 << 20} {
		for _, bulk := range []bool{true, false} {
			b.Run(fmt.Sprintf("%dKiB/bulk=%v", n>>10, bulk), func(b *testing.B) {
				f := benchFile(b, 9, n)
				f.c.cfg.writeBulk = 0
				if !bulk {
					f.c.cfg.writeBulk = 1 << 30
				}
				p := make([]byte, n)
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					if m, err := f.WriteAt(context.Background(), p, 0); m != n || err != nil {
						b.Fatal(m, err)
					}
				}
			})
		}
	}
}

func BenchmarkPing(b *testing.B) {
	c, _ := newPeer(b, 9, nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Ping(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}
