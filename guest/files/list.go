package files

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

const (
	defaultReadDir = 128
	nameBatch      = 512

	// entrySize bounds what an entry takes in an answer beside its path, in bytes.
	entrySize = 120
	// answerLimit is what the entries of one answer may take, so that it fits into a frame.
	answerLimit = frame.MaxBody - 4096
	// largeAnswer is from where on an answer needs one of the few permits for large ones.
	largeAnswer = 64 << 10
)

// openDirAt opens a directory for reading names.
func openDirAt(path string) (*os.File, error) {
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

func (s *Service) openDir(o *owner, path string) (agent.FSValue, error) {
	f, err := openDirAt(path)
	if err != nil {
		return nil, err
	}
	num, err := s.handles.insert(handle{own: o, dir: &directory{f: f, path: path}})
	return agent.FSHandle(num), err
}

// answer collects entries up to what one frame can hold.
type answer struct {
	s       *Service
	own     *owner
	entries []agent.Entry
	size    int
	large   bool
}

var errAnswerFull = errors.New("the answer is full")

// add appends an entry. It fails with errAnswerFull when the entry does not fit.
func (a *answer) add(e agent.Entry) error {
	size := len(e.Path) + entrySize
	if a.size+size > answerLimit {
		return errAnswerFull
	}
	if !a.large && a.size+size > largeAnswer {
		select {
		case a.s.large <- struct{}{}:
			a.large = true
		case <-a.own.ctx.Done():
			return errOwnerGone
		}
	}
	a.size += size
	a.entries = append(a.entries, e)
	return nil
}

// done gives the permit back.
func (a *answer) done() {
	if a.large {
		<-a.s.large
		a.large = false
	}
}

// add appends the entry of one name in d; names that vanished meanwhile are left out.
func (d *directory) add(a *answer, name string) error {
	path := join(d.path, name)
	var st unix.Stat_t
	err := retry(func() error { return unix.Fstatat(int(d.f.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	switch {
	case err == unix.ENOENT:
		return nil
	case err != nil:
		return a.add(unknownEntry(path))
	}
	return a.add(entryOf(path, &st))
}

// list returns every entry of a directory, or an error when they do not fit into one answer.
func (s *Service) list(o *owner, path string) (agent.FSValue, func(), error) {
	f, err := openDirAt(path)
	if err != nil {
		return nil, nil, failed("opendir", err)
	}
	defer f.Close()
	d := &directory{f: f, path: path}
	a := &answer{s: s, own: o, entries: []agent.Entry{}}
	for {
		if o.ctx.Err() != nil {
			return nil, a.done, errOwnerGone
		}
		names, err := f.Readdirnames(nameBatch)
		for _, name := range names {
			if err := d.add(a, name); err == errAnswerFull {
				return nil, a.done, fmt.Errorf("the directory has more entries than one answer can hold (%d fit): open it and read it in parts", len(a.entries))
			} else if err != nil {
				return nil, a.done, err
			}
		}
		if err == io.EOF {
			return agent.FSList(a.entries), a.done, nil
		}
		if err != nil {
			return nil, a.done, err
		}
	}
}

// readDir returns the next entries of a directory handle, at most limit and at most what one answer can hold. None
// means the end.
func (s *Service) readDir(o *owner, num uint64, limit *uint32) (agent.FSValue, func(), error) {
	d, err := s.handles.useDir(o, num)
	if err != nil {
		return nil, nil, err
	}
	want := defaultReadDir
	if limit != nil {
		want = int(max(*limit, 1))
	}
	a := &answer{s: s, own: o, entries: []agent.Entry{}}
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(a.entries) < want {
		if o.ctx.Err() != nil {
			return nil, a.done, errOwnerGone
		}
		if len(d.pending) == 0 {
			names, err := d.f.Readdirnames(min(nameBatch, want-len(a.entries)))
			if err == io.EOF {
				break
			}
			if err != nil {
				return nil, a.done, err
			}
			d.pending = names
		}
		err := d.add(a, d.pending[0])
		if err == errAnswerFull {
			break
		}
		if err != nil {
			return nil, a.done, err
		}
		d.pending = d.pending[1:]
	}
	return agent.FSList(a.entries), a.done, nil
}
