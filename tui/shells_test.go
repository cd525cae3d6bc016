package tui

import (
	"context"
	"io"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"msb/vmm/shells"
)

// echo is a program on a terminal that prints what is typed.
type echo struct {
	*io.PipeReader
	w    *io.PipeWriter
	once sync.Once
	done chan struct{}
}

func newEcho() *echo {
	r, w := io.Pipe()
	return &echo{PipeReader: r, w: w, done: make(chan struct{})}
}

func (e *echo) Write(b []byte) (int, error)                      { return e.w.Write(b) }
func (e *echo) Resize(context.Context, uint16, uint16) error     { return nil }
func (e *echo) Signal(_ context.Context, _ syscall.Signal) error { e.Close(); return nil }
func (e *echo) Wait() shells.End                                 { <-e.done; return shells.End{Code: 4} }
func (e *echo) Close()                                           { e.once.Do(func() { e.w.Close(); close(e.done) }) }

// A shell that lives is there when the screen comes, with what it printed; one
// that is opened here lives on; one is ended from here.
func TestKeptShells(t *testing.T) {
	k := shells.New(func(context.Context, shells.Spec) (shells.Program, error) { return newEcho(), nil }, nil)
	s := open(t, 80, 24)
	path := filepath.Join(s.rig.dir, "shells.sock")
	l, err := shells.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- k.Serve(l) }()
	defer func() {
		k.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	f, err := shells.Open(t.Context(), path, shells.Spec{Argv: []string{"sh"}, Rows: 20, Cols: 80})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("from before\r\n\x1b]2;vim \x1b\\")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	if _, err := f.Read(buf); err != nil {
		t.Fatal(err)
	}
	f.Close()
	s.until("Show me around")
	s.inside(func(a *App) { a.closeBox(); a.connect() }) // the screen comes after the shell
	s.press("\x1b2")
	s.until("from before", "1 vim")
	s.press("and on")
	s.until("and on")
	s.press("\x1d", "n")
	s.until("2 shell")
	s.press("second")
	s.until("second")
	s.press("\x1d", "\t")
	s.until("from before")
	s.press("\x1d", "x")
	s.until("shell 1 has ended", "second")
	if list := k.List(); len(list) != 1 || list[0].ID != 2 || list[0].Ended != nil {
		t.Errorf("%+v", list)
	}
}
