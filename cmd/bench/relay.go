package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
	"msb/protocol/frame"
	"msb/vmm/relay"
)

const (
	relayBytes  = 1 << 30   // of one measurement
	relayRecord = 256 << 10 // of one raw record, as our client sends them
)

// relayed is a client with an open write and an open read, through a relay to a guest that only takes and gives bytes.
type relayed struct {
	relay  *relay.Relay
	served chan error
	client net.Conn
	guest  net.Conn
	write  uint32 // ids
	read   uint32
}

// throughput measures bulk data through the relay beside io.Copy between sockets of the same kinds.
func (b *bench) throughput(ctx context.Context, dir string) error {
	r, err := newRelayed(ctx, dir)
	if err != nil {
		return err
	}
	defer r.close()
	var up, down, copied []time.Duration
	for round := range b.rounds + 1 {
		c, err := copyThrough(dir)
		if err != nil {
			return err
		}
		u, err := pass(r.client, r.guest, record(r.write, frame.FlowHostToGuest))
		if err != nil {
			return err
		}
		d, err := pass(r.guest, r.client, record(r.read, frame.FlowGuestToHost))
		if err != nil {
			return err
		}
		if round > 0 {
			up, down, copied = append(up, u), append(down, d), append(copied, c)
		}
	}
	b.rows = append(b.rows,
		rateRow("relay: client to guest", relayBytes, median(up), median(copied), ">= 0.7 (io.Copy, same sockets)"),
		rateRow("relay: guest to client", relayBytes, median(down), median(copied), ">= 0.7 (io.Copy, same sockets)"),
	)
	return nil
}

func record(id uint32, flow uint8) []byte {
	b, err := frame.AppendBulk(nil, frame.Bulk{ID: id, Kind: frame.BulkFilesystem, Flow: flow, Payload: make([]byte, relayRecord)})
	if err != nil {
		panic(err) // it is a constant
	}
	return b
}

// pass sends rec again and again until relayBytes have arrived.
func pass(from io.Writer, to io.Reader, rec []byte) (time.Duration, error) {
	const count = relayBytes / relayRecord
	start := time.Now()
	sent := make(chan error, 1)
	go func() {
		for range count {
			if _, err := from.Write(rec); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	buf := make([]byte, 256<<10)
	for left := int64(count * len(rec)); left > 0; {
		n, err := to.Read(buf[:min(left, int64(len(buf)))])
		if left -= int64(n); err != nil {
			return 0, err
		}
	}
	return time.Since(start), <-sent
}

// copyThrough is pass with io.Copy in place of the relay.
func copyThrough(dir string) (time.Duration, error) {
	l, err := net.Listen("unix", filepath.Join(dir, "copy.sock"))
	if err != nil {
		return 0, err
	}
	defer l.Close()
	client, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		return 0, err
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		return 0, err
	}
	host, guest, err := portPair()
	if err != nil {
		server.Close()
		return 0, err
	}
	defer guest.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(host, server)
		host.Close()
		server.Close()
	}()
	d, err := pass(client, guest, record(1, frame.FlowHostToGuest))
	client.Close()
	<-done
	return d, err
}

// portPair is a port of a guest as the engines have it: both ends of a socket pair.
func portPair() (host, guest net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	var c [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "port")
		var ferr error
		c[i], ferr = net.FileConn(f)
		err = errors.Join(err, ferr, f.Close())
	}
	return c[0], c[1], err
}

func newRelayed(ctx context.Context, dir string) (*relayed, error) {
	host, guest, err := portPair()
	if err != nil {
		return nil, err
	}
	r := &relayed{guest: guest, served: make(chan error, 1)}
	booted := make(chan error, 1)
	go func() { booted <- answerBoot(guest) }()
	g, err := relay.Boot(ctx, host, nil, agent.BootstrapPayload{SecurityProfile: agent.SecurityDefault})
	if err == nil {
		err = <-booted
	}
	if err != nil {
		guest.Close()
		return nil, err
	}
	r.relay = relay.New(g, relay.Options{})
	l, err := relay.Listen(filepath.Join(dir, "relay.sock"))
	if err != nil {
		return nil, err
	}
	go func() { r.served <- r.relay.Serve(l) }()
	if r.client, err = net.Dial("unix", l.Addr().String()); err == nil {
		err = r.open()
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// answerBoot is the guest's side of the handshake.
func answerBoot(guest net.Conn) error {
	in := frame.NewReader(guest)
	for _, answer := range []struct {
		t agent.Type
		p any
	}{
		{agent.InitResolved, agent.InitResolvedPayload{}},
		{agent.Ready, agent.ReadyPayload{BootTimeNS: 1, InitTimeNS: 2, ReadyTimeNS: 3, AgentVersion: "bench"}},
	} {
		if _, err := in.Next(); err != nil {
			return err
		}
		b, err := agent.AppendFrame(nil, 0, answer.t, agent.Generation, answer.p)
		if err != nil {
			return err
		}
		if _, err := guest.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// open opens a write and a read, and takes their requests from the guest's side.
func (r *relayed) open() error {
	var head [12]byte
	if _, err := io.ReadFull(r.client, head[:]); err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, r.client, int64(binary.BigEndian.Uint32(head[8:]))); err != nil {
		return err
	}
	r.write = max(binary.BigEndian.Uint32(head[:]), 1)
	r.read = r.write + 1
	offer := agent.BulkOffer{Format: frame.BulkFormat, MaxRecordPayload: frame.DefaultBulkRecord}
	reading := offer
	reading.GuestToHostCreditLimit = frame.DefaultBulkWindow
	for id, q := range map[uint32]agent.FSRequestPayload{
		r.write: {Op: agent.OpWrite{Handle: 1}, Bulk: &offer},
		r.read:  {Op: agent.OpRead{Handle: 1}, Bulk: &reading},
	} {
		b, err := agent.AppendFrame(nil, id, agent.FSRequest, agent.Generation, q)
		if err != nil {
			return err
		}
		if _, err := r.client.Write(b); err != nil {
			return err
		}
		if _, err := io.ReadFull(r.guest, b); err != nil {
			return err
		}
		if got := binary.BigEndian.Uint32(b[4:]); got != id {
			return fmt.Errorf("request %d arrived as %d", id, got)
		}
	}
	return nil
}

func (r *relayed) close() {
	if r.client != nil {
		r.client.Close()
	}
	r.relay.Close()
	<-r.served
	r.guest.Close()
}
