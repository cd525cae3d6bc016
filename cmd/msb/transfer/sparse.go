package transfer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"msb/agentclient"
	"msb/protocol/agent"
)

const (
	// holeBlock is the size of the pieces that are either data or part of a hole, in bytes.
	holeBlock = 4096
	// leastHole is the smallest hole that is worth a request of its own on the way into a sandbox, in bytes.
	leastHole = 64 << 10
)

// sparseWriter writes a file from its beginning and leaves out what is zero: on a file system with holes it takes no
// room. Finish gives the file its size.
type sparseWriter struct {
	f  *os.File
	at int64
}

var zeroBlock [holeBlock]byte

func (w *sparseWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		data := dataRun(p, w.at)
		if data == 0 {
			hole := blockLen(p, w.at)
			w.at, n, p = w.at+int64(hole), n+hole, p[hole:]
			continue
		}
		m, err := w.f.WriteAt(p[:data], w.at)
		w.at, n, p = w.at+int64(m), n+m, p[m:]
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func (w *sparseWriter) finish() error { return w.f.Truncate(w.at) }

// blockLen is how much of p, which is at off, belongs to one block.
func blockLen(p []byte, off int64) int { return min(len(p), holeBlock-int(off%holeBlock)) }

// dataRun is the length of the blocks at the beginning of p that are not zero.
func dataRun(p []byte, off int64) (n int) {
	for n < len(p) {
		b := blockLen(p[n:], off+int64(n))
		if bytes.Equal(p[n:n+b], zeroBlock[:b]) {
			break
		}
		n += b
	}
	return n
}

// sparseFile is a file of the host with holes.
type sparseFile struct {
	f    *os.File
	size int64
}

// openSparse returns the file behind content if it is one of the host and has holes.
func openSparse(content io.Reader) (*sparseFile, func(int64), bool) {
	count := func(int64) {}
	if c, ok := content.(*counted); ok {
		content, count = c.Reader, c.count
	}
	f, ok := content.(*os.File)
	if !ok {
		return nil, nil, false
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Blocks*512 >= st.Size {
		return nil, nil, false
	}
	return &sparseFile{f, st.Size}, count, true
}

// next returns the first piece of data at or after off; nothing but hole is left when start is the file's size.
func (s *sparseFile) next(off int64) (start, end int64, err error) {
	fd := int(s.f.Fd())
	if start, err = unix.Seek(fd, off, unix.SEEK_DATA); errors.Is(err, unix.ENXIO) {
		return s.size, s.size, nil
	}
	if err != nil {
		return 0, 0, &os.PathError{Op: "look for data in", Path: s.f.Name(), Err: err}
	}
	for end = start; end < s.size; {
		hole, err := unix.Seek(fd, end, unix.SEEK_HOLE)
		if err != nil {
			return 0, 0, &os.PathError{Op: "look for holes in", Path: s.f.Name(), Err: err}
		}
		if end = hole; end >= s.size {
			break
		}
		after, err := unix.Seek(fd, end, unix.SEEK_DATA)
		if err != nil || after-end >= leastHole {
			break
		}
		end = after // a hole that is filled
	}
	return min(start, s.size), min(end, s.size), nil
}

// uploadSparse writes what is data into an empty file of a sandbox, at its place.
func uploadSparse(ctx context.Context, to *agentclient.File, s *sparseFile, count func(int64)) error {
	for at := int64(0); at < s.size; {
		start, end, err := s.next(at)
		if err != nil {
			return err
		}
		count(start - at)
		if end > start {
			if _, err := to.Upload(ctx, &counted{Reader: io.NewSectionReader(s.f, start, end-start), count: count}, start); err != nil {
				return err
			}
		}
		at = max(end, start)
	}
	size := uint64(s.size)
	return to.SetStat(ctx, agent.Attrs{Size: &size})
}
