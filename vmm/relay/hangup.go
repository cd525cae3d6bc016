package relay

import (
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// hangupPoll is how often the connections of clients that are held back are looked at.
const hangupPoll = 200 * time.Millisecond

// errHangup is why a client that is held back is cleaned up.
var errHangup = errors.New("hung up with data the guest did not take")

// watchHangups finds the clients that have gone while their lane is full: nobody reads from their
// connection then, so nobody would notice.
func (r *Relay) watchHangups() {
	tick := time.NewTicker(hangupPoll)
	defer tick.Stop()
	for {
		select {
		case <-r.done:
			return
		case <-tick.C:
		}
		for _, c := range r.clients() {
			if c.heldBack.Load() && hungUp(c.conn) {
				c.close(errHangup)
				r.sched.abandon(c.lane)
			}
		}
	}
}

// hungUp says whether the other end of a connection is closed, whatever is still to be read from it.
func hungUp(conn net.Conn) bool {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return false
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(p, 0)
		gone = err == nil && n > 0 && p[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
	return gone || err != nil
}

// abandon lets whoever waits for room in a lane go.
func (s *scheduler) abandon(l *lane) {
	s.mu.Lock()
	l.abandoned = true
	l.room.Broadcast()
	s.mu.Unlock()
}
