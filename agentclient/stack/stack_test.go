// Package stack tests the client with everything behind its socket that is not
// a machine: relay and guest agent, in this process.
package stack

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"msb/agentclient"
	guest "msb/guest/agent"
	"msb/guest/exec"
	"msb/protocol/agent"
	"msb/vmm/relay"
)

var reaper *exec.Reaper

func TestMain(m *testing.M) {
	exec.LimitedMain()
	exec.HideDescriptors()
	reaper = exec.NewReaper()
	os.Exit(m.Run())
}

func pair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var c [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "port")
		c[i], err = net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	return c[0], c[1]
}

// sandbox is a guest agent behind a relay, without a machine.
type sandbox struct {
	t      testing.TB
	socket string
	relay  *relay.Relay
}

func newSandbox(t testing.TB, dual bool) *sandbox {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	hostPort, guestPort := pair(t)
	ports := guest.Ports{Control: guestPort}
	var hostBulk io.ReadWriteCloser
	if dual {
		h, g := pair(t)
		hostBulk = h
		ports.Bulk = func() (io.ReadWriteCloser, error) { return g, nil }
	}
	ended := make(chan error, 1)
	go func() { ended <- guest.Serve(ctx, ports, guest.Machine{}, reaper) }()
	g, err := relay.Boot(within(t), hostPort, hostBulk, agent.BootstrapPayload{SecurityProfile: agent.SecurityDefault})
	if err != nil {
		t.Fatal(err)
	}
	s := &sandbox{t: t, socket: filepath.Join(t.TempDir(), "agent.sock"), relay: relay.New(g, relay.Options{})}
	l, err := relay.Listen(s.socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.relay.Serve(l) }()
	t.Cleanup(func() {
		l.Close()
		s.relay.Close()
		cancel()
		<-served
		<-ended
	})
	return s
}

func (s *sandbox) dial(opts ...agentclient.Option) *agentclient.Client {
	s.t.Helper()
	c, err := agentclient.Dial(within(s.t), s.socket, opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// both runs a test on one port and on two.
func both(t *testing.T, f func(t *testing.T, s *sandbox)) {
	for _, dual := range []bool{false, true} {
		t.Run(fmt.Sprintf("dual=%v", dual), func(t *testing.T) { f(t, newSandbox(t, dual)) })
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

func TestFiles(t *testing.T) {
	both(t, func(t *testing.T, s *sandbox) {
		c := s.dial()
		dir := t.TempDir()
		ctx := within(t)
		if c.Ready().NegotiatedVersion != agent.Generation {
			t.Errorf("generation %d", c.Ready().NegotiatedVersion)
		}
		for _, n := range []int{0, 1, 4096, 32 << 10, 200 << 10, 3 << 20, 20 << 20} {
			path := filepath.Join(dir, strconv.Itoa(n))
			f, err := c.FS().OpenFile(ctx, path, agent.OpenOptions{Read: true, Write: true, Create: true})
			if err != nil {
				t.Fatal(err)
			}
			data := random(n)
			if m, err := f.Upload(ctx, bytes.NewReader(data), 0); m != int64(n) || err != nil {
				t.Fatalf("upload of %d: %d, %v", n, m, err)
			}
			if onDisk, err := os.ReadFile(path); err != nil || !bytes.Equal(onDisk, data) {
				t.Errorf("file of %d: %d, %v", n, len(onDisk), err)
			}
			var b bytes.Buffer
			if m, err := f.Download(ctx, &b, 0, nil); m != int64(n) || err != nil || !bytes.Equal(b.Bytes(), data) {
				t.Errorf("download of %d: %d, %v", n, m, err)
			}
			p := make([]byte, n+1)
			if m, err := f.ReadAt(ctx, p, 0); m != n || err != io.EOF || !bytes.Equal(p[:n], data) {
				t.Errorf("ReadAt of %d: %d, %v", n, m, err)
			}
			data = random(n)
			if m, err := f.WriteAt(ctx, data, 7); m != n || err != nil {
				t.Errorf("WriteAt of %d: %d, %v", n, m, err)
			}
			if m, err := f.ReadAt(ctx, p[:n], 7); m != n || err != nil || !bytes.Equal(p[:n], data) {
				t.Errorf("ReadAt of %d at 7: %d, %v", n, m, err)
			}
			if err := f.Close(ctx); err != nil {
				t.Error(err)
			}
		}
		if _, err := c.FS().Stat(ctx, filepath.Join(dir, "none"), true); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("stat: %v", err)
		}
		if _, err := c.FS().OpenFile(ctx, dir, agent.OpenOptions{Write: true}); !errors.Is(err, syscall.EISDIR) {
			t.Errorf("open of a directory: %v", err)
		}
		list, err := c.FS().List(ctx, dir)
		if err != nil || len(list) != 7 {
			t.Errorf("%d entries, %v", len(list), err)
		}
		d, err := c.FS().OpenDir(ctx, dir)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for {
			some, err := d.Read(ctx, 3)
			if err != nil {
				t.Fatal(err)
			}
			if len(some) == 0 {
				break
			}
			n += len(some)
		}
		if n != 7 {
			t.Errorf("%d entries in pieces", n)
		}
		d.Close(ctx)
	})
}

// Transfers that are given up leave nothing behind and disturb nobody.
func TestTransfersGivenUp(t *testing.T) {
	both(t, func(t *testing.T, s *sandbox) {
		c := s.dial()
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, random(30<<20), 0o666); err != nil {
			t.Fatal(err)
		}
		f, err := c.FS().OpenFile(within(t), path, agent.OpenOptions{Read: true, Write: true})
		if err != nil {
			t.Fatal(err)
		}
		for range 40 {
			ctx, cancel := context.WithCancel(within(t))
			f.Download(ctx, writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil }), 0, nil)
			ctx, cancel = context.WithCancel(within(t))
			f.Upload(ctx, io.MultiReader(bytes.NewReader(make([]byte, 1<<20)), readerFunc(func([]byte) (int, error) { cancel(); return 0, io.EOF })), 0)
			ctx, cancel = context.WithTimeout(within(t), time.Millisecond)
			f.ReadAt(ctx, make([]byte, 5<<20), 0)
			f.WriteAt(ctx, make([]byte, 5<<20), 0)
			cancel()
			if _, err := c.Ping(within(t)); err != nil {
				t.Fatal(err)
			}
		}
		data := random(9 << 20)
		if _, err := f.WriteAt(within(t), data, 0); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(data))
		if _, err := f.ReadAt(within(t), got, 0); err != nil || !bytes.Equal(got, data) {
			t.Error("other bytes", err)
		}
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestCommands(t *testing.T) {
	both(t, func(t *testing.T, s *sandbox) {
		c := s.dial()
		e := start(t, c, "echo out; echo err >&2; exit 3")
		out, _ := io.ReadAll(e.Stdout())
		errs, _ := io.ReadAll(e.Stderr())
		if code, err := e.Wait(); code != 3 || err != nil || string(out) != "out\n" || string(errs) != "err\n" {
			t.Errorf("%d, %v, %q, %q", code, err, out, errs)
		}

		data := random(5 << 20)
		e = start(t, c, "cat")
		go func() {
			e.Stdin().Write(data)
			e.Stdin().Close()
		}()
		if out, err := io.ReadAll(e.Stdout()); err != nil || !bytes.Equal(out, data) {
			t.Errorf("cat: %d bytes of %d, %v", len(out), len(data), err)
		}

		e = start(t, c, "kill -9 $$")
		if code, err := e.Wait(); code != -1 || err != nil {
			t.Errorf("killed: %d, %v", code, err)
		}
		e = start(t, c, "exec sleep 1000")
		e.Signal(within(t), 15)
		if code, err := e.Wait(); code != -1 || err != nil {
			t.Errorf("terminated: %d, %v", code, err)
		}
		_, err := c.Exec(within(t), agentclient.ExecSpec{Cmd: "/no/such/command"})
		var failed *agentclient.ExecError
		if !errors.As(err, &failed) || failed.Kind != agent.ExecNotFound {
			t.Errorf("error %v", err)
		}

		tty, err := c.Exec(within(t), agentclient.ExecSpec{Cmd: "/bin/sh", Args: []string{"-c", "stty size; read x; stty size"}, TTY: true, Rows: 30, Cols: 100})
		if err != nil {
			t.Fatal(err)
		}
		first := make([]byte, 6)
		io.ReadFull(tty.Stdout(), first)
		tty.Resize(within(t), 40, 120)
		tty.Stdin().Write([]byte("\n"))
		rest, _ := io.ReadAll(tty.Stdout())
		if !strings.HasPrefix(string(first), "30 100") || !strings.Contains(string(rest), "40 120") {
			t.Errorf("terminal said %q and %q", first, rest)
		}
		small, err := c.Exec(within(t), agentclient.ExecSpec{Cmd: "stty", Args: []string{"size"}, TTY: true, Rows: 1, Cols: 1})
		if err != nil {
			t.Fatal(err)
		}
		if out, _ := io.ReadAll(small.Stdout()); !strings.HasPrefix(string(out), "1 1") {
			t.Errorf("the smallest terminal said %q", out)
		}
	})
}

func start(t testing.TB, c *agentclient.Client, script string) *agentclient.Exec {
	t.Helper()
	e, err := c.Exec(within(t), agentclient.ExecSpec{Cmd: "/bin/sh", Args: []string{"-c", script}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// Nobody reads a command's output, for longer than a relay waits for a client.
func TestStalledReader(t *testing.T) {
	if testing.Short() {
		t.Skip("waits out the relay's patience of 5 s")
	}
	s := newSandbox(t, true)
	c := s.dial(agentclient.WithSpool(t.TempDir(), 1<<30))
	const size = 100 << 20
	e := start(t, c, "head -c 104857600 /dev/zero; sleep 6; echo end")
	for range 60 {
		if _, err := c.Ping(within(t)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	n, err := io.Copy(io.Discard, e.Stdout())
	code, werr := e.Wait()
	if n != size+4 || err != nil || code != 0 || werr != nil {
		t.Errorf("%d bytes, %v, code %d, %v", n, err, code, werr)
	}
}

func TestTCP(t *testing.T) {
	both(t, func(t *testing.T, s *sandbox) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					io.Copy(conn, conn)
					conn.Close()
				}()
			}
		}()
		port := uint16(l.Addr().(*net.TCPAddr).Port)
		c := s.dial()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				conn, err := c.DialTCP(within(t), "127.0.0.1", port)
				if err != nil {
					t.Error(err)
					return
				}
				data := random(12 << 20)
				go func() {
					conn.Write(data)
					conn.CloseWrite()
				}()
				got, err := io.ReadAll(conn)
				if err != nil || !bytes.Equal(got, data) {
					t.Errorf("%d bytes of %d, %v", len(got), len(data), err)
				}
				if err := conn.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		var refused *agentclient.TCPError
		if _, err := c.DialTCP(within(t), "127.0.0.1", 1); !errors.As(err, &refused) {
			t.Errorf("error %v", err)
		}
	})
}

// What one end does to the connection, the other end sees: half-closes both ways, and resets both ways.
func TestTCPEnds(t *testing.T) {
	both(t, func(t *testing.T, s *sandbox) {
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c := s.dial()
		dial := func(t *testing.T) (outer *agentclient.TCPConn, inner *net.TCPConn) {
			outer, err := c.DialTCP(within(t), "127.0.0.1", uint16(l.Addr().(*net.TCPAddr).Port))
			if err != nil {
				t.Fatal(err)
			}
			if inner, err = l.AcceptTCP(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { inner.Close(); outer.Close() })
			return outer, inner
		}
		say := func(t *testing.T, from io.Writer, to io.Reader) {
			t.Helper()
			got := make([]byte, 5)
			if _, err := io.WriteString(from, "hello"); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(to, got); err != nil || string(got) != "hello" {
				t.Fatalf("%q, %v", got, err)
			}
		}
		ends := func(t *testing.T, r io.Reader, want error) {
			t.Helper()
			if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, want) {
				t.Fatalf("%d, %v; want %v", n, err, want)
			}
		}
		t.Run("the client ends first", func(t *testing.T) {
			outer, inner := dial(t)
			say(t, outer, inner)
			outer.CloseWrite()
			ends(t, inner, io.EOF)
			say(t, inner, outer)
			inner.CloseWrite()
			ends(t, outer, io.EOF)
		})
		t.Run("the destination ends first", func(t *testing.T) {
			outer, inner := dial(t)
			inner.CloseWrite()
			ends(t, outer, io.EOF)
			say(t, outer, inner)
			outer.CloseWrite()
			ends(t, inner, io.EOF)
		})
		t.Run("the client aborts", func(t *testing.T) {
			outer, inner := dial(t)
			say(t, outer, inner)
			outer.Abort()
			ends(t, inner, syscall.ECONNRESET)
			ends(t, outer, net.ErrClosed)
		})
		t.Run("the destination resets", func(t *testing.T) {
			outer, inner := dial(t)
			say(t, outer, inner)
			inner.SetLinger(0)
			inner.Close()
			_, err := outer.Read(make([]byte, 1))
			var broken *agentclient.TCPError
			if !errors.As(err, &broken) {
				t.Errorf("error %v", err)
			}
		})
		t.Run("the client is gone", func(t *testing.T) {
			other := s.dial()
			if _, err := other.DialTCP(within(t), "127.0.0.1", uint16(l.Addr().(*net.TCPAddr).Port)); err != nil {
				t.Fatal(err)
			}
			inner, err := l.AcceptTCP()
			if err != nil {
				t.Fatal(err)
			}
			defer inner.Close()
			other.Close()
			ends(t, inner, syscall.ECONNRESET)
		})
	})
}

// More transfers at once than a client may have in raw bulk, on several
// connections of a pool, beside pings.
func TestLoad(t *testing.T) {
	both(t, func(t *testing.T, s *sandbox) {
		pool := agentclient.NewPool(agentclient.PoolOptions{Size: 2, Dial: func(ctx context.Context) (*agentclient.Client, error) {
			return agentclient.Dial(ctx, s.socket)
		}})
		defer pool.Close()
		dir := t.TempDir()
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				c, err := pool.Get(within(t))
				if err != nil {
					t.Error(err)
					return
				}
				f, err := c.FS().OpenFile(within(t), filepath.Join(dir, strconv.Itoa(i)), agent.OpenOptions{Read: true, Write: true, Create: true})
				if err != nil {
					t.Error(err)
					return
				}
				data := bytes.Repeat([]byte{byte(i)}, 300<<10)
				if _, err := f.WriteAt(within(t), data, 0); err != nil {
					t.Error(err)
				}
				got := make([]byte, len(data))
				if _, err := f.ReadAt(within(t), got, 0); err != nil || !bytes.Equal(got, data) {
					t.Error("read", err)
				}
				if err := f.Close(within(t)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}

func TestShutdown(t *testing.T) {
	s := newSandbox(t, true)
	c := s.dial()
	if err := c.Shutdown(within(t)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Done():
	case <-time.After(time.Minute):
		t.Error("the connection stays")
	}
}

func benchFile(b *testing.B, size int) *agentclient.File {
	c := newSandbox(b, true).dial()
	path := filepath.Join(b.TempDir(), "f")
	if err := os.WriteFile(path, make([]byte, size), 0o666); err != nil {
		b.Fatal(err)
	}
	f, err := c.FS().OpenFile(context.Background(), path, agent.OpenOptions{Read: true, Write: true})
	if err != nil {
		b.Fatal(err)
	}
	return f
}

func BenchmarkDownload(b *testing.B) {
	const size = 64 << 20
	f := benchFile(b, size)
	b.SetBytes(size)
	for b.Loop() {
		if n, err := f.Download(context.Background(), writerFunc(func(p []byte) (int, error) { return len(p), nil }), 0, nil); n != size || err != nil {
			b.Fatal(n, err)
		}
	}
}

func BenchmarkUpload(b *testing.B) {
	const size = 64 << 20
	f := benchFile(b, size)
	src := make([]byte, size)
	b.SetBytes(size)
	for b.Loop() {
		if n, err := f.WriteAt(context.Background(), src, 0); n != size || err != nil {
			b.Fatal(n, err)
		}
	}
}

func BenchmarkReadAt(b *testing.B) {
	for _, n := range []int{4 << 10, 128 << 10, 1 << 20} {
		b.Run(strconv.Itoa(n>>10)+"KiB", func(b *testing.B) {
			f := benchFile(b, n)
			p := make([]byte, n)
			b.SetBytes(int64(n))
			for b.Loop() {
				if _, err := f.ReadAt(context.Background(), p, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkWriteAt(b *testing.B) {
	for _, n := range []int{4 << 10, 128 << 10, 1 << 20} {
		b.Run(strconv.Itoa(n>>10)+"KiB", func(b *testing.B) {
			f := benchFile(b, n)
			p := make([]byte, n)
			b.SetBytes(int64(n))
			for b.Loop() {
				if _, err := f.WriteAt(context.Background(), p, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkPing reports the round trip, idle and while a read and a write
// saturate the same connection.
func BenchmarkPing(b *testing.B) {
	for _, loaded := range []bool{false, true} {
		b.Run(fmt.Sprintf("loaded=%v", loaded), func(b *testing.B) {
			f := benchFile(b, 32<<20)
			ctx, cancel := context.WithCancel(context.Background())
			var wg sync.WaitGroup
			if loaded {
				buf := make([]byte, 16<<20)
				wg.Go(func() {
					for ctx.Err() == nil {
						f.Download(ctx, writerFunc(func(p []byte) (int, error) { return len(p), nil }), 0, nil)
					}
				})
				wg.Go(func() {
					for ctx.Err() == nil {
						f.WriteAt(ctx, buf, 0)
					}
				})
			}
			var times []time.Duration
			for b.Loop() {
				d, err := f.Client().Ping(context.Background())
				if err != nil {
					b.Fatal(err)
				}
				times = append(times, d)
			}
			cancel()
			wg.Wait()
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(times[len(times)*95/100].Microseconds()), "p95-µs")
		})
	}
}
