// Package traffic tells what crosses the protocols of a sandbox: which method,
// how large, when, and whether it failed. Never what is in it.
//
// A Log keeps the last crossings while somebody watches; without a watcher it
// costs nothing. Watchers come over a socket that is only for the sandbox's owner
// and get JSON lines: pieces of the log as they come, bounded.
package traffic

import (
	"sync"
	"sync/atomic"
	"time"
)

// Wires.
const (
	Agent   = "agent"
	Control = "control"
)

// Crossing is one message, or one request with its answer.
type Crossing struct {
	Time    time.Time     `json:"t"`
	Wire    string        `json:"wire"`
	ToGuest bool          `json:"to_guest,omitempty"` // of the agent protocol
	Client  int           `json:"client,omitempty"`   // which of the relay's clients, from 0
	ID      uint32        `json:"id,omitempty"`       // that answers carry too
	Method  string        `json:"method"`
	Bytes   int           `json:"bytes,omitempty"` // on the wire; several records at once are one crossing
	Count   int           `json:"count,omitempty"` // how many were taken together; 0 is one
	Took    time.Duration `json:"took_nanos,omitempty"`
	Error   string        `json:"error,omitempty"` // a class or a message of ours, for control
}

// Bounds.
const (
	kept      = 1024 // crossings
	maxMethod = 64   // bytes of a name that somebody else chose
	maxError  = 200
)

// Log is the last crossings. The zero value is ready; a nil one wants nothing.
type Log struct {
	watchers atomic.Int32

	mu    sync.Mutex
	ring  [kept]Crossing
	total uint64 // crossings so far
	taken uint64 // of those that a watcher was told: they do not change any more
	wake  chan struct{}
}

// Wants tells whether anybody watches. It is for the path of all data.
func (l *Log) Wants() bool { return l != nil && l.watchers.Load() > 0 }

// Crossed adds a message of the agent protocol. What repeats, as records of one
// operation do, is counted in one crossing.
func (l *Log) Crossed(toGuest bool, client int, id uint32, method string, bytes int) {
	l.add(Crossing{Time: time.Now(), Wire: Agent, ToGuest: toGuest, Client: client, ID: id, Method: clip(method, maxMethod), Bytes: bytes})
}

// Done adds a request of the control protocol with its answer.
func (l *Log) Done(method string, took time.Duration, err error) {
	if !l.Wants() {
		return
	}
	c := Crossing{Time: time.Now(), Wire: Control, Method: clip(method, maxMethod), Took: took}
	if err != nil {
		c.Error = clip(err.Error(), maxError)
	}
	l.add(c)
}

func (l *Log) add(c Crossing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total > l.taken {
		last := &l.ring[(l.total-1)%kept]
		if last.Wire == c.Wire && last.ToGuest == c.ToGuest && last.Client == c.Client && last.ID == c.ID && last.Method == c.Method &&
			c.Took == 0 && c.Error == "" && c.Time.Sub(last.Time) < time.Second {
			last.Bytes += c.Bytes
			last.Count = max(last.Count, 1) + 1
			return
		}
	}
	l.ring[l.total%kept] = c
	l.total++
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
}

// since returns what came from number at on, and how many of them are gone.
func (l *Log) since(at uint64) (list []Crossing, next uint64, lost uint64, wake chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total-at > kept {
		lost = l.total - kept - at
		at += lost
	}
	for ; at < l.total; at++ {
		list = append(list, l.ring[at%kept])
	}
	l.taken = l.total
	if l.wake == nil && len(list) == 0 {
		l.wake = make(chan struct{})
	}
	return list, at, lost, l.wake
}

func (l *Log) watch() (at uint64, stop func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watchers.Add(1)
	return l.total - min(l.total, kept), func() { l.watchers.Add(-1) }
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n]
}
