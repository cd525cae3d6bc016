package exec

import (
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// spawner decides on which thread children are forked. A restricted one keeps a thread of its own that has given up
// gaining privileges and CAP_SYS_ADMIN; children inherit that from the forking thread, with no program in between.
type spawner struct {
	restricted bool

	once sync.Once
	work chan func()
	err  error
	wg   sync.WaitGroup
}

// run calls fork, on the right thread. An error means that there is no such thread, and fork was not called.
func (s *spawner) run(fork func()) error {
	if !s.restricted {
		fork()
		return nil
	}
	s.once.Do(s.start)
	if s.err != nil {
		return fmt.Errorf("restrict the command: %w", s.err)
	}
	done := make(chan struct{})
	s.work <- func() { fork(); close(done) }
	<-done
	return nil
}

func (s *spawner) start() {
	s.work = make(chan func())
	ready := make(chan error)
	s.wg.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		ready <- restrictThread()
		for f := range s.work {
			f()
		}
	})
	s.err = <-ready
}

func (s *spawner) close() {
	s.once.Do(func() {})
	if s.work != nil {
		close(s.work)
	}
	s.wg.Wait()
}

// restrictThread changes the calling thread only.
func restrictThread() error {
	if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_ADMIN, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// HideDescriptors marks every open descriptor but standard input and outputs close-on-exec, those included that this
// process was started with.
func HideDescriptors() {
	_ = unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
}
