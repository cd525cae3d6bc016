package fusefs_test

import (
	"math/rand/v2"
	"os"
	"testing"
)

func sizeOf(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	return info.Size()
}

// TestReadAhead looks at what the guest is asked for: a sequential reader makes
// few, large requests and nothing is fetched twice; a random one fetches what it
// reads.
func TestReadAhead(t *testing.T) {
	s := newSandbox(t, func(s *sandbox) { s.script = "counts" })
	const size = 64 << 20
	must(t, os.WriteFile(s.in("f"), random(size, 3), 0o644))
	s.sh("cat f >/dev/null")
	if n := sizeOf(t, s.at("reads")); n > 256 {
		t.Errorf("%d reads for 64 MiB", n)
	}
	if n := sizeOf(t, s.at("bytes")); n < size || n > 2*size {
		t.Errorf("%d bytes were read for %d", n, size)
	}
	s.mount.stop()

	s.agent.kill() // counts from zero
	s.startGuest()
	s.startMount()
	f, err := os.Open(s.at("f"))
	must(t, err)
	defer f.Close()
	const reads = 100
	buf := make([]byte, 4096)
	for i := range reads {
		// Far from each other, whatever the order.
		off := int64((i*37%reads))*(size/reads) + int64(rand.IntN(1000))
		if _, err := f.ReadAt(buf, off); err != nil {
			t.Fatal(err)
		}
	}
	if n := sizeOf(t, s.at("bytes")); n > reads*256<<10 {
		t.Errorf("%d bytes were read for %d random reads of 4 KiB", n, reads)
	}
}
