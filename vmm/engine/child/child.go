// Package child starts host processes that must not outlive the process that started them.
//
// The kernel ties a parent-death signal to the thread that made the child, not to its process, and the Go scheduler
// ends threads when it likes. Start therefore keeps one locked thread for as long as the child lives.
package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// Child is a running process that gets SIGKILL when its parent dies.
type Child struct {
	cmd    *exec.Cmd
	stderr *Tail
	done   chan struct{}
	err    error // of Wait; valid after done

}

// Start starts cmd in a session of its own, so that a terminal's signals do not reach it, with its standard error
// collected in a bounded Tail unless cmd.Stderr is set. Cloneflags and the like of cmd.SysProcAttr are kept.
// The caller need not call anything for the process to be reaped.
func Start(cmd *exec.Cmd) (*Child, error) {
	c := &Child{cmd: cmd, stderr: NewTail(8 << 10), done: make(chan struct{})}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if cmd.Stderr == nil {
		cmd.Stderr = c.stderr
	}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		c.err = cmd.Wait()
		close(c.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return c, nil
}

// PID of the process.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Done is closed when the process has ended, is reaped, and its standard error is read to the end.
func (c *Child) Done() <-chan struct{} { return c.done }

// Kill ends the process with SIGKILL. Killing one that has ended is no error.
func (c *Child) Kill() error {
	err := c.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// State is how the process ended: its exit code (-1 for a signal), the signal, and the error of Wait. Valid after Done.
func (c *Child) State() (code int, sig syscall.Signal, err error) {
	st, _ := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if st.Signaled() {
		return -1, st.Signal(), c.err
	}
	return c.cmd.ProcessState.ExitCode(), 0, c.err
}

// Stderr is the end of what the process wrote to its standard error, as one printable line.
func (c *Child) Stderr() string { return c.stderr.Line() }
