package shell

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"syscall"

	"msb/vmm/shells"
)

// env is what programs are told about the emulator.
var env = []string{"TERM=xterm-256color", "COLORTERM=truecolor"}

// Kept opens shells that the sandbox's runtime keeps: closing them here leaves
// them. Where nobody keeps shells it opens one that ends with the screen.
func Kept(socket, agent string, argv []string) Opener {
	return func(ctx context.Context, rows, cols uint16) (Process, error) {
		f, err := shells.Open(ctx, socket, shells.Spec{Argv: argv, Env: env, Rows: rows, Cols: cols})
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			return InSandbox(agent, argv)(ctx, rows, cols)
		}
		if err != nil {
			return nil, err
		}
		return &front{f}, nil
	}
}

// Attached comes back to a shell that lives.
func Attached(socket string, id uint32) Opener {
	return func(ctx context.Context, rows, cols uint16) (Process, error) {
		f, err := shells.Attach(ctx, socket, id, rows, cols)
		if err != nil {
			return nil, err
		}
		return &front{f}, nil
	}
}

// front is a front end of a kept shell.
type front struct{ *shells.Front }

func (f *front) Resize(_ context.Context, rows, cols uint16) error { return f.Front.Resize(rows, cols) }
func (f *front) Kept() uint32                                      { return f.Info.ID }
func (f *front) OnSize(see func(rows, cols uint16))                { f.Sized = see }

func (f *front) Wait() (int, error) {
	e, err := f.Result()
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return -1, err
	case e.Error != "":
		return -1, errors.New(e.Error)
	case e.Signal != 0:
		return 128 + e.Signal, nil
	}
	return e.Code, nil
}
