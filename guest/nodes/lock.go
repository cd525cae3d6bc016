package nodes

import (
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

const (
	maxLockFiles = 4096 // of one table
	// lockPause is how long a waiting lock pauses between tries, at first and at most.
	lockPause    = time.Millisecond
	maxLockPause = 20 * time.Millisecond
)

// lockOwner is one owner of POSIX locks of one file.
type lockOwner struct {
	node  *node
	owner uint64
}

// lockFile is the open file that holds an owner's locks: locks of open files exclude each other as those of processes
// do, and those of the guest's own processes.
type lockFile struct {
	fd   int
	refs atomic.Int32
}

func (l *lockFile) unref() {
	if l.refs.Add(-1) == 0 {
		unix.Close(l.fd)
	}
}

// lockFile returns the open file of an owner with a reference for the caller.
func (r *request) lockFile(h *handle, owner uint64) (*lockFile, error) {
	key := lockOwner{h.node, owner}
	t := r.table
	t.mu.Lock()
	l := t.locks[key]
	full := len(t.locks) >= maxLockFiles
	if l != nil {
		l.refs.Add(1)
	}
	t.mu.Unlock()
	switch {
	case l != nil:
		return l, nil
	case full:
		return nil, unix.ENOLCK
	}
	fd, err := reopen(h.fd, unix.O_RDWR)
	switch err {
	case unix.EACCES, unix.EPERM, unix.EROFS, unix.ETXTBSY, unix.EISDIR:
		fd, err = reopen(h.fd, unix.O_RDONLY)
	}
	if err != nil {
		return nil, err
	}
	l = &lockFile{fd: fd}
	l.refs.Store(2)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		unix.Close(fd)
		return nil, unix.EINTR
	}
	if first := t.locks[key]; first != nil { // of a request at the same moment
		unix.Close(fd)
		first.refs.Add(1)
		return first, nil
	}
	t.locks[key] = l
	return l, nil
}

// dropLocks gives up the locks of the owners that match.
func (t *table) dropLocks(match func(lockOwner) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, l := range t.locks {
		if match(key) {
			delete(t.locks, key)
			l.unref()
		}
	}
}

func flockOf(typ uint32, start, length uint64) (unix.Flock_t, error) {
	f := unix.Flock_t{Start: int64(start), Len: int64(length)}
	switch {
	case start > math.MaxInt64, length > math.MaxInt64, length > 0 && start > math.MaxInt64-(length-1):
		return f, unix.EINVAL
	case typ == agent.NodeReadLock:
		f.Type = unix.F_RDLCK
	case typ == agent.NodeWriteLock:
		f.Type = unix.F_WRLCK
	case typ == agent.NodeUnlock:
		f.Type = unix.F_UNLCK
	default:
		return f, unix.EINVAL
	}
	return f, nil
}

func (r *request) lock(op *agent.NodeLock) (agent.NodeResult, error) {
	want, err := flockOf(op.Type, op.Start, op.Len)
	if err != nil {
		return nil, err
	}
	h, err := r.handle(op.Handle)
	if err != nil {
		return nil, err
	}
	defer func() { _ = h.unref() }()
	var try func() error
	switch op.Kind {
	case agent.NodeFlock:
		how := [...]int{unix.LOCK_SH, unix.LOCK_EX, unix.LOCK_UN}[op.Type] | unix.LOCK_NB
		try = func() error { return unix.Flock(h.fd, how) }
	case agent.NodePosix:
		l, err := r.lockFile(h, op.Owner)
		if err != nil {
			return nil, err
		}
		defer l.unref()
		try = func() error {
			f := want
			return unix.FcntlFlock(uintptr(l.fd), unix.F_OFD_SETLK, &f)
		}
	default:
		return nil, unix.EINVAL
	}
	err = retry(try)
	if op.Wait && (err == unix.EAGAIN || err == unix.EACCES) {
		perr := r.svc.park(r.own, func() { err = r.awaitLock(try) })
		if perr != nil {
			return nil, perr
		}
	}
	if err != nil {
		return nil, err
	}
	return none, nil
}

// awaitLock tries again and again: a thread that waits in the kernel could not be called back.
func (r *request) awaitLock(try func() error) error {
	pause := lockPause
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-r.cancel:
			return unix.EINTR
		}
		if err := retry(try); err != unix.EAGAIN && err != unix.EACCES {
			return err
		}
		pause = min(pause*2, maxLockPause)
		timer.Reset(pause)
	}
}

func (r *request) testLock(op *agent.NodeTestLock) (agent.NodeResult, error) {
	f, err := flockOf(op.Type, op.Start, op.Len)
	if err != nil {
		return nil, err
	}
	if op.Type == agent.NodeUnlock {
		return nil, unix.EINVAL
	}
	h, err := r.file(op.Handle)
	if err != nil {
		return nil, err
	}
	defer func() { _ = h.unref() }()
	l, err := r.lockFile(h, op.Owner)
	if err != nil {
		return nil, err
	}
	defer l.unref()
	if err := retry(func() error { return unix.FcntlFlock(uintptr(l.fd), unix.F_OFD_GETLK, &f) }); err != nil {
		return nil, err
	}
	res := &agent.NodeLockResult{Type: agent.NodeUnlock}
	switch f.Type {
	case unix.F_UNLCK:
		return res, nil
	case unix.F_WRLCK:
		res.Type = agent.NodeWriteLock
	default:
		res.Type = agent.NodeReadLock
	}
	res.Start, res.Len = uint64(f.Start), uint64(f.Len)
	if f.Pid > 0 {
		res.PID = uint32(f.Pid)
	}
	return res, nil
}
