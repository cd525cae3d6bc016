package stack

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"msb/agentclient"
	"msb/protocol/agent"
)

func nodes(t testing.TB, c *agentclient.Client) *agentclient.Nodes {
	t.Helper()
	n, err := c.Nodes()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func attach(t testing.TB, n *agentclient.Nodes, path string) agent.NodeRef {
	t.Helper()
	root, err := n.Attach(within(t), []byte(path))
	if err != nil {
		t.Fatal(err)
	}
	return root.Node
}

func TestNodes(t *testing.T) {
	both(t, func(t *testing.T, s *sandbox) {
		ctx := within(t)
		c := s.dial()
		if x := c.Extensions(); x[agent.ExtFS] != 1 || x[agent.ExtExec] != 1 {
			t.Errorf("extensions %v", x)
		}
		n := nodes(t, c)
		dir := t.TempDir()
		root := attach(t, n, dir)

		// A compound with data in the middle: one round trip, whatever the size.
		for _, size := range []int{1, 100 << 10, 20 << 20} {
			data := random(size)
			results, err := n.WriteAll(ctx, []agent.NodeOp{
				&agent.NodeCreate{Dir: root, Name: []byte("file\xff"), Flags: agent.NodeReadWrite | agent.NodeTruncate, Mode: 0o640},
			}, 0, bytes.NewReader(data), uint64(size),
				&agent.NodeSetAttr{Target: 0, Valid: agent.NodeSetMtime, MtimeSec: 5, MtimeNsec: 7}, &agent.NodeGetAttr{Target: 0})
			if err != nil {
				t.Fatal(err)
			}
			created := results[0].(*agent.NodeCreatedResult)
			a := results[3].(*agent.NodeAttrResult).Attr
			if a.Size != uint64(size) || a.MtimeSec != 5 || a.MtimeNsec != 7 || a.Mode != syscall.S_IFREG|0o640 {
				t.Errorf("attributes %+v", a)
			}
			got := make([]byte, size+10)
			m, err := n.ReadAt(ctx, created.Handle, got, 0)
			if err != io.EOF || !bytes.Equal(got[:m], data) {
				t.Errorf("read %d bytes of %d, %v", m, size, err)
			}
			var down bytes.Buffer
			if _, err := n.Download(ctx, created.Handle, &down, 0, nil); err != nil || !bytes.Equal(down.Bytes(), data) {
				t.Errorf("download: %v, %d bytes", err, down.Len())
			}
			up := random(size)
			if m, err := n.WriteAt(ctx, created.Handle, up, 3, 0); m != size || err != nil {
				t.Errorf("write: %d, %v", m, err)
			}
			if m, err := n.Upload(ctx, created.Handle, bytes.NewReader(up), 3, 0); m != int64(size) || err != nil {
				t.Errorf("upload: %d, %v", m, err)
			}
			onDisk, err := os.ReadFile(filepath.Join(dir, "file\xff"))
			if err != nil || !bytes.Equal(onDisk[3:], up) {
				t.Errorf("on the disk: %v, %d bytes", err, len(onDisk))
			}
			if err := n.Close(ctx, created.Handle); err != nil {
				t.Error(err)
			}
			if err := n.Close(ctx, created.Handle); !errors.Is(err, syscall.EBADF) {
				t.Errorf("second close: %v", err)
			}
		}
		// A stream that fails has errno and says which operation it was.
		_, err := n.WriteAll(ctx, []agent.NodeOp{&agent.NodeLookup{Dir: root, Name: []byte("missing")}}, 0, bytes.NewReader(nil), 0)
		var failed *agentclient.NodeError
		if !errors.As(err, &failed) || failed.Op != "lookup" || failed.Index != 0 || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v", err)
		}
		h, err := n.Open(ctx, mustLookup(t, n, root, "file\xff"), agent.NodeReadOnly)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.WriteAt(ctx, h, make([]byte, 1<<20), 0, 0); !errors.Is(err, syscall.EBADF) {
			t.Errorf("write to a read-only handle: %v", err)
		}
		if _, err := n.ReadAt(ctx, root, make([]byte, 1<<20), 0); !errors.Is(err, syscall.EBADF) {
			t.Errorf("read of a node: %v", err)
		}
	})
}

func mustLookup(t testing.TB, n *agentclient.Nodes, dir agent.NodeRef, name string) agent.NodeRef {
	t.Helper()
	e, err := n.Lookup(within(t), dir, []byte(name))
	if err != nil {
		t.Fatal(err)
	}
	return e.Node
}

// What one connection has is nobody else's, unless it is given the secret.
func TestNodesOfTwoClients(t *testing.T) {
	s := newSandbox(t, true)
	ctx := within(t)
	first, second, third := s.dial(), s.dial(), s.dial()
	a, b, stranger := nodes(t, first), nodes(t, second), nodes(t, third)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	root := attach(t, a, dir)
	if _, err := stranger.GetAttr(ctx, root); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("a stranger's getattr: %v", err)
	}
	if _, err := stranger.Do(ctx, &agent.NodeJoin{Session: make([]byte, 16)}); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("join with a table: %v", err)
	}
	r, err := a.Do(ctx, &agent.NodeSession{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Do(ctx, &agent.NodeJoin{Session: make([]byte, 16)}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("join of nothing: %v", err)
	}
	if _, err := b.Do(ctx, &agent.NodeJoin{Session: r[0].(*agent.NodeBytesResult).Data}); err != nil {
		t.Fatal(err)
	}
	h, err := a.Open(ctx, mustLookup(t, b, root, "f"), agent.NodeReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	// Nodes and handles outlive the connection that made them.
	first.Close()
	p := make([]byte, 1)
	if _, err := b.ReadAt(ctx, h, p, 0); err != nil || p[0] != 'x' {
		t.Errorf("after the first one left: %v", err)
	}
	second.Close()
}

// A lock that is waited for ends with its context, and a cancelled wait leaves nothing behind.
func TestNodeLockWaits(t *testing.T) {
	s := newSandbox(t, false)
	ctx := within(t)
	n := nodes(t, s.dial())
	dir := t.TempDir()
	root := attach(t, n, dir)
	r, err := n.Do(ctx, &agent.NodeCreate{Dir: root, Name: []byte("f"), Flags: agent.NodeReadWrite, Mode: 0o600})
	if err != nil {
		t.Fatal(err)
	}
	h := r[0].(*agent.NodeCreatedResult).Handle
	lock := func(ctx context.Context, owner uint64, typ uint32, wait bool) error {
		_, err := n.Do(ctx, &agent.NodeLock{Handle: h, Type: typ, Owner: owner, Wait: wait})
		return err
	}
	if err := lock(ctx, 1, agent.NodeWriteLock, false); err != nil {
		t.Fatal(err)
	}
	if err := lock(ctx, 2, agent.NodeWriteLock, false); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("second owner: %v", err)
	}
	short, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- lock(short, 3, agent.NodeWriteLock, true) }()
	time.AfterFunc(20*time.Millisecond, cancel)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled wait: %v", err)
	}
	go func() { ended <- lock(ctx, 2, agent.NodeWriteLock, true) }()
	if err := lock(ctx, 1, agent.NodeUnlock, false); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("wait: %v", err)
	}
}

func TestSignaled(t *testing.T) {
	both(t, func(t *testing.T, s *sandbox) {
		c := s.dial()
		for script, want := range map[string]syscall.Signal{
			"kill -TERM $$": syscall.SIGTERM, "kill -KILL $$": syscall.SIGKILL, "exit 7": 0,
		} {
			e := start(t, c, script)
			code, err := e.Wait()
			sig, _ := e.Signaled()
			if err != nil || sig != want || (code == -1) != (want != 0) {
				t.Errorf("%s: code %d, %v, signal %v", script, code, err, sig)
			}
		}
	})
}

// A command whose output nobody reads waits, and goes on when somebody does.
func TestWindow(t *testing.T) {
	both(t, func(t *testing.T, s *sandbox) {
		c := s.dial(agentclient.WithSpool("/nonexistent", 1))
		ctx := within(t)
		const total = 8 << 20
		e, err := c.Exec(ctx, agentclient.ExecSpec{Cmd: "/bin/sh", Args: []string{"-c", "head -c 8388608 /dev/zero; echo end >&2"}, Window: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		if _, err := c.Ping(ctx); err != nil {
			t.Fatal(err)
		}
		select {
		case <-e.Done():
			t.Fatal("it did not wait")
		case <-time.After(100 * time.Millisecond):
		}
		n, err := io.Copy(io.Discard, e.Stdout())
		if err != nil || n != total {
			t.Errorf("stdout: %d bytes, %v", n, err)
		}
		last, _ := io.ReadAll(e.Stderr())
		if code, err := e.Wait(); code != 0 || err != nil || string(last) != "end\n" {
			t.Errorf("code %d, %v, %q", code, err, last)
		}
		// One that is killed while it waits ends, read or not.
		e, err = c.Exec(ctx, agentclient.ExecSpec{Cmd: "yes", Window: 16 << 10})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Signal(ctx, int(syscall.SIGKILL)); err != nil {
			t.Fatal(err)
		}
		if code, err := e.Wait(); code != -1 || err != nil {
			t.Errorf("killed: code %d, %v", code, err)
		}
		// One that is given up while it waits is gone.
		e, err = c.Exec(ctx, agentclient.ExecSpec{Cmd: "yes", Window: 16 << 10})
		if err != nil {
			t.Fatal(err)
		}
		e.Close()
		<-e.Done()
	})
}

func benchNodes(b *testing.B) (*agentclient.Nodes, agent.NodeRef) {
	s := newSandbox(b, true)
	n := nodes(b, s.dial())
	dir := b.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "small"), random(4096), 0o600); err != nil {
		b.Fatal(err)
	}
	return n, attach(b, n, dir)
}

// BenchmarkNodesSingle and BenchmarkNodesCompound read a small file by name: in four round trips and in one.
func BenchmarkNodesSingle(b *testing.B) {
	n, root := benchNodes(b)
	ctx := context.Background()
	p := make([]byte, 4096)
	for b.Loop() {
		e, err := n.Lookup(ctx, root, []byte("small"))
		if err != nil {
			b.Fatal(err)
		}
		h, err := n.Open(ctx, e.Node, agent.NodeReadOnly)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := n.ReadAt(ctx, h, p, 0); err != nil {
			b.Fatal(err)
		}
		if err := n.Close(ctx, h); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNodesCompound(b *testing.B) {
	n, root := benchNodes(b)
	ctx := context.Background()
	for b.Loop() {
		_, err := n.Do(ctx, &agent.NodeLookup{Dir: root, Name: []byte("small")}, &agent.NodeOpen{Node: 0},
			&agent.NodeRead{Handle: 1, Len: 4096}, &agent.NodeClose{Handle: 1})
		if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNodesGetAttr(b *testing.B) {
	n, root := benchNodes(b)
	ctx := context.Background()
	for b.Loop() {
		if _, err := n.GetAttr(ctx, root); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNodesReadAt(b *testing.B) {
	s := newSandbox(b, true)
	n := nodes(b, s.dial())
	dir := b.TempDir()
	const size = 64 << 20
	if err := os.WriteFile(filepath.Join(dir, "large"), make([]byte, size), 0o600); err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	h, err := n.Open(ctx, mustLookup(b, n, attach(b, n, dir), "large"), agent.NodeReadOnly)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(size)
	for b.Loop() {
		if _, err := n.Download(ctx, h, io.Discard, 0, nil); err != nil {
			b.Fatal(err)
		}
	}
}
