package shells

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// dialTime bounds connecting and the first answer where ctx does not; starting a
// program may take as long as the keeper waits for it.
const dialTime = startTime + requestTime

// exchange sends a request and reads its answer. The connection goes on.
func exchange(ctx context.Context, path string, r Request) (net.Conn, Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, Answer{}, fmt.Errorf("shells of the sandbox: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	var a Answer
	if err = writeJSON(c, kindRequest, r); err == nil {
		err = readJSON(c, kindAnswer, &a)
	}
	if err == nil {
		err = a.err()
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		c.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, Answer{}, err
	}
	return c, a, nil
}

// List returns the shells of a sandbox by its socket, oldest first.
func List(ctx context.Context, path string) ([]Info, error) {
	c, a, err := exchange(ctx, path, Request{Op: opList})
	if err != nil {
		return nil, err
	}
	return a.Shells, c.Close()
}

// Kill ends a shell: it is hung up, and killed when it goes on.
func Kill(ctx context.Context, path string, id uint32) error {
	c, _, err := exchange(ctx, path, Request{Op: opEnd, ID: id})
	if err != nil {
		return err
	}
	return c.Close()
}

// Watch hands the list to see, now and whenever it has changed, until ctx ends or
// the connection is lost.
func Watch(ctx context.Context, path string, see func([]Info)) error {
	c, a, err := exchange(ctx, path, Request{Op: opWatch})
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	see(a.Shells)
	for {
		var list []Info
		if err := readJSON(c, kindList, &list); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
		see(list)
	}
}

// Front is a front end of a shell. Read has one caller; the other methods may be
// called at the same time.
type Front struct {
	Info Info // when it came
	// Sized, when it is set before the first Read, is called in Read with the
	// size that the shell's terminal has.
	Sized func(rows, cols uint16)

	c     net.Conn
	buf   []byte
	rest  []byte
	write sync.Mutex
	modes Modes

	mu  sync.Mutex
	end *End
	err error
}

// Open starts a program and attaches to it.
func Open(ctx context.Context, path string, s Spec) (*Front, error) {
	return front(ctx, path, Request{Op: opOpen, Argv: s.Argv, Env: s.Env, User: s.User, Cwd: s.Cwd, Rows: s.Rows, Cols: s.Cols})
}

// Attach attaches to a shell; id 0 is the one that was used last.
func Attach(ctx context.Context, path string, id uint32, rows, cols uint16) (*Front, error) {
	return front(ctx, path, Request{Op: opAttach, ID: id, Rows: rows, Cols: cols})
}

func front(ctx context.Context, path string, r Request) (*Front, error) {
	c, a, err := exchange(ctx, path, r)
	if err != nil {
		return nil, err
	}
	if len(a.Shells) != 1 {
		c.Close()
		return nil, errors.New("shells of the sandbox: an answer without the shell")
	}
	return &Front{Info: a.Shells[0], c: c}, nil
}

// Read returns what is to be drawn; io.EOF comes when the program has ended and
// everything was drawn.
func (f *Front) Read(p []byte) (int, error) {
	for len(f.rest) == 0 {
		if err := f.next(); err != nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.end != nil {
				return 0, io.EOF
			}
			f.err = err
			return 0, err
		}
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}

func (f *Front) next() error {
	kind, p, err := readFrame(f.c, &f.buf)
	if err != nil {
		return err
	}
	switch kind {
	case kindOutput:
		f.modes.Write(p)
		f.rest = p
	case kindSize:
		rows, cols, err := parseSize(p)
		if err != nil {
			return err
		}
		if f.Sized != nil {
			f.Sized(rows, cols)
		}
	case kindEnd:
		var e End
		f.mu.Lock()
		defer f.mu.Unlock()
		if err := json.Unmarshal(p, &e); err != nil {
			return err
		}
		f.end = &e
		return io.EOF
	default:
		return fmt.Errorf("frame %q of the keeper", kind)
	}
	return nil
}

// Write types.
func (f *Front) Write(p []byte) (n int, err error) {
	f.write.Lock()
	defer f.write.Unlock()
	for len(p) > 0 {
		k := min(len(p), maxFrame)
		if err := writeFrame(f.c, kindInput, p[:k]); err != nil {
			return n, err
		}
		n += k
		p = p[k:]
	}
	return n, nil
}

// Resize says that the front end has another size.
func (f *Front) Resize(rows, cols uint16) error {
	f.write.Lock()
	defer f.write.Unlock()
	return writeFrame(f.c, kindSize, sizePayload(rows, cols))
}

// Result says how the program ended, after Read has returned an error: io.EOF and
// it has; another one, and the front end left or lost it.
func (f *Front) Result() (End, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.end != nil {
		return *f.end, nil
	}
	if f.err == nil {
		return End{Code: -1}, net.ErrClosed
	}
	return End{Code: -1}, f.err
}

// Leave is what gives the terminal back as it was before the shell was drawn,
// after the last Read.
func (f *Front) Leave() string { return f.modes.Leave() }

// Close leaves the shell, which lives on.
func (f *Front) Close() error { return f.c.Close() }
