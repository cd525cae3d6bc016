package shells

import (
	"context"
	"io"
	"syscall"
)

// Spec is a program to start on a terminal of the sandbox.
type Spec struct {
	Argv, Env  []string
	User, Cwd  string
	Rows, Cols uint16
}

// Program is a started one. Its methods may be called at the same time.
type Program interface {
	io.ReadWriter // its terminal
	Resize(ctx context.Context, rows, cols uint16) error
	Signal(ctx context.Context, sig syscall.Signal) error
	// Wait returns after the end, when everything was read.
	Wait() End
	// Close kills it.
	Close()
}

// Starter starts programs.
type Starter func(ctx context.Context, s Spec) (Program, error)
