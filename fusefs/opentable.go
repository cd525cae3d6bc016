package fusefs

import (
	"errors"
	"sync"
	"syscall"
)

// errLostHandle says that a handle of the guest went with its session.
var errLostHandle = errors.New("the sandbox has been away")

// openTable holds the open files and directories by number.
type openTable struct {
	mu    sync.RWMutex
	last  uint64
	files map[uint64]*openFile
	dirs  map[uint64]*openDir
}

func newOpenTable() *openTable {
	return &openTable{files: map[uint64]*openFile{}, dirs: map[uint64]*openDir{}}
}

func (t *openTable) file(id uint64) (*openFile, syscall.Errno) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if f := t.files[id]; f != nil {
		return f, 0
	}
	return nil, syscall.EBADF
}

func (t *openTable) dir(id uint64) (*openDir, syscall.Errno) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if d := t.dirs[id]; d != nil {
		return d, 0
	}
	return nil, syscall.EBADF
}

func (t *openTable) addFile(f *openFile) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	t.files[t.last] = f
	return t.last
}

func (t *openTable) addDir(d *openDir) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	t.dirs[t.last] = d
	return t.last
}

func (t *openTable) dropFile(id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.files, id)
}

func (t *openTable) dropDir(id uint64) *openDir {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dirs[id]
	delete(t.dirs, id)
	return d
}
