package terminal

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/term"
)

// Raw is a terminal in raw mode. Restore may be called any number of times, from any goroutine.
type Raw struct {
	fd    int
	saved *term.State
	mu    sync.Mutex
	on    bool
	guard *guard
}

// Raw puts the terminal on standard input into raw mode. A guard process gives the saved mode back even if this
// process ends without running another line (a panic elsewhere, SIGKILL).
func (s *Streams) Raw() (*Raw, error) {
	if !s.InTTY() {
		return nil, errors.New("standard input is not a terminal")
	}
	fd := int(s.inFile.Fd())
	saved, err := term.GetState(fd)
	if err != nil {
		return nil, fmt.Errorf("read the terminal's mode: %w", err)
	}
	r := &Raw{fd: fd, saved: saved}
	if r.guard, err = startGuard(s.inFile); err != nil {
		return nil, err
	}
	if err := r.Enter(); err != nil {
		r.guard.dismiss()
		return nil, err
	}
	return r, nil
}

// Enter puts the terminal into raw mode again after Pause.
func (r *Raw) Enter() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.on {
		return nil
	}
	if _, err := term.MakeRaw(r.fd); err != nil {
		return fmt.Errorf("put the terminal into raw mode: %w", err)
	}
	r.on = true
	return nil
}

// Pause gives the terminal its own mode back for a while, as before this process stops itself.
func (r *Raw) Pause() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.on {
		return nil
	}
	r.on = false
	return term.Restore(r.fd, r.saved)
}

// Restore gives the terminal its own mode back for good.
func (r *Raw) Restore() {
	if r == nil {
		return
	}
	_ = r.Pause() // the terminal itself may be gone
	r.mu.Lock()
	defer r.mu.Unlock()
	r.guard.dismiss()
	r.guard = nil
}

// InFile is standard input when it is a file that can be polled or read with a deadline, else nil.
func (s *Streams) InFile() *os.File { return s.inFile }
