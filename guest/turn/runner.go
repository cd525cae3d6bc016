package turn

import (
	"context"
	"io"
	"os"
	"time"
)

// Command is a program to run as the workspace's owner.
type Command struct {
	Argv []string
	Env  []string // added to the runner's fixed environment
	Dir  *os.File // open folder to run in; stays the caller's
}

// ExitStatus is how a command ended.
type ExitStatus struct {
	Code   int // exit code, or 128 + the signal's number
	Signal int // signal that ended it
	Left   int // processes that did not end although they were killed
}

// Process is a running command.
type Process interface {
	// Files are the command's input and outputs, which the caller closes. The outputs end when everything that came
	// from the command is gone.
	Files() (stdin io.WriteCloser, stdout, stderr io.ReadCloser)
	// Kill kills the command and everything that came from it; Wait still has to be called.
	Kill()
	// Wait waits for the command and all its children to be gone. When the command itself ends, they are killed. A
	// program that could not be started is an error.
	Wait() (ExitStatus, error)
}

// Runner starts programs as the workspace's owner, who cannot reach the agent. It is safe for concurrent use.
type Runner interface {
	Start(ctx context.Context, c Command) (Process, error)
}

// Machine is what the agent may ask of the machine. It is safe for concurrent use.
type Machine interface {
	// Freeze writes out and stops the file system that a folder is on, for half a minute at most.
	Freeze(dir *os.File) error
	// Thaw ends a Freeze.
	Thaw() error
	// SetClock sets the wall clock.
	SetClock(t time.Time) error
}
