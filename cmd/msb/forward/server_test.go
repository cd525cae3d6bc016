package forward

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// guestSide is a connection of this host that stands for one inside a sandbox.
type guestSide struct{ *net.TCPConn }

func (g guestSide) Abort() error { return errors.Join(g.SetLinger(0), g.Close()) }

// rig forwards one port to a program of the test.
type rig struct {
	t     *testing.T
	at    string             // where to connect to
	guest chan *net.TCPConn  // what arrives inside
	stop  context.CancelFunc // ends the server
	ended chan struct{}

	mu      sync.Mutex
	reports []error
}

func newRig(t *testing.T) *rig {
	t.Helper()
	inside, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, guest: make(chan *net.TCPConn, 1024), ended: make(chan struct{})}
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		for {
			c, err := inside.AcceptTCP()
			if err != nil {
				return
			}
			r.guest <- c
		}
	}()
	s := Server{
		Dial: func(ctx context.Context, port uint16) (Stream, error) {
			if port == 1 {
				return nil, syscall.ECONNREFUSED
			}
			c, err := new(net.Dialer).DialContext(ctx, "tcp", inside.Addr().String())
			if err != nil {
				return nil, err
			}
			return guestSide{c.(*net.TCPConn)}, nil
		},
		Report: func(_ Spec, err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.reports = append(r.reports, err)
		},
	}
	free := netip.AddrPortFrom(loopback, 0)
	all, err := Listen([]Spec{{free, 80}, {free, 1}})
	if err != nil {
		t.Fatal(err)
	}
	r.at = all[0].Host.String()
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = cancel
	go func() { defer close(r.ended); s.Serve(ctx, all) }()
	t.Cleanup(func() {
		cancel()
		<-r.ended
		inside.Close()
		<-accepted
	})
	if refused, err := net.Dial("tcp", all[1].Host.String()); err == nil {
		if n, err := refused.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a refused connection: %d, %v", n, err)
		}
		refused.Close()
	}
	return r
}

// pair is a connection through the server: the program on this host, and the one inside.
func (r *rig) pair() (host, guest *net.TCPConn) {
	r.t.Helper()
	c, err := net.Dial("tcp", r.at)
	if err != nil {
		r.t.Fatal(err)
	}
	host = c.(*net.TCPConn)
	select {
	case guest = <-r.guest:
	case <-time.After(time.Minute):
		r.t.Fatal("nothing arrived inside")
	}
	for _, c := range []*net.TCPConn{host, guest} {
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		r.t.Cleanup(func() { c.Close() })
	}
	return host, guest
}

func read(t *testing.T, c net.Conn, want string) {
	t.Helper()
	b := make([]byte, len(want))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != want {
		t.Fatalf("%q, %v; want %q", b, err, want)
	}
}

func readEnd(t *testing.T, c net.Conn, want error) {
	t.Helper()
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, want) {
		t.Fatalf("%d, %v; want %v", n, err, want)
	}
}

func TestHalfClose(t *testing.T) {
	r := newRig(t)
	for name, swap := range map[string]bool{"the host first": false, "the guest first": true} {
		t.Run(name, func(t *testing.T) {
			a, b := r.pair()
			if swap {
				a, b = b, a
			}
			io.WriteString(a, "question")
			a.CloseWrite()
			read(t, b, "question")
			readEnd(t, b, io.EOF)
			io.WriteString(b, "answer")
			read(t, a, "answer")
			b.CloseWrite()
			readEnd(t, a, io.EOF)
		})
	}
}

func TestAbort(t *testing.T) {
	r := newRig(t)
	for name, swap := range map[string]bool{"by the host": false, "by the guest": true} {
		t.Run(name, func(t *testing.T) {
			a, b := r.pair()
			if swap {
				a, b = b, a
			}
			io.WriteString(a, "x")
			read(t, b, "x")
			io.WriteString(b, "y")
			read(t, a, "y")
			a.SetLinger(0)
			a.Close()
			readEnd(t, b, syscall.ECONNRESET)
		})
	}
}

// A program that goes away while nothing inside reads what it has sent is noticed.
func TestAbortWhileTheGuestDoesNotRead(t *testing.T) {
	r := newRig(t)
	host, guest := r.pair()
	_ = guest.SetReadBuffer(4096)
	host.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	if _, err := io.Copy(host, endless{}); err == nil {
		t.Fatal("everything was taken")
	}
	host.SetLinger(0)
	host.Close()
	for {
		if _, err := guest.Write([]byte("still here?")); err != nil {
			break // reset
		}
		time.Sleep(10 * time.Millisecond)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// Many connections at once; one of them reads nothing until the others are done.
func TestManyConnections(t *testing.T) {
	r := newRig(t)
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	slow, slowGuest := r.pair()
	var work sync.WaitGroup
	work.Go(func() {
		if _, err := slowGuest.Write(data); err != nil {
			t.Error(err)
		}
		slowGuest.CloseWrite()
	})
	var others sync.WaitGroup
	for range 60 {
		host, guest := r.pair()
		others.Go(func() { io.Copy(guest, guest); guest.CloseWrite() })
		others.Go(func() {
			go func() { host.Write(data[:1<<18]); host.CloseWrite() }()
			if got, err := io.ReadAll(host); err != nil || !bytes.Equal(got, data[:1<<18]) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
	others.Wait()
	if got, err := io.ReadAll(slow); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the slow one: %d bytes, %v", len(got), err)
	}
	work.Wait()
}

func TestTheEndResetsEverything(t *testing.T) {
	r := newRig(t)
	host, guest := r.pair()
	r.stop()
	<-r.ended
	readEnd(t, host, syscall.ECONNRESET)
	readEnd(t, guest, syscall.ECONNRESET)
	if _, err := net.Dial("tcp", r.at); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the port is still taken: %v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.reports) != 2 || !errors.Is(r.reports[0], syscall.ECONNREFUSED) || r.reports[1] != nil {
		t.Errorf("reports %v", r.reports)
	}
}

// All ports or none. The address is one that nobody else uses.
func TestListenOnAPortInUse(t *testing.T) {
	own := netip.MustParseAddr("127.83.77.1")
	listen := func(ports ...uint16) ([]*Listener, error) {
		var specs []Spec
		for _, p := range ports {
			specs = append(specs, Spec{netip.AddrPortFrom(own, p), 80})
		}
		return Listen(specs)
	}
	both, err := listen(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	Close(both[1:])
	defer Close(both[:1])
	taken, free := both[0].Host, both[1].Host
	if _, err := listen(free.Port(), taken.Port()); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), taken.String()) {
		t.Errorf("error %v", err)
	}
	again, err := listen(free.Port())
	if err != nil {
		t.Errorf("the other port was kept: %v", err)
	}
	Close(again)
}
