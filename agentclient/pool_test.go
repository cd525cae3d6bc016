package agentclient

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"msb/protocol/agent"
	"msb/protocol/client"
)

// dialer makes connections to guests in this process.
type dialer struct {
	t     *testing.T
	mu    sync.Mutex
	peers []*peer
	down  error
	ids   uint32
}

func (d *dialer) dial(ctx context.Context) (*Client, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down != nil {
		return nil, d.down
	}
	c, p := newPeer(d.t, 9, func(p *peer) {
		if d.ids > 0 {
			p.end = p.start + d.ids
		}
	})
	d.peers = append(d.peers, p)
	return c, nil
}

func (d *dialer) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.peers)
}

func newPool(t *testing.T, d *dialer, o PoolOptions) *Pool {
	o.Dial = d.dial
	p := NewPool(o)
	t.Cleanup(func() { p.Close() })
	return p
}

func TestPoolReconnects(t *testing.T) {
	d := &dialer{t: t}
	p := newPool(t, d, PoolOptions{})
	a, err := p.Get(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := p.Get(within(t)); b != a || err != nil {
		t.Error("a second connection for one slot")
	}
	d.peers[0].conn.Close()
	<-a.Done()
	d.down = errors.New("nobody there")
	if _, err := p.Get(within(t)); !errors.Is(err, d.down) {
		t.Errorf("error %v", err)
	}
	d.down = nil
	b, err := p.Get(within(t))
	if err != nil || b == a {
		t.Fatal(err)
	}
	if _, err := b.Ping(within(t)); err != nil {
		t.Error(err)
	}
}

// Callers at the same time share one dial; slots are used in turn.
func TestPoolShares(t *testing.T) {
	d := &dialer{t: t}
	p := newPool(t, d, PoolOptions{Size: 2})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := p.Get(within(t)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := d.count(); n != 2 {
		t.Errorf("%d connections", n)
	}
	a, _ := p.Get(within(t))
	b, _ := p.Get(within(t))
	if a == b {
		t.Error("slots are not used in turn")
	}
}

// A long-lived user never sees that ids run out, and replaced connections go
// away when their last handle is closed.
func TestPoolRenews(t *testing.T) {
	d := &dialer{t: t, ids: 40}
	p := newPool(t, d, PoolOptions{Linger: 2 * time.Millisecond})
	first, err := p.Get(within(t))
	if err != nil {
		t.Fatal(err)
	}
	f, err := first.FS().OpenFile(within(t), "/f", agent.OpenOptions{Create: true, Read: true, Write: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 500 {
		c, err := p.Get(within(t))
		if err == nil {
			_, err = c.Ping(within(t))
		}
		if err != nil {
			t.Fatalf("operation %d: %v", i, err)
		}
	}
	if n := d.count(); n < 500/40 {
		t.Errorf("%d connections for 500 operations of 40 ids each", n)
	}
	if first.Err() != nil {
		t.Error("a connection with an open handle was closed")
	}
	if _, err := f.WriteAt(within(t), []byte("x"), 0); err != nil {
		t.Error(err)
	}
	if err := f.Close(within(t)); err != nil {
		t.Error(err)
	}
	select {
	case <-first.Done():
	case <-time.After(time.Minute):
		t.Error("the replaced connection stays")
	}
}

func TestPoolClose(t *testing.T) {
	d := &dialer{t: t}
	p := newPool(t, d, PoolOptions{Size: 3})
	var open []*Client
	for range 3 {
		c, err := p.Get(within(t))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	p.Close()
	for _, c := range open {
		if !errors.Is(c.Err(), client.ErrClosed) {
			t.Errorf("connection: %v", c.Err())
		}
	}
	if _, err := p.Get(within(t)); err != ErrPoolClosed {
		t.Errorf("error %v", err)
	}
	p.Close()

	// A dial that hangs is ended by Close.
	var started atomic.Bool
	p = NewPool(PoolOptions{Dial: func(ctx context.Context) (*Client, error) {
		started.Store(true)
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	ctx, cancel := context.WithCancel(within(t))
	cancel()
	if _, err := p.Get(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	p.Close()
	if !started.Load() {
		t.Error("nothing was dialed")
	}
}

// Every operation, then Close: no goroutine of the client is left.
func TestNothingLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("work", func(t *testing.T) {
		c, _ := newPeer(t, 9, nil)
		run(t, c, "echo", "x").Wait()
		run(t, c, "sleep")
		run(t, c, "flood", "3000000")
		f, err := c.FS().OpenFile(within(t), "/f", agent.OpenOptions{Create: true, Read: true, Write: true})
		if err != nil {
			t.Fatal(err)
		}
		fileRoundTrip(t, f, 1000, 300<<10)
		conn, err := c.DialTCP(within(t), "echo", 1)
		if err != nil {
			t.Fatal(err)
		}
		conn.Write([]byte("x"))
		if conn, err = c.DialTCP(within(t), "echo", 1); err == nil {
			conn.Close()
		}
		c.Close()
		if n := c.engine.Active(); n != 0 {
			t.Errorf("%d streams", n)
		}
	})
	for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; {
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			t.Fatalf("goroutines left:\n%s", buf[:runtime.Stack(buf, true)])
		}
		time.Sleep(time.Millisecond)
	}
}
