package agentclient

import (
	"fmt"
	"os"
)

// spool is the part of an output that did not fit into memory: an unlinked
// file that is written at the end and read at the front.
type spool struct {
	dir   string
	limit int64
	f     *os.File
	r, w  int64
	hole  int64 // what is below has been given back to the file system
}

func (s *spool) unread() int64 { return s.w - s.r }

// put appends p, or nothing of it.
func (s *spool) put(p []byte) error {
	if s.unread()+int64(len(p)) > s.limit {
		return fmt.Errorf("%w of %d bytes", ErrSpoolFull, s.limit)
	}
	if s.f == nil {
		f, err := unlinkedFile(s.dir)
		if err != nil {
			return fmt.Errorf("spool output that nobody reads: %w", err)
		}
		s.f = f
	}
	n, err := s.f.WriteAt(p, s.w)
	if err != nil {
		return fmt.Errorf("spool output that nobody reads: %w", err)
	}
	s.w += int64(n)
	return nil
}

// took notes that n bytes at the front have been read.
func (s *spool) took(n int) {
	const step = 8 << 20
	s.r += int64(n)
	switch {
	case s.r == s.w:
		_ = s.f.Truncate(0) // only gives room back
		s.r, s.w, s.hole = 0, 0, 0
	case s.r-s.hole >= step:
		punch(s.f, s.hole, s.r-s.hole)
		s.hole = s.r
	}
}

func (s *spool) close() {
	if s.f != nil {
		s.f.Close()
		s.f = nil
	}
	s.r, s.w, s.hole = 0, 0, 0
}

// unlinkedFile returns an open file that has no name. /var/tmp comes before
// /tmp because that is often memory.
func unlinkedFile(dir string) (*os.File, error) {
	dirs := []string{dir}
	if dir == "" {
		dirs = []string{os.Getenv("TMPDIR"), "/var/tmp", os.TempDir()}
	}
	var first error
	for _, d := range dirs {
		if d == "" {
			continue
		}
		f, err := os.CreateTemp(d, "msb-spool-*")
		if err == nil {
			err = os.Remove(f.Name())
			if err == nil {
				return f, nil
			}
			f.Close()
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}
