package fusefs_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestRandomized does random things to a file from both sides, mmap included,
// and compares it with a model after each.
func TestRandomized(t *testing.T) {
	fresh := uint64(time.Now().UnixNano())
	t.Logf("fresh seed %d", fresh)
	s := newSandbox(t, nil)
	for _, seed := range []uint64{1, 2, fresh} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { fsx(t, s, seed) })
	}
}

const fsxMax = 600 << 10

func fsx(t *testing.T, s *sandbox, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 7))
	name := fmt.Sprint("fsx", seed)
	var model []byte
	f, err := os.OpenFile(s.at(name), os.O_RDWR|os.O_CREATE, 0o644)
	must(t, err)
	defer func() { f.Close() }()
	grow := func(n int) {
		if n > len(model) {
			model = append(model, make([]byte, n-len(model))...)
		}
	}
	steps := 600
	if testing.Short() {
		steps = 100
	}
	for i := range steps {
		off, n := r.IntN(fsxMax-1), 1+r.IntN(70<<10)
		n = min(n, fsxMax-off)
		data := random(n, uint64(i)+seed)
		what := r.IntN(11)
		switch what {
		case 0, 1, 2:
			_, err := f.WriteAt(data, int64(off))
			must(t, err)
			grow(off + n)
			copy(model[off:], data)
		case 3, 4: // read
			buf := make([]byte, n)
			m, _ := f.ReadAt(buf, int64(off))
			want := model[min(off, len(model)):min(off+n, len(model))]
			if !bytes.Equal(buf[:m], want) {
				t.Fatalf("step %d: read of %d at %d: %d bytes, want %d", i, n, off, m, len(want))
			}
		case 5:
			must(t, f.Truncate(int64(off)))
			grow(off)
			model = model[:off]
		case 6: // shared mapping
			if len(model) == 0 {
				continue
			}
			m, err := unix.Mmap(int(f.Fd()), 0, len(model), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			must(t, err)
			if !bytes.Equal(m, model) {
				t.Fatalf("step %d: a mapping differs", i)
			}
			at := r.IntN(len(model))
			k := copy(m[at:], data)
			copy(model[at:], data[:k])
			must(t, unix.Msync(m, unix.MS_SYNC))
			must(t, unix.Munmap(m))
		case 7: // close and open
			must(t, f.Close())
			wantFile(t, s.in(name), model)
			f, err = os.OpenFile(s.at(name), os.O_RDWR, 0)
			must(t, err)
		case 8: // the other side writes between close and open
			must(t, f.Close())
			g, err := os.OpenFile(s.in(name), os.O_RDWR, 0)
			must(t, err)
			if r.IntN(3) == 0 {
				must(t, g.Truncate(int64(off)))
				grow(off)
				model = model[:off]
			} else {
				_, err = g.WriteAt(data, int64(off))
				must(t, err)
				grow(off + n)
				copy(model[off:], data)
			}
			must(t, g.Close())
			s.seen(name)
			f, err = os.OpenFile(s.at(name), os.O_RDWR, 0)
			must(t, err)
		case 9:
			must(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off), int64(n)))
			if off < len(model) {
				clear(model[off:min(off+n, len(model))])
			}
		case 10:
			must(t, f.Sync())
			wantFile(t, s.in(name), model)
		}
		info, err := f.Stat()
		must(t, err)
		if info.Size() != int64(len(model)) {
			t.Fatalf("step %d (%d): size %d, want %d", i, what, info.Size(), len(model))
		}
	}
	must(t, f.Close())
	wantFile(t, s.in(name), model)
	wantFile(t, s.at(name), model)
}
