package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"msb/agentclient"
	wire "msb/protocol/worktree"
)

// helper is the program in the sandbox that reads or writes the tree.
type helper struct {
	ctx  context.Context
	e    *agentclient.Exec
	w    *wire.Writer
	r    *wire.Reader
	said bytes.Buffer
	work sync.WaitGroup
	stop func() bool

	acked uint64
}

// maxSaid bounds what is kept of the helper's complaints, in bytes.
const maxSaid = 4096

// start runs a mode of the helper. close must be called.
func (w *Workspace) start(ctx context.Context, c *agentclient.Client, mode string, flags ...string) (*helper, error) {
	args := append([]string{"worktree", mode, "--root", w.root}, flags...)
	e, err := c.Exec(ctx, agentclient.ExecSpec{Cmd: w.helper, Args: args, User: "root", Cwd: "/"})
	if err != nil {
		return nil, fmt.Errorf("start %s in the sandbox: %w", w.helper, err)
	}
	h := &helper{ctx: ctx, e: e, w: wire.NewWriter(e.Stdin()), r: wire.NewReader(e.Stdout())}
	h.stop = context.AfterFunc(ctx, func() { e.Close() })
	h.work.Go(func() {
		io.Copy(&h.said, io.LimitReader(e.Stderr(), maxSaid))
		io.Copy(io.Discard, e.Stderr())
	})
	return h, nil
}

// next reads a frame and acknowledges what was taken of a scan.
func (h *helper) next(ack bool) (byte, []byte, error) {
	t, p, err := h.r.Next()
	if err != nil {
		return 0, nil, h.failed(err)
	}
	if n := h.r.Taken(); ack && n-h.acked > 1<<20 {
		h.acked = n
		if err := h.w.Ack(n); err != nil && !errors.Is(err, unix.EPIPE) {
			return 0, nil, h.failed(err)
		}
	}
	return t, p, nil
}

// answer waits for the end of an unpacking.
func (h *helper) answer() error {
	if err := h.w.End(nil); err != nil && !errors.Is(err, unix.EPIPE) {
		return h.failed(err)
	}
	t, p, err := h.next(false)
	switch {
	case err != nil:
		return err
	case t != wire.FrameEnd:
		return fmt.Errorf("the sandbox's helper: %w", wire.ErrFrame)
	case len(p) > 0:
		return fmt.Errorf("in the sandbox: %s", tame(string(p)))
	}
	return nil
}

// sendFailed is why the helper takes no more: its own answer if there is one.
func (h *helper) sendFailed(err error) error {
	if h.ctx.Err() != nil {
		return context.Cause(h.ctx)
	}
	if t, p, rerr := h.r.Next(); rerr == nil && t == wire.FrameEnd && len(p) > 0 {
		return fmt.Errorf("in the sandbox: %s", tame(string(p)))
	}
	return h.failed(err)
}

// failed is an error of the stream, with what the helper said.
func (h *helper) failed(err error) error {
	if h.ctx.Err() != nil {
		return context.Cause(h.ctx)
	}
	code, werr := h.wait()
	said := strings.TrimSpace(tame(h.said.String()))
	switch {
	case werr != nil:
		return fmt.Errorf("the sandbox went away: %w", werr)
	case code == 2:
		return errors.New("the sandbox runs an older guest program that cannot do this: restart it with `msb restart NAME`")
	case said != "":
		return fmt.Errorf("in the sandbox: %s", said)
	}
	return fmt.Errorf("the sandbox's helper ended with %d: %w", code, err)
}

// patience is how long the helper may take to end.
const patience = 10 * time.Second

func (h *helper) wait() (int, error) {
	timer := time.AfterFunc(patience, func() { h.e.Close() })
	defer timer.Stop()
	h.e.Stdin().Close()
	code, err := h.e.Wait()
	h.work.Wait()
	return code, err
}

// close ends the helper.
func (h *helper) close() {
	h.stop()
	h.e.Close()
	h.work.Wait()
}

// tame makes a guest's text fit for an error.
func tame(s string) string {
	const most = 500
	s = strings.ToValidUTF8(s[:min(len(s), most)], "?")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}

// inMemory is the largest file that is not kept on disk while its size is not
// known.
const inMemory = 4 << 20

// content takes a file's content off the stream and stores it.
func (h *helper) content(i *importer, budget *int64, dir string) (f File, changed bool, err error) {
	var mem bytes.Buffer
	var spool *os.File
	defer func() {
		if spool != nil {
			spool.Close()
		}
	}()
	for {
		t, p, err := h.next(true)
		if err != nil {
			return f, false, err
		}
		switch t {
		case wire.FrameData:
			if *budget -= int64(len(p)); *budget < 0 {
				return f, false, errors.New("the workspace in the sandbox is larger than the free disk space on the host")
			}
			f.Size += int64(len(p))
			if spool == nil && mem.Len()+len(p) <= inMemory {
				mem.Write(p)
				continue
			}
			if spool == nil {
				if spool, err = unlinked(dir); err != nil {
					return f, false, err
				}
				if _, err := spool.Write(mem.Bytes()); err != nil {
					return f, false, err
				}
			}
			if _, err := spool.Write(p); err != nil {
				return f, false, err
			}
			continue
		case wire.FrameClose:
			if why := string(p); why == "changed" {
				changed = true
			} else if why != "" {
				return f, false, fmt.Errorf("read in the sandbox: %s", tame(why))
			}
		default:
			return f, false, fmt.Errorf("the sandbox's helper: %w", wire.ErrFrame)
		}
		var r io.Reader = &mem
		if spool != nil {
			if _, err := spool.Seek(0, io.SeekStart); err != nil {
				return f, false, err
			}
			r = spool
		}
		f.ID, _, err = i.blob(f.Size, r)
		return f, changed, err
	}
}

func unlinked(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, ".spool-*")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

// free is the number of bytes that a tree may have.
func free(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// Make makes the workspace's folder in the sandbox, for its user, if there is
// none.
func (w *Workspace) Make(ctx context.Context, c *agentclient.Client) error {
	if w.exists(ctx, c) {
		return nil
	}
	h, err := w.start(ctx, c, "unpack", "--owner", w.owner)
	if err != nil {
		return err
	}
	defer h.close()
	return h.answer()
}
