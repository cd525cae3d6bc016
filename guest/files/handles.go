package files

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// maxHandlesPerOwner bounds the open handles of one client.
const maxHandlesPerOwner = 1024

// reservedFDs is what the handles of all clients leave of the process's descriptors for everything else.
const reservedFDs = 256

// file is an open file. The handle and every stream on it hold one reference each; the last one closes it.
type file struct {
	fd                  int
	refs                atomic.Int32
	read, write, append bool
	path                string
}

// unref drops a reference and returns what close said if it was the last.
func (f *file) unref() error {
	if f.refs.Add(-1) == 0 {
		return unix.Close(f.fd)
	}
	return nil
}

// directory is an open directory. mu is held by the operation that reads it.
type directory struct {
	mu      sync.Mutex
	f       *os.File
	path    string
	pending []string // names read and not yet returned
}

type handle struct {
	own  *owner
	file *file // nil for a directory
	dir  *directory
}

func (h handle) close() error {
	if h.file != nil {
		return h.file.unref()
	}
	return h.dir.f.Close()
}

// handleTable maps the numbers that clients use to open files. Numbers count up from 1 for all clients together and
// are not used again.
type handleTable struct {
	mu   sync.Mutex
	last uint64
	open map[uint64]handle
	max  int
}

func (t *handleTable) init() {
	t.open = make(map[uint64]handle)
	t.max = 1 << 20
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &lim) == nil && lim.Cur < 1<<20 {
		t.max = max(int(lim.Cur)-reservedFDs, int(lim.Cur)/2)
	}
}

// insert gives h a number. h is closed when it cannot be kept.
func (t *handleTable) insert(h handle) (uint64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var err error
	switch {
	case h.own.closed:
		err = errOwnerGone
	case h.own.handles >= maxHandlesPerOwner:
		err = fmt.Errorf("too many open filesystem handles for relay client: %d", h.own.handles)
	case len(t.open) >= t.max:
		err = fmt.Errorf("too many open filesystem handles: %d", len(t.open))
	}
	if err != nil {
		_ = h.close()
		return 0, err
	}
	t.last++
	t.open[t.last] = h
	h.own.handles++
	return t.last, nil
}

// lookup returns a handle of o. t.mu is held.
func (t *handleTable) lookup(o *owner, num uint64) (handle, error) {
	h, ok := t.open[num]
	if !ok {
		return handle{}, fmt.Errorf("invalid handle: %d", num)
	}
	if h.own != o {
		return handle{}, fmt.Errorf("handle %d is owned by a different relay client", num)
	}
	return h, nil
}

// useFile returns the file behind a handle with a reference for the caller.
func (t *handleTable) useFile(o *owner, num uint64) (*file, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h, err := t.lookup(o, num)
	if err != nil {
		return nil, err
	}
	if h.file == nil {
		return nil, fmt.Errorf("handle %d is a directory", num)
	}
	h.file.refs.Add(1)
	return h.file, nil
}

// useDir returns the directory behind a handle.
func (t *handleTable) useDir(o *owner, num uint64) (*directory, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h, err := t.lookup(o, num)
	if err != nil {
		return nil, err
	}
	if h.dir == nil {
		return nil, fmt.Errorf("handle %d is a file", num)
	}
	return h.dir, nil
}

// use returns either kind, a file with a reference for the caller.
func (t *handleTable) use(o *owner, num uint64) (handle, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h, err := t.lookup(o, num)
	if err == nil && h.file != nil {
		h.file.refs.Add(1)
	}
	return h, err
}

// remove takes a handle out of the table for its caller to close.
func (t *handleTable) remove(o *owner, num uint64) (handle, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h, err := t.lookup(o, num)
	if err == nil {
		delete(t.open, num)
		o.handles--
	}
	return h, err
}

// closeOwner closes every handle of o and refuses new ones.
func (t *handleTable) closeOwner(o *owner) {
	t.mu.Lock()
	o.closed = true
	var gone []handle
	for num, h := range t.open {
		if h.own == o {
			delete(t.open, num)
			gone = append(gone, h)
		}
	}
	o.handles = 0
	t.mu.Unlock()
	for _, h := range gone {
		_ = h.close()
	}
}
