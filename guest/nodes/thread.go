package nodes

import (
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// thread is one that a goroutine has for itself, so that it may stay who it was for the last request: to become somebody
// takes a dozen system calls.
type thread struct {
	root *threadRoot
	tid  int
	who  *identity // nil: root
}

// take makes the calling goroutine's thread its own. The thread ends with the goroutine.
func (t *thread) take(root *threadRoot) {
	runtime.LockOSThread()
	t.root, t.tid = root, unix.Gettid()
}

// mine tells whether the caller runs on the thread.
func (t *thread) mine() bool { return unix.Gettid() == t.tid }

// run calls f as who. Somebody with root's permissions does for root too, unless exact is set: what is made would
// belong to him.
func (t *thread) run(who *identity, exact bool, f func() error) error {
	switch {
	case who == nil && (t.who == nil || !exact):
		return f()
	case who != nil && who.equal(t.who):
		return f()
	}
	if t.who != nil {
		t.root.restore()
		t.who = nil
	}
	if who == nil {
		return f()
	}
	if err := who.enter(); err != nil {
		t.root.restore()
		return err
	}
	err := f()
	if who.privileged {
		t.who = who
	} else {
		t.root.restore()
	}
	return err
}

func (id *identity) equal(other *identity) bool {
	return other != nil && id.uid == other.uid && id.gid == other.gid && id.privileged == other.privileged && slices.Equal(id.groups, other.groups)
}
