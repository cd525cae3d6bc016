package traffic

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxWatchers = 16
	maxLine     = 1 << 20
	gather      = 100 * time.Millisecond // pieces are put together for this long
	writeTime   = 5 * time.Second
)

// Piece is one line to a watcher.
type Piece struct {
	List []Crossing `json:"list"`
	Lost uint64     `json:"lost,omitempty"` // crossings that came too fast
}

// Listen makes the socket, for its owner only, in a directory that is 0700. The
// caller has removed what was at path.
func Listen(path string) (net.Listener, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("traffic socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("traffic socket: %w", err)
	}
	return l, nil
}

// Serve tells watchers until ctx ends, and closes l.
func (l *Log) Serve(ctx context.Context, listener net.Listener) error {
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	var work sync.WaitGroup
	defer work.Wait()
	defer listener.Close()
	for {
		c, err := listener.Accept()
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ECONNABORTED):
			select {
			case <-time.After(gather):
			case <-ctx.Done():
			}
			continue
		default:
			return fmt.Errorf("traffic socket: %w", err)
		}
		if l.watchers.Load() >= maxWatchers {
			c.Close()
			continue
		}
		work.Go(func() { l.tell(ctx, c) })
	}
}

// tell writes pieces to one watcher until it leaves.
func (l *Log) tell(ctx context.Context, c net.Conn) {
	at, stop := l.watch()
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer c.Close()
	defer cancel()
	reader.Go(func() {
		defer cancel()
		_, _ = c.Read(make([]byte, 1)) // it says nothing; it leaves
	})
	stopClose := context.AfterFunc(ctx, func() { c.Close() })
	defer stopClose()
	for ctx.Err() == nil {
		list, next, lost, wake := l.since(at)
		at = next
		if len(list) == 0 {
			select {
			case <-wake:
			case <-ctx.Done():
			}
			continue
		}
		b, err := json.Marshal(Piece{list, lost})
		if err != nil {
			return
		}
		_ = c.SetWriteDeadline(time.Now().Add(writeTime))
		if _, err := c.Write(append(b, '\n')); err != nil {
			return
		}
		select {
		case <-time.After(gather):
		case <-ctx.Done():
		}
	}
}

// Watch hands pieces to see until ctx ends or the runtime does.
func Watch(ctx context.Context, path string, see func(Piece)) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("traffic of the sandbox: %w", err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	lines := bufio.NewScanner(c)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	for lines.Scan() {
		var p Piece
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			return fmt.Errorf("traffic of the sandbox: %w", err)
		}
		see(p)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return lines.Err()
}
